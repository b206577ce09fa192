"""What a peer said, made harmless to show.

In: text from anywhere: a client's path, a model's name, a reason that a server gave. Out: the same, with
whatever commands a terminal, ends a line of a log, or turns or hides what stands beside it written as an
escape (`\\x1b`, `\\u202e`). It must not know where the text goes.
"""

from __future__ import annotations

import re

MOST_SHOWN = 200
"""Characters of one value in a log or a message: a path is long enough to be told from its neighbours."""

_COMMANDS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
"""C0 and C1, by which a terminal knows its commands (ECMA-48), but for the tab and the line feed."""


def one_line(text: str) -> str:
    """For a log, or a message in one line: everything that is not printable is escaped, line ends too."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else _escape(char) for char in text)


def clipped(text: str, most: int = MOST_SHOWN) -> str:
    """At most so many characters, on one line; what is missing is counted."""
    if len(text) <= most:
        return one_line(text)
    return f"{one_line(text[:most])}… ({len(text) - most} more)"


def for_terminal(text: str) -> str:
    """For text of many lines that a terminal shows as it comes, a model's answer: line feeds and tabs stay,
    and so do the joiners that scripts and emoji need; what commands the terminal is escaped."""
    return _COMMANDS.sub(lambda found: _escape(found[0]), text)


def _escape(char: str) -> str:
    code = ord(char)
    if code < 0x100:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
