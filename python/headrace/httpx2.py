"""HTTP/3 for httpx2, and so for the OpenAI and Anthropic SDKs, MCP and whatever else takes an httpx2 client.

    client = httpx2.AsyncClient(transport=headrace.httpx2.AsyncTransport())

`headrace.httpx` is the same for httpx. Neither package is needed before its module is imported.
"""

from __future__ import annotations

import httpx2

from headrace.transport.body import AsyncBody, SyncBody
from headrace.transport.core import AsyncCore, SyncCore

__all__ = ["AsyncTransport", "Transport"]


class _Body(SyncBody, httpx2.SyncByteStream):
    family = httpx2


class _AsyncBody(AsyncBody, httpx2.AsyncByteStream):
    family = httpx2


class Transport(SyncCore, httpx2.BaseTransport):
    """For `httpx2.Client(transport=...)`."""

    family = httpx2
    stream_class = _Body


class AsyncTransport(AsyncCore, httpx2.AsyncBaseTransport):
    """For `httpx2.AsyncClient(transport=...)`."""

    family = httpx2
    stream_class = _AsyncBody
