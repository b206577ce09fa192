"""One answer on its way from the upstream: every byte, one frame per event, an honest end."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
from collections.abc import Awaitable, Callable
from pathlib import Path

import httpx2
import pytest

from headrace.client import Connection
from headrace.errors import StreamResetError
from headrace.gateway import Gateway
from headrace_lab.model import Source
from headrace_lab.model.script import CONTENT_TYPE
from tests.helpers.answers import expected, frames
from tests.helpers.requests import JSON, PATH, script
from tests.helpers.serving import httpx_client, origin
from tests.helpers.waiting import eventually

Start = Callable[..., Awaitable[Gateway]]
Dial = Callable[..., Awaitable[Connection]]


@pytest.mark.parametrize("body", ["chunked", "length", "close"])
@pytest.mark.parametrize("framing", ["sse", "ndjson"])
async def test_every_byte_arrives_and_every_event_is_one_frame(
    framing: str, body: str, gateway: Gateway, dial: Dial
) -> None:
    fields = {"events": 50, "interval_s": 0.001, "framing": framing, "body": body}
    response = (await dial(gateway)).request("POST", PATH, JSON, script(**fields))
    assert await response.head() == 200
    chunks = [chunk async for batch in response.chunks() for chunk in batch]
    whole = b"".join(chunk.data for chunk in chunks)
    assert whole == expected(whole, **fields)
    assert len(frames(chunks)) == 50 + (framing == "sse")


async def test_other_bodies_pass_as_they_come(gateway: Gateway, dial: Dial) -> None:
    fields = {"events": 20, "interval_s": 0.001, "framing": "raw"}
    response = (await dial(gateway)).request("POST", PATH, JSON, script(**fields))
    whole = await response.read()
    assert whole.count(b'"n":') == 20
    assert response.header("content-type") == CONTENT_TYPE["raw"]
    assert len(whole) == 20 * 190


@pytest.mark.parametrize("http2", [True, False])
async def test_the_same_bytes_over_tcp(http2: bool, gateway: Gateway, ca_file: Path) -> None:
    fields = {"events": 50, "interval_s": 0.001}
    async with httpx_client(ca_file, http2) as client:
        answer = await client.post(origin(gateway) + PATH, content=script(**fields), headers=dict(JSON))
        assert answer.content == expected(answer.content, **fields)
        assert "transfer-encoding" not in answer.headers or not http2


ENDINGS = ["die", "reset", "half", "bad_chunk"]


@pytest.mark.parametrize("framing", ["sse", "ndjson", "raw"])
@pytest.mark.parametrize("end", ENDINGS)
async def test_an_upstreams_death_is_told_and_never_looks_like_an_end(
    end: str, framing: str, source: Source, gateway: Gateway, dial: Dial
) -> None:
    """Every event, an error event where the framing has a place for one, then a reset: never FIN."""
    connection = await dial(gateway)
    body = script(events=5, interval_s=0.002, framing=framing, end=end)
    response = connection.request("POST", PATH, JSON, body)
    await response.head()
    got = b""
    with pytest.raises(StreamResetError) as caught:
        async for batch in response.chunks():
            got += b"".join(chunk.data for chunk in batch)
    assert "H3_INTERNAL_ERROR" in str(caught.value)
    assert got.count(b'"n":') >= 5
    if framing == "sse":
        last = got.split(b"\n\n")[-2]
        assert last.startswith(b"event: error\ndata: ")
        error = json.loads(last.removeprefix(b"event: error\ndata: "))["error"]
        assert error["code"] in ("upstream_closed", "upstream_protocol")
        assert b"[DONE]" not in got
    if framing == "ndjson":
        assert json.loads(got.splitlines()[-1])["code"] in ("upstream_closed", "upstream_protocol")
    # The connection serves on.
    again = connection.request("POST", PATH, JSON, script(events=1, interval_s=0.001))
    assert await again.head() == 200
    await again.read()


@pytest.mark.parametrize("http2", [True, False])
@pytest.mark.parametrize("end", ["die", "half"])
async def test_an_upstreams_death_breaks_the_answer_off_over_tcp(
    end: str, http2: bool, gateway: Gateway, ca_file: Path
) -> None:
    """RST_STREAM, or a connection closed before the last chunk."""
    got = b""
    async with httpx_client(ca_file, http2) as client:
        request = client.stream(
            "POST",
            origin(gateway) + PATH,
            content=script(events=5, interval_s=0.002, end=end),
            headers=dict(JSON),
        )
        with pytest.raises(httpx2.RemoteProtocolError):
            async with request as answer:
                async for chunk in answer.aiter_raw():
                    got += chunk
    assert got.count(b'"n":') == 5
    assert b"event: error" in got


async def test_an_upstream_that_dies_before_its_head_is_an_answer_with_a_reason(
    gateway: Gateway, dial: Dial
) -> None:
    response = (await dial(gateway)).request("POST", PATH, JSON, script(end="no_head"))
    assert await response.head() == 502
    assert json.loads(await response.read())["error"]["code"] == "upstream_closed"


async def test_an_upstream_that_falls_silent_is_given_up(source: Source, start: Start, dial: Dial) -> None:
    gateway = await start(source, timeouts={"silence_s": 0.3, "first_byte_s": 0.3})
    connection = await dial(gateway)
    silent = connection.request("POST", PATH, JSON, script(events=3, interval_s=0.001, end="hang"))
    await silent.head()
    got = b""
    with pytest.raises(StreamResetError):
        async for batch in silent.chunks():
            got += b"".join(chunk.data for chunk in batch)
    assert b'"code":"upstream_idle_timeout"' in got
    late = connection.request("POST", PATH, JSON, script(head_delay_s=5))
    assert await late.head() == 504
    assert json.loads(await late.read())["error"]["code"] == "upstream_head_timeout"
    await eventually(lambda: not source.running(), "both were closed upstream")


async def test_trailers_pass(gateway: Gateway, dial: Dial) -> None:
    response = (await dial(gateway)).request(
        "POST", PATH, JSON, script(events=2, interval_s=0.001, trailers=True)
    )
    await response.read()
    assert response.trailers == [("x-sum", "1")]


async def test_a_status_without_a_body_ends_at_once(gateway: Gateway, dial: Dial) -> None:
    response = (await dial(gateway)).request("POST", PATH, JSON, script(status=204, events=0, body="length"))
    assert await response.head() == 204
    assert await response.read() == b""


async def test_a_thousand_streams_at_once_arrive_byte_by_byte(
    source: Source, start: Start, dial: Dial
) -> None:
    gateway = await start(source)
    connections = [await dial(gateway) for _ in range(10)]
    fields = {"events": 20, "interval_s": 0.05}

    async def ask(number: int) -> None:
        response = connections[number % 10].request("POST", PATH, JSON, script(**fields))
        whole = await response.read()
        assert whole == expected(whole, **fields)

    await asyncio.gather(*(ask(number) for number in range(1000)))
    assert len(source.runs) == 1000
    await eventually(lambda: gateway.server.snapshot()["exchanges"] == 0)


async def test_a_slow_reader_stops_its_upstream_and_loses_nothing(source: Source, gateway: Gateway) -> None:
    """Ours is bounded: the upstream's send stalls; its neighbour flows; later every byte is there."""
    from tests.helpers.raw_peer import DATA, HEADERS, dial, frame, post, section

    fields = {"events": 9_000, "interval_s": 0, "size": 1000}
    async with dial(gateway.server.address[1], max_stream_data=64 * 1024, max_data=10 * 1024 * 1024) as peer:
        peer.start_control()
        # aioquic gives credit as it receives: hold it back for this stream, as a reader that does not read
        # would.
        stream = peer.bidi(frame(HEADERS, section(*post())) + frame(DATA, script(**fields)), end=True)
        held: dict[int, int] = {}
        write = peer._quic._write_stream_limits  # type: ignore[attr-defined]

        def hold(builder: object, space: object, stream: object) -> None:
            if stream.stream_id not in held:  # type: ignore[attr-defined]
                write(builder, space, stream)

        held[stream] = 1
        peer._quic._write_stream_limits = hold  # type: ignore[attr-defined]
        await peer.until(lambda: len(peer.data.get(stream, b"")) >= 60_000)
        await eventually(lambda: source.runs[0].paused > 0, "the upstream's send stalls")
        await asyncio.sleep(0.2)
        sent = source.runs[0].sent_bytes
        await asyncio.sleep(0.3)
        assert source.runs[0].sent_bytes == sent, "it does not go on"
        # A neighbour on the same connection is not held up.
        neighbour = peer.bidi(
            frame(HEADERS, section(*post())) + frame(DATA, script(events=5, interval_s=0.001)), end=True
        )
        await peer.until_over(neighbour)
        assert b"[DONE]" in peer.data[neighbour]
        # It reads again.
        held.clear()
        peer.transmit()
        await peer.until_over(stream)
    whole = data_of(bytes(peer.data[stream]))
    assert whole == expected(whole, **fields)


def data_of(stream: bytes) -> bytes:
    """The payloads of all DATA frames of a stream."""
    return b"".join(payload for kind, payload in frames_of(stream) if kind == 0)


def frames_of(stream: bytes) -> list[tuple[int, bytes]]:
    from aioquic.buffer import Buffer

    found, buffer = [], Buffer(data=stream)
    while not buffer.eof():
        kind, length = buffer.pull_uint_var(), buffer.pull_uint_var()
        found.append((kind, buffer.pull_bytes(length)))
    return found


async def test_a_reader_that_never_reads_is_given_up(source: Source, start: Start) -> None:
    from tests.helpers.raw_peer import DATA, HEADERS, dial, frame, post, section

    gateway = await start(source, timeouts={"stalled_reader_s": 0.3})
    async with dial(gateway.server.address[1], max_stream_data=4096) as peer:
        peer.start_control()
        body = script(events=100_000, interval_s=0, size=1000)
        peer._quic._write_stream_limits = lambda *_, **__: None  # type: ignore[attr-defined]
        stream = peer.bidi(frame(HEADERS, section(*post())) + frame(DATA, body), end=True)
        await peer.until_over(stream)
        assert stream in peer.resets
    await eventually(lambda: not source.running())


async def test_an_upstream_connection_is_used_again_only_after_a_clean_end(
    source: Source, start: Start, dial: Dial
) -> None:
    gateway = await start(source, listen={"workers": 1})
    connection = await dial(gateway)
    before = source.connections

    async def ask(**fields: object) -> None:
        response = connection.request(
            "POST", PATH, JSON, script(**{"events": 2, "interval_s": 0.001, **fields})
        )
        await response.head()
        with contextlib.suppress(StreamResetError):
            await response.read()

    for _ in range(5):
        await ask()
    assert source.connections == before, "the health check's connection is enough"
    await ask(end="die")
    await ask()
    assert source.connections == before + 1
    await ask(body="close")
    await ask()
    assert source.connections == before + 2
    await ask(body="length")
    await ask()
    assert source.connections == before + 2


async def test_a_stale_upstream_connection_is_nobodys_failure(
    source: Source, start: Start, dial: Dial
) -> None:
    """The model server closes an idle connection; the next request just takes a new one."""
    gateway = await start(source, listen={"workers": 1})
    connection = await dial(gateway)
    for _ in range(3):
        response = connection.request("POST", PATH, JSON, script(events=1, interval_s=0.001))
        assert await response.head() == 200
        await response.read()
        for transport in list(source._transports):
            transport.close()
        await eventually(lambda: source.open_connections == 0)


async def test_an_upstream_of_http2_is_relayed_the_same(dial: Dial, start: Start, ca_file: Path) -> None:
    """A gateway before a gateway: HTTP/2 over TLS between the two."""
    async with Source() as source:
        inner = await start(source)
        os.environ["SSL_CERT_FILE"] = str(ca_file)
        try:
            upstream = {"url": origin(inner), "models": "scripted", "protocol": "http2"}
            outer = await start(upstreams=[upstream], pool={"ca_file": ca_file})
        finally:
            del os.environ["SSL_CERT_FILE"]
        connection = await dial(outer)
        fields = {"events": 50, "interval_s": 0.001}
        response = connection.request("POST", PATH, JSON, script(**fields))
        chunks = [chunk async for batch in response.chunks() for chunk in batch]
        whole = b"".join(chunk.data for chunk in chunks)
        assert whole == expected(whole, **fields)
        assert len(frames(chunks)) == 51
        hops = f"3 {outer.pseudonym}, 2 {inner.pseudonym}"
        assert source.runs[0].fields["via"] == hops, "the inner hop came by HTTP/2"
        # A death is told through both, and a stop goes through both.
        dead = connection.request("POST", PATH, JSON, script(events=2, interval_s=0.001, end="die"))
        with pytest.raises(StreamResetError):
            await dead.read()
        endless = connection.request("POST", PATH, JSON, script(events=100_000))
        await endless.head()
        endless.stop()
        await eventually(lambda: source.runs[-1].aborted_ns)
