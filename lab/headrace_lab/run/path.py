"""The way that the packets take: through the emulated link, through a relay of UDP, or over loopback.

All three have two sides that start processes, and take commands, so nothing else knows which it is.
"""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterator
from typing import Any, Protocol

from headrace.errors import ConfigError
from headrace_lab import process
from headrace_lab.link import Link, Profile, Relay, log
from headrace_lab.measure.measures import Packet

ON = ("link", "relay", "loopback")


class Side(Protocol):
    """One end of a link."""

    def popen(self, command: list[str], **named: Any) -> subprocess.Popen[bytes]: ...


class Path(Protocol):
    """A link that is up."""

    @property
    def client(self) -> Side: ...
    @property
    def server(self) -> Side: ...
    @property
    def server_address(self) -> str: ...
    @property
    def server_port(self) -> int:
        """The port on which the server is to listen."""

    def reached_at(self, origin: str) -> str:
        """Returns the origin by which clients reach what listens there."""

    def command(self, command: dict[str, Any]) -> dict[str, Any]:
        """Does something to the link now (`{"do": "outage", ...}`)."""

    def result(self) -> dict[str, Any]:
        """Returns, after the run, the link's own lateness and counts, whether the run is void, and where
        its log is."""


class _Here:
    """This machine, as both sides."""

    server_address = "127.0.0.1"

    def __init__(self) -> None:
        self.server_port = process.free_port()

    def reached_at(self, origin: str) -> str:
        return origin

    @property
    def client(self) -> Side:
        return self

    @property
    def server(self) -> Side:
        return self

    def popen(self, command: list[str], **named: Any) -> subprocess.Popen[bytes]:
        return subprocess.Popen(command, **named)


class Loopback(_Here):
    def command(self, command: dict[str, Any]) -> dict[str, Any]:
        if command["do"] == "restart":
            return {}
        raise ConfigError(
            detail=f"loopback has no {command['do']}: run it as root, so that the link can be emulated"
        )

    def result(self) -> dict[str, Any]:
        return {}


class _Relayed(_Here):
    """Loopback with a relay of UDP between the sides: it carries HTTP/3 alone."""

    def __init__(self, given: Profile, seed: int) -> None:
        super().__init__()
        self.relay = Relay(given, (self.server_address, self.server_port), seed)
        self.command = self.relay.command
        self.result = self.relay.result

    def reached_at(self, origin: str) -> str:
        return f"https://localhost:{self.relay.address[1]}"


class _Linked:
    server_port = 4433

    def __init__(self, link: Link) -> None:
        self.client, self.server = link.client, link.server
        self.server_address = link.server_address
        self.command = link.command
        self.result = link.result

    def reached_at(self, origin: str) -> str:
        return origin


@contextlib.contextmanager
def opened(on: str, fields: dict[str, Any], seed: int) -> Iterator[Path]:
    """Opens a way. `on`: one of `ON`. `fields`: those of the link's profile. Raises `ConfigError`."""
    if on == "loopback":
        yield Loopback()
        return
    if on == "relay":
        relayed = _Relayed(Profile.from_fields(fields), seed)
        with relayed.relay:
            yield relayed
        return
    with Link(Profile.from_fields(fields), seed=seed) as link:
        yield _Linked(link)


def packets(result: dict[str, Any], since_ns: int) -> list[Packet]:
    """Reads the link's log, from a moment on, in the words of the measures."""
    if "log" not in result:
        return []
    return [
        Packet(packet.in_ns, packet.direction == "down", packet.length, packet.verdict != "delivered")
        for packet in log.read(result["log"])
        if packet.in_ns >= since_ns
    ]
