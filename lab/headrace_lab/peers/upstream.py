"""The upstream side of the lab's own small proxies: a request over HTTP/1.1, and its answer as it comes.

In: an address, a request. Out: status, fields, and the body piece by piece. It reads what the scripted model
sends (`transfer-encoding: chunked`); it is not a general client.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass


class CutError(Exception):
    """The upstream went away before its answer was whole."""


@dataclass
class Answer:
    status: int
    fields: dict[str, str]
    pieces: AsyncIterator[bytes]
    """The body, as it comes. Reading it raises `CutError` where the upstream goes away too early."""


@contextlib.asynccontextmanager
async def ask(address: str, method: str, path: str, body: bytes) -> AsyncIterator[Answer]:
    """Sends a request. `address`: `http://address:port`. Leaving the context closes the upstream's
    connection."""
    host, _, port = address.removeprefix("http://").partition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        head = f"{method} {path} HTTP/1.1\r\nhost: {host}\r\ncontent-type: application/json\r\n"
        writer.write(f"{head}content-length: {len(body)}\r\n\r\n".encode() + body)
        try:
            lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        except asyncio.IncompleteReadError:
            raise CutError from None
        pairs = (line.partition(":") for line in lines[1:] if line)
        fields = {name.lower(): value.strip() for name, _, value in pairs}
        yield Answer(int(lines[0].split(" ")[1]), fields, _pieces(reader, fields))
    finally:
        writer.transport.abort()


async def _pieces(reader: asyncio.StreamReader, fields: dict[str, str]) -> AsyncIterator[bytes]:
    try:
        if "content-length" in fields:
            yield await reader.readexactly(int(fields["content-length"]))
            return
        while size := int(await reader.readuntil(b"\r\n"), 16):
            yield (await reader.readexactly(size + 2))[:-2]
        await reader.readuntil(b"\r\n")
    except (asyncio.IncompleteReadError, ConnectionError, ValueError):
        raise CutError from None
