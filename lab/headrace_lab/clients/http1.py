"""HTTP/1.1: a TCP connection for each answer, as the pools of SDKs have."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import cast

from headrace_lab.clients.client import Destination, Request
from headrace_lab.clients.sink import Sink


class Http1Client:
    """Connections that were opened in advance serve the first answers; further answers open their own."""

    def __init__(self, destination: Destination) -> None:
        self.destination = destination
        self.idle: list[_Answer] = []
        self.all: list[_Answer] = []

    async def connect(self) -> None:
        self.idle.append(await self._open())

    async def _open(self) -> _Answer:
        loop = asyncio.get_running_loop()
        context = self.destination.tls(["http/1.1"])
        _, answer = await loop.create_connection(
            _Answer, self.destination.host, self.destination.port, ssl=context
        )
        self.all.append(answer)
        return answer

    async def send(self, request: Request, sink: Sink) -> _Answer:
        free = [answer for answer in self.idle if not answer.is_closed]
        answer = free[0] if free else await self._open()
        self.idle = free[1:]
        lines = [f"{request.method} {request.path} HTTP/1.1", f"host: {self.destination.authority}"]
        lines += [f"{name}: {value}" for name, value in request.fields]
        lines += [f"content-length: {len(request.body)}", "", ""]
        answer.begin(sink, lambda: self.idle.append(answer))
        sink.sent_ns = time.monotonic_ns()
        answer.transport.write("\r\n".join(lines).encode() + request.body)
        return answer

    def migrate(self) -> None:
        raise NotImplementedError("TCP cannot move")

    def stats(self) -> dict[str, float]:
        return {}

    def close(self) -> None:
        for answer in self.all:
            answer.transport.abort()


class _Answer(asyncio.Protocol):
    """One connection, with at most one answer on it."""

    def __init__(self) -> None:
        self.sink: Sink | None = None
        self.buffer = bytearray()
        self.left: int | None = None
        """Bytes of the body or of the chunk that are still to come; `None`: the head is."""
        self.framing = ""
        self.is_closed = False
        self.transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def begin(self, sink: Sink, on_free: Callable[[], None]) -> None:
        self.sink, self.framing, self.on_free = sink, "", on_free

    def data_received(self, data: bytes) -> None:
        now = time.monotonic_ns()
        if self.sink is None:
            return
        self.buffer += data
        if not self.framing and not self._head(now):
            return
        body = self._chunks() if self.framing == "chunked" else self._plain()
        sink = self.sink
        if body:
            sink.data(now, body)
        if self.framing == "over":
            self.sink = None
            sink.end(now)
            self.on_free()

    def _head(self, now: int) -> bool:
        end = self.buffer.find(b"\r\n\r\n")
        if end < 0:
            return False
        lines = bytes(self.buffer[:end]).decode("latin-1").split("\r\n")
        del self.buffer[: end + 4]
        pairs = (line.partition(":") for line in lines[1:])
        fields = {name.lower(): value.strip() for name, _, value in pairs}
        assert self.sink is not None
        self.sink.head(now, int(lines[0].split(" ")[1]), fields)
        self.left = 0
        if "chunked" in fields.get("transfer-encoding", ""):
            self.framing = "chunked"
        elif "content-length" in fields:
            self.framing, self.left = "length", int(fields["content-length"])
        else:
            self.framing = "close"
        return True

    def _plain(self) -> bytes:
        data = bytes(self.buffer)
        self.buffer.clear()
        if self.framing == "length":
            assert self.left is not None
            self.left -= len(data)
            if self.left <= 0:
                self.framing = "over"
        return data

    def _chunks(self) -> bytes:
        """Takes what the chunks in the buffer hold (RFC 9112 §7.1)."""
        body, buffer = bytearray(), self.buffer
        while True:
            if self.left:
                part = buffer[: self.left]
                body += part
                self.left -= len(part)
                del buffer[: len(part)]
                if self.left:
                    break
                self.left = -2
            if self.left == -2:
                if len(buffer) < 2:
                    break
                del buffer[:2]
                self.left = 0
            end = buffer.find(b"\r\n")
            if end < 0:
                break
            self.left = int(bytes(buffer[:end]).split(b";")[0] or b"0", 16)
            if self.left == 0:
                if b"\r\n\r\n" not in buffer:
                    break
                del buffer[: buffer.find(b"\r\n\r\n") + 4]
                self.framing = "over"
                break
            del buffer[: end + 2]
        return bytes(body)

    def eof_received(self) -> bool:
        if self.sink is not None:
            self.sink.end(time.monotonic_ns(), "" if self.framing == "close" else "cut")
        return False

    def connection_lost(self, error: Exception | None) -> None:
        self.is_closed = True
        if self.sink is not None:
            self.sink.end(time.monotonic_ns(), type(error).__name__ if error else "cut")
            self.sink = None

    def stop(self) -> None:
        """Closes the connection: HTTP/1.1 has no other way."""
        self.transport.abort()

    def pause(self) -> None:
        self.transport.pause_reading()

    def resume(self) -> None:
        self.transport.resume_reading()
