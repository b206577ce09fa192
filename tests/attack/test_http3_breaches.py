"""Every breach of RFC 9114 and 9204 that a client can commit ends what it must, with the code the RFC
names."""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable

import pytest
from aioquic.buffer import encode_uint_var

from headrace import Server
from headrace.exchange import Exchange
from tests.helpers.raw_peer import (
    CANCEL_PUSH,
    CONTROL,
    DATA,
    DECODER,
    ENCODER,
    GET,
    GOAWAY,
    HEADERS,
    MAX_PUSH_ID,
    PRIORITY_UPDATE,
    PUSH,
    PUSH_PROMISE,
    SETTINGS,
    RawPeer,
    dial,
    frame,
    literal,
    post,
    section,
)
from tests.helpers.serving import port_of

NO_ERROR, STREAM_CREATION, CLOSED_CRITICAL, FRAME_UNEXPECTED = 0x100, 0x103, 0x104, 0x105
FRAME_ERROR, EXCESSIVE_LOAD, ID_ERROR, SETTINGS_ERROR, MISSING_SETTINGS = 0x106, 0x107, 0x108, 0x109, 0x10A
REQUEST_INCOMPLETE, MESSAGE_ERROR = 0x10D, 0x10E
DECOMPRESSION, ENCODER_STREAM, DECODER_STREAM = 0x200, 0x201, 0x202

Step = Callable[[RawPeer], object]


def request(data: bytes, end: bool = False) -> Step:
    """On a request stream, after a proper control stream."""

    def step(peer: RawPeer) -> None:
        peer.start_control()
        peer.bidi(data, end)

    return step


def control(data: bytes) -> Step:
    """On the control stream, after SETTINGS."""
    return lambda peer: peer.uni(CONTROL, frame(SETTINGS) + data)


def end_control(peer: RawPeer) -> None:
    peer.say(peer.start_control(), b"", end=True)


def double(kind: int) -> Step:
    def step(peer: RawPeer) -> None:
        peer.uni(kind, frame(SETTINGS) if kind == CONTROL else b"")
        peer.uni(kind, frame(SETTINGS) if kind == CONTROL else b"")

    return step


def setting(*pairs: tuple[int, int]) -> bytes:
    return frame(SETTINGS, b"".join(encode_uint_var(a) + encode_uint_var(b) for a, b in pairs))


HEAD = frame(HEADERS, section(*GET))
TRAILERS = frame(HEADERS, section((b"x-trailer", b"1")))

CONNECTION_BREACHES: dict[str, tuple[Step, int]] = {
    "DATA before HEADERS": (request(frame(DATA, b"x")), FRAME_UNEXPECTED),
    "DATA on the control stream": (control(frame(DATA, b"x")), FRAME_UNEXPECTED),
    "HEADERS on the control stream": (control(HEAD), FRAME_UNEXPECTED),
    "PUSH_PROMISE on the control stream": (control(frame(PUSH_PROMISE, b"\0")), FRAME_UNEXPECTED),
    "SETTINGS twice": (control(frame(SETTINGS)), FRAME_UNEXPECTED),
    "SETTINGS not first": (lambda peer: peer.uni(CONTROL, frame(GOAWAY, b"\0")), MISSING_SETTINGS),
    "a setting twice": (lambda peer: peer.uni(CONTROL, setting((6, 1), (6, 1))), SETTINGS_ERROR),
    "a setting of HTTP/2": (lambda peer: peer.uni(CONTROL, setting((2, 0))), SETTINGS_ERROR),
    "SETTINGS cut short": (lambda peer: peer.uni(CONTROL, frame(SETTINGS, b"\x06")), FRAME_ERROR),
    "a frame type of HTTP/2": (request(HEAD + frame(0x6, b"12345678")), FRAME_UNEXPECTED),
    "SETTINGS on a request stream": (request(HEAD + frame(SETTINGS)), FRAME_UNEXPECTED),
    "GOAWAY on a request stream": (request(HEAD + frame(GOAWAY, b"\0")), FRAME_UNEXPECTED),
    "CANCEL_PUSH on a request stream": (request(frame(CANCEL_PUSH, b"\0")), FRAME_UNEXPECTED),
    "MAX_PUSH_ID on a request stream": (request(frame(MAX_PUSH_ID, b"\0")), FRAME_UNEXPECTED),
    "PUSH_PROMISE from a client": (request(frame(PUSH_PROMISE, b"\0" + section(*GET))), FRAME_UNEXPECTED),
    "CANCEL_PUSH of no push": (control(frame(CANCEL_PUSH, b"\0")), ID_ERROR),
    "MAX_PUSH_ID that shrinks": (control(frame(MAX_PUSH_ID, b"\5") + frame(MAX_PUSH_ID, b"\4")), ID_ERROR),
    "GOAWAY that grows": (control(frame(GOAWAY, b"\0") + frame(GOAWAY, b"\1")), ID_ERROR),
    "GOAWAY malformed": (control(frame(GOAWAY, b"\0\0")), FRAME_ERROR),
    "PRIORITY_UPDATE of no request": (control(frame(PRIORITY_UPDATE, b"\3u=1")), ID_ERROR),
    "PRIORITY_UPDATE far ahead": (control(frame(PRIORITY_UPDATE, encode_uint_var(4000) + b"u=1")), ID_ERROR),
    "a control frame too large": (control(frame(GOAWAY, b"", length=5000)), EXCESSIVE_LOAD),
    "the control stream ends": (end_control, CLOSED_CRITICAL),
    "two control streams": (double(CONTROL), STREAM_CREATION),
    "two encoder streams": (double(ENCODER), STREAM_CREATION),
    "two decoder streams": (double(DECODER), STREAM_CREATION),
    "a push stream": (lambda peer: peer.uni(PUSH, b"\0"), STREAM_CREATION),
    "a static index that does not exist": (request(frame(HEADERS, b"\0\0\xff\x24")), DECOMPRESSION),
    "a field of the dynamic table": (request(frame(HEADERS, b"\2\0\x80")), DECOMPRESSION),
    "a post-base field": (request(frame(HEADERS, b"\0\0\x10")), DECOMPRESSION),
    "a field section cut short": (request(frame(HEADERS, b"\0\0\x27\x05ab")), DECOMPRESSION),
    "bad Huffman code": (request(frame(HEADERS, b"\0\0\x2a\xff\xff")), DECOMPRESSION),
    "an endless integer": (request(frame(HEADERS, b"\0\0\x27" + b"\xff" * 12)), DECOMPRESSION),
    "a dynamic table capacity": (lambda peer: peer.uni(ENCODER, b"\x3f\xe1\x1f"), ENCODER_STREAM),
    "an insertion": (lambda peer: peer.uni(ENCODER, b"\xc0\x01a"), ENCODER_STREAM),
    "an insert count of zero": (lambda peer: peer.uni(DECODER, b"\0"), DECODER_STREAM),
    "a section acknowledgement": (lambda peer: peer.uni(DECODER, b"\x80"), DECODER_STREAM),
    "an empty DATA before HEADERS": (request(frame(DATA) + HEAD), FRAME_UNEXPECTED),
    "an empty DATA after the trailers": (request(HEAD + TRAILERS + frame(DATA)), FRAME_UNEXPECTED),
    "a Base below zero": (request(frame(HEADERS, b"\0\x80" + section(*GET)[2:]), end=True), DECOMPRESSION),
    "a stream cancelled that cannot exist": (
        lambda peer: peer.uni(DECODER, b"\x7f" + b"\xff" * 8 + b"\x7f"),
        DECODER_STREAM,
    ),
    "empty frames without end": (request(HEAD + frame(DATA) * 2000), EXCESSIVE_LOAD),
    "unknown frames without end": (request(frame(0x21, b"x") * 2000), EXCESSIVE_LOAD),
    "a body in crumbs": (request(HEAD + frame(DATA, b"x") * 2000), EXCESSIVE_LOAD),
    "unknown frames of control without end": (control(frame(0x21, b"x") * 2000), EXCESSIVE_LOAD),
    "PRIORITY_UPDATE without end": (control(frame(PRIORITY_UPDATE, b"\0u=1") * 2000), EXCESSIVE_LOAD),
    "MAX_PUSH_ID without end": (control(frame(MAX_PUSH_ID, b"\1") * 2000), EXCESSIVE_LOAD),
    "capacity 0 without end": (lambda peer: peer.uni(ENCODER, b"\x20" * 9000), EXCESSIVE_LOAD),
    "a stream that ends inside a frame": (request(frame(HEADERS, b"\0\0", length=50), end=True), FRAME_ERROR),
}

STREAM_BREACHES: dict[str, tuple[bytes, int]] = {
    "no HEADERS at all": (b"", REQUEST_INCOMPLETE),
    "a pseudo-header twice": (frame(HEADERS, section(*GET, GET[0])), MESSAGE_ERROR),
    "a pseudo-header missing": (frame(HEADERS, section(*GET[1:])), MESSAGE_ERROR),
    "a pseudo-header unknown": (frame(HEADERS, section(*GET, (b":what", b"x"))), MESSAGE_ERROR),
    "a pseudo-header after a field": (frame(HEADERS, section((b"x", b"y"), *GET)), MESSAGE_ERROR),
    "an upper case name": (frame(HEADERS, section(*GET, (b"X-Up", b"y"))), MESSAGE_ERROR),
    "connection": (frame(HEADERS, section(*GET, (b"connection", b"close"))), MESSAGE_ERROR),
    "transfer-encoding": (frame(HEADERS, section(*GET, (b"transfer-encoding", b"chunked"))), MESSAGE_ERROR),
    "te: gzip": (frame(HEADERS, section(*GET, (b"te", b"gzip"))), MESSAGE_ERROR),
    "a line break in a value": (frame(HEADERS, section(*GET, (b"x", b"a\r\nb: c"))), MESSAGE_ERROR),
    "a NUL in a value": (frame(HEADERS, section(*GET, (b"x", b"a\0b"))), MESSAGE_ERROR),
    "a blank before a value": (frame(HEADERS, section(*GET, (b"x", b" a"))), MESSAGE_ERROR),
    "host and :authority differ": (frame(HEADERS, section(*GET, (b"host", b"other"))), MESSAGE_ERROR),
    "extended CONNECT": (frame(HEADERS, section(*GET, (b":protocol", b"websocket"))), MESSAGE_ERROR),
    ":status in a request": (frame(HEADERS, section(*GET, (b":status", b"200"))), MESSAGE_ERROR),
    "a path with a blank": (
        frame(HEADERS, section(*GET[:3], (b":path", b"/a b"))),
        MESSAGE_ERROR,
    ),
}


async def hello(exchange: Exchange) -> None:
    await exchange.body()
    await exchange.answer(200, [], b"hello")


@pytest.fixture
async def server(serve: Callable[..., Awaitable[Server]]) -> Server:
    return await serve(hello)


async def still_serves(server: Server) -> None:
    async with dial(port_of(server)) as peer:
        peer.start_control()
        stream = peer.bidi(HEAD, end=True)
        await peer.until_over(stream)
        assert peer.status_of(stream) == 200


@pytest.mark.parametrize("name", CONNECTION_BREACHES)
async def test_a_breach_of_the_connection_closes_it_with_its_code(name: str, server: Server) -> None:
    step, code = CONNECTION_BREACHES[name]
    async with dial(port_of(server)) as peer:
        step(peer)
        assert await peer.until_closed() == code, peer.reason
    await still_serves(server)


@pytest.mark.parametrize("name", STREAM_BREACHES)
async def test_a_malformed_message_resets_its_stream_alone(name: str, server: Server) -> None:
    data, code = STREAM_BREACHES[name]
    async with dial(port_of(server)) as peer:
        peer.start_control()
        bad = peer.bidi(data, end=True)
        await peer.until_over(bad)
        assert peer.resets.get(bad) == code
        good = peer.bidi(HEAD, end=True)
        await peer.until_over(good)
        assert peer.status_of(good) == 200, "the connection lives on"
        assert peer.closed is None


async def test_connect_is_refused_by_an_answer(server: Server) -> None:
    async with dial(port_of(server)) as peer:
        peer.start_control()
        head = section((b":method", b"CONNECT"), (b":authority", b"localhost:1"))
        stream = peer.bidi(frame(HEADERS, head), end=True)
        await peer.until_over(stream)
        assert peer.status_of(stream) == 501


async def test_reserved_frames_streams_and_settings_are_tolerated(server: Server) -> None:
    """RFC 9114 §7.2.8, §6.2.3: what is unknown is ignored."""
    async with dial(port_of(server)) as peer:
        peer.uni(CONTROL, setting((0x21, 7), (0x8, 1), (0x33, 1)) + frame(0x21, b"grease"))
        peer.uni(ENCODER)
        peer.uni(DECODER, b"\x44")
        grease = peer.uni(0x21, b"anything")
        stream = peer.bidi(frame(0x21, b"x" * 500) + HEAD + frame(0x40, b""), end=True)
        await peer.until_over(stream)
        assert peer.status_of(stream) == 200
        await peer.until(lambda: grease in peer.stops)
        assert peer.stops[grease] == STREAM_CREATION
        assert peer.closed is None


async def test_a_head_of_ten_megabytes_is_answered_431_without_being_read(server: Server) -> None:
    async with dial(port_of(server)) as peer:
        peer.start_control()
        stream = peer.bidi(frame(HEADERS, b"\0\0" + b"x" * 1000, length=10_000_000))
        await peer.until_over(stream)
        assert peer.status_of(stream) == 431
        assert b"head_too_large" in peer.data[stream]
        assert peer.closed is None
    await still_serves(server)


async def test_a_qpack_bomb_is_answered_431(server: Server) -> None:
    """A thousand indexed fields in a kilobyte would decode to 60 kB."""
    async with dial(port_of(server)) as peer:
        peer.start_control()
        bomb = peer.bidi(frame(HEADERS, section(*GET) + b"\xf5" * 1000), end=True)
        await peer.until_over(bomb)
        assert peer.status_of(bomb) == 431
        many = peer.bidi(frame(HEADERS, section(*GET) + literal(b"a", b"") * 1500), end=True)
        await peer.until_over(many)
        assert peer.status_of(many) == 431


@pytest.mark.parametrize(
    ("declared", "sent", "end"),
    [(10, b"12345", True), (3, b"12345", True), (5, b"", True), (0, b"1", True)],
)
async def test_a_body_that_is_not_as_long_as_it_says_never_becomes_a_request(
    declared: int, sent: bytes, end: bool, serve: Callable[..., Awaitable[Server]]
) -> None:
    """At every kind of end, the empty FIN too: that is the smuggling of CVE-2026-33555."""
    got: list[object] = []

    async def handler(exchange: Exchange) -> None:
        try:
            got.append(await exchange.body())
        except Exception as error:
            got.append(error)
            raise
        await exchange.answer(200, [], b"")

    server = await serve(handler)
    async with dial(port_of(server)) as peer:
        peer.start_control()
        head = frame(HEADERS, section(*post(), (b"content-length", str(declared).encode())))
        stream = peer.bidi(head + (frame(DATA, sent) if sent else b""), end)
        await peer.until_over(stream)
        assert peer.status_of(stream) == 400
    assert len(got) == 1
    assert "content-length" in str(got[0])


async def test_cancelling_without_end_closes_the_connection(serve: Callable[..., Awaitable[Server]]) -> None:
    """Rapid reset: a budget of cancelled requests, then H3_EXCESSIVE_LOAD; never more running than
    allowed."""

    async def slow(exchange: Exchange) -> None:
        await exchange.gone()

    server = await serve(slow, limits={"cancel_burst": 20, "cancels_per_second": 1})
    async with dial(port_of(server)) as peer:
        peer.start_control()
        for _ in range(60):
            if peer.closed is not None:
                break
            stream = peer.bidi(HEAD)
            peer.reset(stream)
            peer.stop(stream)
            with contextlib.suppress(ConnectionError):
                await peer.ping()
        assert await peer.until_closed() == EXCESSIVE_LOAD
    assert server.snapshot()["exchanges_total"] < 60
