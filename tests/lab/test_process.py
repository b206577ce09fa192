"""Processes that the lab starts."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from headrace_lab import process


def test_ctrl_c_while_a_process_is_being_started_ends_it(tmp_path: Path) -> None:
    """It is already there, and nobody has been told of it."""
    started: list[subprocess.Popen[bytes]] = []

    def popen(*arguments: Any, **named: Any) -> subprocess.Popen[bytes]:
        started.append(subprocess.Popen(*arguments, **named))
        os.kill(os.getpid(), signal.SIGINT)
        return started[0]

    command = [sys.executable, "-c", "import time; time.sleep(60)"]
    with pytest.raises(KeyboardInterrupt):
        with process.process(command, tmp_path / "log", popen):
            pytest.fail("it was interrupted before")
    assert started[0].returncode == -signal.SIGTERM
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
