"""The emulator's process: `python -m headrace_lab.link.process`, started by `headrace_lab.link.emulator`.

In: JSON lines on stdin, the configuration first, then commands. Out: one JSON line for each. It owns what
the link is made of, namespaces and devices included, and removes all of it at the end of its input; that
is also what it sees when its parent is killed.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from headrace_lab import _emulator
from headrace_lab.link.namespaces import FOLDER, Namespace, enter, ip, made

DEVICE = "link0"
QUEUE_PACKETS = 10_000
"""The queue of a device towards the emulator: longer than any burst, so that only the profile drops
packets."""
PARENT_CHECK_S = 1.0

_Mover = Callable[[bool], tuple[int, str]]
_Drops = Callable[[], dict[str, int]]


def main() -> None:
    def end(*_: Any) -> None:
        sys.exit(1)

    signal.signal(signal.SIGTERM, end)
    lines = _lines(os.getppid())
    first = next(lines, None)
    if first is None:
        return
    config = json.loads(first)
    is_ended = False
    try:
        with _link(config) as (link, address, move, drops):
            _say(config, {"address": address, "pid": os.getpid()})
            for line in lines:
                command = json.loads(line)
                is_ended = command["do"] == "end"
                if is_ended:
                    break
                _say(command, _answer(link, move, drops, command))
            dropped = drops()  # The devices are gone with the link.
            answer = json.loads(link.stop())
            answer["report"]["device_drops"] = dropped
            if is_ended:
                _say(command, answer)
    except (ValueError, RuntimeError, OSError, subprocess.SubprocessError) as error:
        _say(config, {"error": str(error)})
    finally:
        if not is_ended and config["log_is_temporary"]:
            shutil.rmtree(Path(config["engine"]["log"]).parent, ignore_errors=True)


def _lines(parent: int) -> Iterator[str]:
    """Yields lines of stdin, until it ends or the process gets another parent: a pipe that a forked
    process holds stays open."""
    buffer = b""
    while True:
        line, found, rest = buffer.partition(b"\n")
        if found:
            buffer = rest
            yield line.decode()
            continue
        if os.getppid() != parent:
            return
        if select.select([0], [], [], PARENT_CHECK_S)[0]:
            data = os.read(0, 1 << 16)
            if not data:
                return
            buffer += data


def _say(command: dict[str, Any], answer: dict[str, Any]) -> None:
    # The parent may be gone.
    with contextlib.suppress(BrokenPipeError):
        print(json.dumps({"id": command["id"], **answer}), flush=True)


def _answer(link: _emulator.Link, move: _Mover, drops: _Drops, command: dict[str, Any]) -> dict[str, Any]:
    try:
        if command["do"] == "move":
            at_ns, address = move(command["cut"])
            return {"at_ns": at_ns, "address": address}
        told = {name: value for name, value in command.items() if name != "id"}
        answer: dict[str, Any] = json.loads(link.command(json.dumps(told)))
        if "report" in answer:
            answer["report"]["device_drops"] = drops()
        return answer
    except (ValueError, RuntimeError, OSError, subprocess.SubprocessError) as error:
        return {"error": str(error)}


@contextlib.contextmanager
def _link(config: dict[str, Any]) -> Iterator[tuple[_emulator.Link, Any, _Mover, _Drops]]:
    engine = config["engine"]
    names = config.get("namespaces")
    if names is None:
        link = _emulator.Link(json.dumps(engine))
        yield link, link.start(), _no_move, dict
        return
    client, server = Namespace("client"), Namespace("server")
    client.name, server.name = names["client"], names["server"]
    with made(client, server):
        engine["wire"] = {
            "kind": "tun",
            "client": {"namespace": str(FOLDER / client.name), "device": DEVICE},
            "server": {"namespace": str(FOLDER / server.name), "device": DEVICE},
            "nat_pool": names["nat_pool"],
        }
        link = _emulator.Link(json.dumps(engine))
        _configure(client, names["client_addresses"])
        _configure(server, [names["server_address"]])
        address = link.start()
        yield link, address, _Move(client, names["client_addresses"]), lambda: _drops(client, server)


def _configure(namespace: Namespace, addresses: list[str]) -> None:
    _no_ipv6(namespace)
    ip("-n", namespace.name, "link", "set", DEVICE, "mtu", "1500", "txqueuelen", str(QUEUE_PACKETS), "up")
    for address in addresses:
        ip("-n", namespace.name, "addr", "add", f"{address}/32", "dev", DEVICE)
    ip("-n", namespace.name, "route", "add", "default", "dev", DEVICE, "src", addresses[0])


def _no_ipv6(namespace: Namespace) -> None:
    """Switches IPv6 off: the kernel's own messages (router solicitations) would take indices of packets."""

    def write() -> None:
        enter(namespace.name)
        with contextlib.suppress(FileNotFoundError):
            Path("/proc/sys/net/ipv6/conf/all/disable_ipv6").write_text("1")

    thread = threading.Thread(target=write)
    thread.start()
    thread.join()


class _Move:
    """A move that the client knows of: its routes, and with them its new sockets, take the other address."""

    def __init__(self, client: Namespace, addresses: list[str]) -> None:
        self.client = client
        self.addresses = addresses

    def __call__(self, cut: bool) -> tuple[int, str]:
        self.addresses = [*self.addresses[1:], self.addresses[0]]
        to, old = self.addresses[0], self.addresses[-1]
        name = self.client.name
        ip("-n", name, "addr", "replace", f"{to}/32", "dev", DEVICE)
        ip("-n", name, "route", "replace", "default", "dev", DEVICE, "src", to)
        at = time.monotonic_ns()
        if cut:
            ip("-n", name, "addr", "del", f"{old}/32", "dev", DEVICE)
        return at, to


def _no_move(cut: bool) -> tuple[int, str]:
    raise OSError("a UDP relay cannot move its client: it has one address")


def _drops(*namespaces: Namespace) -> dict[str, int]:
    """Returns how many packets the devices dropped, by namespace and direction, without those that dropped
    none."""
    found = {}
    for namespace, role in zip(namespaces, ("client", "server"), strict=True):
        shown = subprocess.run(
            ["ip", "-n", namespace.name, "-s", "-j", "link", "show", "dev", DEVICE],
            capture_output=True,
            text=True,
            check=True,
        )
        statistics = json.loads(shown.stdout)[0]["stats64"]
        for side in ("rx", "tx"):
            lost = statistics[side]["dropped"] + statistics[side]["errors"]
            if lost:
                found[f"{role}_{side}"] = lost
    return found


if __name__ == "__main__":
    main()
