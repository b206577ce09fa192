"""What the scripted model server is told to answer: events, their sizes, when each is due, and how it ends.

In: a `Script` and a seed in it. Out: the bytes of every event and the offset at which it is due. Pure: no
clock, no socket; the same script is the same answer.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

Framing = Literal["sse", "ndjson", "raw"]
Ending = Literal["clean", "die", "reset", "hang", "half", "no_head", "bad_chunk"]
Shape = Literal["plain", "openai", "anthropic", "ollama"]

CONTENT_TYPE = {
    "sse": "text/event-stream",
    "ndjson": "application/x-ndjson",
    "raw": "application/octet-stream",
}
STOP = '"stop"'
DONE = b"data: [DONE]\n\n"
# Bytes of one event as the three families of servers send them, framing included: the fields around a token
# are most of it (https://platform.openai.com/docs/api-reference/chat-streaming,
# https://docs.anthropic.com/en/api/messages-streaming, https://github.com/ollama/ollama/blob/main/docs/api.md).
SIZES = {"plain": (0, 0), "openai": (120, 330), "anthropic": (110, 150), "ollama": (100, 140)}


@dataclass(frozen=True)
class Script:
    """The answer to one request."""

    events: int = 20
    interval_s: float = 0.02
    """The time between two events. 0: as fast as the reader takes them."""
    head_delay_s: float = 0.0
    """The silent prefill before the head."""
    first_delay_s: float = 0.0
    """The time between the head and the first event."""
    size: int = 190
    """Bytes of one event, with its framing. OpenAI-style servers send 120 to 330."""
    framing: Framing = "sse"
    body: Literal["chunked", "length", "close"] = "chunked"
    status: int = 200
    end: Ending = "clean"
    """What happens after the last event: `clean`; `die` (FIN without the last chunk); `reset` (RST); `hang`
    (silence); `half` (half an event, then FIN); `no_head` (FIN before the head); `bad_chunk` (garbage)."""
    align: bool = False
    """Send on a grid of `interval_s` that all streams share, in one go, as a decode step of a batch does."""
    trailers: bool = False
    note_times: bool = False
    """Keep the moment at which each event was sent (`Run.times_ns`)."""
    note_due: bool = False
    """Write into each event when it was due (`due`), beside when it was sent (`t`)."""
    shape: Shape = "plain"
    """The family of servers whose sizes are taken, drawn by `seed`, instead of `size` (the lab's stamps
    need room, so no size is below 140). Anthropic's events have two lines, Ollama's are NDJSON."""
    seed: int = 1
    jitter: float = 0.0
    """How far an event is moved from its place, as a share of `interval_s`, to either side."""
    silences: tuple[tuple[int, float], ...] = ()
    """`(event, seconds)`: for so long nothing is due before that event; all later ones move with it."""
    bursts: tuple[tuple[int, int], ...] = ()
    """`(event, count)`: from that event on, so many are due at once."""


def offsets(script: Script) -> Iterator[float]:
    """Yields when each event is due, in seconds after the place of the first one. It never goes back."""
    chance = random.Random(script.seed)
    silences, bursts = dict(script.silences), dict(script.bursts)
    due, moved, last, together = 0.0, 0.0, 0.0, 0
    for number in range(script.events):
        due += silences.get(number, 0.0)
        together = max(together, bursts.get(number, 0))
        if script.jitter:
            moved = script.interval_s * script.jitter * chance.uniform(-1, 1)
        last = max(due + moved, last)
        yield last
        together -= 1
        if together <= 0:
            due += script.interval_s


@lru_cache(maxsize=256)
def sizes(shape: Shape, seed: int) -> tuple[int, ...]:
    """Draws the sizes of 509 events, which then repeat."""
    chance = random.Random(f"{shape} {seed}")
    return tuple(chance.randint(*SIZES[shape]) for _ in range(509))


def event(script: Script, number: int, now_ns: int, due_ns: int = 0) -> bytes:
    """Makes event `number` of an answer: JSON with its number and the moment it was sent, padded to its
    size."""
    last = number == script.events - 1
    due = f'"due":{due_ns},' if script.note_due else ""
    stamp = f'{{"n":{number},"t":{now_ns},{due}'
    if script.shape == "anthropic":
        rest = f'"type":"content_block_delta","delta":{{"text":" t{number}"}},"pad":"'
    elif script.shape == "ollama":
        rest = f'"message":{{"content":" t{number}"}},"done":{"true" if last else "false"},"pad":"'
    else:
        choice = (
            f'{{"index":0,"delta":{{"content":" t{number}"}},"finish_reason":{STOP if last else "null"}}}'
        )
        rest = f'"object":"chat.completion.chunk","choices":[{choice}],"pad":"'
    framing = "ndjson" if script.shape == "ollama" else script.framing
    begin = b"event: content_block_delta\n" if script.shape == "anthropic" else b""
    size = script.size if script.shape == "plain" else sizes(script.shape, script.seed)[number % 509]
    around = {"sse": 8, "ndjson": 1, "raw": 0}[framing] + len(begin)
    pad = "." * max(size - len(stamp) - len(rest) - 2 - around, 0)
    data = f'{stamp}{rest}{pad}"}}'
    if framing == "sse":
        return begin + f"data: {data}\n\n".encode()
    return f"{data}\n".encode() if framing == "ndjson" else data.encode()


def body_of(script: Script, times_ns: list[int] | None = None) -> bytes:
    """Makes the whole body of a clean answer. `times_ns`: the moments of its events."""
    times_ns = times_ns or [0] * script.events
    whole = b"".join(event(script, number, at, at) for number, at in enumerate(times_ns))
    return whole + ending(script)


def ending(script: Script) -> bytes:
    """Returns what says, after the last event, that an answer is whole."""
    if script.shape == "anthropic":
        return b'event: message_stop\ndata: {"type":"message_stop"}\n\n'
    # Ollama's last line says it itself.
    return DONE if script.framing == "sse" and script.shape != "ollama" else b""


def parse(text: str) -> Script:
    """Reads a script from JSON, as a request's `script` has it. Raises `TypeError` for an unknown field."""
    return from_fields(json.loads(text))


def from_fields(fields: dict[str, object]) -> Script:
    """Makes a script from the fields that JSON gives, where tuples are lists."""
    made = dict(fields)
    for name in ("silences", "bursts"):
        if name in made:
            made[name] = tuple(tuple(pair) for pair in made[name])  # type: ignore[attr-defined]
    return Script(**made)  # type: ignore[arg-type]
