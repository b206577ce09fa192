"""Reads a link's packet log.

In: the file that a link or relay wrote (`result()["log"]`). Out: its packets. The layout stands in
`lab/crates/headrace-emulator/src/link/log.rs`.
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
    """When the emulator read the packet."""
    due_ns: int
    """When the packet was to come out; 0: never."""
    out_ns: int
    """When the far end had the packet; 0: never."""
    number: int
    """The packet's place in its direction, from 0, since the last restart."""
    round: int
    """How many restarts came before the packet."""
    length: int
    """Bytes of IP."""
    source_port: int
    destination_port: int
    """Both ports are as the server sees them."""
    direction: str
    """`up` or `down`."""
    protocol: int
    """6: TCP; 17: UDP."""
    verdict: str
    """One of `VERDICTS`: `delivered`, or why it was not."""
    is_copy: bool


def read(path: Path | str) -> list[Packet]:
    """Yields all packets, in the order in which they came. Raises `ConfigError` for a file that is not a
    log."""
    data = Path(path).read_bytes()
    if data[: len(MAGIC)] != MAGIC:
        raise ConfigError(detail=f"{path}: expected the packet log of a link")
    whole = len(MAGIC) + (len(data) - len(MAGIC)) // RECORD.size * RECORD.size
    packets = []
    for *numbers, direction, protocol, verdict, is_copy in RECORD.iter_unpack(data[len(MAGIC) : whole]):
        fields = [*numbers, DIRECTIONS[direction], protocol, VERDICTS[verdict], bool(is_copy)]
        packets.append(Packet._make(fields))
    return sorted(packets, key=lambda packet: (packet.in_ns, packet.is_copy))
