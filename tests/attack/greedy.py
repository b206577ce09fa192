"""Clients that take more than they need, each in one way, and one that takes what everybody takes.

A greedy client is a context: it has taken what it wants when it is entered, and holds it until it is left.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import h2.config
import h2.connection
from aioquic.quic.connection import QuicConnection

from headrace.client import Trust, connect
from tests.helpers.raw_peer import (
    GET,
    HEADERS,
    RawPeer,
    allow_no_answer,
    configuration,
    dial,
    frame,
    post,
    section,
)
from tests.helpers.requests import JSON, PATH, script
from tests.helpers.serving import httpx_client

Greedy = Callable[[int], contextlib.AbstractAsyncContextManager[Any]]
"""Of the server's port."""


@contextlib.asynccontextmanager
async def many(
    count: int, one: Callable[[], contextlib.AbstractAsyncContextManager[Any]]
) -> AsyncIterator[list[Any]]:
    """So many of one kind, all at once. Those that the server does not let in are left out."""
    async with contextlib.AsyncExitStack() as stack:

        async def enter() -> Any:
            with contextlib.suppress(ConnectionError, OSError, TimeoutError):
                return await stack.enter_async_context(one())

        yield [entered for entered in await asyncio.gather(*(enter() for _ in range(count))) if entered]


def silent_tcp(count: int) -> Greedy:
    """TCP connections that never say a word."""

    @contextlib.asynccontextmanager
    async def hold(port: int) -> AsyncIterator[None]:
        with contextlib.ExitStack() as stack:
            for _ in range(count):
                stack.enter_context(socket.create_connection(("127.0.0.1", port)))
            yield

    return hold


def silent_quic(count: int) -> Greedy:
    """QUIC handshakes that answer a Retry, which shows that the address is theirs, and then fall silent."""

    @contextlib.asynccontextmanager
    async def hold(port: int) -> AsyncIterator[None]:
        loop = asyncio.get_running_loop()
        with contextlib.ExitStack() as stack:
            for _ in range(count):
                client = stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
                client.setblocking(False)
                quic = QuicConnection(configuration=configuration())
                quic.connect(("127.0.0.1", port), now=loop.time())
                await _first_flights(loop, client, quic, port)
            yield

    return hold


async def _first_flights(
    loop: asyncio.AbstractEventLoop, client: socket.socket, quic: QuicConnection, port: int
) -> None:
    for _ in range(2):
        for data, _ in quic.datagrams_to_send(now=loop.time()):
            await loop.sock_sendto(client, data, ("127.0.0.1", port))
        try:
            came = await asyncio.wait_for(loop.sock_recv(client, 2048), 0.05)
        except TimeoutError:
            return
        if quic._retry_count or came[0] & 0xF0 != 0xF0:
            return
        quic.receive_datagram(came, ("127.0.0.1", port), now=loop.time())


def unread_answers(connections: int, requests: int, fields: tuple[tuple[bytes, bytes], ...] = GET) -> Greedy:
    """Requests over HTTP/3 whose answers may have no byte."""

    @contextlib.asynccontextmanager
    async def hold(port: int) -> AsyncIterator[list[RawPeer]]:
        async with many(connections, lambda: dial(port, allow_no_answer)) as peers:
            for peer in peers:
                peer.start_control()
                for _ in range(requests):
                    peer.bidi(frame(HEADERS, section(*fields)), end=True)
            await _settle(peers)
            yield peers

    return hold


def waiting_uploads(connections: int, requests: int, body: bytes = b"") -> Greedy:
    """Requests over HTTP/3 whose body never ends."""

    @contextlib.asynccontextmanager
    async def hold(port: int) -> AsyncIterator[list[RawPeer]]:
        async with many(connections, lambda: dial(port)) as peers:
            for peer in peers:
                peer.start_control()
                for _ in range(requests):
                    head = frame(HEADERS, section(*post(), (b"content-length", b"100000")))
                    peer.bidi(head + (frame(0, body) if body else b""))
            await _settle(peers)
            yield peers

    return hold


def waiting_heads(connections: int, requests: int) -> Greedy:
    """Requests over HTTP/3 whose head never comes whole."""

    @contextlib.asynccontextmanager
    async def hold(port: int) -> AsyncIterator[list[RawPeer]]:
        async with many(connections, lambda: dial(port)) as peers:
            for peer in peers:
                peer.start_control()
                for _ in range(requests):
                    peer.bidi(frame(HEADERS, section(*GET))[:-1])
            await _settle(peers)
            yield peers

    return hold


async def _settle(peers: list[RawPeer]) -> None:
    """What was said has been heard, as far as the connections are still there."""

    def is_sent(peer: RawPeer) -> bool:
        streams = peer._quic._streams.values()
        return all(stream.sender.buffer_is_empty for stream in streams)

    for peer in peers:
        while peer.closed is None:
            with contextlib.suppress(ConnectionError):
                await peer.ping()
            if is_sent(peer):
                break


class Http2:
    """A client of HTTP/2 over TLS that sends what it is told."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer
        self.state = h2.connection.H2Connection(h2.config.H2Configuration(client_side=True))

    def send(self) -> None:
        self.writer.write(self.state.data_to_send())

    def head(self, stream: int, method: str, path: str, end: bool) -> None:
        fields = [(":method", method), (":scheme", "https"), (":authority", "localhost"), (":path", path)]
        self.state.send_headers(stream, fields, end_stream=end)

    async def ping(self) -> None:
        """The server has read what was sent; raises `ConnectionError` when it has closed."""
        self.state.ping(b"12345678")
        self.send()
        while True:
            data = await self.reader.read(65536)
            if not data:
                raise ConnectionError("closed")
            for event in self.state.receive_data(data):
                if isinstance(event, h2.events.PingAckReceived):
                    return

    async def until_closed(self) -> None:
        with contextlib.suppress(ConnectionError):
            while await self.reader.read(65536):
                pass


@contextlib.asynccontextmanager
async def dial_http2(port: int, window: int = 65535) -> AsyncIterator[Http2]:
    """`window`: what an answer may have unread."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
    client = Http2(reader, writer)
    client.state.local_settings = h2.settings.Settings(
        client=True, initial_values={h2.settings.SettingCodes.INITIAL_WINDOW_SIZE: window}
    )
    client.state.initiate_connection()
    client.send()
    try:
        yield client
    finally:
        writer.close()
        with contextlib.suppress(ConnectionError, ssl.SSLError):
            await writer.wait_closed()


def http2_requests(connections: int, requests: int, body: bytes | None = None, window: int = 65535) -> Greedy:
    """POST over HTTP/2. Without a body: uploads that never end. `window`: what an answer may have unread."""

    @contextlib.asynccontextmanager
    async def hold(port: int) -> AsyncIterator[list[Http2]]:
        async with many(connections, lambda: dial_http2(port, window)) as clients:
            for client in clients:
                for number in range(requests):
                    stream = 2 * number + 1
                    client.head(stream, "POST", PATH, end=False)
                    if body is not None:
                        client.state.send_data(stream, body, end_stream=True)
                client.send()
                with contextlib.suppress(ConnectionError):
                    await client.ping()
            yield clients

    return hold


def http1_requests(connections: int, head: bytes) -> Greedy:
    """A beginning of a request on each of many connections over HTTP/1.1."""

    @contextlib.asynccontextmanager
    async def one(port: int) -> AsyncIterator[None]:
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        _, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
        try:
            writer.write(head)
            await writer.drain()
            yield
        finally:
            writer.close()
            with contextlib.suppress(ConnectionError, ssl.SSLError):
                await writer.wait_closed()

    @contextlib.asynccontextmanager
    async def hold(port: int) -> AsyncIterator[None]:
        async with many(connections, lambda: one(port)):
            yield

    return hold


def idle_connections(count: int) -> Greedy:
    """QUIC connections that ask for nothing."""

    @contextlib.asynccontextmanager
    async def hold(port: int) -> AsyncIterator[list[RawPeer]]:
        async with many(count, lambda: dial(port)) as peers:
            await _settle(peers)
            yield peers

    return hold


class Modest:
    """A client that asks for one thing after the other, over every protocol, on connections that it keeps and
    on new ones; everything must come whole."""

    def __init__(self, port: int, ca_file: Path) -> None:
        self._origin, self._trust, self._ca_file = f"https://localhost:{port}", Trust(ca_file), ca_file
        self.served = 0

    async def ask(self, times: int, path: str = "/healthz") -> None:
        """Raises what goes wrong."""
        async with (
            await connect(self._origin, self._trust) as kept,
            httpx_client(self._ca_file, http2=True) as http2,
            httpx_client(self._ca_file, http2=False) as http1,
        ):
            for _ in range(times):
                async with await connect(self._origin, self._trust) as fresh:
                    for connection in (kept, fresh):
                        await self._http3(connection, path)
                for client in (http2, http1):
                    await self._tcp(client, path)

    async def _http3(self, connection: Any, path: str) -> None:
        if path == PATH:
            response = connection.request("POST", path, JSON, script(events=3, interval_s=0.001))
        else:
            response = connection.request("GET", path)
        assert await response.head() == 200, await response.read()
        assert await response.read()
        self.served += 1

    async def _tcp(self, client: Any, path: str) -> None:
        if path == PATH:
            answer = await client.post(
                self._origin + path, content=script(events=3, interval_s=0.001), headers=dict(JSON)
            )
        else:
            answer = await client.get(self._origin + path)
        assert answer.status_code == 200, answer.text
        self.served += 1
