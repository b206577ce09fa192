"""Which models a model server says that it has.

In: an answer of `/v1/models`, from a model server that is not believed more than it must be. Out: its entries
by name, at most `MOST_NAMES`, each with a name of at most `LONGEST_NAME` characters that can be shown; or
`Unreadable`, which says why nothing is known. It must not know what is done with them.
"""

from __future__ import annotations

import json
from typing import Any

MOST_NAMES = 2_000
"""More models than any model server has; routing looks a name up, and an answer of ours lists them."""
LONGEST_NAME = 256
DEFAULT_TAG = ":latest"
"""The tag that a name without one means, at Ollama and those who speak as it does."""

Entry = dict[str, Any]


class Unreadable(Exception):
    """What was asked for models names none; the sentence says what it answered, and how to mend it."""


def read(path: str, status: int, body: bytes, has_key: bool) -> dict[str, Entry]:
    """The entries of a list of models, by name, as the model server wrote them. One that is malformed is left
    out alone. `has_key`: the look had an API key with it.

    Raises `Unreadable`.
    """
    if status in (401, 403):
        mend = "the key in api_key_env is not taken" if has_key else "set api_key_env"
        raise Unreadable(f"{path} answers {status}: {mend}, or name its models")
    if status != 200:
        raise Unreadable(f"{path} answers {status}: set health_path, or name its models")
    try:
        listed = json.loads(body)["data"]
    except (ValueError, RecursionError, KeyError, TypeError):
        listed = None
    if not isinstance(listed, list):
        raise Unreadable(f"{path} answers something that is not a list of models: name its models")
    entries = {name: _shown(name, entry) for entry in listed[:MOST_NAMES] if (name := _name(entry))}
    if not entries:
        raise Unreadable(f"{path} lists no model that has a name")
    return entries


def entry_of(name: str, owner: str) -> Entry:
    """An entry for a model of which nothing but its name is known."""
    return {"id": name, "object": "model", "created": 0, "owned_by": owner}


def same(asked: str, known: str) -> bool:
    """Whether two names mean one model: a name without a tag means `:latest`."""
    return asked.removesuffix(DEFAULT_TAG) == known.removesuffix(DEFAULT_TAG)


def _shown(name: str, entry: Entry) -> Entry:
    """The entry as it came, when it can be written as JSON again; it may be too deep for that."""
    try:
        json.dumps(entry, allow_nan=False)
    except (ValueError, RecursionError):
        return entry_of(name, "")
    return entry


def _name(entry: Any) -> str:
    """Of an entry; empty when it has none that can be used."""
    name = entry.get("id") if isinstance(entry, dict) else None
    return name if isinstance(name, str) and len(name) <= LONGEST_NAME and name.isprintable() else ""
