"""What each API says, for those who must understand it.

In: the engine's one table of dialects (`crates/headrace-core/src/events/dialects/mod.rs`). Out: its rows, and
what follows from them: whose path it is, which event is the last, how an error is told and read. Another API
is another row there, not another branch here.
"""

from __future__ import annotations

import json
from functools import cache
from typing import Any, NamedTuple

from headrace import _engine


class Dialect(NamedTuple):
    """A row of the table of dialects."""

    name: str
    generates: list[str]
    """Ends of the paths whose answer is generated."""
    paths: list[str]
    """Parts of other paths by which the API is known."""
    key_fields: list[str]
    """Header fields in which callers give a key, in lower case; the first is the API's own."""
    key_queries: list[str]
    """Query parameters in which callers give a key."""
    formats: list[str]
    """In which its answers are streamed: `sse`, `ndjson`."""
    last: list[str]
    """What tells an answer's last event, for people to read."""
    words: list[str]
    """One of them is in every last event; few others have one."""
    texts: list[str]
    """Members of an event that hold what a model has generated."""

    def is_last(self, event: bytes) -> bool:
        """Whether an event, as it came, says that its answer is over."""
        return any(_engine.is_last_event(self.name, format, event) for format in self.formats)

    def is_last_data(self, data: str) -> bool:
        """The same of an event whose data is known alone."""
        return self.is_last("".join(f"data: {line}\n" for line in data.split("\n")).encode())

    def key_header(self, key: str) -> tuple[str, str]:
        """The header field by which the API itself wants a key."""
        return key_field(self.key_fields[0], key)


@cache
def dialects() -> dict[str, Dialect]:
    """All rows, by name, in the table's order."""
    return {row["name"]: Dialect(**row) for row in _engine.dialects()}


def of(target: str) -> Dialect:
    """The dialect of a path, or target. OpenAI's where the path tells nothing."""
    return sharing(target)[0]


def sharing(target: str) -> list[Dialect]:
    """All dialects that have this path; the first is the one it is taken for."""
    return [dialects()[name] for name in _engine.dialects_of(target)]


def is_last(event: bytes) -> bool:
    """Whether an event is the last of an answer in any dialect."""
    return any(word in event for word in _words()) and any(row.is_last(event) for row in dialects().values())


@cache
def _words() -> set[bytes]:
    return {word.encode() for dialect in dialects().values() for word in dialect.words}


@cache
def key_fields() -> list[str]:
    """Every header field in which a caller of any API gives a key."""
    return list(dict.fromkeys(name for dialect in dialects().values() for name in dialect.key_fields))


def key_field(name: str, key: str) -> tuple[str, str]:
    """A header field that gives a key."""
    return (name, f"Bearer {key}" if name == "authorization" else key)


def is_generation(method: str, target: str) -> bool:
    """Whether the answer is generated, so that a second one costs as much as the first."""
    return method == "POST" and _engine.is_generation(target)


def error_body(target: str, status: int, code: str, message: str, param: str | None = None) -> bytes:
    """A whole JSON body that tells an error in the words of the API at this path."""
    # What came from a client may hold halves of surrogate pairs.
    message = message.encode("utf-8", "replace").decode()
    return _engine.error_body(target, status, code, message, param)


def error_message(body: bytes | str) -> str | None:
    """The sentence in an error of any dialect: an answer's body, or an event's data. `None`: it is none."""
    try:
        return error_in(json.loads(body))
    except (ValueError, RecursionError):
        return None


def error_in(value: Any) -> str | None:
    """The same of JSON that was read already."""
    if not isinstance(value, dict):
        return None
    error = value.get("error", value if value.get("type") == "error" else None)
    if isinstance(error, dict):
        error = error.get("message", str(error))
    return None if error is None else str(error)
