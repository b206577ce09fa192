"""The scripted model itself."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import socket

import pytest

from headrace_lab.model import Source


@pytest.mark.parametrize("turns", range(5))
async def test_who_is_being_accepted_is_closed_with_the_rest(turns: int) -> None:
    """However far asyncio has got with a connection when the model ends."""
    async with Source() as source:
        asking = socket.create_connection((source.host, source.port), timeout=5)
        for _ in range(turns):
            await asyncio.sleep(0)
    with asking:
        with contextlib.suppress(ConnectionResetError):
            assert asking.recv(1) == b""
    assert source.open_connections == 0
    # A transport that was left open says so here.
    gc.collect()
