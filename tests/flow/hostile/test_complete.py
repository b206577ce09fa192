"""Complete means complete: an answer or a request that was cut never looks whole, whatever cut it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from hyperframe.frame import DataFrame, RstStreamFrame

from headrace.gateway import Gateway
from headrace_lab.model import Source
from tests.helpers import raw_http1, raw_peer
from tests.helpers.asking import PROTOCOLS, Told, ask
from tests.helpers.hostile import Call, Hostile, HostileHttp2, Stream
from tests.helpers.raw_http2 import RawHttp2
from tests.helpers.serving import port_of
from tests.helpers.waiting import eventually

Start = Callable[..., Awaitable[Gateway]]

EVENT = b'data: {"n":1}\n\n'
HALF = b'data: {"n"'
DONE = b"data: [DONE]\n\n"
LINE = b'{"n":1}\n'
SSE, NDJSON, RAW = "text/event-stream", "application/x-ndjson", "application/octet-stream"


def http1(kind: str, framing: str, *parts: bytes, encoding: str = "") -> bytes:
    """An answer of HTTP/1.1, framed, without its last chunk."""
    fields = f"content-type: {kind}\r\n{framing}{encoding}"
    if "chunked" in framing:
        parts = tuple(b"%x\r\n%b\r\n" % (len(part), part) for part in parts)
    return f"HTTP/1.1 200 OK\r\n{fields}\r\n".encode() + b"".join(parts)


CHUNKED, CLOSE = "transfer-encoding: chunked\r\n", "connection: close\r\n"


def length(size: int) -> str:
    return f"content-length: {size}\r\n"


UTF8 = "content-encoding: utf-8\r\n"

CUT_BY_HTTP1 = {
    "no last chunk": http1(SSE, CHUNKED, EVENT),
    "half a last chunk": http1(SSE, CHUNKED, EVENT) + b"0\r",
    "no end of the trailers": http1(SSE, CHUNKED, EVENT) + b"0\r\n",
    "half a trailer": http1(SSE, CHUNKED, EVENT) + b"0\r\nx: y\r\n",
    "half a chunk": http1(SSE, CHUNKED) + b"100\r\n" + EVENT,
    "a byte too few": http1(SSE, length(len(EVENT) + 1), EVENT),
    "nothing of its length": http1(RAW, length(5)),
    "closed inside an event": http1(SSE, CLOSE, EVENT + HALF),
    "closed before the blank line": http1(SSE, CLOSE, EVENT + b"data: x\n"),
    "closed inside a line of NDJSON": http1(NDJSON, CLOSE, LINE + b'{"n"'),
    "an event left open by its last chunk": http1(SSE, CHUNKED, EVENT + HALF) + b"0\r\n\r\n",
    "an event left open by its length": http1(SSE, length(len(EVENT + HALF)), EVENT + HALF),
    "a line left open by its last chunk": http1(NDJSON, CHUNKED, LINE, b'{"n"') + b"0\r\n\r\n",
    "inside an event, with a coding that is none": http1(SSE, CLOSE, EVENT + HALF, encoding=UTF8),
    "a chunk size with a gap": http1(SSE, CHUNKED) + b"5 5\r\ndata:\r\n0\r\n\r\n",
    "a chunk size that ends with LF": http1(SSE, CHUNKED) + b"e\n" + EVENT + b"\r\n0\r\n\r\n",
    "trailers that are none": http1(SSE, CHUNKED, EVENT) + b"0\r\na b\r\n\r\n",
    "more than its chunk": http1(SSE, CHUNKED) + b"1\r\n" + EVENT + b"\r\n0\r\n\r\n",
}

WHOLE_BY_HTTP1 = {
    "a last chunk": http1(SSE, CHUNKED, EVENT, DONE) + b"0\r\n\r\n",
    "its length": http1(SSE, length(len(EVENT)), EVENT),
    "closed between two events": http1(SSE, CLOSE, EVENT),
    "closed behind [DONE] without its blank line": http1(SSE, CLOSE, EVENT + b"data: [DONE]"),
    "closed behind a whole line without its end": http1(NDJSON, CLOSE, LINE + b'{"n":2}'),
    "closed, of a body without events": http1(RAW, CLOSE, HALF),
    "closed, compressed": http1(SSE, CLOSE, b"\x1f\x8b", encoding="content-encoding: gzip\r\n"),
    "more than its length": http1(SSE, length(len(EVENT)), EVENT, HALF),
    "nothing": http1(SSE, length(0)),
    "a comment at the end": http1(SSE, CLOSE, EVENT + b": ping\n"),
}


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize(
    ("answer", "is_whole"),
    [(answer, False) for answer in CUT_BY_HTTP1.values()]
    + [(answer, True) for answer in WHOLE_BY_HTTP1.values()],
    ids=[f"cut: {name}" for name in CUT_BY_HTTP1] + [f"whole: {name}" for name in WHOLE_BY_HTTP1],
)
async def test_an_answer_over_http1_is_whole_or_reset(
    answer: bytes,
    is_whole: bool,
    protocol: str,
    start: Start,
    ca_file: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Cut: what had come whole, an error event where there is a place for one, a reset; never FIN."""
    caplog.set_level(logging.INFO)

    async def serve(call: Call) -> None:
        await call.send(answer)
        call.close()

    async with Hostile(serve) as server:
        gateway = await start(upstreams=[{"url": server.url, "models": "scripted"}])
        told = await ask(gateway, protocol, ca_file, b'{"model":"scripted"}')
    await check(told, is_whole, caplog)
    if not is_whole and b"content-length" not in answer:
        last = b"event: error\n" if SSE.encode() in answer else b'{"error":'
        assert told.body.removeprefix(EVENT).removeprefix(LINE).startswith(last), "no half event is passed on"
    assert len(server.calls) == 1


async def check(told: Told, is_whole: bool, caplog: pytest.LogCaptureFixture) -> None:
    assert (told.status, told.is_whole) == (200, is_whole), told
    end = " 200 done " if is_whole else " 200 upstream_failed "
    await eventually(lambda: any(end in record.getMessage() for record in caplog.records), caplog.text)


NO_ERROR, INTERNAL, CANCEL, REFUSED = 0x0, 0x2, 0x8, 0x7


async def begin(stream: Stream, *fields: tuple[str, str], kind: str = SSE) -> None:
    """An answer's head and its first event."""
    stream.head(200, ("content-type", kind), *fields)
    stream.data(EVENT)
    await asyncio.sleep(0.05)


async def reset(stream: Stream, code: int, *fields: tuple[str, str], kind: str = SSE) -> None:
    await begin(stream, *fields, kind=kind)
    stream.reset(code)


async def reset_at_once(stream: Stream) -> None:
    stream.head(200, ("content-type", SSE), ("content-length", str(len(EVENT))))
    stream.data(EVENT)
    stream.reset(NO_ERROR)


async def go_away(stream: Stream, code: int) -> None:
    await begin(stream)
    stream.goaway(max(0, stream.id - 2), code)


async def close(stream: Stream) -> None:
    await begin(stream)
    stream.close()


async def go_away_and_close(stream: Stream) -> None:
    await begin(stream)
    stream.goaway(stream.id)
    stream.close()


async def half(stream: Stream) -> None:
    await begin(stream)
    stream.data(HALF, end=True)


async def short(stream: Stream) -> None:
    await begin(stream, ("content-length", "1000"))
    stream.data(b"", end=True)


async def long(stream: Stream) -> None:
    await begin(stream, ("content-length", "20"))
    stream.data(EVENT, end=True)


async def garbage(stream: Stream) -> None:
    await begin(stream)
    stream.writer.write(b"\xff" * 100)


async def end(stream: Stream) -> None:
    await begin(stream)
    stream.data(DONE, end=True)


async def end_and_reset(stream: Stream) -> None:
    await begin(stream)
    stream.data(DONE, end=True)
    stream.reset(NO_ERROR)


async def end_by_trailers(stream: Stream) -> None:
    from hyperframe.frame import HeadersFrame

    await begin(stream)
    block = stream.encoder.encode([("x-sum", "1")])
    stream.frame(HeadersFrame(stream.id, block, flags=["END_HEADERS", "END_STREAM"]))


async def end_after_goaway(stream: Stream) -> None:
    await begin(stream)
    stream.goaway(stream.id)
    stream.data(DONE, end=True)


CUT_BY_HTTP2: dict[str, Callable[[Stream], Awaitable[None]]] = {
    "RST_STREAM(NO_ERROR)": lambda stream: reset(stream, NO_ERROR),
    "RST_STREAM(NO_ERROR) of a body without events": lambda stream: reset(stream, NO_ERROR, kind=RAW),
    "RST_STREAM(NO_ERROR) before its length": lambda s: reset(s, 0, ("content-length", "99")),
    "RST_STREAM(INTERNAL_ERROR)": lambda stream: reset(stream, INTERNAL),
    "RST_STREAM(CANCEL)": lambda stream: reset(stream, CANCEL),
    "RST_STREAM(REFUSED_STREAM) after its head": lambda stream: reset(stream, REFUSED),
    "GOAWAY(NO_ERROR) below the stream": lambda stream: go_away(stream, NO_ERROR),
    "GOAWAY(INTERNAL_ERROR) below the stream": lambda stream: go_away(stream, INTERNAL),
    "GOAWAY, and the connection's end": go_away_and_close,
    "the connection's end": close,
    "END_STREAM inside an event": half,
    "END_STREAM before its length": short,
    "more than its length": long,
    "garbage": garbage,
}

WHOLE_BY_HTTP2: dict[str, Callable[[Stream], Awaitable[None]]] = {
    "END_STREAM": end,
    "END_STREAM, then RST_STREAM(NO_ERROR)": end_and_reset,
    "trailers": end_by_trailers,
    "END_STREAM after GOAWAY": end_after_goaway,
    "RST_STREAM(NO_ERROR) behind its whole length": reset_at_once,
}


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize(
    ("serve", "is_whole"),
    [(serve, False) for serve in CUT_BY_HTTP2.values()]
    + [(serve, True) for serve in WHOLE_BY_HTTP2.values()],
    ids=[f"cut: {name}" for name in CUT_BY_HTTP2] + [f"whole: {name}" for name in WHOLE_BY_HTTP2],
)
async def test_an_answer_over_http2_is_whole_or_reset(
    serve: Callable[[Stream], Awaitable[None]],
    is_whole: bool,
    protocol: str,
    start: Start,
    ca_file: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    async with HostileHttp2(serve) as server:
        upstream = {"url": server.url, "models": "scripted", "protocol": "http2"}
        gateway = await start(upstreams=[upstream])
        told = await ask(gateway, protocol, ca_file, b'{"model":"scripted"}')
    await check(told, is_whole, caplog)
    assert told.body.startswith(EVENT)
    assert len(server.calls) == 1


BODY = b'{"model":"scripted"}'
HEAD = "POST /v1/x HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"

CUT_UPLOADS = {
    "HTTP/1.1: a byte too few": f"{HEAD}content-length: {len(BODY) + 1}\r\n\r\n".encode() + BODY,
    "HTTP/1.1: no last chunk": f"{HEAD}{CHUNKED}\r\n".encode() + b"%x\r\n%b\r\n" % (len(BODY), BODY),
    "HTTP/1.1: no end of the trailers": f"{HEAD}{CHUNKED}\r\n".encode()
    + b"%x\r\n%b\r\n0\r\n" % (len(BODY), BODY),
    "HTTP/1.1: half a chunk": f"{HEAD}{CHUNKED}\r\n".encode() + b"ff\r\n" + BODY,
}


@pytest.mark.parametrize("upload", CUT_UPLOADS.values(), ids=CUT_UPLOADS.keys())
async def test_an_upload_over_http1_that_is_cut_is_not_run(
    upload: bytes, source: Source, gateway: Gateway, ca_file: Path
) -> None:
    await raw_http1.say(port_of(gateway), ca_file, upload, cut=True)
    await _nothing_was_run(source, gateway)


@pytest.mark.parametrize("code", [NO_ERROR, INTERNAL, CANCEL, 0x1, 0xB])
async def test_an_upload_over_http2_that_is_cut_is_not_run(
    code: int, source: Source, gateway: Gateway, ca_file: Path
) -> None:
    """RST_STREAM in the place of END_STREAM, whatever its code; NO_ERROR too."""
    raw = await RawHttp2.connect(port_of(gateway), ca_file)
    await raw.post(1, "/v1/x", BODY, end=False)
    await eventually(lambda: gateway.server.snapshot()["exchanges"] == 1)
    raw.send(RstStreamFrame(1, code))
    await _nothing_was_run(source, gateway)
    await raw.post(3, "/v1/x", BODY, end=False)
    raw.send(DataFrame(3, b"", flags=["END_STREAM"]))
    await eventually(lambda: len(source.runs) == 1, "END_STREAM is the end")
    await raw.close()


@pytest.mark.parametrize("how", ["RST_STREAM", "the connection's end", "GOAWAY"])
async def test_an_upload_over_http2_ends_with_its_connection(
    how: str, source: Source, gateway: Gateway, ca_file: Path
) -> None:
    from hyperframe.frame import GoAwayFrame

    raw = await RawHttp2.connect(port_of(gateway), ca_file)
    await raw.post(1, "/v1/x", BODY, end=False)
    await eventually(lambda: gateway.server.snapshot()["exchanges"] == 1)
    if how == "RST_STREAM":
        raw.send(RstStreamFrame(1, NO_ERROR))
    if how == "GOAWAY":
        raw.send(GoAwayFrame(0, 0, NO_ERROR))
    await raw.close()
    await _nothing_was_run(source, gateway)


@pytest.mark.parametrize("code", [0x100, 0x102, 0x10B, 0x10C, 0x0])
async def test_an_upload_over_http3_that_is_cut_is_not_run(
    code: int, source: Source, gateway: Gateway
) -> None:
    """RESET_STREAM in the place of FIN, H3_NO_ERROR too; and FIN inside a frame."""
    async with raw_peer.dial(port_of(gateway)) as peer:
        peer.start_control()
        head = raw_peer.frame(raw_peer.HEADERS, raw_peer.section(*raw_peer.post(b"/v1/x")))
        stream = peer.bidi(head + raw_peer.frame(raw_peer.DATA, BODY))
        await eventually(lambda: gateway.server.snapshot()["exchanges"] == 1)
        peer.reset(stream, code)
        await _nothing_was_run(source, gateway)
        peer.bidi(head + raw_peer.frame(raw_peer.DATA, BODY, length=len(BODY) + 1), end=True)
        await peer.until_closed()
        await _nothing_was_run(source, gateway)


async def _nothing_was_run(source: Source, gateway: Gateway) -> None:
    await eventually(lambda: gateway.server.snapshot()["exchanges"] == 0, "its exchange has ended")
    assert not source.runs
    assert gateway.server.snapshot()["runs_total"] == 0
