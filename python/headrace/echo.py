"""The defaults of the echo, which sends small datagrams a second time, for the server and for the client.

In: what is set differently. Out: what the engine reads. Every default stands here with its reason.
"""

from __future__ import annotations

from typing import Any, Literal

Mode = Literal["auto", "off", "on"]

NEAR_MS = 5.0
"""Long enough to outlive what has lost a packet, and short enough to repair the loss before anybody sees it,
and before loss detection (an eighth of a round trip) repairs it again. On a short path the copy comes sooner
by itself."""
FAR_MS = 25.0
"""Later than a burst of losses, and still far below the 80 ms that a person sees."""
FIRST_S = 5.0
"""First tokens matter most, and a path of which nothing is known may be a bad one."""
HOLD_S = 10.0
"""After the last loss. If it were shorter, the echo would be off again before the next loss of a path that
loses few packets."""
MAX_EXTRA_BYTES_PER_S = 512 * 1024
"""For one connection. Two copies of 16 streams with 50 tokens a second are 400 kB/s; with 64 kB/s, most of
their losses would not be repaired. One stream needs 35 kB/s."""


def engine(
    mode: Mode = "auto",
    near_ms: float = NEAR_MS,
    far_ms: float = FAR_MS,
    first_s: float = FIRST_S,
    hold_s: float = HOLD_S,
    max_extra_bytes_per_s: int = MAX_EXTRA_BYTES_PER_S,
) -> dict[str, Any]:
    """The settings as the engine reads them."""
    return {
        "mode": mode,
        "near_s": near_ms / 1000,
        "far_s": far_ms / 1000,
        "first_s": first_s,
        "hold_s": hold_s,
        "max_extra_bytes_per_s": max_extra_bytes_per_s,
    }
