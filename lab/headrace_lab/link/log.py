"""Reading a link's packet log.

In: the file that a link or relay wrote (`result()["log"]`). Out: its packets. The layout stands in
`crates/headrace-net/src/link/log.rs`.
"""

from __future__ import annotations

import struct
from pathlib import Path
from typing import NamedTuple

from headrace.errors import ConfigError

MAGIC = b"hrlink1\n"
RECORD = struct.Struct("<QQQIHHHHBBBB")
DIRECTIONS = ("up", "down")
VERDICTS = (
    "delivered",
    "loss",
    "named",
    "queue",
    "outage",
    "mtu",
    "udp_blocked",
    "nat",
    "overflow",
    "unfinished",
)
TCP, UDP = 6, 17


class Packet(NamedTuple):
    """One packet, or its copy. Times are `time.monotonic_ns()`."""

    in_ns: int
    """When the emulator had read it."""
    due_ns: int
    """When it was to come out; 0: never."""
    out_ns: int
    """When the far end had it; 0: never."""
    number: int
    """Its index: its place in its direction, from 0, since the last restart."""
    round: int
    """How many restarts were before it. The first is 0."""
    length: int
    """Bytes of IP."""
    source_port: int
    destination_port: int
    """Both as the server sees them."""
    direction: str
    """`up` or `down`."""
    protocol: int
    """6: TCP; 17: UDP."""
    verdict: str
    """`delivered`, or why not: one of `VERDICTS`."""
    is_copy: bool


def read(path: Path | str) -> list[Packet]:
    """All packets, in the order in which they came. Raises `ConfigError` for a file that is no log."""
    data = Path(path).read_bytes()
    if data[: len(MAGIC)] != MAGIC:
        raise ConfigError(detail=f"{path} is no packet log of a link")
    whole = len(MAGIC) + (len(data) - len(MAGIC)) // RECORD.size * RECORD.size
    packets = []
    for *numbers, direction, protocol, verdict, is_copy in RECORD.iter_unpack(data[len(MAGIC) : whole]):
        fields = [*numbers, DIRECTIONS[direction], protocol, VERDICTS[verdict], bool(is_copy)]
        packets.append(Packet._make(fields))
    return sorted(packets, key=lambda packet: (packet.in_ns, packet.is_copy))
