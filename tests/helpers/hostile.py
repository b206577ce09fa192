"""Model servers that break every rule: the bytes, or frames, of each answer are the test's own.

In: a function that is called with every request that came whole. Out: what it writes; and a note of each
request, so that a test can count how often one was run.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Self

import hpack
from hyperframe.frame import (
    DataFrame,
    Frame,
    GoAwayFrame,
    HeadersFrame,
    PingFrame,
    RstStreamFrame,
    SettingsFrame,
    WindowUpdateFrame,
)

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"


class Call:
    """One request that came whole over HTTP/1.1."""

    def __init__(self, server: Hostile, method: str, path: str, body: bytes, writer: Any) -> None:
        self.method, self.path, self.body, self.writer = method, path, body, writer
        self.number = len(server.calls)
        """Of all that asked for anything but the list of models."""

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    def close(self) -> None:
        """FIN."""
        self.writer.close()

    def abort(self) -> None:
        """RST."""
        self.writer.transport.abort()


Serve = Callable[[Any], Awaitable[None]]

MODELS = b'{"object":"list","data":[{"id":"scripted","object":"model"}]}'


def whole(body: bytes, status: str = "200 OK", *fields: str) -> bytes:
    """A proper answer of HTTP/1.1."""
    head = "\r\n".join([f"HTTP/1.1 {status}", f"content-length: {len(body)}", *fields])
    return head.encode() + b"\r\n\r\n" + body


class Hostile:
    """A server of HTTP/1.1. `models`: the whole answer of `/v1/models`, asked by probes."""

    def __init__(self, serve: Serve, models: bytes | None = None) -> None:
        self.serve, self.models = serve, whole(MODELS) if models is None else models
        self.calls: list[Call] = []
        self.probes = 0
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task
        self._tasks.add(task)
        try:
            await self._converse(reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            self._tasks.discard(task)
            writer.close()

    async def _converse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while not writer.is_closing():
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
            method, path, *_ = head.split(" ", 2)
            fields = dict(line.lower().split(": ", 1) for line in head.split("\r\n")[1:] if line)
            body = await reader.readexactly(int(fields.get("content-length", 0)))
            if path == "/v1/models":
                self.probes += 1
                writer.write(self.models)
                if not self.models:
                    writer.close()
                continue
            call = Call(self, method, path, body, writer)
            self.calls.append(call)
            await self.serve(call)


class Stream:
    """One request that came whole over HTTP/2."""

    def __init__(self, server: HostileHttp2, writer: Any, number: int, path: str) -> None:
        self.server, self.writer, self.id, self.path = server, writer, number, path
        self.number = len(server.calls)
        self.encoder: hpack.Encoder = writer.encoder

    def head(self, status: int = 200, *fields: tuple[str, str], end: bool = False) -> None:
        block = self.encoder.encode([(":status", str(status)), *fields])
        frame = HeadersFrame(self.id, block, flags=["END_HEADERS", *(["END_STREAM"] if end else [])])
        self.frame(frame)

    def data(self, data: bytes, end: bool = False) -> None:
        self.frame(DataFrame(self.id, data, flags=["END_STREAM"] if end else []))

    def reset(self, code: int) -> None:
        self.frame(RstStreamFrame(self.id, code))

    def goaway(self, last: int, code: int = 0) -> None:
        self.frame(GoAwayFrame(0, last, code))

    def frame(self, frame: Frame) -> None:
        self.writer.write(frame.serialize())

    def close(self) -> None:
        self.writer.close()


class HostileHttp2(Hostile):
    """A server of HTTP/2 without TLS: `protocol = "http2"`."""

    async def _converse(self, reader: asyncio.StreamReader, writer: Any) -> None:
        assert await reader.readexactly(len(PREFACE)) == PREFACE
        writer.write(SettingsFrame(0, {SettingsFrame.INITIAL_WINDOW_SIZE: 1 << 24}).serialize())
        writer.write(WindowUpdateFrame(0, 1 << 24).serialize())
        writer.encoder, decoder, paths = hpack.Encoder(), hpack.Decoder(), {}
        while True:
            head = await reader.readexactly(9)
            frame, length = Frame.parse_frame_header(memoryview(head))
            frame.parse_body(memoryview(await reader.readexactly(length)))
            if isinstance(frame, SettingsFrame) and "ACK" not in frame.flags:
                writer.write(SettingsFrame(0, flags=["ACK"]).serialize())
            elif isinstance(frame, PingFrame) and "ACK" not in frame.flags:
                writer.write(PingFrame(0, frame.opaque_data, flags=["ACK"]).serialize())
            elif isinstance(frame, HeadersFrame):
                paths[frame.stream_id] = dict(decoder.decode(frame.data))[":path"]
            if "END_STREAM" in frame.flags:
                await self._answer(writer, frame.stream_id, paths.pop(frame.stream_id))

    async def _answer(self, writer: Any, number: int, path: str) -> None:
        stream = Stream(self, writer, number, path)
        if path == "/v1/models":
            self.probes += 1
            stream.head(200, ("content-type", "application/json"))
            stream.data(MODELS, end=True)
            return
        self.calls.append(stream)  # type: ignore[arg-type]
        await self.serve(stream)


@contextlib.asynccontextmanager
async def silent_address(host: str) -> AsyncIterator[int]:
    """A port at which TCP handshakes are not answered: its queue is full."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with (
        socket.create_server((host, 0), family=family, backlog=0) as listening,
        contextlib.ExitStack() as stack,
    ):
        port = listening.getsockname()[1]
        for _ in range(8):
            filler = stack.enter_context(socket.socket(family))
            filler.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                filler.connect((host, port))
        yield port
