"""Requests with an `Idempotency-Key`: one generation, told to everybody who asks for it with that key."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from headrace.client import Connection
from headrace.errors import StreamResetError
from headrace.gateway import Gateway
from headrace_lab.model import Source
from tests.helpers import raw_peer
from tests.helpers.answers import is_whole
from tests.helpers.requests import JSON, script
from tests.helpers.serving import httpx_client, origin, port_of
from tests.helpers.waiting import eventually

Start = Callable[..., Awaitable[Gateway]]
Dial = Callable[..., Awaitable[Connection]]
PATH = "/v1/chat/completions"
KEYED = [*JSON, ("idempotency-key", "one")]


async def test_a_second_request_joins_the_answer_that_runs(
    gateway: Gateway, dial: Dial, source: Source
) -> None:
    """From its first byte, though it comes in the middle."""
    first, second = await dial(gateway), await dial(gateway)
    body = script(events=60, interval_s=0.005)
    begun = first.request("POST", PATH, KEYED, body)
    await eventually(lambda: len(begun.arrivals) >= 20)
    joined = second.request("POST", PATH, KEYED, body)
    bodies = await asyncio.gather(begun.read(), joined.read())
    assert is_whole(bodies[0], 60)
    assert bodies[0] == bodies[1]
    assert len(joined.arrivals) == len(begun.arrivals)
    assert joined.headers == begun.headers
    assert len(source.runs) == 1
    assert gateway.answers.attached == 1


async def test_one_that_has_ended_is_told_again(
    gateway: Gateway, dial: Dial, source: Source, ca_file: Path
) -> None:
    """Over any protocol."""
    connection = await dial(gateway)
    body = script(events=5)
    told = [await connection.request("POST", PATH, KEYED, body).read() for _ in range(2)]
    async with httpx_client(ca_file, http2=True) as client:
        answer = await client.post(origin(gateway) + PATH, content=body, headers=dict(KEYED))
        told.append(answer.content)
    assert is_whole(told[0], 5)
    assert told[0] == told[1] == told[2]
    assert len(source.runs) == 1


async def test_the_answer_goes_on_while_anybody_follows(gateway: Gateway, dial: Dial, source: Source) -> None:
    """Who asked first stops; who joined has it whole."""
    first, second = await dial(gateway), await dial(gateway)
    body = script(events=60, interval_s=0.005)
    begun = first.request("POST", PATH, KEYED, body)
    await eventually(lambda: len(begun.arrivals) >= 10)
    joined = second.request("POST", PATH, KEYED, body)
    await eventually(lambda: len(joined.arrivals) >= 10)
    begun.stop()
    assert is_whole(await joined.read(), 60)
    assert source.runs[0].aborted_ns is None


async def test_the_last_stop_ends_the_generation(gateway: Gateway, dial: Dial, source: Source) -> None:
    """Stop means stop: with a key, too."""
    connection = await dial(gateway)
    body = script(events=5000, interval_s=0.005)
    streams = [connection.request("POST", PATH, KEYED, body) for _ in range(3)]
    for stream in streams:
        await eventually(lambda stream=stream: len(stream.arrivals) >= 5)  # type: ignore[misc]
    streams[0].stop()
    streams[1].stop()
    await asyncio.sleep(0.05)
    assert source.runs[0].aborted_ns is None
    streams[2].stop()
    await eventually(lambda: source.runs[0].aborted_ns is not None)
    assert len(source.runs) == 1


async def test_a_lost_client_comes_back_with_its_key(start: Start, dial: Dial, ca_file: Path) -> None:
    """HTTP/1.1 cannot say stop: its connection's end is a loss, and the generation waits a while."""
    async with Source() as source:
        gateway = await start(source)
        body = script(events=80, interval_s=0.005)
        async with httpx_client(ca_file, http2=False) as client:
            async with client.stream(
                "POST", origin(gateway) + PATH, content=body, headers=dict(KEYED)
            ) as answer:
                await anext(answer.aiter_bytes())
        connection = await dial(gateway)
        again = connection.request("POST", PATH, KEYED, body)
        assert is_whole(await again.read(), 80)
        assert len(source.runs) == 1


async def test_a_lost_client_that_stays_away_ends_the_generation(start: Start, ca_file: Path) -> None:
    async with Source() as source:
        gateway = await start(source, idempotency={"lost_s": 0.1})
        body = script(events=5000, interval_s=0.005)
        async with httpx_client(ca_file, http2=False) as client:
            async with client.stream(
                "POST", origin(gateway) + PATH, content=body, headers=dict(KEYED)
            ) as answer:
                await anext(answer.aiter_bytes())
        await eventually(lambda: source.runs[0].aborted_ns is not None)


async def test_a_key_is_for_one_request(gateway: Gateway, dial: Dial, source: Source) -> None:
    """Another body with the same key: 422."""
    connection = await dial(gateway)
    await connection.request("POST", PATH, KEYED, script(events=2)).read()
    other = connection.request("POST", PATH, KEYED, script(events=3))
    assert await other.head() == 422
    assert b"idempotency_key_reused" in await other.read()
    assert len(source.runs) == 1


async def test_a_key_belongs_to_who_used_it(gateway: Gateway, dial: Dial, source: Source) -> None:
    """Nobody gets another's answer by guessing a key."""
    connection = await dial(gateway)
    for token in ("alice", "bob"):
        fields = [*KEYED, ("authorization", f"Bearer {token}")]
        await connection.request("POST", PATH, fields, script(events=2)).read()
    assert len(source.runs) == 2


async def test_a_failed_answer_can_be_asked_for_again(gateway: Gateway, dial: Dial, source: Source) -> None:
    """What never began leaves no trace of its key."""
    connection = await dial(gateway)
    failed = connection.request("POST", PATH, KEYED, script(end="no_head"))
    assert await failed.head() == 502
    assert b"upstream_closed" in await failed.read()
    assert len(gateway.answers) == 0
    again = connection.request("POST", PATH, KEYED, script(end="no_head"))
    assert await again.head() == 502
    assert len(source.runs) >= 2


async def test_an_answer_that_breaks_off_breaks_off_for_all(
    gateway: Gateway, dial: Dial, source: Source
) -> None:
    """With its error event, and never a clean end."""
    connection = await dial(gateway)
    body = script(events=20, interval_s=0.005, end="reset")
    streams = [connection.request("POST", PATH, KEYED, body) for _ in range(2)]
    for stream in streams:
        got = b""
        try:
            async for batch in stream.chunks():
                got += b"".join(chunk.data for chunk in batch)
        except Exception as error:
            assert "reset" in str(error)  # noqa: PT017
        else:
            raise AssertionError("it looked complete")
        assert b"upstream_closed" in got
    assert len(source.runs) == 1


async def test_a_long_answer_cannot_be_joined_from_its_beginning(start: Start, dial: Dial) -> None:
    """The record is bounded; who comes too late is told so, and nothing is generated twice."""
    async with Source() as source:
        gateway = await start(source, idempotency={"answer_bytes": 2048})
        connection = await dial(gateway)
        body = script(events=100)
        assert is_whole(await connection.request("POST", PATH, KEYED, body).read(), 100)
        late = connection.request("POST", PATH, KEYED, body)
        assert await late.head() == 409
        assert len(source.runs) == 1


async def test_records_are_bounded(start: Start, dial: Dial) -> None:
    """Old ones make room; when all of them run, a further key is refused."""
    async with Source() as source:
        bounds = {"answer_bytes": 2048, "max_bytes": 10_000}
        gateway = await start(source, idempotency=bounds)
        connection = await dial(gateway)
        for number in range(6):
            fields = [*JSON, ("idempotency-key", str(number))]
            await connection.request("POST", PATH, fields, script(events=20)).read()
        assert len(gateway.answers) <= 3
        running = []
        for number in range(4):
            fields = [*JSON, ("idempotency-key", f"long {number}")]
            running.append(connection.request("POST", PATH, fields, script(events=1000, interval_s=0.002)))
            if number < 3:
                await eventually(lambda: len(running[-1].arrivals) >= 15)
        assert await running[-1].head() == 503
        for stream in running:
            stream.stop()


async def test_a_long_answer_is_told_again_whole(gateway: Gateway, dial: Dial, source: Source) -> None:
    """More than a stream's budget: what waits behind it follows."""
    connection = await dial(gateway)
    body = script(events=3000, interval_s=0)
    told = [await connection.request("POST", PATH, KEYED, body).read() for _ in range(2)]
    assert is_whole(told[0], 3000)
    assert told[0] == told[1]
    assert len(source.runs) == 1


@pytest.mark.parametrize("framing", ["sse", "raw"])
async def test_an_answer_may_be_longer_than_what_is_kept(
    gateway: Gateway, dial: Dial, source: Source, framing: str
) -> None:
    """However fast the model server is: the client paces it, and misses nothing."""
    connection = await dial(gateway)
    answer = connection.request("POST", PATH, KEYED, script(events=20_000, interval_s=0, framing=framing))
    body = await answer.read()
    assert len(body) == source.runs[0].sent_bytes > 3 * gateway.config.idempotency.answer_bytes


async def test_nobody_reads_and_the_model_server_waits(gateway: Gateway, dial: Dial, source: Source) -> None:
    """A record does not take what its only client has not taken."""
    connection = await dial(gateway)
    # Far more than the kernel holds between us and the model server.
    answer = connection.request("POST", PATH, KEYED, script(events=200_000, interval_s=0))
    await answer.head()
    await eventually(lambda: source.runs[0].paused)
    bounds = gateway.config.idempotency
    kept = bounds.answer_bytes + bounds.unread_bytes
    for _ in range(20):
        assert gateway.answers.bytes < 2 * kept
        await asyncio.sleep(0.01)
    assert source.running()
    answer.stop()
    await eventually(lambda: not source.running())


async def test_who_has_left_before_the_answer_was_asked_for_ends_it(gateway: Gateway, source: Source) -> None:
    """Its stop comes with its request: nothing is generated for nobody."""
    async with raw_peer.dial(port_of(gateway)) as peer:
        peer.start_control()
        fields = (*raw_peer.post(), (b"idempotency-key", b"one"))
        for _ in range(20):
            stream = peer._quic.get_next_available_stream_id()
            head = raw_peer.frame(raw_peer.HEADERS, raw_peer.section(*fields))
            body = script(events=5000, interval_s=0.005)
            peer._quic.send_stream_data(stream, head + raw_peer.frame(raw_peer.DATA, body), True)
            peer._quic.stop_stream(stream, 0x10C)
            peer.transmit()
            await asyncio.sleep(0.01)
        await eventually(lambda: gateway.server.snapshot()["exchanges"] == 0)
        await eventually(lambda: not source.running())
        await eventually(lambda: len(gateway.answers) == 0)


async def test_an_answer_that_may_come_out_better_is_asked_for_again(
    gateway: Gateway, dial: Dial, source: Source
) -> None:
    """SDKs repeat a 429, a 5xx and a broken answer by themselves, with the same key."""
    connection = await dial(gateway)
    for number, fields in enumerate(({"status": 429}, {"status": 503}, {"end": "reset"})):
        keyed = [*JSON, ("idempotency-key", f"key {number}")]
        for _ in range(2):
            with contextlib.suppress(StreamResetError):
                await connection.request("POST", PATH, keyed, script(events=1, **fields)).read()
    assert len(source.runs) == 6
    assert len(gateway.answers) == 0


async def test_all_that_run_are_bounded_together(start: Start, dial: Dial) -> None:
    """Who grows beyond the bound keeps less for others to join; its own client misses nothing."""
    async with Source() as source:
        bounds = {"answer_bytes": 65_536, "max_bytes": 300_000}
        gateway = await start(source, idempotency=bounds)
        connection = await dial(gateway)
        body = script(events=300, interval_s=0.005, head_delay_s=0.3)
        answers = []
        for number in range(60):
            keyed = [*JSON, ("idempotency-key", str(number))]
            answers.append(asyncio.create_task(connection.request("POST", PATH, keyed, body).read()))
        most = 0
        while not all(answer.done() for answer in answers):
            most = max(most, gateway.answers.bytes)
            await asyncio.sleep(0.01)
        assert all(is_whole(answer.result(), 300) for answer in answers)
        # What its client has not been told yet is beside it.
        assert most < 2 * 300_000
        assert gateway.answers.bytes < 400_000


async def test_no_request_looks_at_all_that_are_kept(gateway: Gateway, dial: Dial, source: Source) -> None:
    """An empty answer costs something, too: there cannot be any number of them."""
    connection = await dial(gateway)
    for number in range(50):
        keyed = [*JSON, ("idempotency-key", str(number))]
        await connection.request("POST", PATH, keyed, script(events=0, framing="raw")).read()
    await eventually(lambda: len(gateway.answers) == 50)
    assert gateway.answers.bytes > 50 * 1024


async def test_all_who_are_told_an_answer_that_is_cut_are_logged_so(
    start: Start, dial: Dial, source: Source, caplog: pytest.LogCaptureFixture
) -> None:
    """Who joined, too: it was the gateway's doing, not the model server's."""
    caplog.set_level(logging.INFO, "headrace.access")
    gateway = await start(source, timeouts={"drain_s": 0.2})
    connection = await dial(gateway)
    body = script(events=5000, interval_s=0.005)
    answers = [connection.request("POST", PATH, KEYED, body) for _ in range(3)]
    for answer in answers:
        await eventually(lambda answer=answer: answer.arrivals)  # type: ignore[misc]
    drained = asyncio.create_task(gateway.drain())
    for answer in answers:
        with pytest.raises(StreamResetError):
            await answer.read()
    assert await drained == 3
    assert caplog.text.count(" 200 cut ") == caplog.text.count("error=gateway_draining") == 3
    assert caplog.text.count("joined=True") == 2


async def test_who_asks_again_right_after_a_stop_has_it_whole(
    gateway: Gateway, dial: Dial, source: Source
) -> None:
    """Whether the generation is still there to be joined, or on its way out."""
    first, second = await dial(gateway), await dial(gateway)
    for number in range(50):
        keyed = [*JSON, ("idempotency-key", str(number))]
        body = script(events=30, interval_s=0.002)
        stopped = first.request("POST", PATH, keyed, body)
        await eventually(lambda stopped=stopped: stopped.arrivals)  # type: ignore[misc]
        stopped.stop()
        await asyncio.sleep(number % 10 * 0.0002)
        assert is_whole(await second.request("POST", PATH, keyed, body).read(), 30)
