"""The round trip of a path as `ping` measures it: ICMP echo, answered by the other kernel.

In: an IPv4 address that the calling thread's network namespace reaches; root. Out: milliseconds from the
call of `sendto` to the kernel's own timestamp of the answer, so no program's wake-up is in them.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import socket
import struct
import time

ECHO_REQUEST, ECHO_REPLY = 8, 0
SO_TIMESTAMPNS = 35
"""`socket` does not have it (Linux, `asm-generic/socket.h`)."""
TIMEOUT_S = 2.0

_STAMP = struct.Struct("qq")
_numbers = itertools.count(1)


async def ping_ms(host: str) -> float:
    """One echo. Raises `TimeoutError` after two seconds without an answer."""
    identifier, number = os.getpid() & 0xFFFF, next(_numbers) & 0xFFFF
    with socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP) as raw:
        raw.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
        raw.setblocking(False)
        packet = _request(identifier, number)
        sent_ns = time.time_ns()
        raw.sendto(packet, (host, 0))
        async with asyncio.timeout(TIMEOUT_S):
            while True:
                data, ancillary, *_ = await _receive(raw)
                header = (data[0] & 0x0F) * 4
                kind, _, _, *echoed = struct.unpack_from("!BBHHH", data, header)
                if kind == ECHO_REPLY and echoed == [identifier, number]:
                    seconds, nanoseconds = _STAMP.unpack(ancillary[0][2])
                    return float(seconds * 1_000_000_000 + nanoseconds - sent_ns) / 1e6


def _request(identifier: int, number: int) -> bytes:
    payload = bytes(48)
    head = struct.pack("!BBHHH", ECHO_REQUEST, 0, 0, identifier, number)
    return struct.pack("!BBHHH", ECHO_REQUEST, 0, _checksum(head + payload), identifier, number) + payload


def _checksum(data: bytes) -> int:
    """RFC 1071, for an even number of bytes."""
    total: int = sum(struct.unpack(f"!{len(data) // 2}H", data))
    total = (total & 0xFFFF) + (total >> 16)
    return ~(total + (total >> 16)) & 0xFFFF


async def _receive(raw: socket.socket) -> tuple[bytes, list[tuple[int, int, bytes]], int, object]:
    loop = asyncio.get_running_loop()
    while True:
        try:
            return raw.recvmsg(2048, 256)
        except BlockingIOError:
            readable = asyncio.Event()
            loop.add_reader(raw, readable.set)
            try:
                await readable.wait()
            finally:
                loop.remove_reader(raw)
