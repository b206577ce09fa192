"""`headrace` as a process: what it prints, its log, and the terminal that it is in."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

HEADRACE = [sys.executable, "-m", "headrace"]


def run(
    *arguments: str, env: dict[str, str], cwd: Path, stdin: str | None = None
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*HEADRACE, *arguments],
        env=env,
        cwd=cwd,
        input=stdin,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


class Serving:
    """`headrace serve` in a process of its own; its log is read as JSON."""

    def __init__(
        self,
        arguments: list[str],
        env: dict[str, str],
        cwd: Path,
        wait_until_ready: bool = True,
        log_format: tuple[str, ...] = ("--log-format", "json"),
    ) -> None:
        command = [*HEADRACE, "serve", "--port", "0", *log_format, *arguments]
        self.process = subprocess.Popen(command, env=env, cwd=cwd, stderr=subprocess.PIPE, text=True)
        self.lines: list[dict[str, object]] = []
        if wait_until_ready:
            self.url = f"https://localhost:{self.wait_for('event', 'ready')['port']}"

    def wait_for(self, field: str, text: str) -> dict[str, object]:
        """Reads on until a line's field contains the text; returns the line."""
        assert self.process.stderr is not None
        while True:
            line = self.process.stderr.readline()
            assert line, f"it ended: {self.lines}"
            self.lines.append(json.loads(line))
            if text in str(self.lines[-1].get(field)):
                return self.lines[-1]

    def end(self, number: int = signal.SIGTERM) -> tuple[int, list[dict[str, object]]]:
        self.process.send_signal(number)
        _, rest = self.process.communicate(timeout=20)
        return self.process.returncode, [json.loads(line) for line in rest.splitlines()]


class Screen:
    """What a terminal shows."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor, self.text, self.seen = descriptor, "", ""

    def wait_for(self, what: str) -> None:
        """Reads until `what` is there; what stood before it is forgotten."""
        import select

        until = time.monotonic() + 20
        while what not in self.text:
            assert time.monotonic() < until, f"{what!r} never came: {self.text!r}"
            if select.select([self.descriptor], [], [], 0.1)[0]:
                read = os.read(self.descriptor, 4096).decode(errors="replace")
                self.text, self.seen = self.text + read, self.seen + read
        self.text = self.text.split(what, 1)[1]
