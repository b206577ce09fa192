"""A UDP relay between one client and a server, for tests; and a port that answers nothing.

What it passes on, it can keep, hold back, lose, and send again; and it can move.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Iterator
from typing import Any, Self

from aioquic.buffer import Buffer  # type: ignore[attr-defined]

WAY_BACK_S = 0.03
INITIAL, HANDSHAKE = 0, 2


class UdpRelay(asyncio.DatagramProtocol):
    """`kept`: the client's datagrams, in order. With `holds_handshake` those by which a client completes the
    server's handshake, or says what it can say only after that, wait for `release()`. Of the server's
    datagrams one in `loses_every` is lost when it first comes; `copies` are those that come again."""

    def __init__(self, server_port: int) -> None:
        self.server = ("127.0.0.1", server_port)
        self.kept: list[bytes] = []
        self.holds_handshake = False
        self.held: list[bytes] = []
        self.is_paused = False
        self.held_answers: list[bytes] = []
        self.loses_every = 0
        self.copies: list[bytes] = []
        self.lost: set[bytes] = set()
        self._seen: set[bytes] = set()
        self.client: Any = None
        self.port = 0
        self._inside: asyncio.DatagramTransport
        self._outside: asyncio.DatagramTransport

    async def __aenter__(self) -> Self:
        loop = asyncio.get_running_loop()
        self._inside, _ = await loop.create_datagram_endpoint(lambda: self, local_addr=("127.0.0.1", 0))
        self.port = self._inside.get_extra_info("sockname")[1]
        self._outside, _ = await loop.create_datagram_endpoint(lambda: _Back(self), remote_addr=self.server)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._inside.close()
        self._outside.close()

    async def move(self, address: str) -> None:
        """The server sees the client at another IP address from now on."""
        loop, before = asyncio.get_running_loop(), self._outside
        self._outside, _ = await loop.create_datagram_endpoint(
            lambda: _Back(self), local_addr=(address, 0), remote_addr=self.server
        )
        before.close()

    def datagram_received(self, data: bytes, addr: Any) -> None:
        self.client = addr
        self.kept.append(data)
        if self.is_paused or (self.holds_handshake and completes_handshake(data)):
            self.held.append(data)
        else:
            self._outside.sendto(data)

    def hold(self) -> None:
        """Of the next connection."""
        self.holds_handshake = True

    def release(self) -> None:
        self.holds_handshake = False
        for data in self.held:
            self._outside.sendto(data)
        self.held.clear()

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """As a radio pauses: what is sent meanwhile, either way, arrives when the pause is over."""
        self.is_paused = True
        try:
            yield
        finally:
            self.is_paused = False
            self.release()
            for data in self.held_answers:
                self.handle_answer(data)
            self.held_answers.clear()

    def handle_answer(self, data: bytes) -> None:
        if self.is_paused:
            self.held_answers.append(data)
            return
        is_copy = data in self._seen
        self._seen.add(data)
        if is_copy:
            self.copies.append(data)
        elif self.loses_every and len(self._seen) % self.loses_every == 0:
            self.lost.add(data)
            return
        # A way that takes time: all of a first flight has left before the first answer is there.
        asyncio.get_running_loop().call_later(WAY_BACK_S, self._answer, data)

    def _answer(self, data: bytes) -> None:
        if not self._inside.is_closing():
            self._inside.sendto(data, self.client)


class _Back(asyncio.DatagramProtocol):
    def __init__(self, relay: UdpRelay) -> None:
        self.relay = relay

    def datagram_received(self, data: bytes, addr: Any) -> None:
        self.relay.handle_answer(data)

    def error_received(self, exc: Exception) -> None:
        """The server's port may be closed for a moment."""


def completes_handshake(datagram: bytes) -> bool:
    """Whether a datagram of a client holds a Handshake or a 1-RTT packet (RFC 9000 §17.2, §17.3)."""
    buffer = Buffer(data=datagram)
    while not buffer.eof():
        first = buffer.pull_uint8()
        kind = (first & 0x30) >> 4
        if not first & 0x80 or kind == HANDSHAKE:
            return True
        buffer.pull_uint32()  # version
        for _ in range(2):  # connection IDs
            buffer.pull_bytes(buffer.pull_uint8())
        if kind == INITIAL:
            buffer.pull_bytes(buffer.pull_uint_var())  # token
        buffer.seek(buffer.pull_uint_var() + buffer.tell())
    return False


@contextlib.contextmanager
def mute_udp(port: int = 0) -> Iterator[int]:
    """A UDP port that takes everything and answers nothing, as a network that drops UDP."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as mute:
        mute.bind(("127.0.0.1", port))
        yield mute.getsockname()[1]
