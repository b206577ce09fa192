"""Addresses that were never shown: writing them on packets makes little go there (RFC 9000 §8, §9.3)."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator

import pytest
from aioquic.quic.connection import QuicConnection

from headrace import Server, dev_certificate
from headrace.client import Connection, Trust, connect
from headrace.exchange import Exchange
from headrace.gateway import Gateway
from headrace_lab.model import Source
from tests.helpers.raw_peer import DATA, HEADERS, RawPeer, configuration, dial, frame, post, section
from tests.helpers.requests import script
from tests.helpers.serving import config, origin, port_of

Start = Callable[..., Awaitable[Gateway]]
Dial = Callable[..., Awaitable[Connection]]

PADDING, PATH_CHALLENGE = 0x00, 0x1A


class Forged:
    """A socket at an address that the client pretends to be at; what is sent there is counted."""

    def __init__(self, address: str, port: int) -> None:
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.bind((address, 0))
        self._socket.setblocking(False)
        self._server = ("127.0.0.1", port)
        self.sent = 0
        self._received = 0

    def send(self, data: bytes) -> None:
        self._socket.sendto(data, self._server)
        self.sent += len(data)

    @property
    def received(self) -> int:
        with contextlib.suppress(BlockingIOError):
            while True:
                self._received += len(self._socket.recv(2048))
        return self._received

    def close(self) -> None:
        self._socket.close()


@contextlib.contextmanager
def forged(port: int, *addresses: str) -> Iterator[list[Forged]]:
    sockets = [Forged(address, port) for address in addresses]
    try:
        yield sockets
    finally:
        for each in sockets:
            each.close()


@contextlib.asynccontextmanager
async def reading_peer(gateway: Gateway) -> AsyncIterator[RawPeer]:
    """A client to whom tokens flow."""
    async with dial(port_of(gateway)) as peer:
        peer.start_control()
        body = script(events=5000, interval_s=0.005)
        stream = peer.bidi(frame(HEADERS, section(*post())) + frame(DATA, body), end=True)
        await peer.until(lambda: len(peer.data.get(stream, b"")) > 2000)
        yield peer


def datagrams(peer: RawPeer) -> list[bytes]:
    """What the client would send now."""
    now = asyncio.get_running_loop().time()
    return [data for data, _ in peer._quic.datagrams_to_send(now=now)]


async def test_a_client_that_pretends_to_move_makes_at_most_three_times_its_bytes_go_there(
    source: Source, gateway: Gateway
) -> None:
    """Two forged addresses by turns, so that each is the old path of the other; the tokens follow."""
    async with reading_peer(gateway) as peer:
        with forged(port_of(gateway), "127.0.0.2", "127.0.0.3") as places:
            for turn in range(300):
                peer._quic.send_ping(turn)
                for data in datagrams(peer):
                    places[turn % 2].send(data)
                await asyncio.sleep(0.002)
            await asyncio.sleep(0.1)
            for place in places:
                assert place.sent > 3000
                assert place.received <= 3 * place.sent
            # Its path does not lead there for long.
            assert sum(place.received for place in places) < 100_000


async def test_another_port_of_its_own_address_is_asked_once_for_each_of_a_few_changes(
    source: Source, gateway: Gateway
) -> None:
    """That is what a NAT looks like that forgot it; beyond the budget of changes nothing goes there."""
    async with reading_peer(gateway) as peer:
        with forged(port_of(gateway), *["127.0.0.1"] * 40) as places:
            for turn, place in enumerate(places):
                peer._quic.send_ping(turn)
                for data in datagrams(peer):
                    place.send(data)
                await asyncio.sleep(0.005)
            await asyncio.sleep(0.1)
            beyond = [place for place in places if place.received > 3 * place.sent]
            assert len(beyond) <= 5 + 2, "five at once, then one a second"
            assert all(place.received <= 1500 + 3 * place.sent for place in beyond)


async def test_a_question_from_a_forged_address_is_answered_there_only_if_it_was_large(
    source: Source, gateway: Gateway
) -> None:
    """A PATH_RESPONSE is padded to 1,200 bytes: without a count, a small PATH_CHALLENGE makes it so much."""
    async with reading_peer(gateway) as peer:
        with forged(port_of(gateway), "127.0.0.2") as (place,):
            for turn in range(100):
                _challenge(peer._quic, turn)
                for data in datagrams(peer):
                    place.send(data)
                await asyncio.sleep(0.002)
            await asyncio.sleep(0.1)
            assert 0 < place.sent < 100 * 100
            assert place.received <= 3 * place.sent


def _challenge(quic: QuicConnection, number: int) -> None:
    """The next packet is a PATH_CHALLENGE, and a probe (RFC 9000 §9.1): it moves nothing."""
    write = quic._write_application

    def once(builder: object, path: object, now: float) -> None:
        from aioquic import tls
        from aioquic.quic.packet import QuicPacketType

        quic._write_application = write  # type: ignore[method-assign]
        crypto = quic._cryptos[tls.Epoch.ONE_RTT]
        builder.start_packet(QuicPacketType.ONE_RTT, crypto)  # type: ignore[attr-defined]
        # After a byte of padding: aioquic would pad the packet, as one should.
        buffer = builder.start_frame(PADDING, capacity=10)  # type: ignore[attr-defined]
        buffer.push_bytes(bytes([PATH_CHALLENGE]) + number.to_bytes(8, "big"))

    quic._write_application = once  # type: ignore[method-assign]


@pytest.fixture
async def long_chain() -> dev_certificate.Certificate:
    """More than three times a client's first datagram."""
    names = [f"a-name-that-takes-some-room-{number}.example.org" for number in range(120)]
    return dev_certificate.make(["localhost", *names])


async def test_a_handshake_with_a_long_chain_stays_below_three_times_what_came(
    long_chain: dev_certificate.Certificate,
) -> None:
    """To a client that sends its first datagram, and then says nothing."""

    async def handler(exchange: Exchange) -> None:
        await exchange.answer(200, [], b"")

    async with Server(config(), long_chain.chain_pem, long_chain.key_pem, handler) as server:
        with forged(port_of(server), "127.0.0.2") as (place,):
            quic = QuicConnection(configuration=configuration(max_datagram_size=1252))
            quic.connect(("127.0.0.1", port_of(server)), now=0.0)
            for data, _ in quic.datagrams_to_send(now=0.0):
                place.send(data)
            # Long enough for what is sent again, and for copies.
            await asyncio.sleep(1.5)
            assert 2 * place.sent < place.received <= 3 * place.sent


async def test_a_long_chain_loses_nothing_to_the_count(
    long_chain: dev_certificate.Certificate, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """The rest of the flight follows as soon as the client has sent more."""
    ca_file = tmp_path_factory.mktemp("chain") / "ca.pem"
    ca_file.write_text(long_chain.ca_pem)

    async def handler(exchange: Exchange) -> None:
        await exchange.answer(200, [], b"")

    async with Server(config(), long_chain.chain_pem, long_chain.key_pem, handler) as server:
        for _ in range(5):
            async with await connect(origin(server), Trust(ca_file)) as connection:
                assert await connection.request("GET", "/").head() == 200
                assert connection.stats()["lost_packets"] == 0
