"""Axes, lines and labels as SVG that needs nothing else.

In: numbers and words. Out: text. The colours are those of Okabe and Ito, which most colour-blind people
can tell apart (https://jfly.uni-koeln.de/color/). A server has a colour, and a protocol has a way of
drawing a line.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from html import escape

INK, QUIET, FAINT, PAPER = "#1a1a1a", "#6b6b6b", "#e4e4e4", "#ffffff"
STALL, TICK, MARK = "#d55e00", "#3f6b8f", "#000000"
COLOURS = {
    "headrace": "#0072b2",
    "caddy": "#b87a00",
    "envoy": "#00805c",
    "hypercorn": "#b0578a",
    "target": "#1a1a1a",
}
OTHER = "#d55e00"
DASHES = {"http3": "", "http2": "7 4", "http1": "2 3"}
BOLD = ' font-weight="600"'
LABEL_PX = 15
"""The least distance between two labels."""


def colour(server: str) -> str:
    return COLOURS.get(server, OTHER)


@dataclass
class Svg:
    """A picture, `width` x `height`, built from top to bottom."""

    width: int
    height: int
    title: str
    parts: list[str] = field(default_factory=list)

    def add(self, part: str) -> None:
        self.parts.append(part)

    def line(
        self, x1: float, y1: float, x2: float, y2: float, stroke: str = FAINT, width: float = 1.0
    ) -> None:
        self.add(
            f'<path d="M{x1:.1f} {y1:.1f}L{x2:.1f} {y2:.1f}" stroke="{stroke}" stroke-width="{width:g}"/>'
        )

    def rect(self, x: float, y: float, width: float, height: float, fill: str, tip: str = "") -> None:
        inner = f"<title>{escape(tip)}</title>" if tip else ""
        size = f'width="{max(width, 0.5):.1f}" height="{height:.1f}"'
        self.add(f'<rect x="{x:.1f}" y="{y:.1f}" {size} fill="{fill}">{inner}</rect>')

    def dot(self, x: float, y: float, radius: float, fill: str, tip: str = "", opacity: float = 1.0) -> None:
        inner = f"<title>{escape(tip)}</title>" if tip else ""
        self.add(
            f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{radius:g}" fill="{fill}" fill-opacity="{opacity:g}">'
            f"{inner}</circle>"
        )

    def text(
        self,
        x: float,
        y: float,
        words: str,
        fill: str = INK,
        anchor: str = "start",
        size: int = 12,
        bold: bool = False,
    ) -> None:
        weight = BOLD if bold else ""
        self.add(
            f'<text x="{x:.1f}" y="{y:.1f}" fill="{fill}" text-anchor="{anchor}" font-size="{size}"{weight}>'
            f"{escape(words)}</text>"
        )

    def words(self, x: float, y: float, parts: Sequence[tuple[str, str, bool]], size: int = 13) -> None:
        """Draws words one after the other, each with its own colour: `(words, colour, bold)`."""
        spans = "".join(
            f'<tspan fill="{fill}"{BOLD if bold else ""}>{escape(text)}</tspan>' for text, fill, bold in parts
        )
        self.add(f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" xml:space="preserve">{spans}</text>')

    def path(
        self, points: Sequence[tuple[float, float]], stroke: str, dash: str, tip: str, width: float = 2
    ) -> None:
        data = "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in points)
        dashes = f' stroke-dasharray="{dash}"' if dash else ""
        look = f'fill="none" stroke="{stroke}" stroke-width="{width:g}" stroke-linejoin="round"{dashes}'
        self.add(f'<path d="{data}" {look}><title>{escape(tip)}</title></path>')

    def keys(self, x: float, top: float, wanted: Sequence[tuple[str, str, str]]) -> None:
        """Draws a key to the lines, from top to bottom: `(words, colour, dash)`."""
        for n, (words, stroke, dash) in enumerate(wanted):
            y = top + n * 22
            self.path([(x, y), (x + 30, y)], stroke, dash, words)
            self.text(x + 36, y + 4, words, stroke)

    def labels(self, x: float, wanted: Sequence[tuple[float, str, str, str]]) -> None:
        """Draws words beside the ends of lines, pushed apart, each with a thin lead: `(y, words, colour,
        dash)`."""
        placed: list[float] = []
        ordered = sorted(wanted)
        for y, *_ in ordered:
            placed.append(max(y, placed[-1] + LABEL_PX) if placed else y)
        over = placed[-1] - (self.height - 30) if placed else 0
        if over > 0:
            placed[-1] -= over
            for n in range(len(placed) - 2, -1, -1):
                placed[n] = min(placed[n], placed[n + 1] - LABEL_PX)
        for at, (y, words, stroke, dash) in zip(placed, ordered, strict=True):
            self.line(x, y, x + 14, at, stroke, 0.7)
            self.path([(x + 16, at), (x + 38, at)], stroke, dash, words)
            self.text(x + 43, at + 4, words, stroke)

    def __str__(self) -> str:
        return (
            f'<svg viewBox="0 0 {self.width} {self.height}" role="img" aria-label="{escape(self.title)}" '
            'font-family="system-ui, sans-serif" fill="none">'
            f'<rect width="{self.width}" height="{self.height}" fill="{PAPER}"/>{"".join(self.parts)}</svg>'
        )


Scale = Callable[[float], float]


def linear(low: float, high: float, start: float, end: float) -> Scale:
    span = (high - low) or 1.0
    return lambda value: start + (value - low) / span * (end - start)


def logarithmic(low: float, high: float, start: float, end: float) -> Scale:
    """Returns a logarithmic scale. Values below `low` are drawn at `low`."""
    inner = linear(math.log10(low), math.log10(high), start, end)
    return lambda value: inner(math.log10(max(value, low)))


def steps(high: float, count: int = 5) -> list[float]:
    """Returns round values from 0 to at least `high`."""
    if high <= 0:
        return [0.0, 1.0]
    raw = high / count
    unit = 10 ** math.floor(math.log10(raw))
    step = next(unit * factor for factor in (1, 2, 2.5, 5, 10) if unit * factor >= raw * 0.999)
    return [step * n for n in range(math.ceil(high / step - 1e-9) + 1)]


def number(value: float) -> str:
    """Returns a number for people to read, with three figures at most."""
    if value and abs(value) < 0.0005:
        return f"{value:.0e}"
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}"
