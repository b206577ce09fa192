"""One port, three protocols, several workers."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from headrace import Server
from headrace.client import Connection, Trust, connect
from headrace.errors import ConfigError
from headrace.exchange import Exchange
from tests.helpers.serving import config, httpx_client, origin, port_of
from tests.helpers.waiting import eventually


async def who(exchange: Exchange) -> None:
    """Answers with what the server knows of the request."""
    request = exchange.request
    text = f"{request.protocol} {request.method} {request.scheme} {request.authority} {request.target}"
    await exchange.answer(200, [("content-type", "text/plain")], text.encode())


async def test_one_port_serves_all_three_protocols(
    serve: Callable[..., Awaitable[Server]], dial: Callable[..., Awaitable[Connection]], ca_file: Path
) -> None:
    server = await serve(who)
    connection = await dial(server)
    response = connection.request("GET", "/a?b=c")
    assert await response.head() == 200
    assert await response.read() == f"HTTP/3 GET https localhost:{port_of(server)} /a?b=c".encode()
    for http2, name in ((True, "HTTP/2"), (False, "HTTP/1.1")):
        async with httpx_client(ca_file, http2) as client:
            answer = await client.get(f"{origin(server)}/a?b=c")
            assert answer.text == f"{name} GET https localhost:{port_of(server)} /a?b=c"
            assert answer.http_version == name
            assert answer.headers["alt-svc"] == f'h3=":{port_of(server)}"; ma=86400'


async def test_http3_answers_name_no_alternative(
    serve: Callable[..., Awaitable[Server]], dial: Callable[..., Awaitable[Connection]]
) -> None:
    response = (await dial(await serve(who))).request("GET", "/")
    await response.head()
    assert response.header("alt-svc") is None
    assert response.header("date") is not None


@pytest.mark.parametrize("steering", ["bpf", "forward"])
async def test_every_worker_serves_and_every_connection_reaches_its_own(
    steering: str, serve: Callable[..., Awaitable[Server]], trust: Trust
) -> None:
    """40 connections over 4 workers, 5 requests each: by the kernel's program, and by forwarding alone."""
    server = await serve(who, listen={"workers": 4, "steering": steering})
    assert server.engine.steered == (steering == "bpf")
    connections = [await connect(origin(server), trust) for _ in range(40)]

    async def ask(connection: Connection) -> None:
        for _ in range(5):
            response = connection.request("GET", "/")
            assert await response.head() == 200
            assert (await response.read()).startswith(b"HTTP/3")

    await asyncio.gather(*(ask(connection) for connection in connections))
    for connection in connections:
        connection.close()


async def test_ipv6_and_ipv4_by_one_address(serve: Callable[..., Awaitable[Server]], trust: Trust) -> None:
    server = await serve(who, listen={"host": "::"})
    for host in ("127.0.0.1", "[::1]"):
        async with await connect(f"https://{host}:{port_of(server)}", trust) as connection:
            assert await connection.request("GET", "/").head() == 200


async def test_a_port_that_is_taken_is_refused_with_a_fix(serve: Callable[..., Awaitable[Server]]) -> None:
    first = await serve(who)
    with pytest.raises(ConfigError, match=r"another program listens there; choose another listen\.port"):
        await serve(who, listen={"port": port_of(first)})


@pytest.mark.parametrize(
    ("chain", "key", "message"),
    [
        ("nonsense", None, "tls.certificate: holds no certificate"),
        (None, "nonsense", "tls.key: holds no private key"),
        ("", None, "tls.certificate: holds no certificate"),
        (
            "-----BEGIN CERTIFICATE-----\n!!!\n-----END CERTIFICATE-----",
            None,
            "tls.certificate: is not PEM",
        ),
        (None, "other", "tls.key: does not belong to the certificate"),
    ],
)
async def test_a_bad_certificate_says_what_is_bad(
    chain: str | None, key: str | None, message: str, certificate: object, serve: object
) -> None:
    from headrace import dev_certificate

    made = dev_certificate.make(["localhost"])
    chain = made.chain_pem if chain is None else chain
    if key == "other":
        key = dev_certificate.make(["localhost"]).key_pem
    server = Server(config(), chain, made.key_pem if key is None else key, who)
    with pytest.raises(ConfigError, match=message):
        server.start()


async def test_a_connection_beyond_the_limit_takes_the_place_of_the_one_that_was_idle_longest(
    serve: Callable[..., Awaitable[Server]], trust: Trust
) -> None:
    """Nobody who comes new is turned away while another connection does nothing."""
    server = await serve(who, limits={"max_connections": 2})
    first, second = [await connect(origin(server), trust) for _ in range(2)]
    await eventually(lambda: server.snapshot()["connections_total"] == 2)
    async with await connect(origin(server), trust) as third:
        for connection in (third, second):
            assert await connection.request("GET", "/").head() == 200
        await eventually(lambda: not first.is_open)
    second.close()


async def test_a_connection_that_is_being_served_keeps_its_place(
    serve: Callable[..., Awaitable[Server]], trust: Trust
) -> None:
    """When all of them are, one more is refused, and counted."""
    from headrace.errors import ConnectError, ConnectionLostError

    async def hold(exchange: Exchange) -> None:
        await exchange.gone()

    server = await serve(hold, limits={"max_connections": 2})
    kept = [await connect(origin(server), trust) for _ in range(2)]
    held = [connection.request("GET", "/") for connection in kept]
    await eventually(lambda: server.snapshot()["exchanges"] == 2)
    with pytest.raises((ConnectError, ConnectionLostError)):
        async with await connect(origin(server), trust) as third:
            await third.request("GET", "/").head()
    assert server.snapshot()["refused_total"] == 1
    assert all(connection.is_open for connection in kept)
    del held
    for connection in kept:
        connection.close()


async def test_under_many_handshakes_an_address_must_be_proved(
    serve: Callable[..., Awaitable[Server]], trust: Trust
) -> None:
    """From `retry_above_handshakes` on, a Retry comes first, and a real client still gets through."""
    server = await serve(who, limits={"retry_above_handshakes": 0})
    async with await connect(origin(server), trust) as connection:
        assert await connection.request("GET", "/").head() == 200


async def test_a_drain_cuts_nobody(
    serve: Callable[..., Awaitable[Server]], dial: Callable[..., Awaitable[Connection]], ca_file: Path
) -> None:
    """GOAWAY, then the running answer to its end, then closed; new requests are refused."""
    from headrace.errors import HeadraceError

    release = asyncio.Event()

    async def slow(exchange: Exchange) -> None:
        await exchange.respond(200, [])
        await exchange.send(b"begin")
        await release.wait()
        await exchange.send(b"end")
        await exchange.finish()

    server = await serve(slow)
    connection = await dial(server)
    running = connection.request("GET", "/")
    await running.head()
    drained = asyncio.create_task(server.drain(10))
    await asyncio.sleep(0.1)
    with pytest.raises(HeadraceError):
        await connection.request("GET", "/late").head()
    release.set()
    assert await running.read() == b"beginend"
    assert await drained == 0


async def test_a_drain_that_may_not_wait_says_how_many_were_cut(
    serve: Callable[..., Awaitable[Server]], dial: Callable[..., Awaitable[Connection]]
) -> None:
    from headrace.errors import StreamError

    async def endless(exchange: Exchange) -> None:
        await exchange.respond(200, [])
        await exchange.gone()

    server = await serve(endless)
    response = (await dial(server)).request("GET", "/")
    await response.head()
    assert await server.drain(0.05) == 1
    with pytest.raises(StreamError):
        await response.read()
