"""The client's side: what it is told when things go wrong, and what it does not hide."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from headrace import Server, dev_certificate
from headrace.client import Trust, connect
from headrace.client.events import EventReader
from headrace.errors import (
    ConfigError,
    ConnectError,
    ConnectionLostError,
    ConnectTimeoutError,
    RefusedError,
    StreamError,
)
from headrace.exchange import Exchange
from tests.helpers.serving import config, origin, port_of
from tests.helpers.waiting import eventually

Serve = Callable[..., Awaitable[Server]]


async def hello(exchange: Exchange) -> None:
    await exchange.answer(200, [], b"hello")


async def test_a_certificate_of_another_authority_is_refused_with_the_reason(serve: Serve) -> None:
    server = await serve(hello)
    with pytest.raises(ConnectError, match="certificate") as caught:
        await connect(origin(server))
    assert caught.value.kind.slug == "tls"
    assert not caught.value.kind.retryable


async def test_a_certificate_for_another_name_is_refused(tmp_path: Path) -> None:
    made = dev_certificate.make(["elsewhere.example"])
    (tmp_path / "ca.pem").write_text(made.ca_pem)
    async with Server(config(), made.chain_pem, made.key_pem, hello) as server:
        with pytest.raises(ConnectError, match="certificate"):
            await connect(origin(server), Trust(tmp_path / "ca.pem"))
        async with await connect(origin(server), Trust(anybody=True)) as connection:
            assert await connection.request("GET", "/").head() == 200


async def test_an_expired_certificate_is_refused(tmp_path: Path) -> None:
    import datetime as dt

    made = dev_certificate.make(["localhost"], lifetime=dt.timedelta(minutes=-1))
    (tmp_path / "ca.pem").write_text(made.ca_pem)
    async with Server(config(), made.chain_pem, made.key_pem, hello) as server:
        with pytest.raises(ConnectError, match=r"(?i)expired"):
            await connect(origin(server), Trust(tmp_path / "ca.pem"))


async def test_nobody_there_is_a_timeout_that_says_so() -> None:
    with socket.socket(type=socket.SOCK_DGRAM) as silent:
        silent.bind(("127.0.0.1", 0))
        with pytest.raises(ConnectTimeoutError, match=r"no answer over UDP within 0\.3 s"):
            await connect(f"https://127.0.0.1:{silent.getsockname()[1]}", timeout_s=0.3)


@pytest.mark.parametrize("url", ["http://localhost", "localhost:4433", "https://", "ftp://x"])
async def test_an_origin_must_be_https(url: str) -> None:
    with pytest.raises(ConfigError, match="expected https://host"):
        await connect(url)


async def test_a_missing_ca_file_is_named() -> None:
    with pytest.raises(ConfigError, match=r"cannot read the CA file /no/such\.pem"):
        await connect("https://localhost:1", Trust(Path("/no/such.pem")))


async def test_a_name_that_does_not_exist_is_a_connect_error() -> None:
    with pytest.raises(ConnectError, match=r"no\.such\.host\.invalid"):
        await connect("https://no.such.host.invalid")


async def test_a_server_that_goes_ends_the_stream_with_an_error(serve: Serve, trust: Trust) -> None:
    async def endless(exchange: Exchange) -> None:
        await exchange.respond(200, [])
        await exchange.gone()

    server = await serve(endless)
    connection = await connect(origin(server), trust)
    response = connection.request("GET", "/")
    await response.head()
    await server.close()
    with pytest.raises((ConnectionLostError, StreamError)):
        await response.read()
    # It may have heard the GOAWAY, or the end of the connection.
    with pytest.raises((ConnectionLostError, RefusedError)):
        await connection.request("GET", "/").head()


async def test_an_answer_shorter_than_it_says_is_truncated(serve: Serve, trust: Trust) -> None:
    """A FIN alone does not make an answer whole."""

    async def liar(exchange: Exchange) -> None:
        await exchange.respond(200, [("content-length", "10")])
        await exchange.send(b"12345")
        await exchange.finish()

    connection = await connect(origin(await serve(liar)), trust)
    response = connection.request("GET", "/")
    await response.head()
    with pytest.raises(StreamError) as caught:
        await response.read()
    assert caught.value.kind.slug == "truncated"
    connection.close()


async def test_two_hundred_requests_share_a_hundred_streams(serve: Serve, trust: Trust) -> None:
    """What the server has no credit for yet waits its turn, and all are answered."""

    async def slow(exchange: Exchange) -> None:
        await asyncio.sleep(0.02)
        await exchange.answer(200, [], exchange.request.path.encode())

    connection = await connect(origin(await serve(slow)), trust)
    responses = [connection.request("GET", f"/{number}") for number in range(200)]
    bodies = await asyncio.gather(*(response.read() for response in responses))
    assert bodies == [f"/{number}".encode() for number in range(200)]
    connection.close()


async def test_a_slow_python_reader_is_given_everything(serve: Serve, trust: Trust) -> None:
    """The buffer between the engine and Python is bounded; what does not fit waits at the server."""
    size = 3_000_000

    async def big(exchange: Exchange) -> None:
        await exchange.answer(200, [], bytes(range(250)) * (size // 250))

    connection = await connect(origin(await serve(big)), trust)
    response = connection.request("GET", "/")
    await response.head()
    await asyncio.sleep(0.2)
    got, largest = 0, 0
    async for batch in response.chunks():
        amount = sum(len(chunk.data) for chunk in batch)
        got, largest = got + amount, max(largest, amount)
        await asyncio.sleep(0)
    assert got == size
    assert largest <= 256 * 1024 + 64 * 1024
    connection.close()


async def test_times_are_taken_by_the_engine_while_python_sleeps(serve: Serve, trust: Trust) -> None:
    import time

    async def ticking(exchange: Exchange) -> None:
        await exchange.respond(200, [])
        for _ in range(10):
            await exchange.send(b"x")
            await asyncio.sleep(0.01)
        await exchange.finish()

    connection = await connect(origin(await serve(ticking)), trust)
    response = connection.request("GET", "/")
    await asyncio.sleep(0.2)
    chunks = [chunk async for batch in response.chunks() for chunk in batch]
    times = [chunk.at_ns for chunk in chunks]
    assert len(times) == 10
    assert times == sorted(times)
    assert times[-1] - times[0] >= 80_000_000, "they are not all stamped when Python woke up"
    assert times[-1] <= time.monotonic_ns()
    recorded = connection.request("GET", "/", record=True)
    records = await recorded.records()
    assert [size for _, size in records] == [1] * 10
    connection.close()


async def test_a_forked_process_is_told_that_it_has_no_engine(serve: Serve, trust: Trust) -> None:
    connection = await connect(origin(await serve(hello)), trust)
    assert await connection.request("GET", "/").head() == 200
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            connection.request("GET", "/")
        except Exception as error:
            os.write(write, str(error).encode())
        os._exit(0)
    os.close(write)
    said = os.read(read, 1000).decode()
    os.waitpid(child, 0)
    os.close(read)
    assert "forked after its first connection" in said
    connection.close()


async def test_a_connection_shows_its_state(serve: Serve, trust: Trust) -> None:
    server = await serve(hello)
    connection = await connect(origin(server), trust)
    assert repr(connection) == f"<Connection 127.0.0.1:{port_of(server)} open, 0 streams>"
    response = connection.request("GET", "/")
    assert repr(response).startswith("<Stream ")
    await response.read()
    assert repr(response) == "<Stream 0 ended>"
    assert connection.stats()["rtt"] > 0
    connection.close()
    await eventually(lambda: "closed" in repr(connection))


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_events_are_read_however_they_are_cut(end: str) -> None:
    lines = [
        "data: one",
        "",
        ": comment",
        "event: x",
        "data: two",
        "data:three",
        "",
        "id: 7",
        "",
        "data: ü😀",
        "",
        "",
    ]
    stream = ("\ufeff" + end.join(lines) + end).encode()
    for step in range(1, len(stream)):
        reader = EventReader()
        found = [data for at in range(0, len(stream), step) for data in reader.feed(stream[at : at + step])]
        assert found == ["one", "two\nthree", "ü😀"], step
