"""What the gateway answers itself.

In: a path. Out: the function that answers it, or nothing: then it is relayed.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

from headrace.exchange import Exchange
from headrace.gateway import models
from headrace.gateway.answers import send_error, send_json, status_of
from headrace.gateway.upstreams import Upstream
from headrace.printable import clipped


class State(NamedTuple):
    """What the pages tell of a gateway."""

    upstreams: list[Upstream]
    is_serving: bool
    """It has looked at its upstreams once, and is not going away."""
    is_let_in: bool
    """Whoever asks has a key, or none is required: what stands behind the gateway may be told."""


Page = Callable[[State, Exchange], Awaitable[int]]
"""Answers an exchange; returns the status."""


async def healthz(state: State, exchange: Exchange) -> int:
    """The process runs."""
    await send_json(exchange, 200, {"status": "ok"})
    return 200


async def readyz(state: State, exchange: Exchange) -> int:
    """Requests can be answered: not before the first look at the upstreams, and not while all of them are
    unhealthy. Which there are is told to those who are let in."""
    healthy = [upstream for upstream in state.upstreams if upstream.is_healthy]
    is_ready = state.is_serving and bool(healthy)
    status = 200 if is_ready else 503
    told: dict[str, Any] = {"status": "ready" if is_ready else "not ready"}
    if state.is_let_in:
        told["upstreams"] = {
            upstream.name: {
                "healthy": upstream.is_healthy,
                "in_flight": upstream.in_flight,
                "models": list(upstream.models),
                **({} if upstream.knows_models else {"models_unknown": upstream.unknown_because}),
            }
            for upstream in state.upstreams
        }
    await send_json(exchange, status, told)
    return status


async def list_models(state: State, exchange: Exchange) -> int:
    await send_json(exchange, 200, models.merged(state.upstreams))
    return 200


async def one_model(state: State, exchange: Exchange) -> int:
    path = exchange.request.path
    if (entry := models.entry(state.upstreams, path)) is not None:
        await send_json(exchange, 200, entry)
        return 200
    message = f"no upstream is known to serve the model {clipped(path.removeprefix('/v1/models/'))!r}"
    for upstream, reason in models.unknown(state.upstreams).items():
        message += f"; of upstream {upstream} no models are known: {clipped(reason)}"
    await send_error(exchange, "model_not_found", message, "model")
    return status_of("model_not_found")


OPEN: dict[str, Page] = {"/healthz": healthz, "/readyz": readyz}
"""For anybody: probes have no key."""

PRIVATE: dict[str, Page] = {"/v1/models": list_models}
"""For those who have a key, where keys are required."""


def private_page(method: str, path: str) -> Page | None:
    if method not in ("GET", "HEAD"):
        return None
    if path.startswith("/v1/models/"):
        return one_model
    return PRIVATE.get(path)


def open_page(method: str, path: str) -> Page | None:
    return OPEN.get(path) if method in ("GET", "HEAD") else None
