"""Connections to model servers are there before a request needs them, as many as are used."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from headrace.client import Connection
from headrace.gateway import Gateway
from headrace_lab.model import Source
from tests.helpers.requests import JSON, script
from tests.helpers.waiting import eventually

Start = Callable[..., Awaitable[Gateway]]
Dial = Callable[..., Awaitable[Connection]]


async def ask(connection: Connection, events: int = 1, interval_s: float = 0) -> None:
    await connection.request("POST", "/v1/x", JSON, script(events=events, interval_s=interval_s)).read()


def pooled(gateway: Gateway) -> int:
    return gateway.server.snapshot()["pooled_upstreams"]


async def test_what_the_model_server_closed_is_opened_again(start: Start, dial: Dial) -> None:
    """The next request finds a connection, and pays for none."""
    async with Source() as source:
        gateway = await start(source, listen={"workers": 1}, pool={"idle_s": 60})
        connection = await dial(gateway)
        await ask(connection)
        for transport in list(source._transports):
            transport.abort()
        before = source.connections
        await eventually(lambda: pooled(gateway) == 1 and source.connections == before + 1)
        await ask(connection)
        assert source.connections == before + 1
        assert source.runs[-1].connection == before + 1


async def test_a_connection_is_renewed_before_it_is_too_old(start: Start, dial: Dial) -> None:
    async with Source() as source:
        gateway = await start(source, listen={"workers": 1}, pool={"idle_s": 2})
        await ask(await dial(gateway))
        before = source.connections
        await eventually(lambda: source.connections >= before + 2)
        assert len(source.runs) == 1


async def test_as_many_are_ready_as_were_used_at_one_time(start: Start, dial: Dial) -> None:
    """Shared out among the workers: which of them the next client comes to is chance."""
    async with Source() as source:
        gateway = await start(source, listen={"workers": 2}, pool={"idle_s": 60})
        connection = await dial(gateway)
        await asyncio.gather(*(ask(connection, 5, 0.05) for _ in range(6)))
        await eventually(lambda: source.open_connections == 9)
        # All six of the worker that was asked, three of the other; and not more as time goes by.
        await asyncio.sleep(2.5)
        assert source.open_connections == 9


async def test_every_worker_has_one(start: Start, dial: Dial) -> None:
    async with Source() as source:
        gateway = await start(source, listen={"workers": 4}, pool={"idle_s": 60})
        await ask(await dial(gateway))
        await eventually(lambda: pooled(gateway) == 4)


async def test_a_model_server_that_nobody_uses_is_left_alone(start: Start, dial: Dial) -> None:
    """What its health check opened is closed, and nothing else was opened."""
    async with Source() as used, Source(models=("other",)) as unused:
        upstreams: list[dict[str, Any]] = [
            {"url": source.url, "models": [name], "health_interval_s": 3600}
            for source, name in ((used, "x"), (unused, "y"))
        ]
        gateway = await start(used, upstreams=upstreams, pool={"idle_s": 0.5, "warm_s": 2})
        before = unused.connections
        await ask(await dial(gateway))
        await eventually(lambda: pooled(gateway) == 0 and used.open_connections == 0)
        assert unused.connections == before
        seen = used.connections
        await asyncio.sleep(1.5)
        assert used.connections == seen


async def test_nothing_is_kept_ready_without_a_time(start: Start, dial: Dial) -> None:
    async with Source() as source:
        gateway = await start(source, listen={"workers": 4}, pool={"idle_s": 60, "warm_s": 0})
        await ask(await dial(gateway))
        await asyncio.sleep(2.5)
        assert pooled(gateway) <= 2


@pytest.mark.parametrize("protocol", ["auto", "http1", "http2"])
async def test_connections_over_tls_are_ready_too(
    start: Start, dial: Dial, ca_file: Any, protocol: str
) -> None:
    """A gateway before a gateway: when the first has been asked, each of its workers has a connection."""
    async with Source() as source:
        behind = await start(source, listen={"workers": 1})
        url = f"https://localhost:{behind.server.address[1]}"
        upstream = {"url": url, "models": ["*"], "protocol": protocol, "health_interval_s": 3600}
        pool = {"ca_file": ca_file, "idle_s": 60}
        gateway = await start(source, listen={"workers": 3}, upstreams=[upstream], pool=pool)
        await ask(await dial(gateway))
        await eventually(lambda: behind.server.snapshot()["connections"] == 3)
        await asyncio.sleep(2.5)
        assert behind.server.snapshot()["connections_total"] == 3
