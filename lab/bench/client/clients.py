"""The clients that are compared, each with its own documented way to read an answer as it comes.

In: an origin and the CA it trusts. Out: a function that asks once and notes the size of every piece of the
answer's body. Nothing here knows what is measured.
"""

from __future__ import annotations

import contextlib
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

PATH = "/v1/chat/completions"
HEADERS = {"content-type": "application/json", "accept": "text/event-stream"}
BURST = 200
"""How many streams at a time a client must be able to have, where it has a setting for that."""
Note = Callable[[int], None]
"""Takes the size of each piece of a body, as the client hands it on."""
Ask = Callable[[bytes, Note], Awaitable[None]]
"""One request, to the end of its answer."""


@contextlib.asynccontextmanager
async def headrace_httpx2(url: str, ca: Path) -> AsyncIterator[Ask]:
    import headrace.httpx2

    async with _httpx2(url, transport=headrace.httpx2.AsyncTransport(str(ca), http3="only")) as ask:
        yield ask


@contextlib.asynccontextmanager
async def httpx2_http2(url: str, ca: Path) -> AsyncIterator[Ask]:
    trust = ssl.create_default_context(cafile=str(ca))
    async with _httpx2(url, verify=trust, http2=True) as ask:
        yield ask


@contextlib.asynccontextmanager
async def _httpx2(url: str, **options: Any) -> AsyncIterator[Ask]:
    import httpx2

    wanted = "HTTP/3" if "transport" in options else "HTTP/2"
    async with httpx2.AsyncClient(**options) as client:

        async def ask(body: bytes, note: Note) -> None:
            async with client.stream("POST", url, content=body, headers=HEADERS) as response:
                _check(response.status_code, response.http_version, wanted)
                async for data in response.aiter_raw():
                    note(len(data))

        yield ask


@contextlib.asynccontextmanager
async def headrace_native(url: str, ca: Path) -> AsyncIterator[Ask]:
    from headrace.client import Trust, connect

    fields = list(HEADERS.items())
    async with await connect(url.removesuffix(PATH), Trust(ca)) as connection:

        async def ask(body: bytes, note: Note) -> None:
            response = connection.request("POST", PATH, fields, body)
            _check(await response.head())
            async for batch in response.chunks():
                for chunk in batch:
                    note(len(chunk.data))

        yield ask


@contextlib.asynccontextmanager
async def pyqwest(url: str, ca: Path) -> AsyncIterator[Ask]:
    from pyqwest import Client, HTTPTransport, HTTPVersion

    pem = ca.read_bytes()  # noqa: ASYNC240
    async with HTTPTransport(tls_ca_cert=pem, http_version=HTTPVersion.HTTP3) as transport:
        client = Client(transport)

        async def ask(body: bytes, note: Note) -> None:
            async with client.stream("POST", url, HEADERS, body) as response:
                _check(response.status, response.http_version, HTTPVersion.HTTP3)
                async for data in response.content:
                    note(len(data))

        yield ask


@contextlib.asynccontextmanager
async def niquests(url: str, ca: Path) -> AsyncIterator[Ask]:
    from niquests import AsyncSession

    # Its streams share ten connections, its default; one for each stream costs half as much again.
    async with AsyncSession(verify=str(ca), disable_http1=True, disable_http2=True) as session:
        # Else REQUESTS_CA_BUNDLE would win over `verify`.
        session.trust_env = False

        async def ask(body: bytes, note: Note) -> None:
            response = await session.post(url, data=body, headers=HEADERS, stream=True)
            _check(response.status_code, response.http_version, 30)
            # -1: what there is. A size would be waited for.
            async for data in await response.iter_raw(-1):
                note(len(data))

        yield ask


@contextlib.asynccontextmanager
async def curl_cffi(url: str, ca: Path) -> AsyncIterator[Ask]:
    from curl_cffi import CurlHttpVersion
    from curl_cffi.requests import AsyncSession

    options: dict[str, Any] = {"http_version": "v3only", "max_clients": BURST, "verify": str(ca)}
    async with AsyncSession(**options) as session:

        async def ask(body: bytes, note: Note) -> None:
            async with session.stream("POST", url, data=body, headers=HEADERS) as response:
                _check(response.status_code, response.http_version, CurlHttpVersion.V3)
                async for data in response.aiter_content():
                    note(len(data))

        yield ask


def _check(status: int | None, protocol: Any = None, wanted: Any = None) -> None:
    if status != 200 or protocol != wanted:
        raise RuntimeError(f"status {status}, protocol {protocol}")


CLIENTS: dict[str, Callable[[str, Path], contextlib.AbstractAsyncContextManager[Ask]]] = {
    "headrace-httpx2": headrace_httpx2,
    "headrace": headrace_native,
    "pyqwest": pyqwest,
    "niquests": niquests,
    "curl_cffi": curl_cffi,
    "httpx2": httpx2_http2,
}
PACKAGES = ("headrace", "pyqwest", "niquests", "curl_cffi", "httpx2")
