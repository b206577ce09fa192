"""All benchmarks, one after the other: `python -m bench`. One of them: `python -m bench NAME [options]`.

All of them take well over an hour (half of one is `relay_cpu`) and keep what they measured in
`lab/bench/results/` and `docs/measurements.md`; `--quick` runs a short form of each and keeps nothing. Let
the machine be idle meanwhile.

`python -m bench NAME --help` says what a benchmark measures and which options it has. `python -m bench
report` writes `docs/measurements.md` anew from the results."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time

from bench import report
from bench.parts import BY_HAND, PARTS

NAMES = {**PARTS, **BY_HAND}


def main(arguments: list[str]) -> None:
    if arguments and arguments[0] in NAMES:
        NAMES[arguments[0]].main()(arguments[1:], True)
    elif arguments == ["report"]:
        print(f"-> {report.write()}")
    else:
        run_all(arguments)


def run_all(arguments: list[str]) -> None:
    """Each in a process of its own."""
    parser = argparse.ArgumentParser(
        prog="python -m bench",
        usage="python -m bench [--quick] [--only NAME,...]\n       python -m bench NAME [options]",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog=f"NAME is one of {', '.join(NAMES)}.",
    )
    parser.add_argument("--quick", action="store_true", help="run a short form of each, and keep nothing")
    parser.add_argument("--only", default=",".join(PARTS), metavar="NAME,...", help="run only these")
    options = parser.parse_args(arguments)
    names = options.only.split(",")
    if unknown := set(names) - set(PARTS):
        parser.error(f"unknown: {', '.join(sorted(unknown))}; expected some of {', '.join(PARTS)}")
    for number, name in enumerate(names, 1):
        print(f"\n[{number}/{len(names)}] {time.strftime('%H:%M')} {name}", flush=True)
        part = PARTS[name]
        if part.needs_root and os.geteuid():
            print("left out: it makes network namespaces, which needs root")
            continue
        given = part.short if options.quick else []
        code = f"from {part.module} import main; main({given!r}, {not options.quick})"
        if subprocess.run([sys.executable, "-c", code]).returncode:
            sys.exit(f"the benchmark {name} failed")
    if not options.quick:
        print(f"-> {report.write()}")


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except KeyboardInterrupt:
        sys.exit(130)
