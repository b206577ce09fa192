"""What the tests share: a certificate, a scripted model, a gateway in this process, and a watch over
leaks."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import signal
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from headrace import Config, Server, dev_certificate
from headrace.client import Chunk, Connection, Trust, connect
from headrace.exchange import Handler
from headrace.gateway import Gateway
from headrace.lab.source import Script, Source

# A shell that runs us in the background ignores SIGINT, and so would every process that a test starts.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> dev_certificate.Certificate:
    made = dev_certificate.make(["localhost", "127.0.0.1", "::1"])
    (tmp_path_factory.getbasetemp() / "ca.pem").write_text(made.ca_pem)
    return made


@pytest.fixture(scope="session")
def ca_file(certificate: dev_certificate.Certificate, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.getbasetemp() / "ca.pem"


@pytest.fixture
def trust(ca_file: Path) -> Trust:
    return Trust(ca_file)


@pytest.fixture(autouse=True)
def _no_unhandled(request: pytest.FixtureRequest) -> Any:
    """An exception that nobody saw, in any task of the loop, fails the test."""
    seen: list[dict[str, Any]] = []
    policy_loop_new = asyncio.new_event_loop

    def new_loop() -> asyncio.AbstractEventLoop:
        loop = policy_loop_new()
        loop.set_exception_handler(lambda _, context: seen.append(context))
        return loop

    asyncio.new_event_loop = new_loop  # type: ignore[assignment]
    try:
        yield
    finally:
        asyncio.new_event_loop = policy_loop_new
        gc.collect()
    assert not seen, seen


@pytest.fixture
async def source() -> AsyncIterator[Source]:
    async with Source() as started:
        yield started


def config(*sources: Source, **sections: Any) -> Config:
    """A configuration before these scripted models, on a free port."""
    upstreams = [{"url": source.url, "models": list(source.models)} for source in sources]
    return Config(**{"upstreams": upstreams, **sections, "listen": {"port": 0, **sections.get("listen", {})}})


@pytest.fixture
async def start(certificate: dev_certificate.Certificate) -> AsyncIterator[Callable[..., Awaitable[Gateway]]]:
    """Starts gateways: `await start(source, ..., limits={...})`."""
    async with contextlib.AsyncExitStack() as stack:

        async def start_one(*sources: Source, **sections: Any) -> Gateway:
            gateway = Gateway(config(*sources, **sections), certificate.chain_pem, certificate.key_pem)
            return await stack.enter_async_context(gateway)

        yield start_one


@pytest.fixture
async def gateway(source: Source, start: Callable[..., Awaitable[Gateway]]) -> Gateway:
    return await start(source)


@pytest.fixture
async def serve(certificate: dev_certificate.Certificate) -> AsyncIterator[Callable[..., Awaitable[Server]]]:
    """Starts servers with a handler of the test's own: `await serve(handler, limits={...})`."""
    async with contextlib.AsyncExitStack() as stack:

        async def serve_one(handler: Handler, **sections: Any) -> Server:
            server = Server(config(**sections), certificate.chain_pem, certificate.key_pem, handler)
            return await stack.enter_async_context(server)

        yield serve_one


@pytest.fixture
async def dial(trust: Trust) -> AsyncIterator[Callable[..., Awaitable[Connection]]]:
    """Connects by HTTP/3: `await dial(gateway)`."""
    opened: list[Connection] = []

    async def dial_one(server: Gateway | Server) -> Connection:
        connection = await connect(origin(server), trust)
        opened.append(connection)
        return connection

    yield dial_one
    for connection in opened:
        connection.close()


def port_of(server: Gateway | Server) -> int:
    return (server.server if isinstance(server, Gateway) else server).address[1]


def origin(server: Gateway | Server) -> str:
    return f"https://localhost:{port_of(server)}"


def script(**fields: Any) -> bytes:
    """The body of a request that the scripted model answers as told."""
    return json.dumps({"model": "scripted", "stream": True, "script": fields}).encode()


JSON = [("content-type", "application/json")]


def frames(chunks: Iterable[Chunk]) -> list[bytes]:
    """The DATA frames that chunks come from: one that lies across two packets may come in two pieces."""
    found: list[bytes] = []
    for chunk in chunks:
        if chunk.is_first:
            found.append(b"")
        found[-1] += chunk.data
    return found


async def eventually(condition: Callable[[], Any], what: str = "") -> None:
    """Waits until something is so that another thread or process brings about; at most ten seconds."""
    for _ in range(2000):
        if condition():
            return
        await asyncio.sleep(0.005)
    raise AssertionError(what or "it never became so")


def default_script(**fields: Any) -> Script:
    return Script(**{"interval_s": 0.002, **fields})


@contextlib.contextmanager
def mute_udp(port: int = 0) -> Iterator[int]:
    """A UDP port that takes everything and answers nothing, as a network that drops UDP."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as mute:
        mute.bind(("127.0.0.1", port))
        yield mute.getsockname()[1]
