"""Peers that vanish without a word: killed clients, killed gateways, radios that pause."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from headrace.client import Connection, Trust, connect
from headrace.dev_certificate import Certificate
from headrace.errors import ConnectionLostError
from headrace.gateway import Gateway
from headrace_lab.model import Source
from tests.helpers.answers import is_whole
from tests.helpers.raw_peer import DATA, HEADERS, frame, post, section
from tests.helpers.raw_peer import dial as raw_dial
from tests.helpers.requests import JSON, PATH, script
from tests.helpers.serving import origin, port_of
from tests.helpers.udp_relay import UdpRelay
from tests.helpers.waiting import eventually

Start = Callable[..., Awaitable[Gateway]]
Dial = Callable[..., Awaitable[Connection]]

ENDLESS = {"events": 100_000, "interval_s": 0.02}
KEYED = [*JSON, ("idempotency-key", "one")]

CLIENT = """
import asyncio, sys
from pathlib import Path
from headrace.client import Trust, connect

async def main():
    origin, ca_file, path, body = sys.argv[1:]
    connection = await connect(origin, Trust(Path(ca_file)))
    response = connection.request("POST", path, [("content-type", "application/json")], body.encode())
    async for _ in response.chunks():
        print("token", flush=True)

asyncio.run(main())
"""

GATEWAY = """
import asyncio, sys
from types import SimpleNamespace
from headrace.gateway import Gateway
from tests.helpers.serving import config, port_of

async def main():
    chain, key = sys.stdin.read().split("\\0")
    model = SimpleNamespace(url=sys.argv[1], models=["scripted"])
    async with Gateway(config(model), chain, key) as gateway:
        print(port_of(gateway), flush=True)
        await asyncio.sleep(60)

asyncio.run(main())
"""


@contextlib.asynccontextmanager
async def client_process(gateway: Gateway, ca_file: Path) -> AsyncIterator[subprocess.Popen[str]]:
    """A client in a process of its own, once the first token is there."""
    arguments = [origin(gateway), str(ca_file), PATH, script(**ENDLESS).decode()]
    with subprocess.Popen(
        [sys.executable, "-c", CLIENT, *arguments], stdout=subprocess.PIPE, text=True
    ) as client:
        assert client.stdout is not None
        assert await asyncio.to_thread(client.stdout.readline) == "token\n"
        yield client


async def test_a_client_that_is_told_to_end_says_goodbye(
    source: Source, gateway: Gateway, ca_file: Path
) -> None:
    """SIGTERM, of which it knows nothing: the generation ends with it, and it ends as without us."""
    async with client_process(gateway, ca_file) as client:
        client.send_signal(signal.SIGTERM)
        assert await asyncio.to_thread(client.wait, 10) == -signal.SIGTERM
    await eventually(lambda: source.runs[0].aborted_ns)
    assert gateway.server.snapshot()["connections"] == 0, "it was closed, not found to be gone"


async def test_a_killed_client_ends_its_generation(source: Source, gateway: Gateway, ca_file: Path) -> None:
    """Long before its connection would be idle for too long."""
    async with client_process(gateway, ca_file) as client:
        client.kill()
    await eventually(lambda: source.runs[0].aborted_ns)
    assert gateway.server.snapshot()["connections"] == 1, "it may still come back"


async def test_a_killed_gateway_is_noticed(source: Source, certificate: Certificate, ca_file: Path) -> None:
    """Long before the connection would be idle for too long."""
    with subprocess.Popen(
        [sys.executable, "-c", GATEWAY, source.url],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[3],
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(f"{certificate.chain_pem}\0{certificate.key_pem}")
        process.stdin.close()
        port = int(await asyncio.to_thread(process.stdout.readline))
        async with await connect(f"https://localhost:{port}", Trust(ca_file)) as connection:
            response = connection.request("POST", PATH, JSON, script(**ENDLESS))
            chunks = response.chunks()
            await anext(chunks)
            process.kill()
            with pytest.raises(ConnectionLostError):
                async with asyncio.timeout(10):
                    async for _ in chunks:
                        pass


async def test_a_client_without_a_word_is_lost_after_a_while(source: Source, start: Start) -> None:
    """Nothing tells that it is gone but that it acknowledges nothing."""
    gateway = await start(source, timeouts={"suspect_s": 0.3})
    async with raw_dial(port_of(gateway)) as peer:
        peer.start_control()
        stream = peer.bidi(frame(HEADERS, section(*post())) + frame(DATA, script(**ENDLESS)), end=True)
        await peer.until(lambda: stream in peer.data)
        send = peer._quic.datagrams_to_send
        peer._quic.datagrams_to_send = lambda now: []  # type: ignore[method-assign]
        await eventually(lambda: source.runs[0].aborted_ns)
        await eventually(lambda: gateway.server.snapshot()["exchanges"] == 0)
        # It comes back: its answer is lost, its connection is not.
        peer._quic.datagrams_to_send = send  # type: ignore[method-assign]
        await peer.until_over(stream)
        assert stream in peer.resets
        assert peer.closed is None


async def test_a_radio_that_pauses_loses_no_answer_that_has_a_key(
    source: Source, start: Start, trust: Trust
) -> None:
    """The pause is longer than it takes to be suspect; the answer goes on where it was, on its stream."""
    gateway = await start(source, timeouts={"suspect_s": 0.3}, idempotency={"lost_s": 20})
    async with (
        UdpRelay(port_of(gateway)) as relay,
        await connect(f"https://localhost:{relay.port}", trust) as radio,
    ):
        response = radio.request("POST", PATH, KEYED, script(events=150, interval_s=0.01))
        await response.head()
        await eventually(lambda: len(response.arrivals) > 5)
        with relay.paused():
            await asyncio.sleep(1.2)
            assert source.running(), "it is kept for the client"
        assert is_whole(await response.read(), 150)
    assert len(source.runs) == 1


async def test_a_client_with_a_key_that_stays_away_ends_its_generation(source: Source, start: Start) -> None:
    """The grace time begins when it falls silent."""
    gateway = await start(source, timeouts={"suspect_s": 0.3}, idempotency={"lost_s": 0.3})
    async with raw_dial(port_of(gateway)) as peer:
        peer.start_control()
        fields = (*post(), (b"idempotency-key", b"one"))
        stream = peer.bidi(frame(HEADERS, section(*fields)) + frame(DATA, script(**ENDLESS)), end=True)
        await peer.until(lambda: stream in peer.data)
        peer._quic.datagrams_to_send = lambda now: []  # type: ignore[method-assign]
        await eventually(lambda: source.runs[0].aborted_ns)


@pytest.mark.parametrize("idle_s", [0.6, 1.5])
async def test_a_client_with_a_short_idle_timeout_outlasts_a_silent_prefill(
    idle_s: float, source: Source, gateway: Gateway
) -> None:
    """The connection is kept alive by the shorter timeout of the two (RFC 9000 §10.1)."""
    async with raw_dial(port_of(gateway), idle_timeout=idle_s) as peer:
        peer.start_control()
        body = script(events=3, head_delay_s=3 * idle_s, interval_s=0.001)
        stream = peer.bidi(frame(HEADERS, section(*post())) + frame(DATA, body), end=True)
        await peer.until_over(stream)
        assert stream in peer.ended
    with contextlib.suppress(ConnectionError):
        await peer.wait_closed()
