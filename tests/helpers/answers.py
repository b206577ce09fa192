"""What came, compared with what the scripted model sends."""

from __future__ import annotations

from collections.abc import Iterable

from headrace.client import Chunk
from headrace_lab.model import Script, body_of


def frames(chunks: Iterable[Chunk]) -> list[bytes]:
    """The DATA frames that chunks come from: one that lies across two packets may come in two pieces."""
    found: list[bytes] = []
    for chunk in chunks:
        if chunk.is_first:
            found.append(b"")
        found[-1] += chunk.data
    return found


def expected(body: bytes, /, **fields: object) -> bytes:
    """The body of a clean answer, with the moments that were written into the one received."""
    framing = fields.get("framing", "sse")
    parts = body.split(b"\n\n" if framing == "sse" else b"\n")
    times = [int(part.split(b'"t":')[1].split(b",")[0]) for part in parts if b'"t":' in part]
    return body_of(Script(**fields), times)  # type: ignore[arg-type]


def is_whole(body: bytes, events: int) -> bool:
    """Every event once, in order."""
    found = body.split(b"\n\n")
    numbers = [int(event.split(b'"n":')[1].split(b",")[0]) for event in found[:-2]]
    return numbers == list(range(events)) and found[-2:] == [b"data: [DONE]", b""]
