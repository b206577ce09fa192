"""The link emulator: what it drops, delays and rewrites, counted; and that it leaves nothing behind."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headrace.errors import ConfigError
from headrace_lab.link import Link, Profile, log, namespaces, self_test

needs_root = pytest.mark.skipif(
    os.geteuid() != 0 or not os.path.exists("/dev/net/tun"),
    reason="network namespaces and TUN devices need root",
)
WAIT_S = 0.3
"""Longer than any delay here: what has not come by then does not come."""


class Ends:
    """A UDP socket at each end of a link, in this process."""

    def __init__(self, link: Link) -> None:
        self.link = link
        with link.server.entered():
            self.server = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
            self.server.setsockopt(socket.SOL_SOCKET, 33, 1 << 23)  # SO_RCVBUFFORCE
            self.server.bind(("0.0.0.0", 5000))
        self.client = self.new_client()
        self.number = 0

    def new_client(self) -> socket.socket:
        with self.link.client.entered():
            client = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
            client.connect((self.link.server_address, 5000))
            return client

    def up(self, size: int = 100) -> tuple[str, int] | None:
        """Whom the server sees when the client sends; `None`: it sees nothing."""
        self.number += 1
        self.client.send(self.number.to_bytes(4, "big") + bytes(size - 4))
        while select.select([self.server], [], [], WAIT_S)[0]:
            data, seen = self.server.recvfrom(65_536)
            if int.from_bytes(data[:4], "big") == self.number:
                return seen
        return None

    def down(self, to: tuple[str, int]) -> bool:
        """Whether the client gets what the server sends there."""
        self.server.sendto(b"down", to)
        got = bool(select.select([self.client], [], [], WAIT_S)[0])
        if got:
            self.client.recv(65_536)
        return got

    def received(self) -> list[int]:
        """Numbers of what waits at the server, as it came."""
        numbers = []
        while select.select([self.server], [], [], WAIT_S)[0]:
            numbers.append(int.from_bytes(self.server.recv(65_536)[:4], "big"))
        return numbers

    def close(self) -> None:
        self.client.close()
        self.server.close()


@contextlib.contextmanager
def ends(profile: Profile, **options: Any) -> Iterator[Ends]:
    with Link(profile, **options) as link:
        made = Ends(link)
        try:
            yield made
        finally:
            made.close()


@needs_root
def test_losses_are_those_of_the_schedule_whenever_the_packets_come() -> None:
    """Two links of one seed, asked in bursts and evenly, lose the same indices, which are worked out a second
    time here; another seed loses others."""
    lost = []
    for seed, pause_every in ((5, 500), (5, 7), (6, 500)):
        with ends(Profile(delay_ms=1, loss=0.1, burst=2, drops_up=(0,)), seed=seed) as both:
            for number in range(1000):
                both.client.send(number.to_bytes(4, "big"))
                if number % pause_every == 0:
                    time.sleep(0.001)
            received = both.received()
            result = both.link.result()
            packets = [each for each in log.read(result["log"]) if each.direction == "up"]
            assert [each.number for each in packets] == list(range(1000))
            lost.append({each.number for each in packets if each.verdict in ("loss", "named")})
            assert set(range(1000)) - set(received) == lost[-1]
            assert 0 in lost[-1]
            assert received == sorted(received)
            assert sum(result["up"]["dropped"].values()) == len(lost[-1])
            assert result["device_drops"] == {}
            assert all(
                each.out_ns >= each.due_ns >= each.in_ns + 1_000_000 for each in packets if each.out_ns
            )
    assert lost[0] == lost[1] == {0, *self_test.schedule(5, 0, 1000, 0.1, 2)}
    assert lost[0] != lost[2]
    assert 50 < len(lost[0]) < 170


@needs_root
def test_a_nat_that_forgets_shows_the_server_another_port_or_address() -> None:
    """And what the server sends to the old one is lost, until the client sends again."""
    with ends(Profile(delay_ms=1)) as both:
        link = both.link
        first = both.up()
        assert first == (link.client_address, both.client.getsockname()[1])
        assert both.down(first)
        before = time.monotonic_ns()
        assert before < link.command({"do": "rebind_port"})["at_ns"] < time.monotonic_ns()
        assert not both.down(first)
        second = both.up()
        assert second is not None
        assert second[0] == first[0]
        assert second[1] != first[1]
        assert both.down(second)
        link.command({"do": "rebind_address"})
        third = both.up()
        assert third is not None
        assert third[0] not in (first[0], link.server_address)
        assert both.down(third)
        assert not both.down(second)
        assert link.result()["down"]["dropped"]["nat"] == 2


@needs_root
def test_tcp_passes_and_a_rebinding_ends_it() -> None:
    """A stream of a megabyte arrives whole; the other port then belongs to no connection of the server's."""
    with Link(Profile(delay_ms=1, loss=0.01)) as link:
        with link.server.entered():
            listener = socket.create_server(("0.0.0.0", 5001))
        with link.client.entered():
            client = socket.create_connection((link.server_address, 5001), timeout=10)
        server, _ = listener.accept()
        with listener, client, server:
            client.settimeout(10)
            server.sendall(bytes(200_000))
            got = 0
            while got < 200_000:
                got += len(client.recv(65_536))
            link.command({"do": "rebind_port"})
            client.send(b"x")
            with pytest.raises(ConnectionResetError):
                client.recv(1)


@needs_root
def test_a_move_gives_the_client_another_address() -> None:
    """New sockets have it; with `cut` the old one is no longer the client's."""
    with ends(Profile(delay_ms=1)) as both:
        old = both.up()
        assert both.link.command({"do": "move", "cut": True})["address"] == both.link.client_address
        assert old is not None
        assert not both.down(old)
        both.client.close()
        both.client = both.new_client()
        new = both.up()
        assert new is not None
        assert new[0] == both.link.client_address != old[0]
        assert both.down(new)


@needs_root
def test_commands_change_what_passes() -> None:
    with ends(Profile(delay_ms=1)) as both:
        link = both.link
        assert both.up(1400)
        link.command({"do": "mtu", "mtu": 1300})
        assert not both.up(1400)
        assert both.up(1200)
        link.command({"do": "block_udp"})
        assert not both.up()
        link.command({"do": "block_udp", "blocked": False})
        link.command({"do": "outage", "seconds": 100})
        assert not both.up()
        link.command({"do": "outage", "seconds": 0})
        link.command({"do": "drop", "direction": "up"})
        assert not both.up()
        assert both.up()
        link.command({"do": "profile", "profile": Profile(loss=1.0)})
        assert not both.up()
        told = [event["do"] for event in link.result()["events"]]
        assert told == ["mtu", "block_udp", "block_udp", "outage", "outage", "drop", "profile"]
        dropped = link.result()["up"]["dropped"]
        assert {name: count for name, count in dropped.items() if count} == {
            **{"mtu": 1, "udp_blocked": 1, "outage": 1, "named": 1, "loss": 1}
        }


@needs_root
def test_a_script_acts_before_the_packet_that_it_names() -> None:
    script = ({"before_up": 10, "do": "rebind_port"}, {"before_up": 20, "do": "outage", "seconds": 100})
    with ends(Profile(delay_ms=1, script=script)) as both:
        seen = [both.up() for _ in range(20)]
        assert len(set(seen[:10])) == len(set(seen[10:])) == 1
        assert seen[9] != seen[10]
        assert not both.up()
        assert [event["do"] for event in both.link.result()["events"]] == ["rebind_port", "outage"]
        both.link.command({"do": "restart"})
        assert both.up() == seen[10], "an outage ends with a restart; the NAT does not forget what it forgot"


@needs_root
def test_big_segments_arrive_as_packets_of_the_device() -> None:
    """UDP segmentation offload: one send of 12 segments is 12 packets on the link."""
    with ends(Profile(delay_ms=1)) as both:
        both.client.setsockopt(socket.IPPROTO_UDP, 103, 1000)  # UDP_SEGMENT
        both.client.send(bytes(12_000))
        assert len(both.received()) == 12
        packets = [each for each in log.read(both.link.result()["log"]) if each.direction == "up"]
        assert [each.length for each in packets] == [1028] * 12


@needs_root
def test_nothing_is_left_behind() -> None:
    """No namespace, no process; also when the process that had the link was killed, or got Ctrl-C."""
    with Link("fiber") as link:
        names = [link.client.name, link.server.name]
        child = link.server.popen(["sleep", "1000"])
        assert all((namespaces.FOLDER / name).exists() for name in names)
        kept = Path(link.result()["log"])
    assert child.returncode is not None
    assert not any((namespaces.FOLDER / name).exists() for name in names)
    assert link.result()["lateness_ms"]["packets"] == 0
    assert kept.exists()
    del link
    assert not kept.exists()
    code = (
        "import sys, json, time; from headrace_lab.link import Link\n"
        "with Link('fiber') as link:\n"
        "    child = link.client.popen(['sleep', '1000'])\n"
        "    print(json.dumps([link.client.name, link.server.name, child.pid, link.ready['pid'],\n"
        "        link.result()['log']]), flush=True)\n"
        "    time.sleep(1000)\n"
    )
    for end in (signal.SIGKILL, signal.SIGINT, signal.SIGTERM):
        owner = subprocess.Popen(
            [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        assert owner.stdout is not None
        with owner.stdout:
            client, server, *pids, log_path = json.loads(owner.stdout.readline())
        owner.send_signal(end)
        owner.wait(20)
        left = [
            *(namespaces.FOLDER / name for name in (client, server)),
            *(Path(f"/proc/{pid}") for pid in pids),
            Path(log_path).parent,
        ]
        for _ in range(1000):
            if not any(map(is_there, left)):
                break
            time.sleep(0.01)
        assert not [path for path in left if is_there(path)], end


def is_there(path: Path) -> bool:
    """A dead process that nobody has waited for is not there."""
    with contextlib.suppress(OSError):
        if path.parent == Path("/proc"):
            return ") Z " not in (path / "stat").read_text()
    return path.exists()


@needs_root
def test_a_link_whose_process_died_says_so_and_leaves_nothing() -> None:
    with Link("fiber") as link:
        os.kill(link.ready["pid"], signal.SIGKILL)
        with pytest.raises(ConfigError, match="the link's process has ended"):
            link.result()
        names = [link.client.name, link.server.name]
    assert not any((namespaces.FOLDER / name).exists() for name in names)


@needs_root
def test_what_a_killed_process_left_is_removed_at_the_next_start() -> None:
    gone = subprocess.Popen(["true"])
    gone.wait()
    name = f"headrace-{gone.pid}-0-client"
    namespaces.ip("netns", "add", name)
    assert name in namespaces.remove_stale()
    assert not (namespaces.FOLDER / name).exists()


def test_without_root_the_error_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(ConfigError, match="needs root: run it with sudo"), Link("fiber"):
        pass
