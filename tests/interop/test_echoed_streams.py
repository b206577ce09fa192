"""A thousand streams on connections whose packets all come twice or thrice: no client complains."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import shutil
import ssl
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from aioquic.asyncio.client import connect
from aioquic.asyncio.protocol import QuicConnectionProtocol
from aioquic.h3.connection import H3_ALPN, H3Connection
from aioquic.h3.events import DataReceived
from aioquic.quic.configuration import QuicConfiguration
from aioquic.quic.events import ConnectionTerminated, QuicEvent, StreamReset

from headrace import Server, dev_certificate
from headrace.exchange import Exchange
from headrace.gateway import Gateway
from headrace_lab.model import Source
from tests.helpers.requests import PATH, script
from tests.helpers.serving import origin, port_of
from tests.interop.test_clients import quicgo, run

__all__ = ["quicgo"]

Start = Callable[..., Awaitable[Gateway]]
Serve = Callable[..., Awaitable[Server]]

STREAMS = 1_000
AT_ONCE = 50
"""Below the hundred streams that a connection may have."""
BODY = script(events=3, interval_s=0.005)


@pytest.fixture
async def gateway(source: Source, start: Start) -> Gateway:
    return await start(source, echo={"mode": "on"}, listen={"workers": 1})


def check(gateway: Gateway, source: Source) -> None:
    """On one connection, which was echoed all the time."""
    counts = gateway.server.snapshot()
    assert len(source.runs) == STREAMS
    assert counts["connections_total"] <= 2, "one may be begun before the first is there; none is given up"
    assert counts["breaches_total"] == 0
    assert counts["echo_copies_total"] > STREAMS // 4, "batches count as one"


class Client(QuicConnectionProtocol):
    """aioquic's HTTP/3."""

    def __init__(self, *args: object, **kwargs: object) -> None:
        super().__init__(*args, **kwargs)  # type: ignore[arg-type]
        self.http = H3Connection(self._quic)
        self.answers: dict[int, tuple[bytearray, asyncio.Event]] = {}
        self.errors: list[QuicEvent] = []

    def quic_event_received(self, event: QuicEvent) -> None:
        if isinstance(event, ConnectionTerminated | StreamReset):
            self.errors.append(event)
        for http_event in self.http.handle_event(event):
            answer = self.answers.get(getattr(http_event, "stream_id", -1))
            if isinstance(http_event, DataReceived) and answer:
                answer[0].extend(http_event.data)
            if getattr(http_event, "stream_ended", False) and answer:
                answer[1].set()

    async def post(self) -> bytes:
        stream = self._quic.get_next_available_stream_id()
        body, ended = self.answers[stream] = bytearray(), asyncio.Event()
        head = {":method": "POST", ":scheme": "https", ":authority": "localhost", ":path": PATH}
        head |= {"content-type": "application/json"}
        self.http.send_headers(stream, [(name.encode(), value.encode()) for name, value in head.items()])
        self.http.send_data(stream, BODY, end_stream=True)
        self.transmit()
        await asyncio.wait_for(ended.wait(), 20)
        return bytes(body)


async def test_aioquic(gateway: Gateway, source: Source) -> None:
    configuration = QuicConfiguration(is_client=True, alpn_protocols=H3_ALPN, server_name="localhost")
    configuration.verify_mode = ssl.CERT_NONE
    port = port_of(gateway)
    async with connect("127.0.0.1", port, configuration=configuration, create_protocol=Client) as client:
        assert isinstance(client, Client)
        for _ in range(STREAMS // AT_ONCE):
            answers = await asyncio.gather(*(client.post() for _ in range(AT_ONCE)))
            assert all(answer.endswith(b"data: [DONE]\n\n") for answer in answers)
        assert client.errors == []
    check(gateway, source)


async def test_quic_go(quicgo: Path, gateway: Gateway, source: Source, ca_file: Path) -> None:
    url, many = origin(gateway) + PATH, f"streams={STREAMS},{AT_ONCE}"
    status, _, said = await run(quicgo, str(ca_file), url, many, body=BODY)
    assert status == 0, said
    assert json.loads(said) == {"proto": "HTTP/3.0", "whole": STREAMS}
    check(gateway, source)


PAGE = """<!doctype html><script>
performance.setResourceTimingBufferSize(5000)
let left = STREAMS, whole = 0, errors = []
async function worker() {
  while (left-- > 0) {
    try {
      const answer = await fetch("/tokens?" + left, {cache: "no-store"})
      if ((await answer.text()) === "token ".repeat(3)) whole++
    } catch (error) { errors.push(String(error)) }
  }
}
Promise.all(Array.from({length: AT_ONCE}, worker)).then(() => {
  const seen = performance.getEntriesByType("resource").filter(entry => entry.name.includes("/tokens?"))
  const h3 = seen.filter(entry => entry.nextHopProtocol === "h3").length
  fetch("/seen", {method: "POST", body: JSON.stringify({whole, errors, h3})})
})
</script>"""


def public_key_hash(certificate: dev_certificate.Certificate) -> str:
    """As Chromium wants it, to trust a certificate for one run."""
    from cryptography import x509
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

    leaf = x509.load_pem_x509_certificate(certificate.chain_pem.encode())
    key = leaf.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    return base64.b64encode(hashlib.sha256(key).digest()).decode()


async def test_chromium(serve: Serve, certificate: dev_certificate.Certificate, tmp_path: Path) -> None:
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    if chromium is None:
        pytest.skip("chromium is not installed")
    page = PAGE.replace("AT_ONCE", str(AT_ONCE)).replace("STREAMS", str(STREAMS))
    seen: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

    async def handle(exchange: Exchange) -> None:
        match exchange.request.path:
            case "/":
                await exchange.answer(200, [("content-type", "text/html")], page.encode())
            case "/tokens":
                await exchange.respond(200, [("content-type", "text/plain")])
                for _ in range(3):
                    await exchange.send(b"token ")
                    await asyncio.sleep(0.005)
                await exchange.finish()
            case "/seen":
                if not seen.done():
                    seen.set_result(await exchange.body())
                await exchange.answer(200, [], b"")
            case _:
                await exchange.answer(404, [], b"")

    server = await serve(handle, echo={"mode": "on"}, listen={"workers": 1})
    address = f"localhost:{server.address[1]}"
    command = [chromium, "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path}"]
    command += [f"--origin-to-force-quic-on={address}"]
    command += [f"--ignore-certificate-errors-spki-list={public_key_hash(certificate)}"]
    command += ["--host-resolver-rules=MAP localhost 127.0.0.1", f"https://{address}/"]
    quiet = asyncio.subprocess.DEVNULL
    browser = await asyncio.create_subprocess_exec(*command, stdout=quiet, stderr=quiet)
    try:
        said = json.loads(await asyncio.wait_for(seen, 60))
    finally:
        browser.terminate()
        await browser.wait()
    assert said == {"whole": STREAMS, "errors": [], "h3": STREAMS}
    counts = server.snapshot()
    assert counts["connections_total"] <= 2, "one may be begun before the first is there; none is given up"
    assert counts["breaches_total"] == 0
    assert counts["echo_copies_total"] > STREAMS // 4, "batches count as one"
