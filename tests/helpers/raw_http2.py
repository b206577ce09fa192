"""A client of HTTP/2 that shows every frame: Python's h2 reads nothing after a GOAWAY."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import hpack
from hyperframe.frame import DataFrame, Frame, GoAwayFrame, HeadersFrame, PingFrame, SettingsFrame


class RawHttp2:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self._encoder, self._decoder = hpack.Encoder(), hpack.Decoder()
        self._pings: list[PingFrame] = []
        self._frames: list[Frame] = []
        """Read, and not asked for yet."""
        self.bodies: dict[int, bytes] = {}
        """Of the streams that have ended."""

    @classmethod
    async def connect(cls, port: int, ca_file: Path) -> RawHttp2:
        context = ssl.create_default_context(cafile=ca_file)
        context.set_alpn_protocols(["h2"])
        raw = cls(*await asyncio.open_connection("localhost", port, ssl=context))
        raw._writer.write(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + SettingsFrame(0).serialize())
        return raw

    async def get(self, stream: int, path: str, extra: Sequence[tuple[str, str]] = ()) -> None:
        fields = [(":method", "GET"), (":scheme", "https"), (":authority", "localhost"), (":path", path)]
        fields += extra
        frame = HeadersFrame(stream, self._encoder.encode(fields), flags=["END_HEADERS", "END_STREAM"])
        self._writer.write(frame.serialize())

    async def post(self, stream: int, path: str, body: bytes, end: bool = True) -> None:
        fields = [
            (":method", "POST"),
            (":scheme", "https"),
            (":authority", "localhost"),
            (":path", path),
            ("content-type", "application/json"),
        ]
        self.send(HeadersFrame(stream, self._encoder.encode(fields), flags=["END_HEADERS"]))
        self.send(DataFrame(stream, body, flags=["END_STREAM"] if end else []))

    def ask(self, stream: int, method: str, path: str) -> None:
        """A request without a body; CONNECT has neither scheme nor path (RFC 9113 §8.5)."""
        fields = [(":method", method), (":authority", "localhost:443")]
        if method != "CONNECT":
            fields += [(":scheme", "https"), (":path", path)]
        self.send(HeadersFrame(stream, self._encoder.encode(fields), flags=["END_HEADERS", "END_STREAM"]))

    def send(self, frame: Frame) -> None:
        self._writer.write(frame.serialize())

    async def ended(self, stream: int) -> int:
        """Reads an answer to END_STREAM; its status."""
        status = 0
        while True:
            frame = await self._next(lambda frame: frame.stream_id == stream)
            if isinstance(frame, HeadersFrame):
                status = int(dict(self._decoder.decode(frame.data))[":status"])
            if isinstance(frame, DataFrame):
                self.bodies[stream] = self.bodies.get(stream, b"") + frame.data
            if "END_STREAM" in frame.flags:
                return status

    async def goaway(self) -> tuple[int, int]:
        """The next GOAWAY: last stream and error code."""
        frame = await self._next(lambda frame: isinstance(frame, GoAwayFrame))
        return frame.last_stream_id, frame.error_code

    async def answer_pings(self) -> None:
        """Those that have come."""
        for ping in self._pings:
            answer = PingFrame(0, ping.opaque_data, flags=["ACK"])
            self._writer.write(answer.serialize())

    async def close(self) -> None:
        self._writer.close()
        with contextlib.suppress(ConnectionError, ssl.SSLError):
            await self._writer.wait_closed()

    async def is_closed(self) -> bool:
        rest = await self._reader.read()
        self._writer.close()
        return rest == b""

    async def _next(self, is_wanted: Callable[[Frame], bool]) -> Any:
        for index, frame in enumerate(self._frames):
            if is_wanted(frame):
                return self._frames.pop(index)
        while True:
            head = await self._reader.readexactly(9)
            frame, length = Frame.parse_frame_header(memoryview(head))
            frame.parse_body(memoryview(await self._reader.readexactly(length)))
            if isinstance(frame, PingFrame):
                self._pings.append(frame)
            elif is_wanted(frame):
                return frame
            else:
                self._frames.append(frame)
