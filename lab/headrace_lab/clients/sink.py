"""One answer, as a client sees it.

In: bytes, each piece with the moment at which it was read. Out: tokens.

A token is known by the number in its event, not by the chunk it came in: a proxy that joins chunks changes
no count here. Where a server numbers nothing, as any real model, events are counted instead, and when each
was due is not known. This file must not know which protocol carried the bytes.
"""

from __future__ import annotations

import asyncio
import re
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from headrace.events import dialects

NUMBERED = re.compile(rb'"n":\s*(\d+),\s*"t":\s*(\d+)(?:,\s*"due":\s*(\d+))?')

UNFINISHED = "unfinished"
"""The error of an answer that still came when the lab's own time was over: nothing of it was lost."""
REFUSAL_BYTES = 200
"""How much of the body of a refusal is kept for people to read."""


@cache
def token_of(path: str) -> re.Pattern[bytes]:
    """What a real model's event holds when it has a token; events with a role, usage or an end do not."""
    members = "|".join(dialects.of(path).texts)
    return re.compile(rf'"(?:{members})"\s*:\s*"[^"]'.encode())


def is_error(line: bytes) -> bool:
    """Whether a line of an event tells that the answer broke off."""
    if b"error" not in line:
        return False
    field, _, value = line.partition(b":")
    if field == b"event":
        return value.strip() == b"error"
    return dialects.error_message(value if field == b"data" else line) is not None


@dataclass
class Sink:
    """What became of one stream. Times are monotonic nanoseconds; 0 is never."""

    number: int
    connection: int
    tag: str
    path: str = "/v1/chat/completions"
    """What was asked; it says which API's events are read."""
    connect_ns: int = 0
    """When the connection was begun, where it was begun for this stream alone."""
    sent_ns: int = 0
    head_ns: int = 0
    end_ns: int = 0
    stopped_ns: int = 0
    status: int = 0
    encoding: str = ""
    """`content-encoding` of the answer."""
    error: str = ""
    """A slug, or the name of the exception's class; empty after a clean end."""
    done: bool = False
    """The answer said itself that it was whole, in the words of any API."""
    said_error: bool = False
    """The answer held an error event."""
    refusal: bytes = b""
    """The beginning of a body whose status is an error."""
    size: int = 0
    """Bytes of the body, as they came."""
    chunks: int = 0
    tokens: list[tuple[int, int, int, int]] = field(default_factory=list)
    """`(number, due, sent by the model, read here)`."""
    keep_tokens: bool = True
    on_token: Callable[[Sink], None] | None = None
    _rest: bytearray = field(default_factory=bytearray)
    _inflate: Any = None
    ended: asyncio.Event = field(default_factory=asyncio.Event)

    def head(self, at_ns: int, status: int, fields: dict[str, str]) -> None:
        self.head_ns, self.status = at_ns, status
        self.encoding = fields.get("content-encoding", "")
        if self.encoding in ("gzip", "deflate"):
            self._inflate = zlib.decompressobj(zlib.MAX_WBITS | 32)

    def data(self, at_ns: int, data: bytes) -> None:
        """Takes bytes of the body that were read at once."""
        if self.end_ns:
            return
        self.size += len(data)
        self.chunks += 1
        if self.status >= 400:
            self.refusal = (self.refusal + data)[:REFUSAL_BYTES]
            return
        if not self.keep_tokens:
            return
        rest = self._rest
        rest += self._inflate.decompress(data) if self._inflate else data
        # A line is enough: an event has its token in one of its lines, and blank lines hold nothing.
        whole = rest.rfind(b"\n") + 1
        if not whole:
            return
        before = len(self.tokens)
        for line in bytes(rest[:whole]).splitlines():
            self._line(at_ns, line)
        del rest[:whole]
        if self.on_token and len(self.tokens) > before:
            self.on_token(self)

    def _line(self, at_ns: int, line: bytes) -> None:
        if found := NUMBERED.search(line):
            number, sent, due = found.groups()
            self.tokens.append((int(number), int(due or 0), int(sent), at_ns))
            self.done = self.done or dialects.is_last(line)
            return
        if dialects.is_last(line):
            self.done = True
        elif is_error(line):
            self.said_error = True
        elif token_of(self.path).search(line):
            self.tokens.append((len(self.tokens), 0, 0, at_ns))

    def end(self, at_ns: int, error: str = "") -> None:
        """Takes the end of the answer; only the first end counts. A refusal is an error, however cleanly
        it ended."""
        if self.end_ns:
            return
        refused = f"status_{self.status}" if self.status >= 400 else ""
        self.end_ns, self.error = at_ns, error or refused
        self.ended.set()

    def as_log(self) -> dict[str, Any]:
        """Returns the stream as values for the log, which is JSON."""
        kept = ("number", "connection", "tag", "connect_ns", "sent_ns", "head_ns", "end_ns", "stopped_ns")
        more = ("status", "encoding", "error", "done", "said_error", "size", "chunks", "tokens")
        said = self.refusal.decode("utf-8", "replace")
        shown = "".join(letter if letter.isprintable() else " " for letter in said)
        return {name: getattr(self, name) for name in kept + more} | {"refusal": shown.strip()}
