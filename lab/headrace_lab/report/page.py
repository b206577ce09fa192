"""The page: all results of a folder, as one HTML file that needs nothing else and, in short, as Markdown.

In: result files of `headrace lab run`. Out: `report.html` and `report.md`.
"""

from __future__ import annotations

from html import escape
from pathlib import Path
from typing import Any

from headrace.errors import ConfigError
from headrace_lab.measure.measures import MEASURES
from headrace_lab.measure.statistics import median, percentile
from headrace_lab.report import plots
from headrace_lab.report.compare import (
    FEWEST_PAIRS,
    against_baseline,
    counting,
    floor_of,
    is_empty,
    read,
    values,
)
from headrace_lab.report.svg import number
from headrace_lab.scenarios.scenario import stack_name

STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; color: #1a1a1a; background: #f6f6f4; margin: 0 auto; max-width:
1000px; padding: 24px; } h1 { margin: 0 0 4px; } h2 { margin: 44px 0 6px; font-size: 22px; } p { max-width:
75ch; } figure { margin: 14px 0; background: #fff; border: 1px solid #e0e0dc; border-radius: 6px; overflow:
hidden; } svg { display: block; width: 100%; height: auto; } .quiet { color: #6b6b6b; font-size: 13px; } table
{ border-collapse: collapse; font-size: 13px; background: #fff; margin: 8px 0; } th, td { padding: 4px 9px;
border: 1px solid #e0e0dc; text-align: right; } th:first-child, td:first-child { text-align: left;
white-space: nowrap; } th { font-weight: 600; } .fault { color: #b04a00; } details { margin: 8px 0; } summary
{ cursor: pointer; } nav a { margin-right: 14px; } .short { font-size: 16px; } .wide { overflow-x: auto; }
"""


def write(folder: Path, page: Path) -> tuple[Path, Path, list[str]]:
    """Writes the page and, beside it, the summary. Returns both, and the names of the scenarios in which
    nothing was measured. Raises `ConfigError` when there is no result."""
    results = sorted(map(read, folder.glob("*.json")), key=lambda result: result["about"]["date"])
    if not results:
        raise ConfigError(detail=f"{folder} has no results; to make one, run `headrace lab run fan-out`")
    page.write_text(html(results))
    summary = page.with_suffix(".md")
    summary.write_text(markdown(results))
    return page, summary, [result["scenario"]["name"] for result in results if is_empty(result)]


def html(results: list[dict[str, Any]]) -> str:
    """Returns the page."""
    names = [result["scenario"]["name"] for result in results]
    links = "".join(f'<a href="#{name}">{name}</a>' for name in names)
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><title>headrace lab</title>'
        f'<meta name="viewport" content="width=device-width"><style>{STYLE}</style></head><body>'
        f"<h1>headrace lab</h1><p>{HOW}</p><nav>{links}</nav>{''.join(map(_section, results))}</body></html>\n"
    )


HOW = (
    "What each server and protocol does to a stream of tokens. A token is due at a moment that was fixed before; "
    "what counts is when it comes. Each protocol meets the same losses: they are drawn by packet number, not by time. "
    "Solid lines are HTTP/3, dashed ones HTTP/2, dotted ones HTTP/1.1; R is the round trip."
)


def first_measure(result: dict[str, Any]) -> str | None:
    """Returns the first shown measure of which anything is known."""
    return next((name for name in result["scenario"]["show"]["measures"] if values(result, name)), None)


def hardest(result: dict[str, Any]) -> Any:
    """Returns the last point of a sweep at which anything was measured: plots of one point are made there."""
    points = plots.points_of(result)
    measure = first_measure(result)
    known = {key[3] for key in values(result, measure)} if measure else set()
    return next((point for point in reversed(points) if point in known), points[-1])


def finding(result: dict[str, Any]) -> str:
    """Says in a sentence what the first measure is at the last point, best first."""
    measure = first_measure(result)
    if measure is None:
        said = faults(result)
        return f"Nothing was measured{f': {said[0]}' if said else ''}."
    about, point = MEASURES[measure], hardest(result)
    found = {
        key[:3]: median(list(v.values())) for key, v in values(result, measure).items() if key[3] == point
    }
    ordered = sorted(found.items(), key=lambda item: item[1], reverse=not about.less_is_better)
    shown = ", ".join(f"{stack_name(*stack)} {number(value)}" for stack, value in ordered)
    unit = f", {about.unit}" if about.unit else ""
    at = plots.point_words(result, point)
    return (
        f"{about.title[0].upper()}{about.title[1:]}{unit}{f', at {at}' if at else ''}, best first: {shown}."
    )


def _section(result: dict[str, Any]) -> str:
    scenario, point = result["scenario"], hardest(result)
    measures = scenario["show"]["measures"]
    has = {measure.split("_")[0] for measure in measures}
    first = plots.by_point(result, measures[0]) or plots.bars(result, measures[0], point)
    if measures[0].startswith("ttft"):
        first = plots.first_tokens(result, point)
    rest = [plots.gap_cdf(result, point)] if has & GAPS else []
    if "ttft" in has and not measures[0].startswith("ttft"):
        rest.append(plots.first_tokens(result, point))
    rest += [plots.bars(result, measure, point) for measure in measures[1:] if measure not in ON_PLOTS]
    return (
        f'<h2 id="{scenario["name"]}">{escape(scenario["title"])}</h2><p>{escape(scenario["about"].strip())}</p>'
        f'<p class="short">{escape(finding(result))}</p>{_faults(result)}{_figure(first)}{_timelines(result, point)}'
        f"{''.join(map(_figure, rest))}{_tables(result)}<p class=quiet>{escape(_about(result))}</p>"
    )


def _figure(svg: str) -> str:
    return f"<figure>{svg}</figure>" if svg else ""


GAPS = {"gap", "stalls", "stall", "late"}
"""First words of the measures that the plot of gaps explains."""
ON_PLOTS = {"gap_p50_ms", "gap_p99_ms", "gap_p999_ms", "ttft_p50_ms", "ttft_p99_ms", "late_p50_ms"}
"""Measures that other plots show already."""


def _faults(result: dict[str, Any]) -> str:
    lines = [escape(line) for line in faults(result)]
    return f'<ul class="fault">{"".join(f"<li>{line}</li>" for line in lines)}</ul>' if lines else ""


def faults(result: dict[str, Any]) -> list[str]:
    """Returns what was wrong with servers, and with runs that do not count."""
    seen: dict[str, int] = {}
    for cell in result["cells"]:
        name = stack_name(cell["server"], cell["protocol"], cell["client"])
        said = list(cell.get("verdict", []))
        said += [f"streams ended by {kind}: {count}" for kind, count in cell.get("errors", {}).items()]
        if cell.get("failed"):
            said.append(f"could not be run: {cell['failed'].splitlines()[0]}")
        if cell.get("void"):
            said.append(f"a run does not count: {cell['void']}")
        else:
            said += _doubts(result, cell)
        for line in said:
            seen[f"{name} {line}"] = seen.get(f"{name} {line}", 0) + 1
    return [line if count == 1 else f"{line} ({count} runs)" for line, count in seen.items()]


def _doubts(result: dict[str, Any], cell: dict[str, Any]) -> list[str]:
    """Says which of the shown measures do not count in a run, and why."""
    reasons: dict[str, list[str]] = {}
    for measure in result["scenario"]["show"]["measures"]:
        if measure in cell.get("doubtful", {}) and measure in cell["measures"]:
            reasons.setdefault(cell["doubtful"][measure], []).append(MEASURES[measure].title)
    return [f"does not count: {', '.join(titles)}: {reason}" for reason, titles in reasons.items()]


def _timelines(result: dict[str, Any], point: Any) -> str:
    cells = [cell for cell in counting(result) if cell["point"] == point and cell.get("timeline")]
    if not cells:
        return ""
    order = plots.stacks_of(result)
    cells.sort(key=lambda cell: order.index((cell["server"], cell["protocol"], cell["client"])))
    # Nearly all of the time is shown: one late token must not squeeze the rest.
    ends = [stream["at"][-1] for cell in cells for stream in cell["timeline"]["streams"] if stream["at"]]
    until = min((percentile(ends, 0.95) or 1000.0) * 1.03, plots.MOST_MS)
    shown = "".join(plots.timeline(cell, result, until) for cell in cells)
    at = plots.point_words(result, point)
    return (
        f"<figure>{shown}</figure><p class=quiet>Every token{f' at {at}' if at else ''}, seed {cells[0]['seed']}: a row "
        "is a stream, a blue tick a token, an orange bar a stall; black marks above are packets to the client that were "
        "lost.</p>"
    )


def rows(result: dict[str, Any]) -> list[tuple[str, list[str]]]:
    """Returns the rows of the table: a name, and what each shown measure came to."""
    measures = result["scenario"]["show"]["measures"]
    found = {measure: values(result, measure) for measure in measures}
    effects = {measure: against_baseline(result, measure) for measure in measures}
    made = []
    for point in plots.points_of(result):
        for stack in plots.stacks_of(result):
            key = (*stack, point)
            words = []
            for measure in measures:
                seeds = list(found[measure].get(key, {}).values())
                text = number(median(seeds)) if seeds else ""
                effect = effects[measure].get(key)
                if effect and effect.pairs >= FEWEST_PAIRS:
                    text += f" ({effect.as_words()})"
                words.append(text)
            at = plots.point_words(result, point)
            if any(words):
                made.append((f"{stack_name(*stack)}{f', {at}' if at else ''}", words))
    return made


def heads(result: dict[str, Any]) -> list[str]:
    return [
        f"{MEASURES[m].title}{f', {MEASURES[m].unit}' if MEASURES[m].unit else ''}"
        for m in result["scenario"]["show"]["measures"]
    ]


def _tables(result: dict[str, Any]) -> str:
    head = "".join(f"<th>{escape(text)}</th>" for text in ["", *heads(result)])
    body = "".join(
        f"<tr><td>{escape(name)}</td>{''.join(f'<td>{escape(text)}</td>' for text in words)}</tr>"
        for name, words in rows(result)
    )
    return f'<div class="wide"><table><tr>{head}</tr>{body}</table></div><p class=quiet>{escape(_noise(result))}</p>'


def _noise(result: dict[str, Any]) -> str:
    baseline = result["scenario"]["run"]["baseline"]
    seeds = len(result["about"]["seeds"])
    words = f"Medians of {seeds} seeds." if seeds > 1 else "One seed."
    if not baseline:
        return words
    floors = {MEASURES[m].title: floor_of(result, m) for m in result["scenario"]["show"]["measures"]}
    shown = "; ".join(f"{title} {number(floor)}" for title, floor in floors.items() if floor is not None)
    if seeds < FEWEST_PAIRS:
        return f"{words} With fewer than {FEWEST_PAIRS} no differences are given."
    return (
        f"{words} In brackets: the median of the paired differences from {baseline.replace('/', ' ')}, with its 95 % "
        f"bootstrap interval, or none where it is within the noise. Noise (the baseline run twice): {shown}."
    )


def _about(result: dict[str, Any]) -> str:
    about = result["about"]
    machine, link = about["machine"], [cell.get("link") or {} for cell in result["cells"]]
    late = [each["lateness_ms"]["p99"] for each in link if each.get("lateness_ms")]
    lateness = (
        f" The link's own lateness, p99, was at most {max(late):.2f} ms." if late else " There was no link."
    )
    for words, key in (
        ("The model itself sent", "model_late_ms"),
        ("The clients' loops woke", "clients_late_ms"),
    ):
        if late := [cell[key] for cell in result["cells"] if cell.get(key)]:
            lateness += (
                f" {words} at most {max(late):.1f} ms late (p99 of a run; median run {median(late):.1f} ms)."
            )
    if modes := {each["mode"] for each in link if each.get("mode") not in (None, "tun")}:
        lateness += f" The link was a {', '.join(modes)}."
    void = sum(bool(cell.get("void")) for cell in result["cells"])
    versions = ", ".join(f"{name} {version}" for name, version in about["versions"].items())
    return (
        f"{about['date']}, commit {about['commit'] or 'unknown'}; {machine['cpu']}, {machine['cores']} cores, Linux "
        f"{machine['kernel']}, TCP by {machine.get('tcp', 'unknown').upper()}, Python {machine['python']}. {versions}. "
        f"{len(result['cells'])} runs, {void} void, seeds {', '.join(map(str, about['seeds']))}.{lateness} "
        f"{about['command']}"
    )


def markdown(results: list[dict[str, Any]]) -> str:
    """Returns the same in short."""
    parts = ["# headrace lab\n"]
    for result in results:
        scenario = result["scenario"]
        parts.append(f"## {scenario['title']}\n\n{finding(result)}\n")
        parts += [f"- {line}" for line in faults(result)] and [
            "\n".join(f"- {line}" for line in faults(result)) + "\n"
        ]
        titles = ["", *heads(result)]
        table = [f"| {' | '.join(titles)} |", f"|{'---|' * len(titles)}"]
        table += [f"| {' | '.join([name, *words])} |" for name, words in rows(result)]
        parts.append("\n".join(table) + "\n")
        parts.append(f"{_noise(result)}\n\n{_about(result)}\n")
    return "\n".join(parts)
