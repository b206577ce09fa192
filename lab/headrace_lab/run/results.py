"""A scenario's result: what its file holds, and the machine it was made on.

In: the cells' results. Out: one JSON file for each scenario.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import shlex
import subprocess
import time
from pathlib import Path
from typing import Any

from headrace_lab.scenarios.scenario import Scenario

VERSION = 1
"""The version of the form of a result."""


def whole(scenario: Scenario, results: list[dict[str, Any]], command: str) -> dict[str, Any]:
    """Returns what the file of a result holds."""
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
    """Writes the file of a scenario; a new run replaces the old one."""
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / f"{result['scenario']['name']}.json"
    half = file.with_suffix(".json.half")
    half.write_text(json.dumps(result, separators=(",", ":")) + "\n")
    half.replace(file)
    return file


def command_of(arguments: list[str]) -> str:
    """Returns the command line that made a result, without the values of header fields: they may be keys."""
    shown, is_header = ["headrace"], False
    for argument in arguments:
        option, equals, value = argument.partition("=")
        if is_header or (option == "--header" and equals):
            name = (value if equals and not is_header else argument).partition(":")[0]
            argument = f"{'' if is_header else '--header='}{name}: ..."
        is_header = argument == "--header"
        shown.append(shlex.quote(argument))
    return " ".join(shown)


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
    """Returns the versions of the servers that ran, and of the clients' libraries."""
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
    """Returns the commit of the repository that this package is in; empty when it is installed apart from
    one."""

    def git(*arguments: str) -> str:
        command = ["git", "-C", str(Path(__file__).parent), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()

    try:
        return git("rev-parse", "--short", "HEAD") + (
            "+changes" if git("status", "--porcelain", "-uno") else ""
        )
    except OSError:
        return ""
