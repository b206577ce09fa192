"""Negative controls: reverse proxies that are wrong on purpose, to show that the lab names what is wrong.

    python -m headrace_lab.peers.controls coalesce --upstream http://127.0.0.1:8000 --port 9000

`plain` is the same proxy without a fault. Each speaks HTTP/1.1 without TLS.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import sys
import time
import zlib
from collections.abc import AsyncIterator, Callable

from headrace_lab.peers import upstream

COALESCE_S = 0.05
Change = Callable[[AsyncIterator[bytes]], AsyncIterator[bytes]]


async def plain(pieces: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    async for piece in pieces:
        yield piece


async def buffer(pieces: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Sends nothing before the answer is complete."""
    held = bytearray()
    try:
        async for piece in pieces:
            held += piece
    except upstream.CutError:
        yield bytes(held)
        raise
    yield bytes(held)


async def coalesce(pieces: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Collects for 50 ms, and then sends all of it at once."""
    held, since = bytearray(), time.monotonic()
    async for piece in pieces:
        if not held:
            since = time.monotonic()
        held += piece
        if time.monotonic() - since >= COALESCE_S:
            yield bytes(held)
            held.clear()
    if held:
        yield bytes(held)


async def gzip(pieces: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Compresses, and sends only what the compressor gives by itself."""
    compressor = zlib.compressobj(wbits=zlib.MAX_WBITS | 16)
    try:
        async for piece in pieces:
            if made := compressor.compress(piece):
                yield made
    except upstream.CutError:
        yield compressor.flush()
        raise
    yield compressor.flush()


async def clean_end(pieces: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Takes the death of the upstream for the end of its answer."""
    with contextlib.suppress(upstream.CutError):
        async for piece in pieces:
            yield piece


KINDS: dict[str, Change] = {
    "plain": plain,
    "buffer": buffer,
    "coalesce": coalesce,
    "gzip": gzip,
    "clean-end": clean_end,
}


async def serve(kind: str, address: str, host: str = "127.0.0.1", port: int = 0) -> asyncio.Server:
    """Starts to listen. `kind`: a key of `KINDS`. `address`: the upstream's, `http://address:port`."""
    return await asyncio.start_server(lambda r, w: _connection(kind, address, r, w), host, port)


async def _connection(
    kind: str, address: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> None:
    try:
        while True:
            lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
            method, path, _ = lines[0].split(" ")
            fields = {
                name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines[1:])
            }
            body = await reader.readexactly(int(fields.get("content-length", 0)))
            async with upstream.ask(address, method, path, body) as answer:
                await _answer(kind, answer, writer)
    except (asyncio.IncompleteReadError, ConnectionError, upstream.CutError):
        pass
    finally:
        writer.transport.abort() if kind != "clean-end" else writer.close()


async def _answer(kind: str, answer: upstream.Answer, writer: asyncio.StreamWriter) -> None:
    coding = "content-encoding: gzip\r\n" if kind == "gzip" else ""
    content_type = answer.fields.get("content-type", "text/plain")
    writer.write(
        f"HTTP/1.1 {answer.status} X\r\ncontent-type: {content_type}\r\n{coding}"
        "transfer-encoding: chunked\r\n\r\n".encode()
    )
    async for piece in KINDS[kind](answer.pieces):
        writer.write(b"%x\r\n%b\r\n" % (len(piece), piece))
        await writer.drain()
    writer.write(b"0\r\n\r\n")
    await writer.drain()


async def _main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m headrace_lab.peers.controls", description=__doc__)
    parser.add_argument("kind", choices=list(KINDS))
    parser.add_argument("--upstream", required=True)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=0)
    options = parser.parse_args(arguments)
    server = await serve(options.kind, options.upstream, options.host, options.port)
    async with server:
        await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(_main(sys.argv[1:]))
