"""What the benchmarks share: the scripted upstream as a process, the machine's description, results on
disk."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any, TypeVar

from headrace.errors import ConfigError
from headrace_lab.link import namespaces
from headrace_lab.run.results import machine

Run = TypeVar("Run")
RESULTS = Path(__file__).parent / "results"


def parser(name: str, about: str | None) -> argparse.ArgumentParser:
    """Makes the parser of one benchmark, which `python -m bench NAME` runs. `about`: its module's
    docstring."""
    return argparse.ArgumentParser(
        prog=f"python -m bench {name}",
        description=about,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )


def need_root(parser: argparse.ArgumentParser) -> None:
    try:
        namespaces.need_root(parser.prog)
    except ConfigError as error:
        parser.exit(1, f"{error}\n")


@contextlib.contextmanager
def awake() -> Iterator[bool]:
    """Keeps the machine's processors from sleeping, as the lab's link does (`docs/lab.md` says why). Says
    whether it can: root alone may, and not every kernel offers it."""
    try:
        file = open("/dev/cpu_dma_latency", "wb", buffering=0)  # noqa: SIM115
    except OSError:
        yield False
        return
    with file:
        file.write(bytes(4))
        yield True


@contextlib.contextmanager
def source(script: dict[str, Any]) -> Iterator[str]:
    """The scripted model server in a process of its own; yields its URL."""
    with model("headrace_lab.model", "--script", json.dumps(script)) as url:
        yield url


@contextlib.contextmanager
def model(module: str, *arguments: str) -> Iterator[str]:
    """A model server in a process of its own, made by `python -m module`; yields its URL."""
    command = [sys.executable, "-m", module, *arguments]
    # In a session of its own Ctrl-C is not for it: it ends with its standard input.
    started = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True)
    assert started.stdin is not None
    assert started.stdout is not None
    try:
        yield json.loads(started.stdout.readline())["url"]
    finally:
        started.stdin.close()
        started.wait(10)


def load(origin: str, ca: Path, connections: int, streams: int, *more: str) -> subprocess.Popen[bytes]:
    """The load generator in a process of its own."""
    command = [sys.executable, "-m", "headrace_lab.clients.load", origin, "--ca", str(ca)]
    command += ["--connections", str(connections), "--streams", str(streams), *more]
    return subprocess.Popen(command, stdout=subprocess.PIPE)


def runs(url: str) -> dict[str, Any]:
    """The scripted server's record."""
    with urllib.request.urlopen(f"{url}/runs") as answer:
        return dict(json.load(answer))


def commit() -> str:
    def git(*arguments: str) -> str:
        return subprocess.run(["git", *arguments], capture_output=True, text=True, check=False).stdout.strip()

    # What the benchmarks themselves write does not change what they measure.
    changes = git("status", "--porcelain", "-uno", "--", ":/", ":!/lab/bench/results", ":!/docs")
    return git("rev-parse", "--short", "HEAD") + ("+changes" if changes else "")


def write(name: str, command: str, data: dict[str, Any]) -> Path:
    """Keeps a result: what was measured, where, of which commit, by which command. `name`: room and
    benchmark."""
    if os.sched_getscheduler(0) == os.SCHED_FIFO:
        # Before everybody else on a machine that is shared; it changes what is measured.
        command = f"chrt -f {os.sched_getparam(0).sched_priority} {command}"
    file = RESULTS / f"{name}.json"
    file.parent.mkdir(parents=True, exist_ok=True)
    about = {"commit": commit(), "date": time.strftime("%Y-%m-%d"), "machine": machine(), "command": command}
    file.write_text(json.dumps(about | data, indent=2) + "\n")
    print(f"-> {file.relative_to(Path.cwd()) if file.is_relative_to(Path.cwd()) else file}")
    return file


def at_once(
    perform: Callable[[Run], dict[str, Any]], runs: Sequence[Run], count: int, name: Callable[[Run], str]
) -> Iterator[tuple[Run, dict[str, Any]]]:
    """Performs runs, so many at a time, each in a process that knows of no other; in their order, with
    progress."""
    with ProcessPoolExecutor(count, get_context("spawn")) as pool:
        for number, (run, result) in enumerate(zip(runs, pool.map(perform, runs), strict=True), 1):
            print(f"\r[{number}/{len(runs)}] {name(run)} ", end="", file=sys.stderr, flush=True)
            yield run, result
    print(file=sys.stderr)


QUANTILES = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "max": 1.0}


def shown(values: dict[str, Any]) -> str:
    def one(value: Any) -> str:
        return f"{value:.3f}" if isinstance(value, float) else str(value)

    return ", ".join(f"{name} {one(value)}" for name, value in values.items())


def access_log(file: Path) -> list[dict[str, Any]]:
    """The requests in a log of `headrace serve --log-format json`."""
    return [entry for line in file.read_text().splitlines() if "path" in (entry := json.loads(line))]
