"""HTTP/2: many streams on one TCP connection, by the `h2` library over asyncio, timed at the socket."""

from __future__ import annotations

import asyncio
import time
from typing import cast

from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.errors import ErrorCodes
from h2.events import (
    ConnectionTerminated,
    DataReceived,
    ResponseReceived,
    StreamEnded,
    StreamReset,
)
from h2.exceptions import H2Error
from h2.settings import SettingCodes, Settings

from headrace_lab.clients.client import Destination, Request
from headrace_lab.clients.sink import Sink

# How much of one answer, and of all on a connection, may be unread: as in headrace's own client over HTTP/3.
STREAM_WINDOW = 1024 * 1024
CONNECTION_WINDOW = 128 * 1024 * 1024


class Http2Client:
    """One connection."""

    def __init__(self, destination: Destination) -> None:
        self.destination = destination
        self.protocol: _Connection

    async def connect(self) -> None:
        """Opens the connection. A request may go out before the server's settings are there (RFC 9113
        §3.4)."""
        loop = asyncio.get_running_loop()
        context = self.destination.tls(["h2"])
        _, self.protocol = await loop.create_connection(
            _Connection, self.destination.host, self.destination.port, ssl=context
        )
        if context is not None:
            chosen = self.protocol.transport.get_extra_info("ssl_object").selected_alpn_protocol()
            if chosen != "h2":
                self.protocol.transport.abort()
                raise ConnectionError(f"the server speaks {chosen or 'no HTTP/2'} there, not h2")

    async def send(self, request: Request, sink: Sink) -> _Answer:
        fields = [
            (":method", request.method),
            (":scheme", "https"),
            (":authority", self.destination.authority),
        ]
        fields += [(":path", request.path), *request.fields, ("content-length", str(len(request.body)))]
        return self.protocol.ask(fields, request.body, sink)

    def migrate(self) -> None:
        raise NotImplementedError("TCP cannot move")

    def stats(self) -> dict[str, float]:
        return {}

    def close(self) -> None:
        self.protocol.transport.abort()


class _Connection(asyncio.Protocol):
    def __init__(self) -> None:
        configuration = H2Configuration(
            client_side=True, header_encoding="utf-8", validate_outbound_headers=False
        )
        self.h2 = H2Connection(configuration)
        # Set together they go out in the first frame; set one by one, in a second frame that is not sent.
        self.h2.local_settings = Settings(
            client=True,
            initial_values={SettingCodes.ENABLE_PUSH: 0, SettingCodes.INITIAL_WINDOW_SIZE: STREAM_WINDOW},
        )
        self.answers: dict[int, _Answer] = {}
        self.transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.h2.initiate_connection()
        self.h2.increment_flow_control_window(CONNECTION_WINDOW)
        self.flush()

    def ask(self, fields: list[tuple[str, str]], body: bytes, sink: Sink) -> _Answer:
        stream = self.h2.get_next_available_stream_id()
        answer = self.answers[stream] = _Answer(self, stream, sink)
        self.h2.send_headers(stream, fields, end_stream=not body)
        if body:
            self.h2.send_data(stream, body, end_stream=True)
        sink.sent_ns = time.monotonic_ns()
        self.flush()
        return answer

    def flush(self) -> None:
        if data := self.h2.data_to_send():
            self.transport.write(data)

    def data_received(self, data: bytes) -> None:
        now = time.monotonic_ns()
        try:
            events = self.h2.receive_data(data)
        except H2Error as error:
            self._end_all(now, type(error).__name__)
            self.transport.abort()
            return
        for event in events:
            if isinstance(event, DataReceived):
                self._data(now, event)
            elif isinstance(event, ResponseReceived) and (answer := self.answers.get(event.stream_id)):
                fields = cast(dict[str, str], dict(event.headers))
                answer.sink.head(now, int(fields[":status"]), fields)
            elif isinstance(event, StreamEnded) and (answer := self.answers.pop(event.stream_id, None)):
                answer.sink.end(now)
            elif isinstance(event, StreamReset) and (answer := self.answers.pop(event.stream_id, None)):
                answer.sink.end(now, "reset")
            elif isinstance(event, ConnectionTerminated):
                self._end_all(now, "goaway")
        self.flush()

    def _data(self, now: int, event: DataReceived) -> None:
        answer = self.answers.get(event.stream_id)
        size = event.flow_controlled_length
        if answer is None:
            if size:
                self.h2.increment_flow_control_window(size)
            return
        if event.data:
            answer.sink.data(now, event.data)
        answer.owed += size
        # Credit is given back for half a window at a time, as browsers do: it saves packets.
        if not answer.is_paused and answer.owed >= 32 * 1024:
            answer.credit()

    def connection_lost(self, error: Exception | None) -> None:
        self._end_all(time.monotonic_ns(), type(error).__name__ if error else "cut")

    def _end_all(self, now: int, why: str) -> None:
        for answer in self.answers.values():
            answer.sink.end(now, why)
        self.answers.clear()


class _Answer:
    def __init__(self, connection: _Connection, stream: int, sink: Sink) -> None:
        self.connection, self.stream, self.sink = connection, stream, sink
        self.owed = 0
        """Bytes that were read and have not been given back as credit yet."""
        self.is_paused = False

    def credit(self) -> None:
        if self.owed and self.stream in self.connection.answers:
            self.connection.h2.acknowledge_received_data(self.owed, self.stream)
            self.owed = 0

    def stop(self) -> None:
        if self.connection.answers.pop(self.stream, None):
            self.connection.h2.reset_stream(self.stream, ErrorCodes.CANCEL)
            self.connection.flush()
            self.sink.end(time.monotonic_ns(), "stopped")

    def pause(self) -> None:
        self.is_paused = True

    def resume(self) -> None:
        self.is_paused = False
        self.credit()
        self.connection.flush()
