"""The body of a response, as httpx and httpx2 read it.

In: the engine's stream. Out: bytes as they come, or the family's errors.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any

from headrace import _engine
from headrace.client.waiting import Alarm, wait
from headrace.loop import bridge
from headrace.transport.errors import translated


class SyncBody:
    """An answer's body, for threads. Dropping it, or closing it before its end, stops the answer."""

    family: Any

    def __init__(self, stream: _engine.Stream, timeout: float | None) -> None:
        self._stream = stream
        self._timeout = timeout

    def __iter__(self) -> Iterator[bytes]:
        stream = self._stream
        with translated(self.family):
            while True:
                if data := stream.take_bytes():
                    yield data
                elif stream.ended:
                    return
                else:
                    wait(stream.wait_more, self._timeout, "read_timeout")

    def close(self) -> None:
        self._stream.stop()


class AsyncBody:
    """An answer's body, for asyncio. Dropping it, or closing it before its end, stops the answer."""

    family: Any

    def __init__(self, stream: _engine.Stream, timeout: float | None) -> None:
        self._stream = stream
        self._timeout = timeout

    async def __aiter__(self) -> AsyncIterator[bytes]:
        # The bridge is taken once, because asking for the running loop costs a system call.
        stream, alarm, here = self._stream, Alarm(self._timeout), bridge()
        try:
            with translated(self.family):
                while True:
                    if data := stream.take_bytes():
                        yield data
                    elif stream.ended:
                        return
                    await alarm.over(stream.wait_more(here))
        finally:
            alarm.stop()

    async def aclose(self) -> None:
        self._stream.stop()
