"""Tokens through a lossy link: stalls and gaps with the echo and without, of Caddy and Envoy, and its cost.

    sudo nice -n -5 python -m bench echo [--seeds 10] [--at-once 3]

The lab's link (round trip 60 ms) and its scripted model; 16 streams on one warm connection, and one alone; a
token every 20 ms, those of all streams at once. Clients: qh3, which knows nothing of an echo, and headrace's
own. A stall is a gap of more than 80 ms. Without loss a short and a long run are made, and what a token costs
in the long one's further part is given: by then the echo of the first five seconds is over. A run that the
link calls void is made again.
"""

from __future__ import annotations

import argparse
import itertools
from collections import Counter
from dataclasses import dataclass
from typing import Any

from bench import common
from headrace_lab.measure.statistics import median, percentile
from headrace_lab.run.cell import Cell, Options, run_valid
from headrace_lab.scenarios.scenario import Load, RunPart, Scenario, Show

PATHS: dict[str, dict[str, Any]] = {
    "0 %": {},
    "1 %": {"loss": 0.01},
    "3 %": {"loss": 0.03},
    "5 %": {"loss": 0.05},
    "3 % in runs of 3": {"loss": 0.03, "burst": 3},
    "3 % in runs of 6": {"loss": 0.03, "burst": 6},
}
ECHO, NO_ECHO = "headrace", "headrace-no-echo"
PAIRS = f"qh3/{ECHO},headrace/{ECHO},qh3/caddy,qh3/envoy"
PAIRS_WITHOUT_LOSS = f"qh3/{ECHO},qh3/{NO_ECHO},headrace/{ECHO},headrace/{NO_ECHO}"
FURTHER = 500
"""Tokens of each stream that the long run without loss has more: 10 s."""
COSTS = ("bytes_per_token", "cpu_us_per_token", "stalled_per_loss")
STALL_MS = 80.0
QUANTILES = {"p50": 0.5, "p99": 0.99, "p99.9": 0.999}
Row = tuple[int, str, str, str]
"""Streams, path, client, server."""


@dataclass(frozen=True)
class Run:
    row: Row
    tokens: int
    seed: int


def one(run: Run) -> dict[str, Any]:
    streams, path, client, server = run.row
    scenario = Scenario(
        name="echo",
        title="echo",
        link={"delay_ms": 30, **PATHS[path]},
        load=Load(streams=streams, tokens=run.tokens, interval_ms=20, spread_s=0),  # type: ignore[call-arg]
        run=RunPart(servers=[server], protocols=["http3"]),  # type: ignore[call-arg]
        show=Show(measures=["stalls_per_1000"]),
    )
    cell = Cell(server, "http3", client, None, run.seed)
    result = run_valid(scenario, cell, Options(keep_timeline=False))
    if result["errors"]:
        raise RuntimeError(f"{run}: {result['errors']}")
    measures = result["measures"]
    kept = {key: measures.get(key) for key in ("stalls_per_1000", *COSTS)}
    return {**{key: result[key] for key in ("gaps", "made_again", "void")}, **kept}


def summary(runs: dict[Run, dict[str, Any]]) -> dict[str, Any]:
    """Sums up the runs of a row: gaps of all together, costs as medians."""
    counted = {run: result for run, result in runs.items() if not result["void"]}
    if not counted:
        raise RuntimeError(f"{next(iter(runs))}: every run was void; is the machine busy?")
    gaps = Counter[float]()
    for result in counted.values():
        gaps += Counter(dict(result["gaps"]))
    return {
        "runs": len(counted),
        "made_again": sum(result["made_again"] for result in runs.values()),
        "tokens": gaps.total(),
        "stalls_per_1000": round(
            sum(n for gap, n in gaps.items() if gap > STALL_MS) * 1000 / gaps.total(), 2
        ),
        "worst_seed": round(max(result["stalls_per_1000"] for result in counted.values()), 2),
        "gap_ms": {name: percentile(gaps.elements(), share) for name, share in QUANTILES.items()},
        **costs(counted),
    }


def costs(runs: dict[Run, dict[str, Any]]) -> dict[str, float]:
    found = {}
    short = min(run.tokens for run in runs)
    for key in COSTS:
        values = [result[key] for run, result in runs.items() if run.tokens == short]
        if None not in values:
            found[key] = round(median(values), 2)
        further = [
            (result[key] * run.tokens - before[key] * short) / (run.tokens - short)
            for run, result in runs.items()
            if run.tokens > short
            for before in [runs.get(Run(run.row, short, run.seed))]
            if before and key != "stalled_per_loss"
        ]
        if further:
            found[f"further_{key}"] = round(median(further), 2)
            found[f"further_{key}_spread"] = round((max(further) - min(further)) / 2, 2)
    return found


def plan(options: argparse.Namespace) -> dict[Row, list[Run]]:
    rows: dict[Row, list[Run]] = {}
    for streams, path in itertools.product(map(int, options.streams.split(",")), options.paths.split(",")):
        if not PATHS[path] and streams == 1:
            continue
        pairs = options.pairs if PATHS[path] else PAIRS_WITHOUT_LOSS
        lengths = [options.tokens] if PATHS[path] else [options.tokens, options.tokens + FURTHER]
        for pair in pairs.split(","):
            client, server = pair.split("/")
            row = (streams, path, client, server)
            rows[row] = [Run(row, tokens, seed + 1) for seed in range(options.seeds) for tokens in lengths]
    return rows


def main(arguments: list[str] | None = None, keep: bool = True) -> dict[str, Any]:
    parser = common.parser("echo", __doc__)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--streams", default="16,1")
    parser.add_argument("--tokens", type=int, default=300)
    parser.add_argument("--paths", default=",".join(PATHS))
    parser.add_argument("--pairs", default=PAIRS, help="client/server (default %(default)s)")
    parser.add_argument("--at-once", type=int, default=3, help="runs, each on a link of its own (default 3)")
    options = parser.parse_args(arguments)
    common.need_root(parser)
    waiting = plan(options)
    # Interleaved by seed: what the machine does meanwhile meets all that is compared.
    places = list(dict.fromkeys(row[:2] for row in waiting))
    runs = sorted(itertools.chain(*waiting.values()), key=lambda run: (places.index(run.row[:2]), run.seed))
    rows: list[dict[str, Any]] = []
    done: dict[Run, dict[str, Any]] = {}
    for run, result in common.at_once(
        one, runs, options.at_once, lambda run: f"{run.row[1]}, seed {run.seed}"
    ):
        done[run] = result
        for row in [row for row, its in waiting.items() if all(each in done for each in its)]:
            about = dict(zip(("streams", "path", "client", "server"), row, strict=True))
            rows.append(about | summary({each: done[each] for each in waiting.pop(row)}))
            print("\r" + common.shown(rows[-1]), flush=True)
    rows.sort(key=lambda row: -row["streams"])
    result = {"round_trip_ms": 60, "tokens": options.tokens, "rows": rows}
    if keep:
        command = f"python -m bench echo --seeds {options.seeds} --at-once {options.at_once}"
        common.write("network/echo", command, result)
    return result
