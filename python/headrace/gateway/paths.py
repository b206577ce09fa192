"""What a path may be, and where a setting that names beginnings of paths ends.

In: the path of a request, without its query. Out: whether it says the same to everybody who reads it, and
whether it lies at or below a beginning. `paths` and `early_data.routes` are walls only because both are
decided here.
"""

from __future__ import annotations

import re
from urllib.parse import unquote

MOST_DECODINGS = 3
"""How often somebody behind us may decode a path; one that still changes then is refused."""

_SEPARATORS = re.compile(r"[/\\]")
_ENDS = re.compile(r"[;?#\0]")
"""Where some reader ends a segment: parameters, a query or a fragment decoded too early, a string of C."""
_OTHER_SPELLINGS = re.compile("%u00([0-9a-f]{2})|\xc0([\x80-\xbf])", re.IGNORECASE)
"""Of ASCII: `%u002e` (IIS), and overlong UTF-8 (its two bytes, as Latin-1)."""


def is_resolved(path: str) -> bool:
    """Whether no segment is `.` or `..`, to whoever reads it.

    Clients resolve dot segments before they ask (RFC 3986 §5.2.4, WHATWG URL), and a model server that does
    it behind us serves another path than the one that was let through. So they are refused however they are
    written: `%2e`, behind `%2f` or a backslash, encoded twice, with parameters (`..;x`), before what a
    careless reader takes for an end (`..%00`), as overlong UTF-8 (`%c0%ae`) or `%u002e`.
    """
    for _ in range(MOST_DECODINGS + 1):
        segments = _SEPARATORS.split(path)
        if any(_ENDS.split(segment)[0].strip() in (".", "..") for segment in segments):
            return False
        decoded = _OTHER_SPELLINGS.sub(_plain, unquote(path, "latin-1"))
        if decoded == path:
            return True
        path = decoded
    return False


def begins(path: str, beginning: str) -> bool:
    """Whether the path is the beginning or lies below it: `/v1` holds `/v1/chat`, and not `/v1beta`."""
    return path == beginning or path.startswith(beginning if beginning.endswith("/") else f"{beginning}/")


def _plain(match: re.Match[str]) -> str:
    return chr(int(match[1], 16)) if match[1] else chr(ord(match[2]) & 0x3F)
