"""What became of one request: filled in by the gateway, read by the access log."""

from __future__ import annotations

from dataclasses import dataclass

from headrace.exchange import RelayReport


@dataclass
class Outcome:
    status: int | None = None
    """The gateway's own status; `None` when an upstream's answer was relayed."""
    cause: str | None = None
    """Why the gateway answered itself; `None` when `report` says how it went."""
    is_early: bool = False
    """It came in early data."""
    is_joined: bool = False
    """It was told an answer that another request with the same `Idempotency-Key` began."""
    key: str | None = None
    """Name of the API key."""
    model: str | None = None
    upstream: str | None = None
    """The last one asked."""
    report: RelayReport | None = None
