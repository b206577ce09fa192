"""Two results of one scenario, seed by seed: what changed beyond the noise.

In: two result files. Out: for each server, protocol, point and shown measure the median of the paired
differences (second minus first) with its 95 % interval; `none` where it is within the noise.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from headrace.errors import ConfigError
from headrace_lab.measure.measures import MEASURES
from headrace_lab.measure.statistics import Effect, effect, median, noise_floor
from headrace_lab.run.results import VERSION
from headrace_lab.scenarios.scenario import stack_name

FEWEST_PAIRS = 5
"""With fewer pairs an interval says little, and the page says so."""


def read(file: Path) -> dict[str, Any]:
    """Reads a result file. Raises `ConfigError`."""
    try:
        result = json.loads(file.read_text())
    except OSError as error:
        raise ConfigError(detail=f"{file}: cannot be read: {error.strerror}") from None
    except ValueError:
        raise ConfigError(detail=f"{file}: expected a result of `headrace lab run`; it is not JSON") from None
    if not isinstance(result, dict) or result.get("version") != VERSION:
        raise ConfigError(detail=f"{file}: expected a result of `headrace lab run` of version {VERSION}")
    return result


def counting(result: dict[str, Any]) -> list[dict[str, Any]]:
    """Returns the cells that count: they are neither void nor failed."""
    return [cell for cell in result["cells"] if not cell.get("void") and not cell.get("failed")]


Key = tuple[Any, ...]


def key_of(cell: dict[str, Any]) -> Key:
    """Returns what a cell is compared by: server, protocol, client, point."""
    return (cell["server"], cell["protocol"], cell["client"], cell["point"])


def values(result: dict[str, Any], measure: str, again: bool = False) -> dict[Key, dict[int, float]]:
    """Returns the values of a measure by key and seed, without those that are doubtful."""
    found: dict[Key, dict[int, float]] = {}
    for cell in counting(result):
        is_known = measure in cell["measures"] and measure not in cell.get("doubtful", {})
        if cell["again"] == again and is_known:
            found.setdefault(key_of(cell), {})[cell["seed"]] = cell["measures"][measure]
    return found


def is_empty(result: dict[str, Any]) -> bool:
    """Whether nothing that the scenario shows was measured."""
    return not any(values(result, measure) for measure in result["scenario"]["show"]["measures"])


def floor_of(result: dict[str, Any], measure: str) -> float | None:
    """Returns the noise floor of a measure, from the baseline's two runs at each seed and point."""
    first, second = values(result, measure), values(result, measure, again=True)
    return noise_floor(
        [
            second[key][seed] - first[key][seed]
            for key in second
            for seed in second[key]
            if seed in first.get(key, {})
        ]
    )


def against_baseline(result: dict[str, Any], measure: str) -> dict[Key, Effect]:
    """Returns how much each server and protocol differs from the scenario's baseline, at the same point
    and seed."""
    baseline = result["scenario"]["run"]["baseline"]
    if not baseline:
        return {}
    server, _, protocol = baseline.partition("/")
    found, floor = values(result, measure), floor_of(result, measure)
    effects: dict[Key, Effect] = {}
    for key, by_seed in found.items():
        base = found.get((server, protocol, "headrace", key[3]), {})
        pairs = [(base[seed], by_seed[seed]) for seed in by_seed if seed in base]
        if key[:3] != (server, protocol, "headrace") and (made := effect(pairs, floor)):
            effects[key] = made
    return effects


def as_text(before_file: Path, after_file: Path) -> str:
    """Returns the comparison as Markdown. Raises `ConfigError` when the two are not of one scenario."""
    before, after = read(before_file), read(after_file)
    names = [result["scenario"]["name"] for result in (before, after)]
    if names[0] != names[1]:
        raise ConfigError(detail=f"expected two results of one scenario; got {names[0]} and {names[1]}")
    lines = [f"# {names[0]}: {after_file} against {before_file}", ""]
    lines += [f"Commits {before['about']['commit'] or '?'} -> {after['about']['commit'] or '?'}."]
    if before["about"]["machine"] != after["about"]["machine"]:
        lines += ["", "**The machines differ**: a difference may be theirs."]
    lines += ["", "| measure | server | point | before | after | difference [95 %] | noise floor |"]
    lines += ["|---|---|---|---|---|---|---|"]
    pairs_seen = 0
    for measure in before["scenario"]["show"]["measures"]:
        old, new = values(before, measure), values(after, measure)
        floors = [f for f in (floor_of(before, measure), floor_of(after, measure)) if f is not None]
        floor = max(floors, default=None)
        for key in old:
            seeds = sorted(set(old[key]) & set(new.get(key, {})))
            made = effect([(old[key][seed], new[key][seed]) for seed in seeds], floor)
            if made is None:
                continue
            pairs_seen = max(pairs_seen, made.pairs)
            lines.append(_row(measure, key, old[key], new[key], made))
    if not pairs_seen:
        raise ConfigError(detail="the two have no server, protocol, point and seed in common")
    if pairs_seen < FEWEST_PAIRS:
        lines += [
            "",
            f"Only {pairs_seen} pairs: run both with --seeds {FEWEST_PAIRS} or more to trust an interval.",
        ]
    return "\n".join(lines)


def _row(measure: str, key: Key, old: dict[int, float], new: dict[int, float], made: Effect) -> str:
    about = MEASURES[measure]
    shown = [f"{median(list(each.values())):.4g}" for each in (old, new)]
    floor = "not known" if made.floor is None else f"{made.floor:.3g}"
    point = "" if key[3] is None else key[3]
    name = stack_name(*key[:3])
    return (
        f"| {about.title} | {name} | {point} | {' | '.join(shown)} | {made.as_words(about.unit)} | {floor} |"
    )
