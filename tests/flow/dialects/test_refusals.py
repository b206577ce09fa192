"""A client that is refused is told so in the words of the API that it asked, whoever refuses."""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from headrace import Server
from headrace.client import Connection
from headrace.exchange import Exchange
from headrace.gateway import Gateway
from headrace.gateway.auth import new_key
from headrace_lab.model import Source
from tests.flow.dialects.words import WORDS, Words
from tests.helpers import raw_peer
from tests.helpers.raw_http2 import RawHttp2
from tests.helpers.raw_peer import DATA, HEADERS, frame, literal, post, section
from tests.helpers.requests import JSON
from tests.helpers.serving import httpx_client, origin, port_of
from tests.helpers.waiting import eventually

Start = Callable[..., Awaitable[Gateway]]
Serve = Callable[..., Awaitable[Server]]
Dial = Callable[..., Awaitable[Connection]]

each_dialect = pytest.mark.parametrize("words", WORDS.values(), ids=WORDS)


def is_told(body: bytes, words: Words) -> bool:
    """A body in which clients of that API find an error."""
    return bool(words.reads_error(json.loads(body)))


async def silent(exchange: Exchange) -> None:
    await exchange.gone()


async def failing(exchange: Exchange) -> None:
    raise ValueError("on purpose")


HEAD = literal(b":method", b"HEAD")


def head_with(path: bytes, size: int) -> bytes:
    """A request's head whose fields are so large."""
    return section(*post(path), (b"x-large", b"x" * size))


REFUSED_HEADS: list[tuple[str, int, Callable[[bytes], bytes]]] = [
    ("method_refused", 501, lambda path: frame(HEADERS, section((b":method", b"CONNECT"), *post(path)[1:]))),
    ("a head too large", 431, lambda path: frame(HEADERS, head_with(path, 20_000))),
    ("a frame too large", 431, lambda path: frame(HEADERS, head_with(path, 100_000))),
    ("a frame that only begins", 431, lambda path: frame(HEADERS, head_with(path, 0), length=10_000_000)),
    ("many fields", 431, lambda path: frame(HEADERS, section(*post(path)) + literal(b"a", b"b") * 1000)),
    ("a head that stops", 408, lambda path: frame(HEADERS, head_with(path, 100), length=10_000)),
]


@each_dialect
async def test_the_engines_own_over_http3(words: Words, serve: Serve) -> None:
    server = await serve(silent, limits={"max_head_bytes": 16 * 1024}, timeouts={"request_s": 0.5})
    async with raw_peer.dial(port_of(server)) as peer:
        peer.start_control()
        for what, status, request in REFUSED_HEADS:
            stream = peer.bidi(request(words.path.encode()))
            await peer.until_over(stream)
            assert peer.status_of(stream) == status, what
            assert is_told(peer.body_of(stream), words), f"{what}: {peer.body_of(stream)!r}"


async def test_a_head_request_is_refused_without_a_body(serve: Serve) -> None:
    """An answer to HEAD has none (RFC 9110 §9.3.2), and neither has a refusal."""
    server = await serve(silent, limits={"max_head_bytes": 16 * 1024}, timeouts={"request_s": 0.5})
    async with raw_peer.dial(port_of(server)) as peer:
        peer.start_control()
        for what, status, request in REFUSED_HEADS[1:]:
            stream = peer.bidi(request(b"/v1/messages").replace(literal(b":method", b"POST"), HEAD, 1))
            await peer.until_over(stream)
            assert (peer.status_of(stream), peer.body_of(stream)) == (status, b""), what


@pytest.mark.parametrize(
    "head", [b"", frame(HEADERS, b"", length=10_000)[:1], b"\x01"], ids=["0", "1", "type"]
)
async def test_without_a_path_the_words_are_those_that_most_understand(head: bytes, serve: Serve) -> None:
    """OpenAI's, which Anthropic's clients read, too."""
    server = await serve(silent, timeouts={"request_s": 0.3})
    async with raw_peer.dial(port_of(server)) as peer:
        peer.start_control()
        stream = peer.bidi(head or frame(0x21, b"unknown"))
        await peer.until_over(stream)
        assert peer.status_of(stream) == 408
        assert is_told(peer.body_of(stream), WORDS["openai"])
        assert is_told(peer.body_of(stream), WORDS["anthropic"])


@each_dialect
async def test_the_engines_own_at_its_limits_and_at_its_end(
    words: Words, serve: Serve, dial: Dial, ca_file: Path
) -> None:
    """503 over every protocol; a HEAD request has no body."""
    server = await serve(silent, limits={"max_exchanges": 1})
    connection = await dial(server)
    held = connection.request("GET", "/")
    await eventually(lambda: server.snapshot()["exchanges"] == 1)
    refused = connection.request("POST", words.path, JSON, b"{}")
    assert await refused.head() == 503
    assert is_told(await refused.read(), words)
    bare = connection.request("HEAD", words.path)
    assert (await bare.head(), await bare.read()) == (503, b"")
    for http2 in (True, False):
        async with httpx_client(ca_file, http2) as client:
            answer = await client.post(origin(server) + words.path, content=b"{}")
            assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
            assert is_told(answer.content, words)
    held.stop()


@each_dialect
@pytest.mark.parametrize("http2", [True, False], ids=["HTTP/2", "HTTP/1.1"])
async def test_a_head_too_large_over_tcp(words: Words, http2: bool, serve: Serve, ca_file: Path) -> None:
    """As over HTTP/3, with 32 bytes for each field; beyond twice as much hyper says no more than 431."""
    server = await serve(silent, limits={"max_head_bytes": 16 * 1024})
    async with httpx_client(ca_file, http2) as client:
        for fields in ({"x-large": "x" * 20_000}, {f"x-{number}": "y" for number in range(600)}):
            answer = await client.post(origin(server) + words.path, content=b"{}", headers=fields)
            assert answer.status_code == 431
            assert is_told(answer.content, words)


@each_dialect
async def test_a_malformed_head_over_tcp(words: Words, serve: Serve, ca_file: Path) -> None:
    server = await serve(silent)
    context = ssl.create_default_context(cafile=ca_file)
    target = words.path.encode()
    for rest in (b"host: a\r\nhost: b\r\n\r\n", b"\r\n"):
        reader, writer = await asyncio.open_connection("localhost", port_of(server), ssl=context)
        writer.write(b"GET " + target + b" HTTP/1.1\r\nconnection: close\r\n" + rest)
        head, _, body = (await reader.read()).partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 400 ")
        assert is_told(body, words)
        writer.close()
    peer = await RawHttp2.connect(port_of(server), ca_file)
    await peer.get(1, words.path, [("host", "elsewhere")])
    assert await peer.ended(1) == 400
    assert is_told(peer.bodies[1], words)
    await peer.close()


@each_dialect
async def test_a_handler_that_fails(words: Words, serve: Serve, dial: Dial) -> None:
    response = (await dial(await serve(failing))).request("POST", words.path, JSON, b"{}")
    assert await response.head() == 500
    assert is_told(await response.read(), words)


@each_dialect
async def test_the_gateways_own(words: Words, source: Source, start: Start, dial: Dial) -> None:
    """No key, a model that is not a name, no such model; a body too large, a key used twice."""
    key, entry = new_key("alice")
    gateway = await start(source, auth={"keys": [entry]}, limits={"max_body_bytes": 1000})
    connection = await dial(gateway)
    fields = [*JSON, ("authorization", f"Bearer {key}")]
    keyed = [*fields, ("idempotency-key", "one")]
    asked: list[tuple[int, list[tuple[str, str]], bytes]] = [
        (401, JSON, b"{}"),
        (400, fields, b'{"model":7}'),
        (404, fields, b'{"model":"\\"quoted\\" \\ud83d\\ude00"}'),
        (413, fields, b"x" * 2000),
        (200, keyed, b'{"model":"scripted","script":{"events":1}}'),
        (422, keyed, b'{"model":"scripted","script":{"events":2}}'),
        (400, [*fields, ("idempotency-key", "k" * 300)], b'{"model":"scripted"}'),
    ]
    for status, headers, body in asked:
        response = connection.request("POST", words.path, headers, body)
        assert await response.head() == status
        assert status == 200 or is_told(await response.read(), words)


@each_dialect
async def test_an_answer_that_breaks_off(words: Words, start: Start, dial: Dial) -> None:
    """Its last event is an error of that API; and the stream is reset, never ended."""
    from tests.flow.dialects.model_server import ModelServer

    async with ModelServer(words.content_type, [words.token], ends=False) as model:
        gateway = await start(upstreams=[model.upstream], timeouts={"silence_s": 0.3})
        async with raw_peer.dial(port_of(gateway)) as peer:
            peer.start_control()
            stream = peer.bidi(
                frame(HEADERS, section(*post(words.path.encode()))) + frame(DATA, b"{}"), end=True
            )
            await peer.until_over(stream)
            assert stream in peer.resets
            event = peer.body_of(stream).removeprefix(words.token)
            fields: dict[bytes, bytes] = {}
            for line in event.splitlines():
                name, _, value = line.partition(b": ")
                fields[name] = value
            data: Any = json.loads(fields.get(b"data") or event)
            assert words.reads_error(data)
            assert b"fell silent" in event
