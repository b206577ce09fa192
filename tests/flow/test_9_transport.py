"""The transports for httpx and httpx2: one request, over HTTP/3 or TCP, and every way it can go wrong."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx
import httpx2
import pytest

import headrace.httpx
import headrace.httpx2
from headrace.gateway import Gateway
from headrace.lab.source import Source
from tests.conftest import origin

Start = Callable[..., Awaitable[Gateway]]
FAMILIES = [(httpx2, headrace.httpx2), (httpx, headrace.httpx)]
BODY = {"model": "scripted", "stream": True, "script": {"events": 5, "interval_s": 0}}


@pytest.mark.parametrize(("family", "ours"), FAMILIES)
async def test_an_answer_is_whole_and_says_how_it_came(
    start: Start, source: Source, ca_file: Path, family: Any, ours: Any
) -> None:
    gateway = await start(source)
    transport = ours.AsyncTransport(str(ca_file), http3="only")
    async with family.AsyncClient(transport=transport) as client:
        first = await client.post(f"{origin(gateway)}/v1/chat/completions", json=BODY)
        second = await client.post(f"{origin(gateway)}/v1/chat/completions", json=BODY)
    for response in (first, second):
        assert response.status_code == 200
        assert response.http_version == "HTTP/3"
        assert response.content.endswith(b"data: [DONE]\n\n")
        assert sum(size for _, size in response.extensions["headrace"].arrivals) == len(response.content)
    assert not first.extensions["headrace"].is_connection_reused
    assert second.extensions["headrace"].is_connection_reused
    assert second.extensions["stream_id"] == first.extensions["stream_id"] + 4
