"""Waits for the engine: on a thread, in an asyncio task, or again and again for one reader.

In: a call of the engine that takes a bridge (asyncio) or `None` (a thread). Out: what the call came to; or,
after a number of seconds, an error of the kind that the caller names.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from headrace import _engine, errors
from headrace.loop import bridge

if TYPE_CHECKING:
    import asyncio

Start = Callable[[_engine.Bridge | None], Any]


def wait(start: Start, seconds: float | None, slug: str, patience: float | None = None) -> Any:
    """Waits on the calling thread. `patience`: the seconds that the error names, when they are not
    `seconds`."""
    try:
        return start(None).result(None if seconds == math.inf else seconds)
    except TimeoutError as error:
        raise _late(error, patience or seconds, slug) from None


async def wait_async(start: Start, seconds: float | None, slug: str, patience: float | None = None) -> Any:
    """Waits on the running asyncio loop. `patience`: as `wait` has it."""
    from asyncio import timeout

    try:
        async with timeout(seconds):
            return await start(bridge())
    except TimeoutError as error:
        raise _late(error, patience or seconds, slug) from None


def _late(error: TimeoutError, seconds: float | None, slug: str) -> Exception:
    # What the engine raises by itself may be a `TimeoutError`, too.
    return error if isinstance(error, errors.HeadraceError) else errors.make(slug, f"after {seconds:g} s")


class Alarm:
    """Ends a wait that takes too long. One timer serves all waits of an answer, so that a token does not cost
    a timer of its own: when it rings, it looks whether the wait of that moment is old enough."""

    def __init__(self, timeout: float | None) -> None:
        self._timeout = timeout
        self._due = 0.0
        self._future: asyncio.Future[None] | None = None
        self._timer: asyncio.TimerHandle | None = None

    def over(self, future: asyncio.Future[None]) -> asyncio.Future[None]:
        """Returns the future itself, which fails when it is not done in time."""
        if self._timeout is not None:
            loop = future.get_loop()
            self._future, self._due = future, loop.time() + self._timeout
            if self._timer is None:
                self._timer = loop.call_at(self._due, self._ring, loop)
        return future

    def _ring(self, loop: asyncio.AbstractEventLoop) -> None:
        self._timer = None
        future = self._future
        if future is None or future.done():
            return
        if loop.time() < self._due:
            self._timer = loop.call_at(self._due, self._ring, loop)
        else:
            future.set_exception(errors.make("read_timeout", f"after {self._timeout:g} s"))

    def stop(self) -> None:
        if self._timer:
            self._timer.cancel()
