"""HTTP/3 for httpx, and so for Ollama's client, LiteLLM and whatever else takes an httpx client.

    client = httpx.AsyncClient(transport=headrace.httpx.AsyncTransport())

`headrace.httpx2` is the same for httpx2. Neither package is needed before its module is imported.
"""

from __future__ import annotations

import httpx

from headrace.transport.body import AsyncBody, SyncBody
from headrace.transport.core import AsyncCore, SyncCore

__all__ = ["AsyncTransport", "Transport"]


class _Body(SyncBody, httpx.SyncByteStream):
    family = httpx


class _AsyncBody(AsyncBody, httpx.AsyncByteStream):
    family = httpx


class Transport(SyncCore, httpx.BaseTransport):
    """For `httpx.Client(transport=...)`."""

    family = httpx
    stream_class = _Body


class AsyncTransport(AsyncCore, httpx.AsyncBaseTransport):
    """For `httpx.AsyncClient(transport=...)`."""

    family = httpx
    stream_class = _AsyncBody
