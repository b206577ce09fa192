"""What is wrong with a server, in words. It is judged by what a client sees, so it holds for any server.

In: a run. Out: one sentence for each fault, which says what was seen.
"""

from __future__ import annotations

import itertools
from typing import Any

from headrace_lab.measure.measures import Observed, tokens_of
from headrace_lab.measure.statistics import median

TOGETHER_NS = 1_000_000
"""Tokens that arrive within a millisecond of each other came together."""
MOST = 0.3
"""The share of tokens that may come together."""
FEWEST = 10
"""Nothing can be said about an answer with fewer tokens."""


def verdict(seen: Observed) -> list[str]:
    """Returns one sentence for each fault that was seen."""
    found: list[str] = []
    streams = [s for s in seen.streams() if len(s["tokens"]) >= FEWEST]
    # A lost packet holds back those behind it, and then they come together: that is not the server's fault.
    is_lossy = any(packet.lost for packet in seen.packets)
    compressed = [s for s in streams if s["encoding"]]
    if compressed:
        kind = compressed[0]["encoding"]
        found.append(
            f"compresses: content-encoding {kind}; a compressor holds tokens until its window is full"
        )
    if buffered := sum(_is_buffered(stream) for stream in streams):
        if not compressed:
            found.append(
                f"buffers: in {buffered} of {len(streams)} answers most tokens came at once, at the end"
            )
    elif streams and not is_lossy and (together := median([_together(stream) for stream in streams])) > MOST:
        period = median([_period_ms(stream) for stream in streams])
        found.append(
            f"coalesces: {together:.0%} of the tokens came together with others, about every {period:.0f} ms"
        )
    if cut := sum(_ends_too_soon(stream) for stream in seen.streams()):
        found.append(
            f"hides a failure: {cut} of {len(seen.streams())} answers ended cleanly, but were not whole"
        )
    return found


def _is_buffered(stream: dict[str, Any]) -> bool:
    """Whether most tokens came at the end, in a tenth of the time over which they were due. Where that is
    not known, the answer may have waited for its turn at the model: then its tokens must also have come
    together."""
    tokens = tokens_of(stream)
    is_known = bool(tokens[0].due)
    planned = tokens[-1].due - tokens[0].due if is_known else stream["end_ns"] - stream["sent_ns"]
    last = tokens[-1].at
    is_late = sum(last - token.at < planned / 10 for token in tokens) > 0.8 * len(tokens)
    return planned > 200e6 and is_late and (is_known or _together(stream) > 0.8)


def _together(stream: dict[str, Any]) -> float:
    """Returns the share of tokens that came within a millisecond of the one before, though they were due
    well after it."""
    pairs = list(itertools.pairwise(tokens_of(stream)))
    apart = [(a, b) for a, b in pairs if not a.due or b.due - a.due > 5 * TOGETHER_NS]
    return sum(b.at - a.at < TOGETHER_NS for a, b in apart) / (len(apart) or 1)


def _period_ms(stream: dict[str, Any]) -> float:
    """Returns the time between two arrivals of tokens that came together."""
    waits = [
        (b.at - a.at) / 1e6 for a, b in itertools.pairwise(tokens_of(stream)) if b.at - a.at >= TOGETHER_NS
    ]
    return median(waits) if waits else 0.0


def _ends_too_soon(stream: dict[str, Any]) -> bool:
    """Whether an answer ended cleanly without saying that it was whole, and without an error event."""
    said = stream["done"] or stream["said_error"] or stream["error"]
    return bool(stream["tokens"]) and not said
