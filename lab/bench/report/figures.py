"""How figures are written, in all parts of the page."""

from __future__ import annotations

from typing import Any

PEERS = ("caddy", "envoy")


def quantiles(values: dict[str, Any]) -> str:
    shown = (values[name] for name in ("p50", "p90", "p99", "max"))
    return " | ".join("" if value is None else f"{value:.3f}" for value in shown)
