"""Lines that a thread of their own writes, so that code which logs never waits for the reader of the log.

In: lines. Out: the same lines at a file descriptor, in their order. What waits has a bound: when nobody
reads, lines are dropped and counted, and a line that is written when there is room again says how many. It
must not know what a line is about.
"""

from __future__ import annotations

import contextlib
import os
import select
import threading
import time
from collections import deque
from collections.abc import Callable

LAST_LINES_S = 1.0
"""How long the lines that wait may take when the process ends."""
MOST_LINES_AT_ONCE = 64


class LineWriter:
    """`tell_dropped`: makes the line that says how many lines were dropped."""

    def __init__(self, descriptor: int, most_bytes: int, tell_dropped: Callable[[int], str]) -> None:
        self._descriptor = descriptor
        self.most_bytes, self.tell_dropped = most_bytes, tell_dropped
        self._lines: deque[bytes] = deque()
        self._waiting_bytes = 0
        """The size of the lines that wait, and of what is being written."""
        self._untold = 0
        self.dropped = 0
        """How many lines were dropped in all."""
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None

    def write(self, line: str) -> None:
        """Takes a line, or drops it, without waiting."""
        data = line.encode("utf-8", "backslashreplace") + b"\n"
        with self._changed:
            if self._waiting_bytes + len(data) > self.most_bytes:
                self._untold += 1
                self.dropped += 1
                return
            self._lines.append(data)
            self._waiting_bytes += len(data)
            if self._thread is None:
                # A daemon: a pipe that nobody reads does not keep the process alive.
                self._thread = threading.Thread(target=self._run, name="headrace-log", daemon=True)
                self._thread.start()
            self._changed.notify_all()

    def flush(self, timeout: float = LAST_LINES_S) -> bool:
        """Waits until everything is written. Returns `False` when the time was over before that."""
        until = time.monotonic() + timeout
        with self._changed:
            while self._waiting_bytes and (left := until - time.monotonic()) > 0:
                self._changed.wait(left)
            return not self._waiting_bytes

    def _run(self) -> None:
        while True:
            with self._changed:
                while not (self._lines or self._untold):
                    self._changed.wait()
                batch, size = self._take()
            with contextlib.suppress(OSError):
                # When the reader is gone (EPIPE), lines are lost, and nobody can be told.
                self._write_all(batch)
            with self._changed:
                self._waiting_bytes -= size
                self._changed.notify_all()

    def _take(self) -> tuple[bytes, int]:
        """Some of what waits, and how much of it counts as waiting until it is written."""
        lines: list[bytes] = []
        while self._lines and len(lines) < MOST_LINES_AT_ONCE:
            lines.append(self._lines.popleft())
        size = sum(map(len, lines))
        if self._untold:
            lines.append(self.tell_dropped(self._untold).encode() + b"\n")
            self._untold = 0
        return b"".join(lines), size

    def _write_all(self, data: bytes) -> None:
        while data:
            try:
                data = data[os.write(self._descriptor, data) :]
            except BlockingIOError:
                # Somebody else has made it non-blocking: a terminal is shared by many.
                select.select([], [self._descriptor], [])
