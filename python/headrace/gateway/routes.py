"""What the gateway answers itself.

In: a path. Out: the function that answers it, or nothing: then it is relayed.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from headrace.exchange import Exchange
from headrace.gateway import models
from headrace.gateway.answers import send_error, send_json, status_of

if TYPE_CHECKING:
    from headrace.gateway.app import Gateway

Page = Callable[["Gateway", Exchange], Awaitable[int]]


async def healthz(gateway: Gateway, exchange: Exchange) -> int:
    """The process runs."""
    await send_json(exchange, 200, {"status": "ok"})
    return 200


async def readyz(gateway: Gateway, exchange: Exchange) -> int:
    """Requests can be answered: not before the first look at the upstreams, and not while all of them are
    unwell."""
    well = [upstream for upstream in gateway.upstreams.all if upstream.is_healthy]
    is_ready = gateway.is_started and bool(well) and not gateway.is_draining
    status = 200 if is_ready else 503
    state = {
        upstream.name: {
            "healthy": upstream.is_healthy,
            "in_flight": upstream.in_flight,
            "models": upstream.models,
        }
        for upstream in gateway.upstreams.all
    }
    await send_json(exchange, status, {"status": "ready" if is_ready else "not ready", "upstreams": state})
    return status


async def list_models(gateway: Gateway, exchange: Exchange) -> int:
    await send_json(exchange, 200, models.merged(gateway.upstreams.all))
    return 200


async def one_model(gateway: Gateway, exchange: Exchange) -> int:
    name = exchange.request.path.removeprefix("/v1/models/")
    found = [entry for entry in models.merged(gateway.upstreams.all)["data"] if entry["id"] == name]
    if found:
        await send_json(exchange, 200, found[0])
        return 200
    await send_error(exchange, "model_not_found", f"no upstream serves the model {name!r}", "model")
    return status_of("model_not_found")


OPEN: dict[str, Page] = {"/healthz": healthz, "/readyz": readyz}
"""For anybody: probes have no key."""

KEYED: dict[str, Page] = {"/v1/models": list_models}


def keyed_page(method: str, path: str) -> Page | None:
    if method not in ("GET", "HEAD"):
        return None
    if path.startswith("/v1/models/"):
        return one_model
    return KEYED.get(path)


def open_page(method: str, path: str) -> Page | None:
    return OPEN.get(path) if method in ("GET", "HEAD") else None
