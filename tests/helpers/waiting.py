"""Waiting for what another thread or process does, instead of sleeping."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any


async def eventually(condition: Callable[[], Any], what: str = "") -> None:
    """Waits until something is so that another thread or process brings about; at most ten seconds."""
    for _ in range(2000):
        if condition():
            return
        await asyncio.sleep(0.005)
    raise AssertionError(what or "it never became so")
