"""A home of its own, a scripted model and a gateway, each a process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.helpers.command_line import Serving


@pytest.fixture
def home(tmp_path: Path) -> dict[str, str]:
    return {**os.environ, "XDG_STATE_HOME": str(tmp_path / "state"), "COLUMNS": "120", "NO_COLOR": "1"}


@pytest.fixture
def source_url() -> Iterator[str]:
    """The scripted model in a process of its own."""
    script = json.dumps({"events": 20, "interval_s": 0.005})
    command = [sys.executable, "-m", "headrace_lab.model", "--script", script]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield json.loads(process.stdout.readline())["url"]
        assert process.stdin is not None
        process.stdin.close()


@pytest.fixture
def serving(source_url: str, home: dict[str, str], tmp_path: Path) -> Iterator[Serving]:
    started = Serving(["--upstream", source_url], home, tmp_path)
    yield started
    if started.process.poll() is None:
        started.end()
