"""Every error that the transports raise, provoked on a real socket.

The table of `docs/client.md` names these tests.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import os
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import httpx2
import pytest
from aioquic.asyncio import QuicConnectionProtocol
from aioquic.asyncio import serve as serve_quic
from aioquic.quic.configuration import QuicConfiguration
from aioquic.quic.events import QuicEvent, StreamDataReceived

import headrace.httpx
import headrace.httpx2
from headrace import Server, dev_certificate
from headrace.errors import UsageError, kinds
from headrace.exchange import Exchange
from headrace.gateway import Gateway
from headrace.transport.errors import EXCEPTIONS
from headrace_lab.model import Source
from tests.helpers.serving import config, origin
from tests.helpers.waiting import eventually

Start = Callable[..., Awaitable[Gateway]]
Serve = Callable[..., Awaitable[Server]]
FAMILIES = [(httpx2, headrace.httpx2), (httpx, headrace.httpx)]
each_family = pytest.mark.parametrize(("family", "ours"), FAMILIES, ids=["httpx2", "httpx"])


class Asking:
    """One family's client, async or sync, over HTTP/3 alone; asks and reads the whole answer."""

    def __init__(self, family: Any, ours: Any, is_sync: bool, ca_file: Path) -> None:
        self.family, self.is_sync = family, is_sync
        kind = ours.Transport if is_sync else ours.AsyncTransport
        self.transport = kind(str(ca_file), http3="only")

    async def __call__(self, url: str, **arguments: Any) -> Any:
        arguments = {"method": "POST", **arguments}
        if self.is_sync:
            client = self.family.Client(transport=self.transport)
            return await asyncio.to_thread(lambda: client.request(url=url, **arguments))
        return await self.family.AsyncClient(transport=self.transport).request(url=url, **arguments)

    def pieces(self, count: int, size: int) -> Any:
        """A body of an iterator."""
        if self.is_sync:
            return (b"x" * size for _ in range(count))

        async def generate() -> AsyncIterator[bytes]:
            for _ in range(count):
                yield b"x" * size

        return generate()


@pytest.fixture(params=["httpx2-async", "httpx2-sync", "httpx-async", "httpx-sync"])
def ask(request: pytest.FixtureRequest, ca_file: Path) -> Iterator[Asking]:
    name, way = request.param.split("-")
    family, ours = FAMILIES[0 if name == "httpx2" else 1]
    asking = Asking(family, ours, way == "sync", ca_file)
    yield asking
    asking.transport._pool.close()


def asked(**script: Any) -> dict[str, Any]:
    return {"json": {"model": "scripted", "stream": True, "script": script}}


async def never(exchange: Exchange) -> None:
    """Takes no body and gives no answer."""
    await exchange.gone()


def test_every_kind_has_its_exception() -> None:
    """A kind that a server can cause must not reach an SDK as something that it does not know."""
    of_servers = {kind.slug for kind in kinds().values() if kind.side == "server"}
    assert of_servers <= set(EXCEPTIONS)
    for family, _ in FAMILIES:
        assert all(issubclass(getattr(family, name), family.TransportError) for name in EXCEPTIONS.values())


async def test_connect_error_of_a_name_that_does_not_exist(ask: Asking) -> None:
    with pytest.raises(ask.family.ConnectError, match=r"nowhere\.invalid"):
        await ask("https://nowhere.invalid/")


async def test_connect_error_of_a_foreign_certificate(serve: Serve, ask: Asking, tmp_path: Path) -> None:
    other = dev_certificate.make(["localhost"])
    async with Server(config(), other.chain_pem, other.key_pem, never) as server:
        with pytest.raises(ask.family.ConnectError, match="invalid peer certificate"):
            await ask(origin(server))


@pytest.mark.parametrize(
    ("names", "lifetime", "reason"),
    [
        (["elsewhere.example"], dt.timedelta(days=1), r"(?i)not valid for name"),
        (["localhost"], -dt.timedelta(minutes=1), r"(?i)expired"),
    ],
)
@each_family
async def test_connect_error_of_a_wrong_name_and_of_an_expired_certificate(
    family: Any, ours: Any, tmp_path: Path, names: list[str], lifetime: dt.timedelta, reason: str
) -> None:
    made = dev_certificate.make(names, lifetime=lifetime)
    (tmp_path / "ca.pem").write_text(made.ca_pem)
    asking = Asking(family, ours, False, tmp_path / "ca.pem")
    async with Server(config(), made.chain_pem, made.key_pem, never) as server:
        with pytest.raises(family.ConnectError, match=reason):
            await asking(origin(server))
    asking.transport._pool.close()


async def test_connect_timeout(ask: Asking) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as mute:
        mute.bind(("127.0.0.1", 0))
        timeout = ask.family.Timeout(30, connect=0.1)
        with pytest.raises(ask.family.ConnectTimeout, match=r"0\.1 s"):
            await ask(f"https://localhost:{mute.getsockname()[1]}", timeout=timeout)


async def test_pool_timeout(start: Start, source: Source, ask: Asking) -> None:
    gateway = await start(source, limits={"max_streams_per_connection": 1})
    first = asyncio.create_task(ask(origin(gateway) + "/v1/x", **asked(head_delay_s=60), timeout=60))
    await eventually(lambda: source.runs)
    with pytest.raises(ask.family.PoolTimeout):
        await ask(origin(gateway) + "/v1/x", **asked(), timeout=ask.family.Timeout(30, pool=0.1))
    ask.transport._pool.close()
    with pytest.raises(ask.family.ReadError):
        await first


async def test_read_timeout_before_the_head(gateway: Gateway, source: Source, ask: Asking) -> None:
    with pytest.raises(ask.family.ReadTimeout, match=r"0\.1 s"):
        await ask(
            origin(gateway) + "/v1/x", **asked(head_delay_s=60), timeout=ask.family.Timeout(30, read=0.1)
        )
    await eventually(lambda: source.runs[0].aborted_ns)


async def test_read_timeout_within_the_body(gateway: Gateway, source: Source, ask: Asking) -> None:
    with pytest.raises(ask.family.ReadTimeout):
        await ask(
            origin(gateway) + "/v1/x", **asked(events=2, end="hang"), timeout=ask.family.Timeout(30, read=0.1)
        )
    await eventually(lambda: source.runs[0].aborted_ns)


async def test_no_timeout_while_tokens_come(gateway: Gateway, ask: Asking) -> None:
    """Each silence counts for itself, not their sum."""
    timeout = ask.family.Timeout(30, read=0.2)
    response = await ask(origin(gateway) + "/v1/x", **asked(events=10, interval_s=0.05), timeout=timeout)
    assert response.content.endswith(b"data: [DONE]\n\n")


async def test_write_timeout(serve: Serve, ask: Asking) -> None:
    server = await serve(never)
    timeout = ask.family.Timeout(30, write=0.1)
    with pytest.raises(ask.family.WriteTimeout, match=r"0\.1 s"):
        await ask(origin(server), content=b"x" * 30_000_000, timeout=timeout)


class ClosesIt(QuicConnectionProtocol):
    """A server that closes the connection when it has seen so many bytes."""

    after_bytes = 1
    seen = 0

    def quic_event_received(self, event: QuicEvent) -> None:
        if isinstance(event, StreamDataReceived) and event.stream_id == 0:
            self.seen += len(event.data)
            if self.seen >= self.after_bytes:
                self._quic.close(error_code=0x101, reason_phrase="had enough")
                self.transmit()


@contextlib.asynccontextmanager
async def closing_server(
    certificate: dev_certificate.Certificate, folder: Path, after_bytes: int
) -> AsyncIterator[str]:
    (folder / "chain.pem").write_text(certificate.chain_pem)
    (folder / "key.pem").write_text(certificate.key_pem)
    quic = QuicConfiguration(is_client=False, alpn_protocols=["h3"])
    quic.load_cert_chain(folder / "chain.pem", folder / "key.pem")
    kind = type("Closes", (ClosesIt,), {"after_bytes": after_bytes})
    server = await serve_quic("127.0.0.1", 0, configuration=quic, create_protocol=kind)
    yield f"https://localhost:{server._transport.get_extra_info('sockname')[1]}"  # type: ignore[union-attr]
    server.close()


async def test_read_error_when_the_connection_is_lost(
    ask: Asking, certificate: dev_certificate.Certificate, tmp_path: Path
) -> None:
    async with closing_server(certificate, tmp_path, after_bytes=1) as url:
        with pytest.raises(ask.family.ReadError, match="had enough"):
            await ask(url)


async def test_write_error_when_the_connection_is_lost_while_sending(
    ask: Asking, certificate: dev_certificate.Certificate, tmp_path: Path
) -> None:
    async with closing_server(certificate, tmp_path, after_bytes=100_000) as url:
        with pytest.raises(ask.family.WriteError, match="had enough"):
            await ask(url, content=ask.pieces(1000, 64 * 1024))


@pytest.mark.parametrize("end", ["die", "reset", "half", "bad_chunk"])
async def test_remote_protocol_error_when_the_answer_breaks_off(
    gateway: Gateway, ask: Asking, end: str
) -> None:
    with pytest.raises(ask.family.RemoteProtocolError, match="reset"):
        await ask(origin(gateway) + "/v1/x", **asked(events=3, interval_s=0.001, end=end))


async def test_remote_protocol_error_when_there_is_no_head(serve: Serve, ask: Asking) -> None:
    async def handle(exchange: Exchange) -> None:
        exchange.reset(0x102)

    server = await serve(handle)
    with pytest.raises(ask.family.RemoteProtocolError, match="H3_INTERNAL_ERROR"):
        await ask(origin(server))


async def test_a_refused_request_is_sent_again_once(serve: Serve, ask: Asking) -> None:
    """H3_REQUEST_REJECTED: nothing was done with it (RFC 9114 §4.1.1)."""
    seen = 0

    async def handle(exchange: Exchange) -> None:
        nonlocal seen
        seen += 1
        if seen < 2:
            exchange.reset(0x10B)
        else:
            await exchange.answer(200, [], b"yes")

    server = await serve(handle)
    assert (await ask(origin(server), content=b"x")).text == "yes"
    assert seen == 2
    seen = -100
    with pytest.raises(ask.family.RemoteProtocolError, match="refused"):
        await ask(origin(server), content=b"x")
    assert seen == -98


async def test_local_protocol_error_of_a_body_that_is_not_as_long_as_it_said(
    serve: Serve, ask: Asking
) -> None:
    server = await serve(never)
    for count in (1, 3):
        with pytest.raises(ask.family.LocalProtocolError, match="content-length"):
            await ask(origin(server), content=ask.pieces(count, 10), headers={"content-length": "20"})


async def test_local_protocol_error_of_a_header_that_cannot_be_sent(serve: Serve, ask: Asking) -> None:
    server = await serve(never)
    with pytest.raises(ask.family.LocalProtocolError, match="x-bad"):
        await ask(origin(server), headers={"x-bad": "a\nb"})


@pytest.mark.parametrize("url", ["http://localhost/", "ftp://localhost/", "wss://localhost/"])
async def test_unsupported_protocol(ask: Asking, url: str) -> None:
    with pytest.raises(ask.family.UnsupportedProtocol):
        await ask(url)


async def test_a_closed_transport_says_so(serve: Serve, ask: Asking) -> None:
    server = await serve(never)
    ask.transport._pool.close()
    with pytest.raises(UsageError, match="closed"):
        await ask(origin(server))


async def test_after_a_fork_the_child_is_told(serve: Serve, ca_file: Path) -> None:
    async def hello(exchange: Exchange) -> None:
        await exchange.answer(200, [], b"hello")

    server = await serve(hello)
    with httpx2.Client(transport=headrace.httpx2.Transport(str(ca_file), http3="only")) as client:
        await asyncio.to_thread(lambda: client.get(origin(server)))
        read, write = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                client.get(origin(server))
            except Exception as error:
                os.write(write, str(error).encode())
            os._exit(0)
        os.close(write)
        os.waitpid(child, 0)
        assert b"forked" in os.read(read, 1000)
        os.close(read)


def test_without_asyncio_the_async_transport_says_so() -> None:
    transport = headrace.httpx2.AsyncTransport(http3="only")
    step = transport.handle_async_request(httpx2.Request("GET", "https://localhost/"))
    with pytest.raises(UsageError, match="asyncio"):
        step.send(None)
