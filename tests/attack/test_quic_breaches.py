"""Every breach of RFC 9000 and 9001 on h3spec's list closes the connection with the code the RFC names.

The frames are written by hand into packets of aioquic: `Alter` is given a packet's header and payload just
before it is encrypted. Not here: CRYPTO frames in 0-RTT packets, which need a session to be resumed.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
from aioquic.asyncio.client import connect
from aioquic.buffer import Buffer, encode_uint_var
from aioquic.quic.connection import QuicConnection
from aioquic.quic.packet import PARAMS, QuicProtocolVersion
from aioquic.tls import Epoch

from headrace import Server
from headrace.exchange import Exchange
from tests.helpers.raw_peer import GET, HEADERS, Bend, RawPeer, configuration, dial, frame, section
from tests.helpers.serving import port_of

FLOW_CONTROL, STREAM_LIMIT, STREAM_STATE, FRAME_ENCODING = 0x3, 0x4, 0x5, 0x7
TRANSPORT_PARAMETER, PROTOCOL_VIOLATION = 0x8, 0xA
UNEXPECTED_MESSAGE, MISSING_EXTENSION, NO_APPLICATION_PROTOCOL = 0x10A, 0x16D, 0x178

CLIENT_UNI, SERVER_BIDI, SERVER_UNI = 2, 1, 3
TOO_MANY = encode_uint_var(2**60 + 1)
KEY_UPDATE = b"\x06\0\x05" + b"\x18\0\0\x01\0"
END_OF_EARLY_DATA = b"\x06\0\x04" + b"\x05\0\0\0"

Packet = tuple[bytes, bytes]
Alter = Callable[[bytes, bytes], Packet]


def payload(frames: bytes) -> Alter:
    """These frames instead of the packet's own, padded to its length: a long header says how long it is."""
    return lambda header, own: (header, frames.ljust(len(own) if header[0] & 0x80 else 4, b"\0"))


def reserved_bits(header: bytes, own: bytes) -> Packet:
    return bytes([header[0] | (0x0C if header[0] & 0x80 else 0x18)]) + header[1:], own


def nothing(header: bytes, own: bytes) -> Packet:
    """No frame at all; four bytes of packet number, so that enough is left to sample (RFC 9001 §5.4.2)."""
    return bytes([header[0] | 0x03]) + header[1:-2] + b"\0\0" + header[-2:], b""


def alter_next(quic: QuicConnection, epoch: Epoch, alter: Alter) -> None:
    """Changes the next packet with the keys of this epoch; those after it are what they were."""
    crypto = quic._cryptos[epoch]
    encrypt = crypto.encrypt_packet

    def altered(plain_header: bytes, plain_payload: bytes, packet_number: int) -> bytes:
        crypto.encrypt_packet = encrypt  # type: ignore[method-assign]
        return encrypt(*alter(plain_header, plain_payload), packet_number)

    crypto.encrypt_packet = altered  # type: ignore[method-assign]


def new_connection_id(sequence: int, retire: int, cid: bytes) -> bytes:
    head = b"\x18" + encode_uint_var(sequence) + encode_uint_var(retire)
    return head + bytes([len(cid)]) + cid + bytes(16)


BREACHES: dict[str, tuple[Epoch, Alter, set[int]]] = {
    name: (Epoch.ONE_RTT, payload(frames), codes)
    for name, frames, codes in [
        ("§4.1 data beyond the window", b"\x0e\0" + encode_uint_var(2**40) + b"\x01x", {FLOW_CONTROL}),
        ("§4.6 a stream beyond the limit", b"\x0a" + encode_uint_var(4 * 10**6) + b"\x01x", {STREAM_LIMIT}),
        ("§12.4 a frame type that is unknown", encode_uint_var(0x2F), {FRAME_ENCODING}),
        ("§19.4 RESET_STREAM of what we only send", bytes([0x04, SERVER_UNI, 0, 0]), {STREAM_STATE}),
        ("§19.5 STOP_SENDING of no stream", bytes([0x05, SERVER_BIDI, 0]), {STREAM_STATE}),
        ("§19.8 STREAM of a stream that we did not open", bytes([0x0A, SERVER_BIDI, 1, 0]), {STREAM_STATE}),
        ("§19.8 STREAM on what we only send", bytes([0x0A, SERVER_UNI, 1, 0]), {STREAM_STATE}),
        ("§19.10 MAX_STREAM_DATA of no stream", bytes([0x11, SERVER_BIDI, 9]), {STREAM_STATE}),
        ("§19.10 MAX_STREAM_DATA of what we only receive", bytes([0x11, CLIENT_UNI, 9]), {STREAM_STATE}),
        ("§19.7 NEW_TOKEN from a client", b"\x07\x01x", {PROTOCOL_VIOLATION}),
        ("§19.11 MAX_STREAMS above 2^60", b"\x12" + TOO_MANY, {FRAME_ENCODING}),
        ("§19.14 STREAMS_BLOCKED above 2^60", b"\x16" + TOO_MANY, {FRAME_ENCODING, STREAM_LIMIT}),
        ("§19.15 Retire Prior To above the number", new_connection_id(1, 5, bytes(8)), {FRAME_ENCODING}),
        ("§19.15 a connection ID of no byte", new_connection_id(1, 0, b""), {FRAME_ENCODING}),
        ("§19.20 HANDSHAKE_DONE from a client", b"\x1e", {PROTOCOL_VIOLATION}),
        ("RFC 9001 §6 KeyUpdate of TLS", KEY_UPDATE, {UNEXPECTED_MESSAGE}),
    ]
} | {
    "§12.4 a packet without a frame": (Epoch.ONE_RTT, nothing, {PROTOCOL_VIOLATION}),
    "§17.3.1 reserved bits in a short header": (Epoch.ONE_RTT, reserved_bits, {PROTOCOL_VIOLATION}),
    "§17.2 reserved bits in a Handshake packet": (Epoch.HANDSHAKE, reserved_bits, {PROTOCOL_VIOLATION}),
    "§17.2.4 PATH_CHALLENGE in a Handshake packet": (
        Epoch.HANDSHAKE,
        payload(b"\x1a12345678"),
        {PROTOCOL_VIOLATION},
    ),
    "RFC 9001 §6 KeyUpdate in the handshake": (Epoch.HANDSHAKE, payload(KEY_UPDATE), {UNEXPECTED_MESSAGE}),
    "RFC 9001 §8.3 EndOfEarlyData": (Epoch.HANDSHAKE, payload(END_OF_EARLY_DATA), {UNEXPECTED_MESSAGE}),
}


def parameter(number: int, value: bytes) -> bytes:
    return encode_uint_var(number) + encode_uint_var(len(value)) + value


def announces(number: int, value: bytes | None) -> Bend:
    """Its transport parameters hold this one; with `None`, they do not have it."""

    def bend(quic: QuicConnection) -> None:
        original = quic._serialize_transport_parameters

        def serialize() -> bytes:
            own, kept = Buffer(data=original()), b""
            while not own.eof():
                found, length = own.pull_uint_var(), own.pull_uint_var()
                data = own.pull_bytes(length)
                # aioquic sends its reset token as a client, too, which a server must refuse (§18.2).
                if found not in (number, 0x02) and found in PARAMS:
                    kept += parameter(found, data)
            return kept + (b"" if value is None else parameter(number, value))

        quic._serialize_transport_parameters = serialize  # type: ignore[method-assign]

    return bend


def extension(number: int | None) -> Bend:
    """Its transport parameters come by this number of a TLS extension, or not at all."""

    def bend(quic: QuicConnection) -> None:
        original = quic._initialize

        def initialize(peer_cid: bytes) -> None:
            original(peer_cid)
            [(_, data)] = quic.tls.handshake_extensions
            quic.tls.handshake_extensions = [] if number is None else [(number, data)]

        quic._initialize = initialize  # type: ignore[method-assign]

    return bend


HELLOS: dict[str, tuple[Bend, int]] = {
    f"§18.2 {name}": (announces(number, value), TRANSPORT_PARAMETER)
    for name, number, value in [
        ("no initial_source_connection_id", 0x0F, None),
        ("original_destination_connection_id from a client", 0x00, bytes(8)),
        ("preferred_address from a client", 0x0D, bytes(24) + b"\x08" + bytes(24)),
        ("retry_source_connection_id from a client", 0x10, bytes(8)),
        ("stateless_reset_token from a client", 0x02, bytes(16)),
        ("max_udp_payload_size below 1200", 0x03, encode_uint_var(1199)),
        ("ack_delay_exponent above 20", 0x0A, encode_uint_var(21)),
        ("max_ack_delay of 2^14", 0x0B, encode_uint_var(2**14)),
    ]
} | {
    "RFC 9001 §8.2 no transport parameters": (extension(None), MISSING_EXTENSION),
    "RFC 9001 §8.2 transport parameters by the drafts' number": (extension(0xFFA5), MISSING_EXTENSION),
}


async def hello(exchange: Exchange) -> None:
    await exchange.answer(200, [], b"hello")


@pytest.fixture
async def server(serve: Callable[..., Awaitable[Server]]) -> Server:
    return await serve(hello)


@contextlib.asynccontextmanager
async def begin(server: Server, bend: Bend | None = None, alpn: str = "h3") -> AsyncIterator[RawPeer]:
    """A connection whose first packet has not left."""

    def create(quic: QuicConnection, *args: object, **kwargs: object) -> RawPeer:
        if bend:
            bend(quic)
        return RawPeer(quic, *args, **kwargs)

    quic = configuration()
    quic.alpn_protocols = [alpn]
    port = port_of(server)
    async with connect(
        "127.0.0.1", port, configuration=quic, create_protocol=create, wait_connected=False
    ) as peer:
        assert isinstance(peer, RawPeer)
        yield peer


async def still_serves(server: Server) -> None:
    async with dial(port_of(server)) as peer:
        peer.start_control()
        stream = peer.bidi(frame(HEADERS, section(*GET)), end=True)
        await peer.until_over(stream)
        assert peer.status_of(stream) == 200


@pytest.mark.parametrize("name", BREACHES)
async def test_a_breach_in_a_packet_closes_the_connection_with_its_code(name: str, server: Server) -> None:
    epoch, alter, codes = BREACHES[name]
    async with begin(server) as peer:
        if epoch is Epoch.HANDSHAKE:
            alter_next(peer._quic, epoch, alter)
        peer.transmit()
        if epoch is Epoch.ONE_RTT:
            await peer.wait_connected()
            alter_next(peer._quic, epoch, alter)
            peer._quic.send_ping(1)
            peer.transmit()
        assert await peer.until_closed() in codes, peer.reason
    await still_serves(server)


@pytest.mark.parametrize("name", HELLOS)
async def test_a_breach_in_the_first_flight_ends_the_handshake_with_its_code(
    name: str, server: Server
) -> None:
    bend, code = HELLOS[name]
    async with begin(server, bend) as peer:
        peer.transmit()
        assert await peer.until_closed() == code, peer.reason
    await still_serves(server)


async def test_the_bent_first_flight_is_otherwise_sound(server: Server) -> None:
    """The tests above would pass for a wrong reason if the server refused what they leave as it is."""
    async with begin(server, announces(0x0A, encode_uint_var(20))) as peer:
        peer.transmit()
        await peer.wait_connected()
        assert peer.closed is None


async def test_a_client_without_our_protocol_ends_with_its_alert(server: Server) -> None:
    """RFC 9001 §8.1."""
    async with begin(server, alpn="not-http") as peer:
        peer.transmit()
        assert await peer.until_closed() == NO_APPLICATION_PROTOCOL, peer.reason


async def test_a_client_that_begins_with_quic_v2_is_told_that_v1_is_spoken(server: Server) -> None:
    """RFC 9369 is not spoken: quinn has v1 alone. Version Negotiation (RFC 9000 §6) leads to it."""
    versions = [QuicProtocolVersion.VERSION_2, QuicProtocolVersion.VERSION_1]
    first = QuicProtocolVersion.VERSION_2
    async with dial(port_of(server), supported_versions=versions, original_version=first) as peer:
        assert peer._quic._version == QuicProtocolVersion.VERSION_1
        peer.start_control()
        stream = peer.bidi(frame(HEADERS, section(*GET)), end=True)
        await peer.until_over(stream)
        assert peer.status_of(stream) == 200
