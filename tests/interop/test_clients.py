"""Clients of other people, over real sockets: each streams a whole answer with equal bytes."""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from headrace.gateway import Gateway
from headrace_lab.model import Source
from tests.helpers.answers import expected
from tests.helpers.requests import JSON, PATH, script
from tests.helpers.serving import httpx_client, origin, port_of

Start = Callable[..., Awaitable[Gateway]]

FIELDS = {"events": 100, "interval_s": 0.002}


@pytest.fixture
async def gateway(source: Source, start: Start) -> Gateway:
    """Whose packets all come twice or thrice: no client minds."""
    return await start(source, echo={"mode": "on"})


def check(body: bytes) -> None:
    assert body == expected(body, **FIELDS)


def data_frames(answer: bytes) -> list[int]:
    """The lengths of the DATA frames of a request stream (RFC 9114 §7.1)."""
    from aioquic.buffer import Buffer
    from aioquic.h3.connection import FrameType

    wire, lengths = Buffer(data=answer), []
    while not wire.eof():
        kind, length = wire.pull_uint_var(), wire.pull_uint_var()
        wire.pull_bytes(length)
        if kind == FrameType.DATA:
            lengths.append(length)
    return lengths


async def test_aioquic_and_its_decoder_see_one_data_frame_per_event(gateway: Gateway) -> None:
    """aioquic's own HTTP/3, not ours; and the frames on the wire counted by it."""
    import ssl

    from aioquic.asyncio.client import connect
    from aioquic.asyncio.protocol import QuicConnectionProtocol
    from aioquic.h3.connection import H3_ALPN, H3Connection
    from aioquic.h3.events import DataReceived, HeadersReceived
    from aioquic.quic.configuration import QuicConfiguration
    from aioquic.quic.events import QuicEvent, StreamDataReceived

    class Client(QuicConnectionProtocol):
        def __init__(self, *args: object, **kwargs: object) -> None:
            super().__init__(*args, **kwargs)  # type: ignore[arg-type]
            self.http = H3Connection(self._quic)
            self.wire = b""
            self.body, self.status, self.ended = b"", 0, asyncio.Event()

        def quic_event_received(self, event: QuicEvent) -> None:
            if isinstance(event, StreamDataReceived) and event.stream_id == 0:
                self.wire += event.data
            for http_event in self.http.handle_event(event):
                if isinstance(http_event, HeadersReceived):
                    self.status = int(dict(http_event.headers)[b":status"])
                if isinstance(http_event, DataReceived):
                    self.body += http_event.data
                if http_event.stream_ended:  # type: ignore[attr-defined]
                    self.ended.set()

    configuration = QuicConfiguration(is_client=True, alpn_protocols=H3_ALPN, server_name="localhost")
    configuration.verify_mode = ssl.CERT_NONE
    async with connect(
        "127.0.0.1", port_of(gateway), configuration=configuration, create_protocol=Client
    ) as client:
        assert isinstance(client, Client)
        stream = client._quic.get_next_available_stream_id()
        head = [
            (b":method", b"POST"),
            (b":scheme", b"https"),
            (b":authority", b"localhost"),
            (b":path", PATH.encode()),
        ]
        client.http.send_headers(stream, [*head, (b"content-type", b"application/json")])
        client.http.send_data(stream, script(**FIELDS), end_stream=True)
        client.transmit()
        await asyncio.wait_for(client.ended.wait(), 20)
        assert client.status == 200
        check(client.body)
    assert data_frames(client.wire) == [190] * 100 + [14]
    assert gateway.server.snapshot()["echo_copies_total"] > 0


async def test_qh3(gateway: Gateway) -> None:
    import ssl

    from qh3.asyncio.client import connect
    from qh3.asyncio.protocol import QuicConnectionProtocol
    from qh3.h3.connection import H3_ALPN, H3Connection
    from qh3.h3.events import DataReceived
    from qh3.quic.configuration import QuicConfiguration

    class Client(QuicConnectionProtocol):
        def __init__(self, *args: object, **kwargs: object) -> None:
            super().__init__(*args, **kwargs)  # type: ignore[arg-type]
            self.http = H3Connection(self._quic)
            self.body, self.ended = b"", asyncio.Event()

        def quic_event_received(self, event: object) -> None:
            for http_event in self.http.handle_event(event):  # type: ignore[arg-type]
                if isinstance(http_event, DataReceived):
                    self.body += http_event.data
                    if http_event.stream_ended:
                        self.ended.set()

    configuration = QuicConfiguration(is_client=True, alpn_protocols=H3_ALPN, server_name="localhost")
    configuration.verify_mode = ssl.CERT_NONE
    async with connect(
        "127.0.0.1", port_of(gateway), configuration=configuration, create_protocol=Client
    ) as client:
        stream = client._quic.get_next_available_stream_id()
        head = [
            (b":method", b"POST"),
            (b":scheme", b"https"),
            (b":authority", b"localhost"),
            (b":path", PATH.encode()),
        ]
        client.http.send_headers(stream, [*head, (b"content-type", b"application/json")])  # type: ignore[attr-defined]
        client.http.send_data(stream, script(**FIELDS), end_stream=True)  # type: ignore[attr-defined]
        client.transmit()
        await asyncio.wait_for(client.ended.wait(), 20)  # type: ignore[attr-defined]
        check(client.body)  # type: ignore[attr-defined]


async def test_curl_cffi_over_http3(gateway: Gateway, ca_file: Path) -> None:
    """libcurl with ngtcp2 and nghttp3, BoringSSL: HTTP/3 only, no falling back."""
    from curl_cffi import CurlHttpVersion
    from curl_cffi.requests import AsyncSession

    async with AsyncSession(verify=str(ca_file)) as session:
        answer = await session.post(
            origin(gateway) + PATH,
            data=script(**FIELDS),
            headers=dict(JSON),
            http_version=CurlHttpVersion.V3ONLY,
            stream=True,
        )
        body = b""
        async for chunk in answer.aiter_content():
            body += chunk
        assert answer.http_version == CurlHttpVersion.V3
        check(body)


@pytest.mark.parametrize("version", ["--http1.1", "--http2"])
async def test_curl(version: str, gateway: Gateway, ca_file: Path) -> None:
    curl = shutil.which("curl")
    if curl is None:
        pytest.skip("curl is not installed")
    command = [curl, "-sN", version, "--cacert", str(ca_file), "-H", "content-type: application/json"]
    command += ["--data-binary", script(**FIELDS).decode(), origin(gateway) + PATH]
    process = await asyncio.create_subprocess_exec(*command, stdout=subprocess.PIPE)
    body, _ = await process.communicate()
    assert process.returncode == 0
    check(body)


@pytest.mark.parametrize("http2", [True, False])
async def test_the_openai_sdk_over_tcp(http2: bool, source: Source, gateway: Gateway, ca_file: Path) -> None:
    import openai

    async with httpx_client(ca_file, http2) as client:
        sdk = openai.AsyncOpenAI(base_url=f"{origin(gateway)}/v1", api_key="any", http_client=client)
        stream = await sdk.chat.completions.create(
            model="scripted",
            messages=[{"role": "user", "content": "hi"}],
            stream=True,
            extra_body={"script": FIELDS},
        )
        text = [chunk.choices[0].delta.content async for chunk in stream]
        assert text == [f" t{number}" for number in range(100)]
        listed = [model.id async for model in sdk.models.list()]
        assert listed == ["scripted"]
        with pytest.raises(openai.NotFoundError, match="no upstream serves the model 'nope'"):
            await sdk.chat.completions.create(model="nope", messages=[], stream=True)
        broken = await sdk.chat.completions.create(
            model="scripted",
            messages=[],
            stream=True,
            extra_body={"script": {"events": 3, "interval_s": 0.001, "end": "die"}},
        )
        with pytest.raises(openai.APIError, match="the upstream closed the connection"):
            async for _ in broken:
                pass


@pytest.fixture(scope="session")
def quicgo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """quic-go's client, built once."""
    go = shutil.which("go")
    if go is None:
        pytest.skip("go is not installed")
    binary = tmp_path_factory.mktemp("quicgo") / "client"
    folder = Path(__file__).parent / "quicgo"
    built = subprocess.run([go, "build", "-o", str(binary), "."], cwd=folder, capture_output=True, text=True)
    assert built.returncode == 0, built.stderr
    return binary


async def run(binary: Path, *arguments: str, body: bytes) -> tuple[int, bytes, str]:
    process = await asyncio.create_subprocess_exec(
        str(binary), *arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    out, error = await asyncio.wait_for(process.communicate(body), 60)
    assert process.returncode is not None
    return process.returncode, out, error.decode()


async def test_quic_go(quicgo: Path, gateway: Gateway, ca_file: Path) -> None:
    status, body, said = await run(quicgo, str(ca_file), origin(gateway) + PATH, body=script(**FIELDS))
    assert status == 0, said
    assert json.loads(said)["proto"] == "HTTP/3.0"
    check(body)


async def test_quic_go_is_told_when_an_answer_breaks_off(
    quicgo: Path, gateway: Gateway, ca_file: Path
) -> None:
    body = script(events=5, interval_s=0.001, end="die")
    status, got, said = await run(quicgo, str(ca_file), origin(gateway) + PATH, body=body)
    assert status == 3
    assert "H3_INTERNAL_ERROR" in said
    assert got.count(b'"n":') == 5
    assert b"event: error" in got


async def test_quic_go_cancels_one_stream(
    quicgo: Path, source: Source, gateway: Gateway, ca_file: Path
) -> None:
    """Go's context cancels: the upstream is closed, the connection serves the next request."""
    body = script(events=100_000, interval_s=0.002)
    status, _, said = await run(quicgo, str(ca_file), origin(gateway) + PATH, "cancel-after=20", body=body)
    assert status == 0, said
    assert json.loads(said)["next"] == 200
    from tests.helpers.waiting import eventually

    await eventually(lambda: source.runs[0].aborted_ns)
