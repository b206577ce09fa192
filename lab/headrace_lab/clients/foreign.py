"""HTTP/3 by other people's clients, aioquic and qh3, to show that a result does not depend on ours.

Both have the same shape (qh3 began as aioquic), so one file drives both.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import ipaddress
import ssl
import time
from typing import Any

from headrace_lab.clients.client import Destination, Request
from headrace_lab.clients.sink import Sink

CANCELLED = 0x10C
"""H3_REQUEST_CANCELLED (RFC 9114 §8.1)."""


class ForeignClient:
    """One connection. `library`: `aioquic` or `qh3`."""

    def __init__(self, destination: Destination, library: str) -> None:
        self.destination, self.library = destination, library
        self.stack = contextlib.AsyncExitStack()
        self.protocol: Any = None

    async def connect(self) -> None:
        def part(name: str) -> Any:
            return importlib.import_module(f"{self.library}.{name}")

        configuration = part("quic.configuration").QuicConfiguration(
            is_client=True, alpn_protocols=["h3"], server_name=_name(self.destination.host)
        )
        configuration.max_data, configuration.max_stream_data = 128 * 1024 * 1024, 1024 * 1024
        if self.destination.ca:
            configuration.load_verify_locations(cafile=str(self.destination.ca))
        else:
            configuration.verify_mode = ssl.CERT_NONE
        connecting = part("asyncio.client").connect(
            self.destination.host,
            self.destination.port,
            configuration=configuration,
            create_protocol=_protocol(self.library),
            wait_connected=True,
        )
        self.protocol = await asyncio.wait_for(self.stack.enter_async_context(connecting), 10)

    async def send(self, request: Request, sink: Sink) -> _Answer:
        protocol = self.protocol
        stream = protocol._quic.get_next_available_stream_id()
        protocol.sinks[stream] = sink
        fields = [
            (":method", request.method),
            (":scheme", "https"),
            (":authority", self.destination.authority),
        ]
        fields += [(":path", request.path), *request.fields, ("content-length", str(len(request.body)))]
        encoded = [(name.encode(), value.encode()) for name, value in fields]
        protocol.http.send_headers(stream, encoded, end_stream=not request.body)
        if request.body:
            protocol.http.send_data(stream, request.body, end_stream=True)
        sink.sent_ns = time.monotonic_ns()
        protocol.transmit()
        return _Answer(protocol, stream)

    def migrate(self) -> None:
        raise NotImplementedError(f"{self.library} does not move by itself")

    def stats(self) -> dict[str, float]:
        return {}

    def close(self) -> None:
        self.protocol.close()
        self.protocol.transmit()


def _name(host: str) -> str:
    """Returns the name for SNI, which must not be an address (RFC 6066 §3): Envoy refuses one, and qh3
    would send it. The lab's certificates are for localhost, too."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return host
    return "localhost"


class _Answer:
    def __init__(self, protocol: Any, stream: int) -> None:
        self.protocol, self.stream = protocol, stream

    def stop(self) -> None:
        self.protocol._quic.stop_stream(self.stream, CANCELLED)
        self.protocol.transmit()
        if sink := self.protocol.sinks.pop(self.stream, None):
            sink.end(time.monotonic_ns(), "stopped")

    def pause(self) -> None:
        raise NotImplementedError("this client cannot read slowly")

    def resume(self) -> None:
        raise NotImplementedError("this client cannot read slowly")


def _protocol(library: str) -> type:
    base = importlib.import_module(f"{library}.asyncio.protocol").QuicConnectionProtocol
    http = importlib.import_module(f"{library}.h3.connection").H3Connection
    events = importlib.import_module(f"{library}.h3.events")
    quic_events = importlib.import_module(f"{library}.quic.events")

    class Protocol(base):  # type: ignore[misc, valid-type]
        def __init__(self, *arguments: Any, **named: Any) -> None:
            super().__init__(*arguments, **named)
            self.http = http(self._quic)
            self.sinks: dict[int, Sink] = {}
            self.read_ns = 0

        def datagram_received(self, data: Any, address: Any) -> None:
            self.read_ns = time.monotonic_ns()
            super().datagram_received(data, address)

        def datagrams_received(self, data: Any, address: Any) -> None:
            """qh3 calls this for datagrams that the kernel hands on in one piece."""
            self.read_ns = time.monotonic_ns()
            super().datagrams_received(data, address)

        def quic_event_received(self, event: Any) -> None:
            now = self.read_ns
            if isinstance(event, quic_events.ConnectionTerminated):
                for sink in self.sinks.values():
                    sink.end(time.monotonic_ns(), "closed")
            if isinstance(event, quic_events.StreamReset) and event.stream_id in self.sinks:
                self.sinks.pop(event.stream_id).end(now, "reset")
            for found in self.http.handle_event(event):
                if getattr(found, "stream_id", -1) not in self.sinks:
                    continue
                sink = self.sinks[found.stream_id]
                if isinstance(found, events.HeadersReceived):
                    fields = {name.decode(): value.decode("latin-1") for name, value in found.headers}
                    if ":status" in fields:
                        sink.head(now, int(fields[":status"]), fields)
                elif isinstance(found, events.DataReceived) and found.data:
                    sink.data(now, found.data)
                if getattr(found, "stream_ended", False):
                    self.sinks.pop(found.stream_id, None)
                    sink.end(now)

    return Protocol
