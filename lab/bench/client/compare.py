"""What a Python client pays for each token, and how it takes more streams than one connection may have.

    python -m bench client [--rounds 5] [--seconds 5] [--clients headrace-httpx2,pyqwest]

Every client is a process of its own and asks the same gateway, before the scripted model, for raw bytes.

CPU: 64 streams, a 190-byte SSE event every 20 ms on each, aligned (all streams' events at one moment) and
spread over the interval. User and system time of the whole process, in a steady window, over the events the
model sent that arrived in it: handing on several events as one piece makes no client look cheap.

Burst: 200 short streams at once (20 events, 5 ms apart) over a client that is warm, while the gateway allows
100 on a connection; until all have ended. One client at a time; their order turns with every round.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path
from typing import Any

from bench import common, peers
from bench.client.clients import CLIENTS
from bench.client.one import BURST_TIMEOUT_S, CASES, SETTLE_S
from headrace_lab.measure.statistics import median

MAX_STREAMS = 100
"""How many streams one connection to the gateway may have: its default."""
OURS = "headrace-httpx2"
PACKAGES = ("headrace", "pyqwest", "niquests", "curl_cffi", "httpx2")


def run(name: str, case: str, folder: Path, seconds: float) -> dict[str, Any]:
    """One client in a process of its own, before a gateway and a model of its own."""
    command = [sys.executable, "-m", "bench.client.one", "--client", name, "--case", case]
    command += ["--ca", str(folder / "ca.pem"), "--seconds", str(seconds)]
    root, timeout = Path(__file__).parents[2], seconds + SETTLE_S + BURST_TIMEOUT_S + 10
    with (
        common.source({}) as upstream,
        peers.headrace(upstream, folder, 1, max_streams=MAX_STREAMS) as gateway,
    ):
        try:
            # In a session of its own Ctrl-C is not for it; `run` kills it when it leaves.
            ended = subprocess.run(
                [*command, "--origin", gateway.origin],
                capture_output=True,
                text=True,
                cwd=root,
                timeout=timeout,
                start_new_session=True,
            )
        except subprocess.TimeoutExpired:
            return {"error": f"nothing after {timeout:g} s"}
    if not ended.stdout:
        return {"error": f"died ({ended.returncode}): {ended.stderr.strip().splitlines()[-1:]}"}
    return dict(json.loads(ended.stdout))


def summarize(samples: dict[str, dict[str, list[dict[str, Any]]]]) -> dict[str, Any]:
    """By case and client: the medians of the rounds that worked, ours over theirs, and what went wrong."""
    table: dict[str, Any] = {}
    for case, by_name in samples.items():
        key = "wall_ms" if case == "burst" else "us"
        for name, found in by_name.items():
            worked = [sample for sample in found if "error" not in sample]
            row: dict[str, Any] = {
                field: median([sample[field] for sample in worked]) for field in (worked[0] if worked else {})
            }
            pairs = list(zip(by_name.get(OURS, []), found, strict=False))
            ratios = [ours[key] / it[key] for ours, it in pairs if "error" not in ours and "error" not in it]
            if ratios and name != OURS:
                row["ours_over"] = median(ratios)
            row["errors"] = [sample["error"] for sample in found if "error" in sample]
            row["samples"] = found
            table.setdefault(case, {})[name] = row
    return table


def main(arguments: list[str] | None = None, keep: bool = True) -> dict[str, Any]:
    parser = common.parser("client", __doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=5, help="the steady window")
    parser.add_argument("--clients", default=",".join(CLIENTS), help="some of %(default)s")
    parser.add_argument("--cases", default=",".join(CASES), help="some of %(default)s")
    options = parser.parse_args(arguments)
    names, cases = options.clients.split(","), options.cases.split(",")
    if unknown := {*names, *cases} - {*CLIENTS, *CASES}:
        parser.error(f"unknown: {', '.join(sorted(unknown))}")
    samples: dict[str, dict[str, list[dict[str, Any]]]] = {}
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        peers.certificate(folder)
        for round_number in range(options.rounds):
            turn = round_number % len(names)
            for case in cases:
                for name in names[turn:] + names[:turn]:
                    sample = run(name, case, folder, options.seconds)
                    samples.setdefault(case, {}).setdefault(name, []).append(sample)
                    print(f"round {round_number + 1} {case:8} {name:16} {common.shown(sample)}", flush=True)
    table = summarize(samples)
    for case, by_name in table.items():
        print(f"\n{case}: medians; ours_over: {OURS} over this one, median of paired ratios")
        for name in names:
            values = {field: value for field, value in by_name[name].items() if field != "samples"}
            print(f"{name:16} {common.shown(values)}")
    result = {
        "rounds": options.rounds,
        "versions": {package: version(package) for package in PACKAGES},
        "cases": table,
    }
    if keep:
        command = f"python -m bench client --rounds {options.rounds} --seconds {options.seconds:g}"
        common.write("client/client", command, result)
    return result
