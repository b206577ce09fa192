"""What the echo is told by default, on both sides: sending small datagrams a second time (docs/echo.md).

In: how it is used. Out: what the engine reads. Each default with its reason.
"""

from __future__ import annotations

from typing import Any, Literal

Mode = Literal["auto", "off", "on"]

NEAR_MS = 5.0
"""Long enough to outlive what loses one packet, short enough to repair it before anybody sees it, and before
loss detection (an eighth of a round trip) repairs it again. On a short path nearer, by itself."""
FAR_MS = 25.0
"""Behind a burst of losses, and still far below the 80 ms that a person sees."""
FIRST_S = 5.0
"""First tokens matter most, and a path of which nothing is known may be any."""
HOLD_S = 10.0
"""After the last loss. Shorter would be off again between the losses of a path that loses few."""
MAX_EXTRA_BYTES_PER_S = 512 * 1024
"""Of one connection: two copies of 16 streams with 50 tokens a second are 400 kB/s. With 64 kB/s most of
their losses are not repaired; one stream needs 35 kB/s."""


def engine(
    mode: Mode = "auto",
    near_ms: float = NEAR_MS,
    far_ms: float = FAR_MS,
    first_s: float = FIRST_S,
    hold_s: float = HOLD_S,
    max_extra_bytes_per_s: int = MAX_EXTRA_BYTES_PER_S,
) -> dict[str, Any]:
    """As the engine reads it."""
    return {
        "mode": mode,
        "near_s": near_ms / 1000,
        "far_s": far_ms / 1000,
        "first_s": first_s,
        "hold_s": hold_s,
        "max_extra_bytes_per_s": max_extra_bytes_per_s,
    }
