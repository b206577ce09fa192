"""CPU time of the proxy's process for each relayed token, against Caddy and Envoy.

    python -m bench relay_cpu [--rounds 5] [--seconds 6] [--proxies headrace,caddy,envoy] [--asleep]

Upstream: HTTP/1.1 chunked, 190-byte SSE events every 20 ms. Shapes: 64 streams on 1 connection, 64
connections with 1 stream each, and both with 256, where the proxy has something to do. Two phases: aligned
(all streams' tokens at one moment, as a decode step of a batch sends them) and spread over the interval. One
proxy at a time, each with one worker; the order of the proxies turns with every round, so that drift of the
machine meets all of them. Only CPU of the proxy's process counts. The processors are kept from sleeping
(`common.awake`): waking a sleeping one in a virtual machine calls the hypervisor, which counts as CPU of
the sender of each datagram, and is not a cost of a proxy. `--asleep` lets them.
"""

from __future__ import annotations

import contextlib
import json
import tempfile
import time
from pathlib import Path
from typing import Any

from bench import common, peers
from headrace_lab.measure.statistics import median

INTERVAL_S = 0.02
SETTLE_S = 6.0
"""Until a new path's echo has gone quiet (5 s): before, every datagram is sent twice."""
SHAPES = {"1x64": (1, 64), "64x1": (64, 1), "1x256": (1, 256), "256x1": (256, 1)}
"""Connections, and streams on each."""
PHASES = ("aligned", "spread")


def measure(proxy: peers.Proxy, upstream: str, folder: Path, shape: str, phase: str, seconds: float) -> float:
    """CPU in µs of one token."""
    connections, streams = SHAPES[shape]
    script = {
        "events": int((seconds + SETTLE_S + 1) / INTERVAL_S),
        "interval_s": INTERVAL_S,
        "align": phase == "aligned",
    }
    request = json.dumps({"model": "scripted", "stream": True, "script": script})
    spread = "0" if phase == "aligned" else str(INTERVAL_S * 10.5)
    client = common.load(
        proxy.origin, folder / "ca.pem", connections, streams, "--request", request, "--spread", spread
    )
    try:
        time.sleep(SETTLE_S)
        before, cpu_before = sent(upstream), proxy.cpu_s()
        time.sleep(seconds)
        tokens, cpu = sent(upstream) - before, proxy.cpu_s() - cpu_before
    finally:
        out, _ = client.communicate(timeout=60)
    result = json.loads(out)
    if result["errors"] or result["streams"] != connections * streams:
        raise RuntimeError(f"{proxy.name}: {result}")
    return cpu / tokens * 1e6


def sent(upstream: str) -> int:
    return sum(run["sent"] for run in common.runs(upstream)["runs"])


def main(arguments: list[str] | None = None, keep: bool = True) -> dict[str, Any]:
    parser = common.parser("relay_cpu", __doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=6)
    parser.add_argument("--proxies", default="headrace,caddy,envoy")
    parser.add_argument("--shapes", default=",".join(SHAPES))
    parser.add_argument("--phases", default=",".join(PHASES))
    parser.add_argument("--asleep", action="store_true", help="let the processors sleep")
    options = parser.parse_args(arguments)
    names = options.proxies.split(",")
    table: dict[str, dict[str, list[float]]] = {}
    versions: dict[str, str] = {}
    awake = contextlib.nullcontext(False) if options.asleep else common.awake()
    with awake as is_awake, tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        peers.certificate(folder)
        for round_number in range(options.rounds):
            turn = round_number % len(names)
            for shape in options.shapes.split(","):
                for phase in options.phases.split(","):
                    for name in names[turn:] + names[:turn]:
                        with common.source({}) as upstream, peers.PROXIES[name](upstream, folder, 1) as proxy:
                            versions[name] = proxy.version
                            cost = measure(proxy, upstream, folder, shape, phase, options.seconds)
                        table.setdefault(f"{shape} {phase}", {}).setdefault(name, []).append(cost)
                        print(
                            f"round {round_number + 1} {shape} {phase:8} {name:9} {cost:6.1f} µs/token",
                            flush=True,
                        )
    rows = summarize(table)
    print_rows(rows, names)
    result = {"versions": versions, "unit": "µs CPU per token", "awake": is_awake, "rows": rows}
    if keep:
        command = f"python -m bench relay_cpu --rounds {options.rounds} --seconds {options.seconds:g}"
        if options.asleep:
            common.write("gateway/relay_cpu_asleep", f"{command} --asleep", result)
        else:
            common.write("gateway/relay_cpu", command, result)
    return result


def summarize(table: dict[str, dict[str, list[float]]]) -> list[dict[str, Any]]:
    rows = []
    for case, by_name in table.items():
        row: dict[str, Any] = {"case": case, "samples": by_name}
        row["median"] = {name: median(values) for name, values in by_name.items()}
        if ours := by_name.get("headrace"):
            row["ours_over"] = {
                name: median([a / b for a, b in zip(ours, values, strict=True)])
                for name, values in by_name.items()
                if name != "headrace"
            }
        rows.append(row)
    return rows


def print_rows(rows: list[dict[str, Any]], names: list[str]) -> None:
    print(
        f"\n{'case':15}"
        + "".join(f"{name:>10}" for name in names)
        + "   ours/theirs (median of paired ratios)"
    )
    for row in rows:
        values = "".join(f"{row['median'][name]:10.1f}" for name in names)
        ratios = ", ".join(f"{name} {ratio:.2f}" for name, ratio in row.get("ours_over", {}).items())
        print(f"{row['case']:15}{values}   {ratios}")
