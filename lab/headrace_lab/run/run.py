"""A scenario, cell after cell, and its result as JSON.

Order: for each seed and point all servers and protocols, forth and back by turns (ABBA), so that whatever the
machine does meanwhile hits all alike. The baseline is run twice each time: what those two differ by is noise.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

from headrace.errors import ConfigError
from headrace_lab.clients.choose import PROTOCOLS
from headrace_lab.measure.statistics import abba
from headrace_lab.run.cell import Cell, Options, run_valid
from headrace_lab.scenarios.scenario import Scenario

VERSION = 1
"""Of the form of a result."""


class Watcher(Protocol):
    """Who is told how far a run is."""

    def begin(self, scenario: Scenario, plan: list[Cell]) -> None: ...
    def cell(self, cell: Cell) -> None: ...
    def tokens(self, count: int) -> None: ...
    def result(self, result: dict[str, Any]) -> None: ...


def cells(
    scenario: Scenario, first_seed: int = 1, stacks: list[tuple[str, str, str]] | None = None
) -> list[Cell]:
    """All cells, in the order in which they are run."""
    chosen = stacks or scenario.stacks()
    made: list[Cell] = []
    for turn in range(scenario.run.seeds):
        for point in scenario.points():
            both = [(stack, False) for stack in chosen]
            again = [s for s in chosen if f"{s[0]}/{s[1]}" == scenario.run.baseline and s[2] == "headrace"]
            both += [(stack, True) for stack in again]
            made += [Cell(*stack, point, first_seed + turn, is_again) for stack, is_again in abba(both, turn)]
    return made


def choose(
    scenario: Scenario, servers: list[str], protocols: list[str], target: str | None
) -> list[tuple[str, str, str]]:
    """The stacks that a command line asks for. Raises `ConfigError` when none is left."""
    if target:
        wanted = protocols or [
            p for p in scenario.run.protocols if target.startswith("https") or p == "http1"
        ]
        return [("target", protocol, "headrace") for protocol in wanted or ["http1"]]
    for name in protocols:
        if name not in PROTOCOLS:
            raise ConfigError(detail=f"--protocol: expected some of {', '.join(PROTOCOLS)}; got {name!r}")
    run = scenario.run.model_copy(
        update={"servers": servers or scenario.run.servers, "protocols": protocols or scenario.run.protocols}
    )
    run = type(run).model_validate(run.model_dump() | {"baseline": None})
    stacks = scenario.model_copy(update={"run": run}).stacks()
    if not stacks:
        raise ConfigError(detail="the controls speak HTTP/1.1 alone: add --protocol http1")
    return stacks


def perform(
    scenario: Scenario, plan: list[Cell], options: Options, watcher: Watcher
) -> Iterator[dict[str, Any]]:
    """Runs the cells; yields each one's result. One whose server or clients fail is a result, too, but for
    the first: that raises what was wrong, mostly a `ConfigError`."""
    watcher.begin(scenario, plan)
    first = plan[0].seed if plan else 0
    for cell in plan:
        watcher.cell(cell)
        kept = Options(**{**vars(options), "keep_timeline": cell.seed == first and not cell.again})
        try:
            result = run_valid(scenario, cell, kept, watcher.tokens)
        except (ConfigError, OSError, subprocess.SubprocessError) as error:
            if cell is plan[0]:
                raise  # Most likely all would fail so.
            result = {**vars(cell), "failed": str(error), "measures": {}}
        watcher.result(result)
        yield result


def whole(scenario: Scenario, results: list[dict[str, Any]], command: str) -> dict[str, Any]:
    """A result file's content."""
    return {
        "version": VERSION,
        "scenario": scenario.model_dump(mode="json"),
        "about": {
            "commit": _commit(),
            "date": time.strftime("%Y-%m-%d %H:%M"),
            "command": command,
            "machine": machine(),
            "versions": versions(results),
            "seeds": sorted({result["seed"] for result in results}),
        },
        "cells": results,
    }


def write(folder: Path, result: dict[str, Any]) -> Path:
    """One file for a scenario; a new run of it replaces the old one."""
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / f"{result['scenario']['name']}.json"
    half = file.with_suffix(".json.half")
    half.write_text(json.dumps(result, separators=(",", ":")) + "\n")
    half.replace(file)
    return file


def machine() -> dict[str, Any]:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    named = (line.split(":", 1)[1].strip() for line in lines if "model name" in line)
    return {
        "cpu": next(named, platform.machine()),
        "cores": os.cpu_count(),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "tcp": Path("/proc/sys/net/ipv4/tcp_congestion_control").read_text().strip(),
    }


def versions(results: list[dict[str, Any]]) -> dict[str, str]:
    """Of the servers that ran, and of the client's libraries."""
    found = {
        r["server"]: r["version"]
        for r in results
        if r.get("version") and not r["server"].startswith("control")
    }
    for name in ("headrace", "h2", "aioquic", "qh3"):
        try:
            found[f"{name} (client)"] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def _commit() -> str:
    """Of the repository that this package is in; empty when it is installed."""

    def git(*arguments: str) -> str:
        command = ["git", "-C", str(Path(__file__).parent), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()

    try:
        return git("rev-parse", "--short", "HEAD") + (
            "+changes" if git("status", "--porcelain", "-uno") else ""
        )
    except OSError:
        return ""
