"""How long a client waits, and for what.

In: seconds, or `None`, which waits for ever. Out: the same, by the names that httpx gave them. Each is the
limit of one wait, not of their sum: an answer may take an hour while its tokens come.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple


class Timeouts(NamedTuple):
    """The limits of a request's waits, in seconds."""

    connect: float | None = 5.0
    """For the connection: all addresses of the name, and the handshake."""
    read: float | None = None
    """For the next part of the answer: its head, or more of its body."""
    write: float | None = 60.0
    """For the server to take the next piece of the request's body."""
    pool: float | None = 60.0
    """For the server to allow one more stream (MAX_STREAMS)."""

    @classmethod
    def of_extension(cls, given: Mapping[str, Any] | None) -> Timeouts:
        """Reads the `timeout` extension of an httpx request; a wait that it does not name has no limit."""
        given = given or {}
        return cls(*(given.get(name) for name in cls._fields))
