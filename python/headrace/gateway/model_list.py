"""Which models a model server says that it has.

In: an answer of `/v1/models`, from a model server that is not believed more than it must be. Out: names, at
most `MOST_NAMES`, each of at most `LONGEST_NAME` characters that can be shown. It must not know what is done
with them.
"""

from __future__ import annotations

import json
from typing import Any

MOST_NAMES = 2_000
"""More models than any model server has; routing looks a name up, and an answer of ours lists them."""
LONGEST_NAME = 256


def model_names(body: bytes) -> list[str]:
    """The ids in the list; none when it is something else. An entry that is malformed is left out alone."""
    try:
        listed = json.loads(body)["data"]
    except (ValueError, RecursionError, KeyError, TypeError):
        return []
    entries = listed[:MOST_NAMES] if isinstance(listed, list) else []
    return [name for entry in entries if (name := _name(entry))]


def _name(entry: Any) -> str:
    """Of an entry; empty when it has none that can be used."""
    name = entry.get("id") if isinstance(entry, dict) else None
    return name if isinstance(name, str) and len(name) <= LONGEST_NAME and name.isprintable() else ""
