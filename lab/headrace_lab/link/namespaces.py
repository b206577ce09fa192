"""Network namespaces: where the two ends of a link live. They need root.

In: names. Out: namespaces, processes and threads in them. Names hold the number of the process that made
them, so that two runs do not meet, and so that the next run recognises and removes what a killed one left.
"""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from headrace.errors import ConfigError

CLONE_NEWNET = 0x40000000
FOLDER = Path("/run/netns")
_numbers = itertools.count()


def need_root(what: str) -> None:
    """Raises `ConfigError`, which says what to do, where `what` cannot be done."""
    if os.geteuid():
        raise ConfigError(detail=f"{what} makes network namespaces, which needs root: run it with sudo")
    if shutil.which("ip") is None:
        raise ConfigError(detail=f"{what} needs the command `ip`: install iproute2")


def ip(*arguments: str) -> None:
    """Runs one command of iproute2. Raises `OSError` with what the command said."""
    done = subprocess.run(["ip", *arguments], capture_output=True, text=True)
    if done.returncode:
        raise OSError(f"ip {' '.join(arguments)}: {done.stderr.strip()}")


class Namespace:
    """One namespace, and the processes that were started in it."""

    def __init__(self, role: str, number: int | None = None) -> None:
        self.name = f"headrace-{os.getpid()}-{next(_numbers) if number is None else number}-{role}"
        self._started: list[subprocess.Popen[Any]] = []

    def __repr__(self) -> str:
        return f"<Namespace {self.name}>"

    def argv(self, command: list[str]) -> list[str]:
        """Returns the command line that runs a command here; the process becomes the command's own."""
        return ["ip", "netns", "exec", self.name, *command]

    def popen(self, command: list[str], **options: Any) -> subprocess.Popen[Any]:
        """Starts a process in this namespace, as `subprocess.Popen`. It ends with the namespace at the
        latest."""
        process = subprocess.Popen(self.argv(command), **options)
        self._started.append(process)
        return process

    def run(self, command: list[str], **options: Any) -> subprocess.CompletedProcess[Any]:
        """Runs a process in this namespace, as `subprocess.run`."""
        return subprocess.run(self.argv(command), **options)

    @contextlib.contextmanager
    def entered(self) -> Iterator[None]:
        """Moves the calling thread, and what it starts, to this namespace, and back afterwards. Sockets
        stay where they were made."""
        with open("/proc/thread-self/ns/net") as home:
            enter(self.name)
            try:
                yield
            finally:
                _set(home.fileno(), "home")

    def end_processes(self) -> None:
        """Ends what `popen` started: with SIGTERM, and after two seconds with SIGKILL."""
        running = [process for process in self._started if process.poll() is None]
        for process in running:
            process.terminate()
        deadline = time.monotonic() + 2
        for process in running:
            try:
                process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self._started.clear()


def enter(name: str) -> None:
    """Moves the calling thread, and what it starts, to a namespace. (`os.setns` exists from Python 3.12
    on.)"""
    with open(FOLDER / name) as file:
        _set(file.fileno(), name)


def _set(fd: int, name: str) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.setns(fd, CLONE_NEWNET):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), name)


def remove(name: str) -> None:
    """Removes a namespace with all processes in it, except this one and its parent. Does nothing when the
    namespace is gone."""
    if not (FOLDER / name).exists():
        return
    listed = subprocess.run(["ip", "netns", "pids", name], capture_output=True, text=True).stdout
    for pid in map(int, listed.split()):
        if pid not in (os.getpid(), os.getppid()):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    subprocess.run(["ip", "netns", "del", name], capture_output=True)


def remove_stale() -> list[str]:
    """Removes the namespaces that processes left which have ended. Returns their names."""
    stale = []
    for path in sorted(FOLDER.glob("headrace-*-*")):
        pid = path.name.split("-")[1]
        if pid.isdigit() and not Path(f"/proc/{pid}").exists():
            remove(path.name)
            stale.append(path.name)
    return stale


@contextlib.contextmanager
def made(*namespaces: Namespace) -> Iterator[None]:
    """Makes namespaces with a loopback interface, and removes them afterwards, whatever happens."""
    remove_stale()
    try:
        for namespace in namespaces:
            ip("netns", "add", namespace.name)
            ip("-n", namespace.name, "link", "set", "lo", "up")
        yield
    finally:
        for namespace in namespaces:
            namespace.end_processes()
            remove(namespace.name)


@contextlib.contextmanager
def joined(client: Namespace, server: Namespace, links: dict[str, tuple[str, str]]) -> Iterator[None]:
    """Makes two namespaces and veth pairs between them. `links`: the name of each pair, and the client's
    and the server's address on it, each with a prefix length."""
    with made(client, server):
        for link, addresses in links.items():
            names = (client.name, server.name)
            ip(
                "link",
                "add",
                link,
                "netns",
                names[0],
                "type",
                "veth",
                "peer",
                "name",
                link,
                "netns",
                names[1],
            )
            for name, address in zip(names, addresses, strict=True):
                ip("-n", name, "addr", "add", address, "dev", link)
                ip("-n", name, "link", "set", link, "up")
        yield
