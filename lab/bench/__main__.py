"""All benchmarks, one after the other, each in a process of its own: `python -m bench [--quick]`.

The whole takes well over an hour (half of one is `relay_cpu`) and keeps what it measured in
`bench/results/` and `docs/measurements.md`; `--quick` a small part of that, and keeps nothing. Let the
machine be idle meanwhile. `fallback`, `move`, `move_link`, `first_token`, `echo`, `overload` and `drain`
need root and are left out without.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time

from bench import report

PARTS = {
    "tokens": ("bench.tokens", ["--seconds", "2"]),
    "stop": ("bench.stop", ["--stops", "200"]),
    "requests": ("bench.requests", ["--seconds", "2"]),
    "memory": ("bench.memory", ["--stall", "5"]),
    "relay_cpu": ("bench.relay_cpu", ["--rounds", "1", "--seconds", "3"]),
    "client": ("bench.client.compare", ["--rounds", "1", "--seconds", "2"]),
    "soak": ("bench.soak", ["--requests", "4000"]),
    "fallback": ("bench.fallback", ["--rounds", "2"]),
    "move": ("bench.move", ["--walks", "2"]),
    "move_link": ("bench.move_link", ["--rounds", "1"]),
    "move_many": ("bench.move_many", ["--connections", "40"]),
    "first_token": ("bench.first_token", ["--rounds", "2"]),
    "replay": ("bench.replay", ["--rounds", "1"]),
    "echo": ("bench.echo", ["--seeds", "1", "--streams", "16", "--paths", "3 %"]),
    "overload": ("bench.overload", ["--seeds", "1"]),
    "drain": ("bench.drain", ["--streams", "40", "--events", "150", "--people", "2"]),
}
"""Each with what makes it short."""

NEED_ROOT = {"fallback", "move", "move_link", "first_token", "echo", "overload", "drain"}


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
        print(f"\n[{number}/{len(names)}] {time.strftime('%H:%M')} bench.{name}", flush=True)
        if name in NEED_ROOT and os.geteuid():
            print("left out: it makes network namespaces, which needs root")
            continue
        module, short = PARTS[name]
        arguments = short if options.quick else []
        code = f"from {module} import main; main({arguments!r}, {not options.quick})"
        if subprocess.run([sys.executable, "-c", code]).returncode:
            sys.exit(f"bench.{name} failed")
    if not options.quick:
        print(f"-> {report.write()}")


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit(130)
