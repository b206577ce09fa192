"""Which models a model server says that it has.

In: an answer of `/v1/models`, from a model server that is not believed more than it must be. Out: names, at
most `MOST_NAMES`, each of at most `LONGEST_NAME` characters that can be shown. It must not know what is done
with them.
"""

from __future__ import annotations

import msgspec

MOST_NAMES = 2_000
"""More models than any model server has; routing looks a name up, and an answer of ours lists them."""
LONGEST_NAME = 256


class _List(msgspec.Struct):
    data: list[msgspec.Raw]


class _Entry(msgspec.Struct):
    id: str


_list, _entry = msgspec.json.Decoder(_List), msgspec.json.Decoder(_Entry)


def model_names(body: bytes) -> list[str]:
    """The ids in the list; none when it is something else. An entry that is malformed is left out alone."""
    try:
        listed = _list.decode(body).data
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return []
    return [name for entry in listed[:MOST_NAMES] if (name := _name(entry))]


def _name(entry: msgspec.Raw) -> str:
    """Of an entry; empty when it has none that can be used."""
    try:
        name = _entry.decode(entry).id
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return ""
    return name if len(name) <= LONGEST_NAME and name.isprintable() else ""
