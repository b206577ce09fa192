"""What an import of the client costs a program.

    python -m bench imports [--rounds 30] [--before PYTHON]

Statements take turns, each in a process of its own, and the processor time of the whole process is counted
(user and system). `--before`: the interpreter of another environment, with another headrace, that takes turns
with this one.
"""

from __future__ import annotations

import os
import sys
from typing import Any

from bench import common
from headrace_lab.measure.statistics import median

STATEMENTS = ("pass", "import httpx2", "import headrace", "import headrace.client", "import headrace.httpx2")
OVER = "import httpx2"
"""What the others are compared with."""


def cpu_ms(python: str, statement: str) -> float:
    """Processor time of a process that runs the statement and ends."""
    process = os.posix_spawn(python, [python, "-c", statement], os.environ)
    _, status, usage = os.wait4(process, 0)
    if status:
        raise SystemExit(f"{python}: {statement!r} failed")
    return (usage.ru_utime + usage.ru_stime) * 1000


def main(arguments: list[str] | None = None, keep: bool = True) -> dict[str, Any]:
    parser = common.parser("imports", __doc__)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--before", metavar="PYTHON", help="another environment to compare with")
    options = parser.parse_args(arguments)
    pythons = {"now": sys.executable} | ({"before": options.before} if options.before else {})
    runs = [(name, statement) for statement in STATEMENTS for name in pythons]
    took: dict[tuple[str, str], list[float]] = {run: [] for run in runs}
    for number in range(options.rounds + 1):
        for name, statement in runs:
            spent = cpu_ms(pythons[name], statement)
            if number:  # The first round warms the disk's cache.
                took[name, statement].append(spent)
    result: dict[str, Any] = {"rounds": options.rounds, "cpu_ms": {name: {} for name in pythons}}
    for (name, statement), values in took.items():
        middle = median(values)
        over = median([a - b for a, b in zip(values, took[name, OVER], strict=True)])
        result["cpu_ms"][name][statement] = {"median": middle, "least": min(values), "over_httpx2": over}
        print(f"{name:7} {statement:24} {middle:6.1f} ms, over httpx2 {over:+6.1f} ms")
    if keep:
        command = f"python -m bench imports --rounds {options.rounds}"
        common.write("client/imports", command + (" --before PYTHON" if options.before else ""), result)
    return result
