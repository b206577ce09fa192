"""The plots of a report, each of one result: a measure, gaps, first tokens, and the tokens of every stream.

In: a result. Out: SVG. This file must not know what else is on the page."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from typing import Any

from headrace_lab.measure.measures import MEASURES, STALL_INTERVALS
from headrace_lab.measure.statistics import interval, median, percentile, weighted_percentile
from headrace_lab.report.compare import FEWEST_PAIRS, Key, counting, key_of, values
from headrace_lab.report.svg import (
    DASHES,
    FAINT,
    INK,
    MARK,
    QUIET,
    STALL,
    TICK,
    Svg,
    colour,
    linear,
    logarithmic,
    number,
    steps,
)
from headrace_lab.scenarios.scenario import stack_name

WIDTH = 960
LEFT, RIGHT = 64, 700
"""Where the axes are; the labels stand to the right of them."""
MOST_ROWS, MOST_MS = 16, 8000.0
"""The most streams, and the longest time, of a timeline."""


def points_of(result: dict[str, Any]) -> list[Any]:
    sweep = result["scenario"]["sweep"]
    return list(sweep["values"]) if sweep else [None]


def stacks_of(result: dict[str, Any]) -> list[tuple[str, str, str]]:
    """Returns the stacks in the order in which they were asked for."""
    seen = {key_of(cell)[:3] for cell in counting(result)}
    run = result["scenario"]["run"]
    servers = [*run["servers"], *sorted({stack[0] for stack in seen})]
    return sorted(seen, key=lambda s: (servers.index(s[0]), s[1] != "http3", s[1] != "http2", s[2]))


def point_words(result: dict[str, Any], point: Any) -> str:
    sweep = result["scenario"]["sweep"]
    if point is None or sweep is None:
        return ""
    if sweep["key"] == "loss":
        return f"{100 * point:g} % loss"
    return f"{sweep['title'] or sweep['key']} {point}"


def _titled(measure: str) -> str:
    about = MEASURES[measure]
    return f"{about.title[0].upper()}{about.title[1:]}{f', {about.unit}' if about.unit else ''}"


def by_point(result: dict[str, Any], measure: str) -> str:
    """Draws a measure over the swept key: the median of the seeds as a line, and each seed as a dot."""
    about, sweep = MEASURES[measure], result["scenario"]["sweep"]
    found, points = values(result, measure), points_of(result)
    every = [value for by_seed in found.values() for value in by_seed.values()]
    if not every or len(points) < 2:
        return ""
    better = "lower" if about.less_is_better else "higher"
    what = "loss in both directions" if sweep["key"] == "loss" else sweep["title"] or sweep["key"]
    svg = Svg(WIDTH, 380, f"{about.title} by {what}")
    svg.text(LEFT - 40, 22, f"{_titled(measure)}, by {what} ({better} is better)", INK, size=15, bold=True)
    marks = steps(max(every))
    across = linear(0, len(points) - 1, LEFT + 20, RIGHT - 20)
    up = linear(0, marks[-1], 340, 46)
    for mark in marks:
        svg.line(LEFT, up(mark), RIGHT, up(mark))
        svg.text(LEFT - 8, up(mark) + 4, number(mark), QUIET, "end")
    for n, point in enumerate(points):
        svg.text(across(n), 362, point_words(result, point), QUIET, "middle")
    labels = []
    for stack in stacks_of(result):
        stroke, dash = colour(stack[0]), DASHES[stack[1]]
        line = []
        for n, point in enumerate(points):
            seeds = list(found.get((*stack, point), {}).values())
            for value in seeds:
                svg.dot(across(n), up(value), 2.2, stroke, f"{stack_name(*stack)}: {number(value)}", 0.4)
            if seeds:
                line.append((across(n), up(median(seeds)), median(seeds)))
        if line:
            svg.path([(x, y) for x, y, _ in line], stroke, dash, stack_name(*stack))
            last = f"{stack_name(*stack)}: {number(line[-1][2])}"
            labels.append((line[-1][1], last, stroke, dash))
    svg.labels(RIGHT - 14, labels)
    return str(svg)


def bars(result: dict[str, Any], measure: str, point: Any) -> str:
    """Draws a measure of each server and protocol at one point: the median, each seed and, with enough
    seeds, the 95 % interval."""
    about, found = MEASURES[measure], values(result, measure)
    stacks = [stack for stack in stacks_of(result) if found.get((*stack, point))]
    if not stacks:
        return ""
    at = point_words(result, point)
    better = "lower" if about.less_is_better else "higher"
    height = 76 + 26 * len(stacks)
    svg = Svg(WIDTH, height, about.title)
    heading = f"{_titled(measure)}{f', at {at}' if at else ''}"
    svg.text(LEFT - 40, 22, f"{heading} ({better} is better)", INK, size=15, bold=True)
    most = max(value for stack in stacks for value in found[(*stack, point)].values())
    if not most:
        zero = Svg(WIDTH, 64, about.title)
        zero.text(LEFT - 40, 22, heading, INK, size=15, bold=True)
        zero.text(LEFT - 40, 46, "0 for all of them", QUIET)
        return str(zero)
    marks = steps(most)
    across = linear(0, marks[-1], 200, RIGHT + 100)
    for mark in marks:
        svg.line(across(mark), 40, across(mark), height - 30)
        svg.text(across(mark), height - 12, number(mark), QUIET, "middle")
    for n, stack in enumerate(stacks):
        y, fill = 52.0 + 26 * n, colour(stack[0])
        seeds = list(found[(*stack, point)].values())
        middle, name = median(seeds), stack_name(*stack)
        svg.text(190, y + 4, name, fill, "end")
        svg.rect(across(0), y - 7, across(middle) - across(0), 14, fill, f"{name}: {number(middle)}")
        if len(seeds) >= FEWEST_PAIRS:
            low, high = interval(seeds)
            svg.line(across(low), y, across(high), y, INK, 1.2)
        for value in seeds:
            svg.dot(across(value), y, 2.2, INK, number(value), 0.6)
        svg.text(max(across(middle), across(max(seeds))) + 8, y + 4, number(middle), fill)
    return str(svg)


def gap_cdf(result: dict[str, Any], point: Any) -> str:
    """Draws how long the gaps between tokens are: the share of gaps that are shorter, stretched towards 1."""
    counts: dict[tuple[str, str, str], Counter[float]] = {}
    for cell in counting(result):
        if cell["point"] == point and not cell["again"]:
            into = counts.setdefault(key_of(cell)[:3], Counter())
            for gap, count in cell["gaps"]:
                into[gap] += count
    counts = {stack: counter for stack, counter in counts.items() if counter}
    if not counts:
        return ""
    interval_ms = result["scenario"]["load"]["interval_ms"]
    longest = max(max(counter) for counter in counts.values())
    low, high = interval_ms / 4, max(longest * 1.1, interval_ms * 10)
    at = point_words(result, point)
    svg = Svg(WIDTH, 390, "Gaps between tokens")
    svg.text(
        LEFT - 40,
        22,
        f"How long people wait for the next token{f', at {at}' if at else ''}",
        INK,
        size=15,
        bold=True,
    )
    across = logarithmic(low, high, LEFT, RIGHT)
    levels = [0.0, 0.5, 0.9, 0.99, 0.999, 0.9999]
    up = linear(0.0, -math.log10(1 - levels[-1]), 336, 50)
    for level in levels:
        y = up(-math.log10(1 - level) if level else 0.0)
        svg.line(LEFT, y, RIGHT, y)
        svg.text(LEFT - 8, y + 4, f"{100 * level:g} %", QUIET, "end")
    for mark in (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000, 20_000):
        if low <= mark <= high:
            svg.line(across(mark), 50, across(mark), 336)
            svg.text(across(mark), 353, number(mark), QUIET, "middle")
    svg.text(
        (LEFT + RIGHT) / 2,
        376,
        "gap between two tokens, ms; each level: so many gaps are shorter",
        QUIET,
        "middle",
    )
    for mark, words in ((interval_ms, "as generated"), (STALL_INTERVALS * interval_ms, "stall →")):
        svg.line(across(mark), 44, across(mark), 336, QUIET, 1.2)
        svg.text(across(mark) + 3, 43, words, QUIET, size=11)
    p99 = {stack: weighted_percentile(sorted(each.items()), 0.99) or 0.0 for stack, each in counts.items()}
    keys = []
    for stack in sorted(counts, key=lambda stack: p99[stack]):
        line = _tail(sorted(counts[stack].items()), levels[-1])
        stroke, dash = colour(stack[0]), DASHES[stack[1]]
        words = f"{stack_name(*stack)}: p99 {number(p99[stack])} ms"
        svg.path([(across(gap), up(level)) for gap, level in line], stroke, dash, words, 1.8)
        keys.append((words, stroke, dash))
    svg.keys(RIGHT + 14, 66, keys)
    return str(svg)


def _tail(counts: list[tuple[float, int]], most: float) -> list[tuple[float, float]]:
    """Returns `(gap, -log10 of the share that is longer)`, as far as that many gaps can tell."""
    total, below, line = sum(count for _, count in counts), 0, []
    ceiling = -math.log10(1 - most)
    for gap, count in counts:
        below += count
        level = ceiling if below >= total else min(-math.log10(1 - below / total), ceiling)
        line.append((gap, min(level, math.log10(total))))
    return line


def first_tokens(result: dict[str, Any], point: Any) -> str:
    """Draws when the first tokens came, against whole round trips."""
    cells = [
        cell for cell in counting(result) if cell["point"] == point and not cell["again"] and cell["ttft"]
    ]
    times: dict[tuple[str, str, str], list[float]] = {}
    for cell in cells:
        times.setdefault(key_of(cell)[:3], []).extend(cell["ttft"])
    if not times:
        return ""
    rtt = cells[0].get("rtt_ms", 0.0)
    cold = result["scenario"]["load"]["cold"]
    at = point_words(result, point)
    most = max(percentile(each, 0.95) or 0.0 for each in times.values()) * 1.15
    most = max(most, rtt * 3.4)
    stacks = [stack for stack in stacks_of(result) if stack in times]
    height = 84 + 26 * len(stacks)
    svg = Svg(WIDTH, height, "Time to the first token")
    resumed = result["scenario"]["load"].get("resumed")
    kind = "on a new connection" if cold else "on an open connection"
    kind = "of a client that comes back" if resumed else kind
    svg.text(
        LEFT - 40, 22, f"Time to the first token {kind}{f', at {at}' if at else ''}", INK, size=15, bold=True
    )
    marks = [mark for mark in steps(most) if mark <= most]
    across = linear(0, most, 200, RIGHT + 100)
    for mark in marks:
        svg.text(across(mark), height - 12, f"{number(mark)} ms", QUIET, "middle")
        svg.line(across(mark), 56, across(mark), height - 30)
    for trips in range(1, int(most / rtt) + 1 if rtt else 0):
        if trips > 6:
            break
        svg.line(across(trips * rtt), 48, across(trips * rtt), height - 30, QUIET, 1.2)
        svg.text(across(trips * rtt), 44, f"{trips} R", QUIET, "middle", 11)
    for n, stack in enumerate(stacks):
        y, fill, each = 68.0 + 26 * n, colour(stack[0]), times[stack]
        svg.text(190, y + 4, stack_name(*stack), fill, "end")
        for value in each:
            if value <= most:
                svg.dot(across(value), y, 2.5, fill, f"{number(value)} ms", 0.35)
        middle = percentile(each, 0.5) or 0.0
        svg.rect(across(middle) - 1.5, y - 9, 3, 18, fill, f"median {number(middle)} ms")
        in_trips = f" = {middle / rtt:.2f} R" if rtt else ""
        svg.text(RIGHT + 110, y + 4, f"{number(middle)} ms{in_trips}", fill)
    return str(svg)


def timeline(cell: dict[str, Any], result: dict[str, Any], until_ms: float) -> str:
    """Draws the tokens of every stream: a row is a stream, a tick a token, a bar a stall, a mark above a
    lost packet."""
    drawn = cell["timeline"]
    rows = drawn["streams"][:MOST_ROWS]
    stall_ms = STALL_INTERVALS * result["scenario"]["load"]["interval_ms"]
    row_px = 13 if len(rows) <= 8 else 9
    top = 44
    height = top + row_px * len(rows) + 34
    svg = Svg(WIDTH, height, "Timeline")
    across = linear(0, until_ms, 60, WIDTH - 20)
    stalls = 0
    for mark in steps(until_ms / 1000, 8):
        if mark * 1000 <= until_ms:
            svg.line(across(mark * 1000), top - 4, across(mark * 1000), height - 26)
            svg.text(across(mark * 1000), height - 10, f"{mark:g} s", QUIET, "middle", 11)
    for n, stream in enumerate(rows):
        y = top + row_px * n
        stalls += _row(svg, stream, y, row_px, across, stall_ms, until_ms)
    lost = [at for at, direction in drawn["lost"] if direction == "down" and 0 <= at <= until_ms]
    marks = "".join(f"M{across(at):.1f} {top - 12}v7" for at in lost)
    svg.add(f'<path d="{marks}" stroke="{MARK}" stroke-width="1.1"/>')
    if lost:
        svg.text(54, top - 5, "lost", INK, "end", 11)
    for event in drawn["events"]:
        x = across(event["at"])
        if event.get("seconds"):
            lasts = across(event["at"] + event["seconds"] * 1000) - x
            svg.rect(x, top - 4, lasts, height - top - 22, FAINT, event["do"])
        svg.line(x, top - 14, x, height - 26, MARK, 1.4)
        svg.text(x + 4, top - 8, event["do"].replace("_", " "), INK, size=11)
    name = stack_name(cell["server"], cell["protocol"], cell["client"])
    count = "no stall" if not stalls else "1 stall" if stalls == 1 else f"{stalls} stalls"
    said = f"   {count} over {stall_ms:g} ms"
    if len(drawn["streams"]) > len(rows):
        said += f" ({len(rows)} of {len(drawn['streams'])} streams are shown)"
    svg.words(16, 18, [(name, colour(cell["server"]), True), (said, STALL if stalls else QUIET, False)])
    svg.text(54, top + row_px * len(rows) / 2, "streams", QUIET, "end", 11)
    return str(svg)


def _row(
    svg: Svg, stream: dict[str, Any], y: float, px: int, across: Any, stall_ms: float, until_ms: float
) -> int:
    """Draws one stream. Returns how many stalls it has."""
    times = [at for at in stream["at"] if at <= until_ms]
    stalls = 0
    for before, after in itertools.pairwise(times):
        if after - before > stall_ms:
            stalls += 1
            tip = f"nothing for {after - before:.0f} ms"
            svg.rect(across(before), y + 1, across(after) - across(before), px - 3, STALL, tip)
    ticks = "".join(f"M{across(at):.1f} {y + 1}v{px - 3}" for at in times)
    svg.add(f'<path d="{ticks}" stroke="{TICK}" stroke-width="0.9"/>')
    if stream["error"] and stream["end"] <= until_ms:
        x = across(stream["end"])
        if times and not stream["stopped"]:
            svg.rect(
                across(times[-1]), y + 1, x - across(times[-1]), px - 3, STALL, f"until {stream['error']}"
            )
        svg.text(
            min(x + 3, 820), y + px - 3, "stopped" if stream["stopped"] else stream["error"], INK, size=10
        )
    return stalls


__all__ = [
    "Key",
    "bars",
    "by_point",
    "first_tokens",
    "gap_cdf",
    "point_words",
    "points_of",
    "stacks_of",
    "timeline",
]
