"""What the echo does is counted, where both sides can see it (docs/echo.md)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from headrace.client import Connection, Trust, connect
from headrace.gateway import Gateway
from headrace.observe.outcome import Outcome
from headrace_lab.model import Source
from tests.helpers.requests import JSON, script
from tests.helpers.serving import port_of
from tests.helpers.udp_relay import UdpRelay
from tests.helpers.waiting import eventually

Start = Callable[..., Awaitable[Gateway]]


@pytest.fixture
def outcomes(monkeypatch: pytest.MonkeyPatch) -> list[Outcome]:
    """What the access log is told of each request."""
    seen: list[Outcome] = []
    write = "headrace.observe.log.Access.write"
    monkeypatch.setattr(write, lambda _self, _exchange, outcome, _seconds: seen.append(outcome))
    return seen


async def ask(connection: Connection, streams: int = 4) -> None:
    """Tokens of several streams are close together, so that the echo sees which packets its copies saved."""
    body = script(events=150, interval_s=0.004)
    requests = [connection.request("POST", "/v1/x", JSON, body) for _ in range(streams)]
    await asyncio.gather(*(request.read() for request in requests))


async def test_copies_and_repairs_are_counted_of_each_connection(
    start: Start, source: Source, trust: Trust, outcomes: list[Outcome]
) -> None:
    """In the relay's report, the client's own numbers, and the gateway's sums; also beyond a move."""
    gateway = await start(source, listen={"workers": 1}, echo={"mode": "on"})
    async with UdpRelay(port_of(gateway)) as relay:
        connection = await connect(f"https://localhost:{relay.port}", trust)
        relay.loses_every = 9
        await ask(connection)
        await eventually(lambda: len(outcomes) == 4)
        seen = dict(outcomes[-1].report.transport) if outcomes[-1].report else {}
        assert seen["echo_copies"] > 100
        assert seen["echo_copied_bytes"] > seen["echo_copies"] * 100
        assert seen["echo_repaired"] > 0
        assert seen["sent_packets"] > seen["lost_packets"] >= 0
        assert seen["rtt"] > 0.02
        client = connection.stats()
        assert client["echo_copies"] > 0
        await relay.move("127.0.0.2")
        await ask(connection)
        await eventually(lambda: len(outcomes) == 8)
        later = dict(outcomes[-1].report.transport) if outcomes[-1].report else {}
        assert later["echo_copies"] > seen["echo_copies"] + 100
        sums = gateway.server.snapshot()
        for name in ("copies", "copied_bytes", "repaired", "doubtful"):
            assert sums[f"echo_{name}_total"] >= later[f"echo_{name}"] >= seen[f"echo_{name}"]
        connection.close()


async def test_without_an_echo_nothing_is_counted(
    start: Start, source: Source, trust: Trust, outcomes: list[Outcome]
) -> None:
    gateway = await start(source, echo={"mode": "off"})
    connection = await connect(f"https://localhost:{port_of(gateway)}", trust)
    await ask(connection, 1)
    await eventually(lambda: len(outcomes) == 1)
    seen = dict(outcomes[-1].report.transport) if outcomes[-1].report else {}
    assert seen["sent_packets"] > 0
    assert seen["echo_copies"] == gateway.server.snapshot()["echo_copies_total"] == 0
    connection.close()
