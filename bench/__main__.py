"""All benchmarks, one after the other: `python -m bench [--quick]`.

The whole takes about three quarters of an hour and keeps what it measured in `bench/results/` and
`docs/measurements.md`; `--quick` takes seven minutes and keeps nothing. Let the machine be idle meanwhile.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

from bench import memory, relay_cpu, report, requests, stop, tokens
from bench.client import compare

Bench = Callable[[list[str], bool], dict[str, Any]]
PARTS: dict[str, tuple[Bench, list[str]]] = {
    "tokens": (tokens.main, ["--seconds", "2"]),
    "stop": (stop.main, ["--stops", "200"]),
    "requests": (requests.main, ["--seconds", "2"]),
    "memory": (memory.main, ["--stall", "5"]),
    "relay_cpu": (relay_cpu.main, ["--rounds", "1", "--seconds", "3"]),
    "client": (compare.main, ["--rounds", "1", "--seconds", "2"]),
}
"""Each with what makes it short."""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--only", default=",".join(PARTS), help="some of %(default)s")
    options = parser.parse_args()
    names = options.only.split(",")
    if unknown := set(names) - set(PARTS):
        parser.error(f"unknown: {', '.join(sorted(unknown))}; there are: {', '.join(PARTS)}")
    for number, name in enumerate(names, 1):
        bench, short = PARTS[name]
        print(f"\n[{number}/{len(names)}] {time.strftime('%H:%M')} bench.{name}", flush=True)
        bench(short if options.quick else [], not options.quick)
    if not options.quick:
        print(f"-> {report.write()}")


if __name__ == "__main__":
    main()
