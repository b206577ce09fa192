"""Requests that say two things at once, or too much, are refused; over each protocol the same."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from headrace.gateway import Gateway
from headrace_lab.model import Source
from tests.helpers import raw_http1, raw_peer
from tests.helpers.asking import PROTOCOLS, ask
from tests.helpers.raw_http2 import RawHttp2
from tests.helpers.requests import JSON
from tests.helpers.serving import port_of

Start = Callable[..., Awaitable[Gateway]]

BODY = b'{"model":"scripted","script":{"events":1,"interval_s":0}}'
CHUNKED = b"%x\r\n%b\r\n0\r\n\r\n" % (len(BODY), BODY)

AMBIGUOUS = {
    "chunked twice, in two fields": (("chunked", "chunked"), 400),
    "chunked twice, in one field": (("chunked, chunked",), 400),
    "chunked, and then something": (("chunked, identity",), 400),
    "chunked, and then something in another field": (("chunked", "identity"), 400),
    "something that is not chunked": (("xchunked",), 400),
    "identity alone": (("identity",), 400),
    "a parameter": (("chunked;q=1",), 400),
    "a coding that is not served": (("gzip, chunked",), 501),
    "the same, in two fields": (("gzip", "chunked"), 501),
    "an empty field": (("", "chunked"), 501),
}


@pytest.mark.parametrize(("codings", "status"), AMBIGUOUS.values(), ids=AMBIGUOUS.keys())
async def test_a_transfer_coding_is_chunked_once_or_the_request_is_refused(
    codings: tuple[str, ...], status: int, source: Source, gateway: Gateway, ca_file: Path
) -> None:
    """And its connection ends: where the next request begins, nobody can say for certain."""
    fields = "".join(f"transfer-encoding: {coding}\r\n" for coding in codings)
    request = f"POST /v1/x HTTP/1.1\r\nhost: localhost\r\n{fields}\r\n".encode() + CHUNKED
    told = await raw_http1.say(port_of(gateway), ca_file, request + request)
    assert told.status == status
    assert told.rest.count(b"HTTP/1.1 ") == 0, "no second answer"
    assert not source.runs


@pytest.mark.parametrize("size", ["5 5", "5\t5", "5;a\n", "0x5", "-5", "5\n", "", "g", "5;\0", " 5", "+5"])
async def test_a_chunk_size_is_read_one_way_only(
    size: str, source: Source, gateway: Gateway, ca_file: Path
) -> None:
    head = "POST /v1/x HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\n"
    told = await raw_http1.say(
        port_of(gateway), ca_file, f"{head}{size}\r\n".encode() + BODY + b"\r\n0\r\n\r\n"
    )
    assert told.status in (0, 400)
    assert not source.runs


async def test_chunked_is_read_however_it_is_spelt(source: Source, gateway: Gateway, ca_file: Path) -> None:
    for coding in ("chunked", "Chunked", " chunked ", "CHUNKED"):
        fields = f"host: localhost\r\ntransfer-encoding: {coding}\r\nconnection: close\r\n"
        request = f"POST /v1/x HTTP/1.1\r\n{fields}\r\n".encode() + CHUNKED
        assert (await raw_http1.say(port_of(gateway), ca_file, request)).status == 200
    assert [run.body_bytes for run in source.runs] == [len(BODY)] * 4


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("method", ["TRACE", "CONNECT"])
async def test_methods_that_end_here_are_not_relayed(
    method: str, protocol: str, source: Source, gateway: Gateway, ca_file: Path
) -> None:
    """TRACE would show a client's fields to whoever made it send one (RFC 9110 §9.3.8)."""
    port = port_of(gateway)
    if protocol == "HTTP/1.1":
        target = "/v1/x" if method == "TRACE" else "localhost:443"
        request = f"{method} {target} HTTP/1.1\r\nhost: localhost:443\r\nconnection: close\r\n\r\n"
        status = (await raw_http1.say(port, ca_file, request.encode())).status
    elif protocol == "HTTP/2":
        raw = await RawHttp2.connect(port, ca_file)
        raw.ask(1, method, "/v1/x")
        status = await raw.ended(1)
        await raw.close()
    else:
        async with raw_peer.dial(port) as peer:
            peer.start_control()
            fields = [(b":method", method.encode()), (b":authority", b"localhost")]
            if method == "TRACE":
                fields += [(b":scheme", b"https"), (b":path", b"/v1/x")]
            stream = peer.bidi(raw_peer.frame(raw_peer.HEADERS, raw_peer.section(*fields)), end=True)
            await peer.until_over(stream)
            status = peer.status_of(stream)
    assert status == 501
    assert not source.runs


@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_a_request_has_at_most_so_many_fields(
    protocol: str, source: Source, start: Start, ca_file: Path
) -> None:
    gateway = await start(source, limits={"max_fields": 50})
    for count, status in [(30, 200), (51, 431), (500, 431)]:
        fields = [*JSON, *((f"x-{number}", "y") for number in range(count))]
        told = await ask(gateway, protocol, ca_file, BODY, headers=fields)
        assert told.status == status, count
    assert len(source.runs) == 1
