"""Processes that the lab starts: a process counts as started when it listens, and none outlives its
starter."""

from __future__ import annotations

import contextlib
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from headrace.errors import ConfigError

Popen = Callable[..., "subprocess.Popen[bytes]"]
"""Starts a process, as `subprocess.Popen`; the side of a link starts it in a network namespace."""

START_TIMEOUT_S = 20.0
END_TIMEOUT_S = 3.0


@contextlib.contextmanager
def process(
    command: list[str], log: Path, popen: Popen = subprocess.Popen, **named: Any
) -> Iterator[subprocess.Popen[bytes]]:
    """Starts a process in a session of its own, and ends it: Ctrl-C reaches only the process that started
    it."""
    with log.open("ab") as output, contextlib.ExitStack() as ending:
        with uninterrupted():
            started = popen(
                command,
                **{"stdout": output, "stderr": subprocess.STDOUT, "cwd": log.parent, **named},
                start_new_session=True,
            )
            ending.callback(end, started)
        yield started


@contextlib.contextmanager
def uninterrupted() -> Iterator[None]:
    """Holds SIGINT and SIGTERM back until the end. Within `Popen` they would lose the process that it has
    just started."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[int] = []
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    for number in before:
        signal.signal(number, lambda number, _: came.append(number))
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        if came:
            signal.raise_signal(came[0])


def end(started: subprocess.Popen[bytes]) -> None:
    """Ends a process: with SIGTERM, and after `END_TIMEOUT_S` with SIGKILL."""
    if started.poll() is None:
        started.terminate()
    try:
        started.wait(END_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        started.kill()
        started.wait()
    for pipe in (started.stdin, started.stdout, started.stderr):
        if pipe is not None:
            pipe.close()


def wait_for_ports(started: subprocess.Popen[bytes], port: int, tables: tuple[str, ...], log: Path) -> None:
    """Waits until the port is bound in each of the tables (`tcp`, `udp`) of the process's own network.

    Raises `ConfigError` with the end of its log when it ends or does not listen.
    """
    wanted = f":{port:04X}"
    left = set(tables)
    for _ in range(int(START_TIMEOUT_S * 50)):
        if started.poll() is not None:
            raise ConfigError(detail=f"it ended at once; its log:\n{log.read_text()[-2000:]}")
        for table in list(left):
            for name in (table, f"{table}6"):
                rows = _rows(Path(f"/proc/{started.pid}/net/{name}"))
                # A TCP socket listens in state 0A.
                if any(r[1].endswith(wanted) and (table == "udp" or r[3] == "0A") for r in rows):
                    left.discard(table)
        if not left:
            return
        time.sleep(0.02)
    missing = " and ".join(sorted(left)).upper()
    raise ConfigError(detail=f"it did not listen on {missing} {port}; its log:\n{log.read_text()[-2000:]}")


def _rows(table: Path) -> list[list[str]]:
    with contextlib.suppress(OSError):
        return [line.split() for line in table.read_text().splitlines()[1:]]
    return []


def cpu_s(pid: int) -> float:
    """Returns the CPU time of all threads of a process, user and system, in seconds, as the scheduler
    counts it."""
    total = 0
    for task in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(OSError):
            total += int((task / "schedstat").read_text().split()[0])
    return total / 1e9


def private_memory(pid: int) -> int:
    """Returns a process's private memory in bytes: what one more process of the kind would cost."""
    rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
    kib = [int(line.split()[1]) for line in rollup.splitlines() if line.startswith("Private_")]
    return sum(kib) * 1024


def free_port() -> int:
    """Returns a port on loopback that is free for TCP and UDP at the moment."""
    for _ in range(50):
        with socket.socket() as tcp, socket.socket(type=socket.SOCK_DGRAM) as udp:
            tcp.bind(("127.0.0.1", 0))
            port = int(tcp.getsockname()[1])
            with contextlib.suppress(OSError):
                udp.bind(("127.0.0.1", port))
                return port
    raise RuntimeError("no port is free for both TCP and UDP")


@contextlib.contextmanager
def interruptible() -> Iterator[None]:
    """Lets SIGTERM end a run as Ctrl-C does: through every `finally`."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
