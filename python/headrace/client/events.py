"""Reads Server-Sent Events out of chunks.

In: bytes, cut anywhere. Out: the data of each complete event (WHATWG HTML §9.2.6).
"""

from __future__ import annotations

import re
from collections.abc import Iterator

BOM = b"\xef\xbb\xbf"
_LINE_END = re.compile(rb"\r\n|\n|\r")


class EventReader:
    """Collects lines until an empty line ends an event."""

    def __init__(self) -> None:
        self._rest = b""
        self._data: list[bytes] = []
        self._is_start = True

    def feed(self, chunk: bytes) -> Iterator[str]:
        """The data of every event that `chunk` completes; its lines are joined by LF."""
        text = self._rest + chunk
        if self._is_start:
            if len(text) < len(BOM) and BOM.startswith(text):
                self._rest = text
                return
            text = text.removeprefix(BOM)
            self._is_start = False
        position = 0
        for end in _LINE_END.finditer(text):
            if end.group() == b"\r" and end.end() == len(text):
                break  # its LF may still come
            line, position = text[position : end.start()], end.end()
            if line:
                name, _, value = line.partition(b":")
                if name == b"data":
                    self._data.append(value.removeprefix(b" "))
            elif self._data:
                yield b"\n".join(self._data).decode("utf-8", "replace")
                self._data.clear()
        self._rest = text[position:]
