"""When the transports take TCP instead, how they learn of HTTP/3, and whom they trust."""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import socket
import ssl
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import httpx2
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

import headrace.httpx
import headrace.httpx2
from bench import peers
from headrace import Server, dev_certificate
from headrace.errors import ConfigError
from headrace.gateway import Gateway
from headrace_lab.model import Source
from tests.helpers.serving import origin, port_of
from tests.helpers.udp_relay import mute_udp

FAMILIES = [(httpx2, headrace.httpx2), (httpx, headrace.httpx)]
BODY = {"model": "scripted", "stream": True, "script": {"events": 5, "interval_s": 0}}

each_family = pytest.mark.parametrize(("family", "ours"), FAMILIES, ids=["httpx2", "httpx"])


@contextlib.asynccontextmanager
async def tcp_only(server: Gateway | Server) -> AsyncIterator[str]:
    """The same server behind a port that lets TCP through and drops UDP."""
    tasks: set[asyncio.Task[None]] = set()

    async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            try:
                while data := await reader.read(65536):
                    writer.write(data)
                    await writer.drain()
            finally:
                writer.close()

    async def forward(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far_reader, far_writer = await asyncio.open_connection("127.0.0.1", port_of(server))
        for pair in ((reader, far_writer), (far_reader, writer)):
            task = asyncio.ensure_future(pump(*pair))
            tasks.add(task)
            task.add_done_callback(tasks.discard)

    forwarder = await asyncio.start_server(forward, "127.0.0.1", 0)
    port = forwarder.sockets[0].getsockname()[1]
    with mute_udp(port):
        yield f"https://localhost:{port}"
    forwarder.close()
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


@each_family
async def test_without_udp_the_answer_comes_over_tcp(
    gateway: Gateway, ca_file: Path, family: Any, ours: Any
) -> None:
    tried: list[str] = []

    async def trace(name: str, info: dict[str, Any]) -> None:
        tried.append(name)

    async with tcp_only(gateway) as url:
        async with family.AsyncClient(transport=ours.AsyncTransport(str(ca_file))) as client:
            first = await client.post(f"{url}/v1/x", json=BODY, extensions={"trace": trace})
            assert tried.count("connection.connect_quic.failed") == 1
            tried.clear()
            second = await client.post(f"{url}/v1/x", json=BODY, extensions={"trace": trace})
        assert first.http_version == second.http_version == "HTTP/2"
        assert len(first.content) == len(second.content)
        assert not [name for name in tried if "quic" in name]

        def ask() -> Any:
            with family.Client(transport=ours.Transport(str(ca_file))) as client:
                return client.post(f"{url}/v1/x", json=BODY)

        assert (await asyncio.to_thread(ask)).http_version == "HTTP/2"


@each_family
async def test_by_alt_svc_the_second_answer_comes_over_http3(
    gateway: Gateway, ca_file: Path, family: Any, ours: Any, tmp_path: Path
) -> None:
    file = tmp_path / "alt-svc.json"

    async def ask() -> list[str]:
        transport = ours.AsyncTransport(str(ca_file), http3="alt-svc", alt_svc_cache=file)
        async with family.AsyncClient(transport=transport) as client:
            answers = [await client.post(f"{origin(gateway)}/v1/x", json=BODY) for _ in range(2)]
        return [answer.http_version for answer in answers]

    assert await ask() == ["HTTP/2", "HTTP/3"]
    assert await ask() == ["HTTP/3", "HTTP/3"]


@each_family
async def test_plain_http_goes_by_the_familys_own_transport(source: Source, family: Any, ours: Any) -> None:
    async with family.AsyncClient(transport=ours.AsyncTransport()) as client:
        response = await client.post(f"{source.url}/v1/x", json=BODY)
    assert response.http_version == "HTTP/1.1"
    assert response.status_code == 200


@each_family
async def test_verify_false_works_and_warns(gateway: Gateway, family: Any, ours: Any) -> None:
    with pytest.warns(UserWarning, match="verify=False"):
        transport = ours.AsyncTransport(verify=False)
    async with family.AsyncClient(transport=transport) as client:
        assert (await client.post(f"{origin(gateway)}/v1/x", json=BODY)).http_version == "HTTP/3"


@each_family
async def test_a_context_is_honoured_as_far_as_rustls_can(
    gateway: Gateway, ca_file: Path, family: Any, ours: Any
) -> None:
    context = ssl.create_default_context(cafile=str(ca_file))
    async with family.AsyncClient(transport=ours.AsyncTransport(context)) as client:
        assert (await client.post(f"{origin(gateway)}/v1/x", json=BODY)).http_version == "HTTP/3"
    anybody = ssl.create_default_context()
    anybody.check_hostname, anybody.verify_mode = False, ssl.CERT_NONE
    async with family.AsyncClient(transport=ours.AsyncTransport(anybody)) as client:
        assert (await client.post(f"{origin(gateway)}/v1/x", json=BODY)).http_version == "HTTP/3"
    any_name = ssl.create_default_context(cafile=str(ca_file))
    any_name.check_hostname = False
    with pytest.raises(ConfigError, match="check_hostname"):
        ours.AsyncTransport(any_name)
    revocation = ssl.create_default_context(cafile=str(ca_file))
    revocation.verify_flags |= ssl.VERIFY_CRL_CHECK_LEAF
    with pytest.raises(ConfigError, match="revocation"):
        ours.AsyncTransport(revocation)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"proxy": "http://proxy:1"}, "cannot go through a proxy"),
        ({"http3": "maybe"}, "race, alt-svc, only"),
        ({"verify": "/nowhere/ca.pem"}, "/nowhere/ca.pem"),
        ({"verify": "/tmp"}, "folder"),
        ({"cert": "/nowhere/client.pem"}, "/nowhere/client.pem"),
        ({"cert": ("a", "b", "password")}, "password"),
    ],
)
def test_an_argument_that_cannot_be_honoured_says_so(arguments: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        headrace.httpx2.Transport(**arguments)


def client_certificate(file: Path, key_file: Path) -> None:
    """Signed by itself, for the authentication of clients."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "client")])
    now = dt.datetime.now(dt.UTC)
    made = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(hours=1))
        .not_valid_after(now + dt.timedelta(hours=1))
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CLIENT_AUTH]), critical=False)
        .sign(key, hashes.SHA256())
    )
    file.write_bytes(made.public_bytes(Encoding.PEM))
    key_file.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))


@each_family
async def test_the_clients_own_certificate_is_shown(
    source: Source,
    certificate: dev_certificate.Certificate,
    ca_file: Path,
    tmp_path: Path,
    family: Any,
    ours: Any,
) -> None:
    """To Caddy, which asks for it; over HTTP/3, and over TCP."""
    client_certificate(tmp_path / "own.pem", tmp_path / "own.key")
    (tmp_path / "cert.pem").write_text(certificate.chain_pem)
    (tmp_path / "key.pem").write_text(certificate.key_pem)
    asks = f"client_auth {{\n\t\tmode require_and_verify\n\t\ttrust_pool file {tmp_path / 'own.pem'}\n\t}}"
    with peers.caddy(source.url, tmp_path, 1, tls=asks) as proxy:
        identity = (str(tmp_path / "own.pem"), str(tmp_path / "own.key"))
        for http3, version in (("only", "HTTP/3"), ("alt-svc", "HTTP/2")):
            transport = ours.AsyncTransport(str(ca_file), identity, http3=http3)
            async with family.AsyncClient(transport=transport) as client:
                response = await client.post(f"{proxy.origin}/v1/x", json=BODY)
            assert (response.status_code, response.http_version) == (200, version)
        async with family.AsyncClient(transport=ours.AsyncTransport(str(ca_file), http3="only")) as client:
            with pytest.raises(family.ConnectError, match="TLS handshake"):
                await client.post(f"{proxy.origin}/v1/x", json=BODY)


@each_family
async def test_an_address_that_does_not_answer_does_not_keep_the_other_from_it(
    gateway: Gateway, ca_file: Path, family: Any, ours: Any
) -> None:
    """`localhost` is two addresses on most machines; over IPv6 nobody answers here (RFC 8305)."""
    with socket.socket(socket.AF_INET6, socket.SOCK_DGRAM) as mute:
        mute.bind(("::1", port_of(gateway)))
        transport = ours.AsyncTransport(str(ca_file), http3="only")
        async with family.AsyncClient(transport=transport) as client:
            response = await client.get(f"https://localhost:{port_of(gateway)}/healthz")
        assert response.extensions["network_stream"].get_extra_info("server_addr")[0] == "127.0.0.1"
