"""Model servers that keep a gateway busy for nothing, or say more than it can keep: bounded, and told."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from hyperframe.frame import ContinuationFrame, DataFrame, HeadersFrame

from headrace.gateway import Gateway
from headrace_lab.model import Source
from tests.helpers.asking import PROTOCOLS, ask
from tests.helpers.hostile import Call, Hostile, HostileHttp2, Stream
from tests.helpers.waiting import eventually

Start = Callable[..., Awaitable[Gateway]]

BODY = b'{"model":"scripted"}'
OK = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"


async def endless(call: Any, piece: Callable[[], Awaitable[None]]) -> None:
    """Says the same until nobody listens any more."""
    with contextlib.suppress(ConnectionError):
        while not call.writer.is_closing():
            await piece()


def repeat(first: bytes, data: bytes, times: int = 1000) -> Callable[[Call], Awaitable[None]]:
    """`first`, and then `data` without end."""

    async def serve(call: Call) -> None:
        await call.send(first)
        await endless(call, lambda: call.send(data * times))

    return serve


async def drip(call: Call) -> None:
    """A head that comes byte by byte, and does not end."""
    await call.send(b"HTTP/1.1 200 OK\r\n")
    await endless(call, lambda: call.send(b"a: b\r\n"))


BEFORE_THE_HEAD: dict[str, Callable[[Call], Awaitable[None]]] = {
    "1xx without end": repeat(b"", b"HTTP/1.1 102 Processing\r\n\r\n"),
    "1xx of many fields": repeat(b"", b"HTTP/1.1 103 X\r\n" + b"a: b\r\n" * 100 + b"\r\n", 10),
    "fields without end": repeat(b"HTTP/1.1 200 OK\r\n", b"a: b\r\n"),
    "a field without end": repeat(b"HTTP/1.1 200 OK\r\na: ", b"b"),
    "a status line without end": repeat(b"HTTP/1.1 200 ", b"O"),
    "empty lines without end": repeat(b"", b"\r\n"),
    "more fields than one may have": repeat(b"HTTP/1.1 200 OK\r\n" + b"a: b\r\n" * 300 + b"\r\n", b"x"),
    "zeros": repeat(b"", b"\0"),
    "TLS": repeat(b"\x16\x03\x01\x02\x00\x01", b"\0"),
    "HTTP/2": repeat(b"\0\0\0\4\0\0\0\0\0", b"\0"),
    "it switches protocols": repeat(b"HTTP/1.1 101 Switching Protocols\r\nupgrade: x\r\n\r\n", b"x"),
    "a length that is none": repeat(b"HTTP/1.1 200 OK\r\ncontent-length: -1\r\n\r\n", b"x"),
    "two lengths": repeat(b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\n", b"x"),
    "chunked twice": repeat(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked, chunked\r\n\r\n", b"x"),
    "a coding that nobody asked for": repeat(b"HTTP/1.1 200 OK\r\ntransfer-encoding: gzip\r\n\r\n", b"x"),
    "a coding of HTTP/1.0": repeat(b"HTTP/1.0 200 OK\r\ntransfer-encoding: chunked\r\n\r\n", b"x"),
    "drop by drop": drip,
}


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("serve", BEFORE_THE_HEAD.values(), ids=BEFORE_THE_HEAD.keys())
async def test_what_has_no_end_before_the_head_is_a_failure_of_the_model_server(
    serve: Callable[[Call], Awaitable[None]], protocol: str, start: Start, ca_file: Path
) -> None:
    async with Hostile(serve) as server:
        gateway = await start(upstreams=[{"url": server.url, "models": "scripted"}])
        told = await ask(gateway, protocol, ca_file, BODY)
        assert (told.status, json.loads(told.body)["error"]["code"]) == (502, "upstream_protocol")
        assert len(server.calls) == 1
        assert all(upstream.is_healthy for upstream in gateway.upstreams.all)


BEHIND_THE_HEAD: dict[str, Callable[[Call], Awaitable[None]]] = {
    "a chunk extension without end": repeat(OK + b"5;", b"x"),
    "a chunk size without end": repeat(OK, b"0"),
    "trailers without end": repeat(OK + b"0\r\n", b"a: b\r\n"),
    "a trailer without end": repeat(OK + b"0\r\na: ", b"b"),
    "a chunk that is longer than its size": repeat(OK + b"1\r\n", b"x"),
    "a chunk larger than anything": repeat(OK + b"fffffffffffffffff\r\n", b"x"),
}


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("serve", BEHIND_THE_HEAD.values(), ids=BEHIND_THE_HEAD.keys())
async def test_what_has_no_end_behind_the_head_is_cut(
    serve: Callable[[Call], Awaitable[None]], protocol: str, start: Start, ca_file: Path
) -> None:
    async with Hostile(serve) as server:
        gateway = await start(upstreams=[{"url": server.url, "models": "scripted"}])
        told = await ask(gateway, protocol, ca_file, BODY)
        assert (told.status, told.is_whole) == (200, False)


async def interim(stream: Stream) -> None:
    async def say() -> None:
        for _ in range(100):
            stream.head(102)
        await stream.writer.drain()

    await endless(stream, say)


async def empty_data(stream: Stream) -> None:
    stream.head(200, ("content-type", "text/event-stream"))

    async def say() -> None:
        for _ in range(100):
            stream.frame(DataFrame(stream.id, b""))
        await stream.writer.drain()

    await endless(stream, say)


async def continuations(stream: Stream) -> None:
    stream.frame(HeadersFrame(stream.id, stream.encoder.encode([(":status", "200")])))

    async def say() -> None:
        block = stream.encoder.encode([("a", "b")] * 100, huffman=False)
        stream.frame(ContinuationFrame(stream.id, block))
        await stream.writer.drain()

    await endless(stream, say)


async def many_fields(stream: Stream) -> None:
    stream.head(200, *[("a", "b")] * 300)
    await stream.writer.drain()


async def switch(stream: Stream) -> None:
    stream.head(101)
    await stream.writer.drain()


FLOODS = {
    "1xx": interim,
    "empty DATA": empty_data,
    "CONTINUATION": continuations,
    "more fields than one may have": many_fields,
    "101": switch,
}


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("flood", FLOODS.values(), ids=FLOODS.keys())
async def test_a_flood_over_http2_ends_with_its_request(
    flood: Callable[[Stream], Awaitable[None]], protocol: str, start: Start, ca_file: Path
) -> None:
    """The next request is answered, on a connection of its own."""

    async def serve(stream: Stream) -> None:
        if len(server.calls) == 1:
            await flood(stream)
        else:
            stream.head(200)
            stream.data(b"ok", end=True)

    async with HostileHttp2(serve) as server:
        upstream = {"url": server.url, "models": "scripted", "protocol": "http2"}
        gateway = await start(upstreams=[upstream])
        told = await ask(gateway, protocol, ca_file, BODY)
        assert not (told.status == 200 and told.is_whole)
        told = await ask(gateway, protocol, ca_file, BODY)
        assert (told.status, told.body) == (200, b"ok")


@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_an_event_without_end_costs_what_one_event_may(
    protocol: str, start: Start, ca_file: Path
) -> None:
    """It leaves in pieces; and what is cut in one is reset without an error event, for it has no place."""

    async def serve(call: Call) -> None:
        await call.send(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\ndata: ")
        for _ in range(100):
            await call.send(b"x" * 10_000)
        call.close()

    async with Hostile(serve) as server:
        upstreams = [{"url": server.url, "models": "scripted"}]
        gateway = await start(upstreams=upstreams, limits={"max_event_bytes": 65536})
        told = await ask(gateway, protocol, ca_file, BODY)
        assert not told.is_whole
        assert len(told.body) > 900_000
        assert b"event: error" not in told.body


async def test_an_answer_that_is_not_asked_for_is_not_the_next_ones(start: Start, ca_file: Path) -> None:
    """Two answers to one request: the second belongs to nobody."""

    async def serve(call: Call) -> None:
        number = b"%d" % len(server.calls)
        answer = b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\n\r\n"
        await call.send(answer + number + answer + b"X")
        await asyncio.sleep(0.02)
        with contextlib.suppress(ConnectionError):
            await call.send(answer + b"Y")

    async with Hostile(serve) as server:
        gateway = await start(upstreams=[{"url": server.url, "models": "scripted"}], listen={"workers": 1})
        for number in range(1, 6):
            told = await ask(gateway, "HTTP/2", ca_file, BODY)
            assert told.body == b"%d" % number
            await asyncio.sleep(0.03)


async def test_a_hostile_neighbour_slows_nobody_down_for_long(
    start: Start, ca_file: Path, source: Source
) -> None:
    """While one model server says 102 without end, requests for another one are answered."""
    async with Hostile(BEFORE_THE_HEAD["1xx without end"]) as server:
        urls = [{"url": server.url, "models": "scripted"}, {"url": source.url, "models": "good"}]
        gateway = await start(upstreams=urls, listen={"workers": 1})
        good = b'{"model":"good","script":{"events":3,"interval_s":0.001}}'
        bad = [asyncio.create_task(ask(gateway, "HTTP/2", ca_file, BODY)) for _ in range(5)]
        assert (await ask(gateway, "HTTP/3", ca_file, good)).is_whole
        assert [told.status for told in await asyncio.gather(*bad)] == [502] * 5
        await eventually(lambda: gateway.server.snapshot()["exchanges"] == 0)
