"""Numbers from samples, and whether a difference means anything.

Percentiles are exact: all samples are kept (a run has some thousands), and no histogram stands between.
Chance comes from a seed, so the same samples give the same interval.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

RESAMPLES = 2000
T = TypeVar("T")


def percentile(values: Iterable[float], q: float) -> float | None:
    """Returns the smallest value that at least the share `q` does not exceed (nearest rank); `None`
    without values."""
    ordered = sorted(values)
    if not ordered:
        return None
    return ordered[max(math.ceil(q * len(ordered)) - 1, 0)]


def median(values: Sequence[float]) -> float:
    ordered, middle = sorted(values), len(values) // 2
    return ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2


def weighted_percentile(counts: Sequence[tuple[float, int]], q: float) -> float | None:
    """Does the same as `percentile` for pairs `(value, how often)` that are sorted by value."""
    left = math.ceil(q * sum(count for _, count in counts))
    for value, count in counts:
        left -= count
        if left <= 0:
            return value
    return counts[-1][0] if counts else None


def interval(values: Sequence[float], seed: int = 1) -> tuple[float, float]:
    """Returns the 95 % bootstrap interval (percentile method) of the median."""
    chance = random.Random(seed)
    medians = sorted(median(chance.choices(values, k=len(values))) for _ in range(RESAMPLES))
    return medians[int(0.025 * RESAMPLES)], medians[int(0.975 * RESAMPLES) - 1]


def noise_floor(differences: Sequence[float]) -> float | None:
    """Returns how large a median difference is nothing but noise, from pairs of runs of the same thing
    (A/A)."""
    if not differences:
        return None
    return max(abs(bound) for bound in interval(differences))


@dataclass(frozen=True)
class Effect:
    """A median of paired differences (second minus first)."""

    pairs: int
    median: float
    low: float
    high: float
    floor: float | None
    """`None`: no A/A pairs were run."""

    @property
    def is_one(self) -> bool:
        """Whether the interval does not hold 0, and the median is beyond the noise floor."""
        return not (self.low <= 0 <= self.high) and abs(self.median) > (self.floor or 0.0)

    def as_words(self, unit: str = "") -> str:
        """Returns `none`, or the median with its interval."""
        if not self.is_one:
            return "none"
        return f"{self.median:+.3g} [{self.low:+.3g}, {self.high:+.3g}] {unit}".rstrip()


def effect(pairs: Sequence[tuple[float, float]], floor: float | None = None) -> Effect | None:
    """Returns the effect that pairs show; `None` without pairs."""
    if not pairs:
        return None
    differences = [after - before for before, after in pairs]
    low, high = interval(differences)
    return Effect(len(pairs), median(differences), low, high, floor)


def abba(things: Sequence[T], turn: int) -> list[T]:
    """Returns the order of a turn: forth, back, back, forth, and so on, so that a drift of the machine
    hits all alike."""
    return list(things) if turn % 4 in (0, 3) else list(reversed(things))


def jain(shares: Sequence[float]) -> float | None:
    """Returns Jain's fairness index: 1 when all are equal, 1/n when one has it all (R. Jain, DEC-TR-301,
    1984)."""
    squares = sum(share * share for share in shares)
    return sum(shares) ** 2 / (len(shares) * squares) if squares else None
