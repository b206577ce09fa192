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
from tests.helpers.udp_relay import WAY_BACK_S, UdpRelay
from tests.helpers.waiting import eventually

MOST_TURNS = 20
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
    answers = await asyncio.gather(*(request.read() for request in requests))
    assert all(answer.endswith(b"data: [DONE]\n\n") for answer in answers)


async def ask_until(connection: Connection, condition: Callable[[], bool], what: str) -> None:
    """Asks again until it is so: how soon depends on the machine, that it becomes so does not."""
    for _ in range(MOST_TURNS):
        await ask(connection)
        if condition():
            return
    raise AssertionError(what)


async def test_copies_and_repairs_are_counted_of_each_connection(
    start: Start, source: Source, trust: Trust, outcomes: list[Outcome]
) -> None:
    """In the relay's report, the client's own numbers, and the gateway's sums, to the byte; also beyond a
    move. Every ninth packet is lost when it first comes, and whole answers arrive all the same."""
    gateway = await start(source, listen={"workers": 1}, echo={"mode": "on"})

    def last() -> dict[str, float]:
        report = outcomes[-1].report if outcomes else None
        return dict((report and report.transport) or {})

    def sums(name: str) -> float:
        return gateway.server.snapshot()[f"echo_{name}_total"]

    async with UdpRelay(port_of(gateway)) as relay:

        def are_all_counted() -> bool:
            return sums("copied_bytes") == sum(map(len, relay.copies))

        connection = await connect(f"https://localhost:{relay.port}", trust)
        relay.loses_every = 9
        await ask_until(connection, lambda: last().get("echo_repaired", 0) > 0, "no repair was seen")
        await eventually(are_all_counted, "what the relay saw twice is what was counted")
        seen = last()
        assert 0 < seen["echo_repaired"] <= len(relay.lost & set(relay.copies))
        assert 0 < seen["echo_copies"] <= len(relay.copies)
        assert seen["sent_packets"] > seen["lost_packets"] >= 0
        assert seen["rtt"] >= WAY_BACK_S
        assert connection.stats()["echo_copies"] > 0
        await relay.move("127.0.0.2")
        before = len(relay.copies)
        await ask_until(connection, lambda: len(relay.copies) > before, "nothing is copied beyond the move")
        await ask_until(
            connection, lambda: last()["echo_copies"] > seen["echo_copies"], "not counted any more"
        )
        # What was on its way to the old address nobody has seen.
        assert sums("copied_bytes") >= sum(map(len, relay.copies))
        for name in ("copies", "copied_bytes", "repaired", "doubtful"):
            assert sums(name) >= last()[f"echo_{name}"] >= seen[f"echo_{name}"]
        connection.close()


async def test_without_an_echo_nothing_is_counted(
    start: Start, source: Source, trust: Trust, outcomes: list[Outcome]
) -> None:
    gateway = await start(source, echo={"mode": "off"})
    connection = await connect(f"https://localhost:{port_of(gateway)}", trust)
    await ask(connection, 1)
    await eventually(lambda: len(outcomes) == 1)
    seen = (outcomes[-1].report and outcomes[-1].report.transport) or {}
    assert seen["sent_packets"] > 0
    assert seen["echo_copies"] == gateway.server.snapshot()["echo_copies_total"] == 0
    connection.close()
