"""A client that can break every rule: QUIC by aioquic, HTTP/3 by hand.

It says what it is told on any stream, and notes what the server answers: data, resets, STOP_SENDING, and with
which code the connection was closed.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator, Callable
from typing import Any

from aioquic.asyncio.client import connect
from aioquic.asyncio.protocol import QuicConnectionProtocol
from aioquic.buffer import Buffer, encode_uint_var
from aioquic.h3.connection import H3_ALPN
from aioquic.quic.configuration import QuicConfiguration
from aioquic.quic.connection import QuicConnection
from aioquic.quic.events import (
    ConnectionTerminated,
    QuicEvent,
    StopSendingReceived,
    StreamDataReceived,
    StreamReset,
)

CONTROL, PUSH, ENCODER, DECODER = 0x0, 0x1, 0x2, 0x3
DATA, HEADERS, CANCEL_PUSH, SETTINGS, PUSH_PROMISE, GOAWAY, MAX_PUSH_ID = 0x0, 0x1, 0x3, 0x4, 0x5, 0x7, 0xD
PRIORITY_UPDATE = 0xF0700


def frame(kind: int, payload: bytes = b"", length: int | None = None) -> bytes:
    """A frame; `length`: a length that it claims instead of its own."""
    size = len(payload) if length is None else length
    return encode_uint_var(kind) + encode_uint_var(size) + payload


def literal(name: bytes, value: bytes) -> bytes:
    """A field line with a literal name (RFC 9204 §4.5.6), without Huffman code."""
    return _integer(len(name), 3, 0x20) + name + _integer(len(value), 7, 0) + value


def section(*fields: tuple[bytes, bytes]) -> bytes:
    """A field section without any table."""
    return b"\0\0" + b"".join(literal(name, value) for name, value in fields)


def _integer(value: int, bits: int, flags: int) -> bytes:
    mask = (1 << bits) - 1
    if value < mask:
        return bytes([flags | value])
    out, value = [flags | mask], value - mask
    while value >= 128:
        out.append(value % 128 | 128)
        value //= 128
    return bytes([*out, value])


GET = (
    (b":method", b"GET"),
    (b":scheme", b"https"),
    (b":authority", b"localhost"),
    (b":path", b"/healthz"),
)


def post(path: bytes = b"/v1/chat/completions") -> tuple[tuple[bytes, bytes], ...]:
    return (
        (b":method", b"POST"),
        (b":scheme", b"https"),
        (b":authority", b"localhost"),
        (b":path", path),
        (b"content-type", b"application/json"),
    )


class RawPeer(QuicConnectionProtocol):
    """One connection. `data`, `resets`, `stops` are by stream; `closed` is the code of the connection's
    end."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.data: dict[int, bytearray] = {}
        self.ended: set[int] = set()
        self.resets: dict[int, int] = {}
        self.stops: dict[int, int] = {}
        self.closed: int | None = None
        self.reason = ""
        self._news = asyncio.Event()

    def quic_event_received(self, event: QuicEvent) -> None:
        match event:
            case StreamDataReceived():
                self.data.setdefault(event.stream_id, bytearray()).extend(event.data)
                if event.end_stream:
                    self.ended.add(event.stream_id)
            case StreamReset():
                self.resets[event.stream_id] = event.error_code
            case StopSendingReceived():
                self.stops[event.stream_id] = event.error_code
            case ConnectionTerminated():
                self.closed, self.reason = event.error_code, event.reason_phrase
        self._news.set()

    def start_control(self, settings: bytes = b"") -> int:
        """Opens our control stream with SETTINGS."""
        return self.uni(CONTROL, frame(SETTINGS, settings))

    def uni(self, kind: int, data: bytes = b"") -> int:
        stream = self._quic.get_next_available_stream_id(is_unidirectional=True)
        self.say(stream, encode_uint_var(kind) + data)
        return stream

    def bidi(self, data: bytes = b"", end: bool = False) -> int:
        stream = self._quic.get_next_available_stream_id()
        self.say(stream, data, end)
        return stream

    def say(self, stream: int, data: bytes, end: bool = False) -> None:
        self._quic.send_stream_data(stream, data, end)
        self.transmit()

    def reset(self, stream: int, code: int = 0x10C) -> None:
        self._quic.reset_stream(stream, code)
        self.transmit()

    def stop(self, stream: int, code: int = 0x10C) -> None:
        self._quic.stop_stream(stream, code)
        self.transmit()

    async def until(self, condition: Callable[[], Any], seconds: float = 10) -> None:
        async with asyncio.timeout(seconds):
            while not condition():
                self._news.clear()
                await self._news.wait()

    async def until_closed(self) -> int:
        await self.until(lambda: self.closed is not None)
        assert self.closed is not None
        return self.closed

    async def until_over(self, stream: int) -> None:
        """The stream has ended, was reset, or the connection is closed."""
        await self.until(lambda: stream in self.ended or stream in self.resets or self.closed is not None)

    def status_of(self, stream: int) -> int:
        """Status in the first HEADERS frame."""
        import pylsqpack

        data = bytes(self.data[stream])
        kind, length, at = data[0], data[1], 2
        assert kind == HEADERS, data[:16]
        if length >= 0x40:
            length, at = (length & 0x3F) << 8 | data[2], 3
        _, fields = pylsqpack.Decoder(0, 0).feed_header(stream, data[at : at + length])
        return int(dict(fields)[b":status"])

    def body_of(self, stream: int) -> bytes:
        """What the DATA frames hold."""
        buffer, body = Buffer(data=bytes(self.data[stream])), b""
        while not buffer.eof():
            kind, length = buffer.pull_uint_var(), buffer.pull_uint_var()
            payload = buffer.pull_bytes(length)
            body += payload if kind == DATA else b""
        return body


Bend = Callable[[QuicConnection], None]
"""Changes aioquic's connection before its handshake."""


def configuration(**options: Any) -> QuicConfiguration:
    quic = QuicConfiguration(is_client=True, alpn_protocols=H3_ALPN, server_name="localhost", **options)
    quic.verify_mode = ssl.CERT_NONE
    return quic


@contextlib.asynccontextmanager
async def dial(port: int, bend: Bend | None = None, **options: Any) -> AsyncIterator[RawPeer]:
    def create(quic: QuicConnection, *args: Any, **kwargs: Any) -> RawPeer:
        if bend:
            bend(quic)
        return RawPeer(quic, *args, **kwargs)

    quic = configuration(**options)
    async with connect("127.0.0.1", port, configuration=quic, create_protocol=create) as peer:
        assert isinstance(peer, RawPeer)
        yield peer


def allow_no_answer(quic: QuicConnection) -> None:
    """Its requests may be answered with no byte: the window of their answers is 0."""
    quic._local_max_stream_data_bidi_local = 0
