"""The link without root: a UDP relay with the same verdicts, under a real HTTP/3 connection."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headrace.client import Trust, connect
from headrace.errors import ConfigError
from headrace.gateway import Gateway
from headrace_lab.link import emulator, log, self_test
from headrace_lab.link.profiles import PROFILES, Profile
from headrace_lab.link.relay import Relay
from tests.helpers.requests import JSON, script
from tests.helpers.serving import port_of

WAIT_S = 0.3


@pytest.fixture
def server() -> Iterator[socket.socket]:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as made:
        made.bind(("127.0.0.1", 0))
        made.settimeout(WAIT_S)
        yield made


@pytest.fixture
def client() -> Iterator[socket.socket]:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as made:
        made.settimeout(WAIT_S)
        yield made


def test_the_same_schedule_as_the_link(server: socket.socket, client: socket.socket) -> None:
    """What a client sends is lost by the same indices as between namespaces; the result says what it is."""
    with Relay({"loss": 0.1, "burst": 2}, server.getsockname(), seed=5) as relay:
        for number in range(200):
            client.sendto(number.to_bytes(4, "big"), relay.address)
        received = []
        try:
            while True:
                received.append(int.from_bytes(server.recv(100), "big"))
        except TimeoutError:
            pass
        result = relay.result()
        packets = log.read(result["log"])
    lost = set(self_test.schedule(5, 0, 200, 0.1, 2))
    assert set(range(200)) - set(received) == lost
    assert {each.number for each in packets if each.verdict == "loss"} == lost
    assert {each.length for each in packets} == {4 + 28}
    assert result["mode"] == "udp relay (HTTP/3 only)"
    assert result["up"]["dropped"]["loss"] == len(lost)


def test_a_late_emulator_makes_the_run_void(
    server: socket.socket, client: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is on time to the nanosecond."""
    monkeypatch.setattr(emulator, "MAX_LATENESS_P99_MS", 0.0)
    with Relay({}, server.getsockname()) as relay:
        client.sendto(b"up", relay.address)
        assert server.recv(100) == b"up"
    result = relay.result()
    assert result["void"]
    assert "p99 lateness" in result["void_because"][0]
    json.dumps(result)


def test_clients_are_told_apart_and_a_rebinding_gives_each_another_port(
    server: socket.socket, client: socket.socket
) -> None:
    with (
        Relay({"delay_ms": 1}, server.getsockname()) as relay,
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as other,
    ):
        other.settimeout(WAIT_S)

        def seen(by: socket.socket) -> Any:
            by.sendto(b"up", relay.address)
            return server.recvfrom(100)[1]

        before = [seen(client), seen(other)]
        for address, end in zip(before, (client, other), strict=True):
            server.sendto(str(address).encode(), address)
            assert end.recv(100) == str(address).encode()
        relay.command({"do": "rebind_port"})
        server.sendto(b"late", before[0])
        with pytest.raises(TimeoutError):
            client.recv(100)
        after = [seen(client), seen(other)]
        assert len({*before, *after}) == 4
        server.sendto(b"down", after[1])
        assert other.recv(100) == b"down"
        assert relay.result()["down"]["dropped"]["nat"] == 1
        with pytest.raises(ConfigError, match="cannot move its client"):
            relay.command({"do": "move"})


def test_every_profile_and_a_trace_can_be_taken_while_it_runs(
    server: socket.socket, client: socket.socket, tmp_path: Path
) -> None:
    """The emulator accepts what Python has checked, and refuses what it has not."""
    (tmp_path / "trace").write_text("1\n1\n2\n")
    trace = Profile(trace_up=tmp_path / "trace", trace_down=tmp_path / "trace")
    with Relay("fiber", server.getsockname()) as relay:
        for profile in (*PROFILES, trace):
            relay.command({"do": "profile", "profile": profile})
        client.sendto(b"up", relay.address)
        assert server.recv(100) == b"up"
        with pytest.raises(ConfigError, match="no chain has both"):
            relay.command({"do": "loss", "loss": 0.99, "burst": 5})


async def test_an_answer_crosses_a_bad_network_whole(gateway: Gateway, trust: Trust) -> None:
    """Loss, a rebinding that nobody announced and an outage, in the middle of a real answer over HTTP/3."""
    steps = (
        {"before_down": 60, "do": "rebind_port"},
        {"before_down": 100, "do": "outage", "seconds": 0.3},
    )
    profile = {
        "delay_ms": 5,
        "jitter_ms": 1,
        "loss": 0.02,
        "reorder": 0.02,
        "duplicate": 0.02,
        "script": steps,
    }
    with Relay(profile, ("127.0.0.1", port_of(gateway))) as relay:
        connection = await connect(f"https://localhost:{relay.address[1]}", trust)
        response = connection.request("POST", "/v1/x", JSON, script(events=150, interval_s=0.01))
        body = await response.read()
        connection.close()
        result = relay.result()
    numbers = [int(event.split(b'"n":')[1].split(b",")[0]) for event in body.split(b"\n\n")[:-2]]
    assert numbers == list(range(150))
    assert result["down"]["dropped"]["loss"] > 0
    ports = {each.source_port for each in log.read(result["log"]) if each.direction == "up"}
    assert len(ports) == 2
