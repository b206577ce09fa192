"""A request's head and body, as a handler sees them; a handler's own answer."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from headrace import Server
from headrace.client import Connection
from headrace.errors import ClientGoneError, ClosedError, RequestError, StreamError, UsageError
from headrace.exchange import Exchange
from tests.helpers.answers import frames
from tests.helpers.serving import httpx_client, origin, port_of
from tests.helpers.waiting import eventually

Serve = Callable[..., Awaitable[Server]]
Dial = Callable[..., Awaitable[Connection]]


async def echo(exchange: Exchange) -> None:
    await exchange.answer(200, [], await exchange.body())


@pytest.mark.parametrize("size", [0, 1, 1000, 300_000, 5_000_000])
async def test_a_body_arrives_whole(size: int, serve: Serve, dial: Dial) -> None:
    body = bytes(range(256)) * (size // 256) + b"x" * (size % 256)
    response = (await dial(await serve(echo))).request("POST", "/", body=body)
    assert await response.head() == 200
    assert await response.read() == body


@pytest.mark.parametrize("size", [0, 100_000, 4_000_000])
async def test_fields_of_a_body_are_read_where_it_is(size: int, serve: Serve, dial: Dial) -> None:
    """Of a body that came with its head and of one that came later; it can still be had whole."""
    seen: list[object] = []

    async def handle(exchange: Exchange) -> None:
        seen.append(await exchange.body_fields(("model", "stream", "n", "gone")))
        seen.append(len(await exchange.body()))
        seen.append(await exchange.body_fields(["model"]))
        await exchange.answer(200, [], b"")

    connection = await dial(await serve(handle))
    body = b'{"messages": "%s", "stream": true, "n": 7, "gone": null, "model": "m\\u00e9"}' % (b"x" * size)
    for sent in (body, b"no JSON", b""):
        assert await connection.request("POST", "/", [], sent).head() == 200
    assert seen == [
        *({"model": "m\xe9", "stream": True, "n": None}, len(body), {"model": "m\xe9"}),
        *(None, 7, None),
        *({}, 0, {}),
    ]


async def test_fields_of_a_body_that_is_refused_are_refused(serve: Serve, dial: Dial) -> None:
    seen: list[str] = []

    async def handle(exchange: Exchange) -> None:
        try:
            await exchange.body_fields(("model",))
        except RequestError as error:
            seen.append(error.kind.slug)
            raise

    connection = await dial(await serve(handle, limits={"max_body_bytes": 1000}))
    assert await connection.request("POST", "/", [], b"x" * 2000).head() == 413
    assert seen == ["body_too_large"]


@pytest.mark.parametrize("http2", [True, False])
async def test_a_body_arrives_whole_over_tcp(http2: bool, serve: Serve, ca_file: Path) -> None:
    server = await serve(echo)
    async with httpx_client(ca_file, http2) as client:
        for size in (0, 10, 1_000_000):
            answer = await client.post(f"{origin(server)}/", content=b"y" * size)
            assert answer.content == b"y" * size


async def test_fields_arrive_in_lower_case_and_none_of_one_hop(
    serve: Serve, ca_file: Path, dial: Dial
) -> None:
    seen: list[list[tuple[str, str]]] = []

    async def handler(exchange: Exchange) -> None:
        seen.append(exchange.request.headers)
        await exchange.answer(204, [], b"")

    server = await serve(handler)
    async with httpx_client(ca_file, http2=False) as client:
        fields = {"X-Thing": "Ünï", "Connection": "keep-alive, X-Hop", "X-Hop": "1", "TE": "trailers"}
        await client.get(
            origin(server), headers={name: value.encode("latin-1") for name, value in fields.items()}
        )
    found = dict(seen[0])
    assert found["x-thing"] == "Ünï"
    assert not {"connection", "x-hop", "te", "host"} & set(found)


@pytest.mark.parametrize("http2", [True, False])
async def test_a_head_too_large_is_refused_over_tcp_too(http2: bool, serve: Serve, ca_file: Path) -> None:
    import httpx2

    server = await serve(echo, limits={"max_head_bytes": 16 * 1024})
    async with httpx_client(ca_file, http2) as client:
        try:
            answer = await client.get(origin(server), headers={"x-big": "y" * 100_000})
            assert answer.status_code == 431
        except httpx2.RemoteProtocolError:
            pass  # HTTP/2 may end the stream instead
        assert (await client.get(origin(server))).status_code == 200


async def test_a_body_too_large_is_told_before_it_is_read(serve: Serve, dial: Dial) -> None:
    errors: list[RequestError] = []

    async def handler(exchange: Exchange) -> None:
        try:
            await exchange.body()
        except RequestError as error:
            errors.append(error)
            await exchange.answer(error.kind.status, [], str(error).encode())

    server = await serve(handler, limits={"max_body_bytes": 1000})
    connection = await dial(server)
    response = connection.request("POST", "/", body=b"x" * 1001)
    assert await response.head() == 413
    assert "limits.max_body_bytes" in (await response.read()).decode()
    assert errors[0].kind.slug == "body_too_large"
    response = connection.request("POST", "/", body=b"x" * 1000)
    with pytest.raises(StreamError):  # the handler answers nothing for a good body
        await response.head()


async def test_bodies_that_would_fill_the_memory_are_refused_as_overload(serve: Serve, dial: Dial) -> None:
    from headrace.errors import OverloadedError

    async def handler(exchange: Exchange) -> None:
        try:
            await exchange.body()
            await exchange.gone()
        except OverloadedError as error:
            await exchange.answer(503, [], error.kind.slug.encode())

    server = await serve(handler, limits={"max_body_bytes": 60_000, "max_buffered_bytes": 100_000})
    connection = await dial(server)
    held = connection.request("POST", "/", body=b"x" * 60_000)
    await eventually(lambda: server.snapshot()["buffered_bytes"] == 60_000)
    second = connection.request("POST", "/", body=b"x" * 60_000)
    assert await second.head() == 503
    assert await second.read() == b"overloaded"
    held.stop()
    await eventually(lambda: server.snapshot()["buffered_bytes"] == 0, "what was held is given back")


async def test_requests_beyond_the_limit_are_answered_503(serve: Serve, dial: Dial) -> None:
    async def hold(exchange: Exchange) -> None:
        await exchange.gone()

    server = await serve(hold, limits={"max_exchanges": 2})
    connection = await dial(server)
    held = [connection.request("GET", "/") for _ in range(2)]
    await eventually(lambda: server.snapshot()["exchanges"] == 2)
    third = connection.request("GET", "/")
    assert await third.head() == 503
    assert third.header("retry-after") == "1"
    assert b'"code":"overloaded"' in await third.read()
    for response in held:
        response.stop()


async def test_a_stream_of_ones_own(serve: Serve, dial: Dial) -> None:
    """respond, send, finish: each send is one DATA frame, and trailers follow."""

    async def handler(exchange: Exchange) -> None:
        assert exchange.phase == "open"
        await exchange.respond(200, [("content-type", "text/event-stream"), ("x-a", "1"), ("x-a", "2")])
        for number in range(5):
            await exchange.send(f"data: {number}\n\n".encode())
        assert exchange.phase == "answering"
        await exchange.finish([("x-sum", "10")])
        assert exchange.phase == "finished"

    response = (await dial(await serve(handler))).request("GET", "/")
    assert await response.head() == 200
    assert [value for name, value in response.headers if name == "x-a"] == ["1", "2"]
    chunks = [chunk async for batch in response.chunks() for chunk in batch]
    assert frames(chunks) == [f"data: {number}\n\n".encode() for number in range(5)]
    assert response.trailers == [("x-sum", "10")]


@pytest.mark.parametrize("http2", [True, False])
async def test_a_stream_of_ones_own_over_tcp(http2: bool, serve: Serve, ca_file: Path) -> None:
    async def handler(exchange: Exchange) -> None:
        await exchange.respond(200, [("content-type", "text/event-stream")])
        for number in range(100):
            await exchange.send(f"data: {number}\n\n".encode())
        await exchange.finish()

    server = await serve(handler)
    async with httpx_client(ca_file, http2) as client:
        answer = await client.get(origin(server))
        assert answer.text == "".join(f"data: {number}\n\n" for number in range(100))


async def test_a_head_request_is_answered_without_a_body(serve: Serve, dial: Dial, ca_file: Path) -> None:
    server = await serve(echo)
    response = (await dial(server)).request("HEAD", "/", body=b"12345")
    assert await response.head() == 200
    assert response.header("content-length") == "5"
    assert await response.read() == b""
    async with httpx_client(ca_file, http2=True) as client:
        assert (await client.head(origin(server))).content == b""


async def test_calls_out_of_turn_are_refused_and_break_nothing(serve: Serve, dial: Dial) -> None:
    refused: list[str] = []

    async def handler(exchange: Exchange) -> None:
        for call in (exchange.send(b"x"), exchange.finish()):
            with pytest.raises(UsageError, match="the exchange is Open"):
                await call
        await exchange.respond(200, [])
        with pytest.raises(UsageError, match="the exchange is Answering"):
            await exchange.respond(200, [])
        with pytest.raises(UsageError, match="is not an HTTP status"):
            exchange.respond(99, [])
        with pytest.raises(UsageError, match="the value of x holds what none may"):
            exchange.respond(200, [("x", "a\r\nb: c")])
        with pytest.raises(UsageError, match="is not the name of a header field"):
            exchange.respond(200, [("bad name", "x")])
        await exchange.finish()
        with pytest.raises(ClosedError):
            await exchange.send(b"x")
        refused.append("all")

    response = (await dial(await serve(handler))).request("GET", "/")
    assert await response.head() == 200
    assert await response.read() == b""
    # The handler goes on after the end that the client saw.
    await eventually(lambda: refused == ["all"])


@pytest.mark.parametrize("how", ["returns", "raises", "resets", "is cancelled"])
async def test_an_unfinished_answer_is_reset_however_the_handler_ends(
    how: str, serve: Serve, dial: Dial
) -> None:
    async def handler(exchange: Exchange) -> None:
        await exchange.respond(200, [])
        await exchange.send(b"half")
        if how == "raises":
            raise UsageError("misuse", "on purpose")
        if how == "resets":
            exchange.reset(0x102)
            await asyncio.sleep(10)
        if how == "is cancelled":
            asyncio.current_task().cancel()  # type: ignore[union-attr]
            await asyncio.sleep(0)

    response = (await dial(await serve(handler))).request("GET", "/")
    with pytest.raises(StreamError) as caught:
        await response.head()
        await response.read()
    assert caught.value.kind.slug == "stream_reset"


async def test_a_handler_that_fails_before_its_answer_is_answered_500(serve: Serve, dial: Dial) -> None:
    async def handler(exchange: Exchange) -> None:
        raise ValueError("on purpose")

    response = (await dial(await serve(handler))).request("GET", "/")
    assert await response.head() == 500
    assert b"log says why" in await response.read()


async def test_a_handler_hears_that_its_client_is_gone(serve: Serve, dial: Dial) -> None:
    heard: list[str] = []

    async def handler(exchange: Exchange) -> None:
        await exchange.respond(200, [])
        heard.append(await exchange.gone())
        with pytest.raises(ClientGoneError):
            for _ in range(1000):
                await exchange.send(b"x" * 10_000)
        heard.append("send raised")

    server = await serve(handler)
    response = (await dial(server)).request("GET", "/")
    await response.head()
    response.stop()
    await eventually(lambda: heard == ["stopped", "send raised"])


async def test_a_connection_that_nobody_uses_is_closed(serve: Serve, dial: Dial) -> None:
    server = await serve(echo, timeouts={"unused_s": 0.2})
    connection = await dial(server)
    response = connection.request("POST", "/", body=b"x")
    assert await response.read() == b"x"
    await eventually(lambda: server.snapshot()["connections"] == 0)


async def test_a_request_that_never_comes_whole_is_given_up(serve: Serve) -> None:
    from tests.helpers.raw_peer import DATA, HEADERS, dial, frame, post, section

    errors: list[str] = []

    async def handler(exchange: Exchange) -> None:
        try:
            await exchange.body()
        except RequestError as error:
            errors.append(error.kind.slug)
            await exchange.answer(error.kind.status, [], b"")

    server = await serve(handler, timeouts={"request_s": 0.3})
    async with dial(port_of(server)) as peer:
        peer.start_control()
        no_head = peer.bidi(frame(HEADERS, section(*post()))[:10])
        no_body = peer.bidi(frame(HEADERS, section(*post())) + frame(DATA, b"x", length=10))
        await peer.until_over(no_head)
        assert peer.status_of(no_head) == 408
        await peer.until_over(no_body)
        assert peer.status_of(no_body) == 408
    assert errors == ["request_timeout"]
