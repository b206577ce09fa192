"""A greedy client takes all there is of something scarce, and a modest one does not notice: one test for each
row of the table in docs/guide/limits.md."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from headrace.gateway import Gateway
from headrace_lab.model import Source
from tests.attack import greedy
from tests.attack.greedy import Greedy, Modest
from tests.helpers.raw_peer import post
from tests.helpers.requests import PATH, script
from tests.helpers.serving import port_of
from tests.helpers.waiting import eventually

Start = Callable[..., Awaitable[Gateway]]

UPLOAD = b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: 1000\r\n\r\n"

ROWS: dict[str, tuple[dict[str, int], Greedy]] = {
    "silent TCP handshakes": ({"max_handshakes": 8}, greedy.silent_tcp(30)),
    "silent QUIC handshakes": (
        {"max_handshakes": 8, "retry_above_handshakes": 4},
        greedy.silent_quic(30),
    ),
    "idle connections": ({"max_connections": 12}, greedy.idle_connections(30)),
    "half a head over HTTP/1.1": ({"max_connections": 12}, greedy.http1_requests(30, UPLOAD[:20])),
    "half a head over HTTP/3": ({"max_waiting_heads": 8}, greedy.waiting_heads(3, 20)),
    "unread answers over HTTP/3": ({"max_exchanges": 24}, greedy.unread_answers(3, 20)),
    "unread answers over HTTP/2": (
        {"max_exchanges": 24},
        greedy.http2_requests(3, 20, script(events=100, interval_s=0, size=1000), window=0),
    ),
    "unread errors over HTTP/3": ({"max_exchanges": 24}, greedy.unread_answers(3, 20, post(b"/nowhere"))),
    "waiting uploads over HTTP/3": ({"max_exchanges": 24}, greedy.waiting_uploads(3, 20)),
    "waiting uploads over HTTP/2": (
        {"max_exchanges": 24},
        greedy.http2_requests(3, 20),
    ),
    "waiting uploads over HTTP/1.1": ({"max_exchanges": 24}, greedy.http1_requests(60, UPLOAD)),
    "bodies that fill the memory": (
        {"max_body_bytes": 200_000, "max_buffered_bytes": 400_000},
        greedy.waiting_uploads(4, 6, b"x" * 40_000),
    ),
}


@pytest.mark.parametrize(("limits", "hold"), ROWS.values(), ids=ROWS.keys())
async def test_a_greedy_client_locks_nobody_out(
    limits: dict[str, int], hold: Greedy, source: Source, start: Start, ca_file: Path
) -> None:
    """All clients come from one address: what waits longest goes, whoever holds it."""
    gateway = await start(source, limits=limits)
    modest = Modest(port_of(gateway), ca_file)
    await modest.ask(1, PATH)
    async with hold(port_of(gateway)):
        await modest.ask(5)
        await modest.ask(3, PATH)
        assert gateway.server.snapshot()["displaced_total"] > 0, "the limit was reached"
    assert modest.served == 4 * (1 + 5 + 3)


async def test_what_a_greedy_client_held_is_given_back(source: Source, start: Start) -> None:
    """Its places, and the memory of its bodies."""
    gateway = await start(source)
    held = greedy.waiting_uploads(2, 20, b"x" * 4000)
    async with held(port_of(gateway)):
        await eventually(lambda: gateway.server.snapshot()["exchanges"] == 40)
        await eventually(lambda: gateway.server.snapshot()["buffered_bytes"] >= 40 * 4000)
    await eventually(lambda: gateway.server.snapshot()["exchanges"] == 0)
    await eventually(lambda: gateway.server.snapshot()["buffered_bytes"] == 0)


def test_what_the_gateway_answers_anybody_is_what_the_engine_takes_for_a_probe() -> None:
    """The reserve of probes is for the pages that need no key."""
    from headrace.config.engine import PROBE_PATHS
    from headrace.gateway import pages

    assert list(pages.OPEN) == PROBE_PATHS
