"""How long a client waits, and for what.

In: seconds, or `None` for ever. Out: the same, by the names that httpx gave them. Each belongs to one wait,
not to their sum: an answer of an hour is fine while its tokens come.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple


class Timeouts(NamedTuple):
    connect: float | None = 5.0
    """Until the connection is there, all addresses and the handshake in it."""
    read: float | None = None
    """Silence of one answer, before its head or within its body."""
    write: float | None = 60.0
    """Until the server takes the next piece of a request's body."""
    pool: float | None = 60.0
    """Until the server allows one more stream (MAX_STREAMS)."""

    @classmethod
    def of_extension(cls, given: Mapping[str, Any] | None) -> Timeouts:
        """From the `timeout` extension of an httpx request; what it does not name waits for ever."""
        given = given or {}
        return cls(*(given.get(name) for name in cls._fields))
