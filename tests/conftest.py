"""What the tests share: a certificate, a scripted model, a gateway in this process, and a watch over
leaks."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from headrace import Server, dev_certificate
from headrace.client import Connection, Trust, connect
from headrace.exchange import Handler
from headrace.gateway import Gateway
from headrace_lab.model import Source
from tests.helpers.serving import config, origin

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
