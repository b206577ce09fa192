"""One request by any of the three protocols, and how its answer ended."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import httpx2

from headrace.client import Trust, connect
from headrace.errors import StreamError
from headrace.gateway import Gateway
from tests.helpers.requests import JSON, PATH
from tests.helpers.serving import httpx_client, origin

PROTOCOLS = ["HTTP/3", "HTTP/2", "HTTP/1.1"]

Fields = Sequence[tuple[str, str]]


@dataclass
class Told:
    """What a client was told."""

    status: int = 0
    """0: the answer ended before its head."""
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    is_whole: bool = False
    """It came to its end: FIN, END_STREAM, the last chunk, or its whole length."""


async def ask(
    gateway: Gateway,
    protocol: str,
    ca_file: Path,
    body: bytes = b"",
    path: str = PATH,
    headers: Fields = JSON,
    method: str = "POST",
) -> Told:
    """Asks once, on a connection of its own."""
    if protocol == "HTTP/3":
        return await _ask_by_http3(gateway, ca_file, body, path, headers, method)
    told = Told()
    try:
        async with httpx_client(ca_file, protocol == "HTTP/2") as client:
            url, fields = origin(gateway) + path, list(headers)
            async with client.stream(method, url, content=body or None, headers=fields) as answer:
                told.status, told.headers = answer.status_code, dict(answer.headers)
                async for chunk in answer.aiter_raw():
                    told.body += chunk
                told.is_whole = True
    except (httpx2.RemoteProtocolError, httpx2.ReadError):
        pass
    return told


async def _ask_by_http3(
    gateway: Gateway, ca_file: Path, body: bytes, path: str, headers: Fields, method: str
) -> Told:
    told = Told()
    connection = await connect(origin(gateway), Trust(ca_file))
    try:
        response = connection.request(method, path, list(headers), body)
        told.status = await response.head()
        told.headers = dict(response.headers)
        async for batch in response.chunks():
            told.body += b"".join(chunk.data for chunk in batch)
        told.is_whole = True
    except StreamError:
        pass
    finally:
        connection.close()
    return told
