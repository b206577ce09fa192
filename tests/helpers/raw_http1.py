"""A client of HTTP/1.1 over TLS that sends the bytes that it is told to."""

from __future__ import annotations

import asyncio
import ssl
from dataclasses import dataclass, field
from pathlib import Path


@dataclass
class Answer:
    status: int = 0
    """0: the connection ended before a head."""
    headers: dict[str, str] = field(default_factory=dict)
    rest: bytes = b""
    """What came behind the head, until the connection ended or fell silent."""


async def say(port: int, ca_file: Path, data: bytes, cut: bool = False) -> Answer:
    """Sends bytes, and reads what is answered to the connection's end. `cut`: ends our side behind them."""
    reader, writer = await asyncio.open_connection("localhost", port, ssl=_context(ca_file))
    writer.write(data)
    if cut:
        await writer.drain()
        writer.transport.abort()
        return Answer()
    read = b""
    try:
        async with asyncio.timeout(10):
            read = await reader.read()
    except ConnectionError:
        pass
    finally:
        writer.close()
    return parse(read)


async def post(port: int, ca_file: Path, path: str, body: bytes) -> Answer:
    """One request with this path, whatever it is."""
    fields = f"host: localhost\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n"
    head = f"POST {path} HTTP/1.1\r\n{fields}connection: close\r\n\r\n"
    return await say(port, ca_file, head.encode() + body)


def parse(data: bytes) -> Answer:
    head, _, rest = data.partition(b"\r\n\r\n")
    lines = head.decode("latin-1").split("\r\n")
    if not lines[0].startswith("HTTP/1.1 "):
        return Answer(rest=data)
    headers = dict(line.lower().split(": ", 1) for line in lines[1:])
    return Answer(int(lines[0].split()[1]), headers, rest)


def _context(ca_file: Path) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=ca_file)
    context.set_alpn_protocols(["http/1.1"])
    return context
