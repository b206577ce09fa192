"""What somebody found who tried to break the client; each once, and never again."""

from __future__ import annotations

import asyncio
import os
import signal
import ssl
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

import headrace.httpx2
from headrace import AsyncClient, Server, Trust, dev_certificate
from headrace.client import connect
from headrace.errors import ConfigError, RequestError
from headrace.exchange import Exchange
from headrace.gateway import Gateway
from headrace_lab.model import Source
from tests.helpers.requests import JSON, script
from tests.helpers.serving import config, origin, port_of
from tests.helpers.waiting import eventually

Start = Callable[..., Awaitable[Gateway]]
Serve = Callable[..., Awaitable[Server]]


async def echo(exchange: Exchange) -> None:
    await exchange.answer(200, [], await exchange.body())


async def test_a_body_in_pieces_is_whole_or_an_error_when_its_connection_goes_away(
    certificate: dev_certificate.Certificate, ca_file: Path
) -> None:
    """It waits for credit when the server goes away: no piece may be lost between the two connections."""
    holding = asyncio.Event()

    async def hold(exchange: Exchange) -> None:
        holding.set()
        await exchange.gone()

    def serving(handler: Any, port: int = 0) -> Server:
        settings = config(limits={"max_streams_per_connection": 1}, listen={"port": port})
        return Server(settings, certificate.chain_pem, certificate.key_pem, handler)

    async def pieces() -> Any:
        for piece in (b"AAAA", b"BBBB", b"CCCC"):
            yield piece

    transport = headrace.httpx2.AsyncTransport(str(ca_file), http3="only")
    async with httpx2.AsyncClient(transport=transport) as client:
        async with serving(hold) as first:
            url, port = origin(first), port_of(first)
            held = asyncio.create_task(client.post(url))
            await holding.wait()
            waiting = asyncio.create_task(client.post(url, content=pieces()))
            connection = transport._pool.prewarm(headrace.client.origin.Origin("localhost", port))
            await eventually(lambda: connection.waiting == 1)
            # The connection before the handler: its reset would be the credit that is waited for.
            first.engine.close()
        async with serving(echo, port):
            assert (await waiting).content == b"AAAABBBBCCCC"
        with pytest.raises(httpx2.TransportError):
            await held


def contexts(ca_file: Path) -> Iterator[ssl.SSLContext]:
    yield ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    folder = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    folder.load_verify_locations(capath=str(ca_file.parent))
    yield folder


def test_a_context_whose_trust_cannot_be_read_is_refused(ca_file: Path) -> None:
    """It must never become the trust in whole the system."""
    for context in contexts(ca_file):
        with pytest.raises(ConfigError, match="name a CA file"):
            headrace.httpx2.Transport(context)


@pytest.mark.parametrize("http3", ["only", "alt-svc"])
async def test_a_path_pins_the_ca_for_http3_and_for_tcp(
    gateway: Gateway, ca_file: Path, tmp_path: Path, http3: Any
) -> None:
    other = tmp_path / "other.pem"
    other.write_text(dev_certificate.make(["localhost"]).ca_pem)
    for file, is_right in ((ca_file, True), (other, False)):
        async with httpx2.AsyncClient(transport=headrace.httpx2.AsyncTransport(file, http3=http3)) as client:
            ask = client.get(f"{origin(gateway)}/healthz")
            if is_right:
                assert (await ask).status_code == 200
            else:
                with pytest.raises(httpx2.ConnectError):
                    await ask


GATEWAY = """
import asyncio, sys
from headrace import Config, Server

async def hello(exchange):
    await exchange.answer(200, [], b"hello")

async def main():
    pems = [open(file).read() for file in sys.argv[2:4]]
    async with Server(Config(listen={"port": int(sys.argv[1])}), *pems, hello) as server:
        print(server.address[1], flush=True)
        await asyncio.sleep(60)

asyncio.run(main())
"""


async def test_a_server_that_was_killed_and_is_back_answers_the_next_request(
    certificate: dev_certificate.Certificate, trust: Trust, tmp_path: Path
) -> None:
    """It resets the connection that it does not know (RFC 9000 §10.3): its reset key is made from its own."""
    for name, text in (("chain.pem", certificate.chain_pem), ("key.pem", certificate.key_pem)):
        (tmp_path / name).write_text(text)

    def run(port: str) -> subprocess.Popen[bytes]:
        files = [str(tmp_path / name) for name in ("chain.pem", "key.pem")]
        return subprocess.Popen([sys.executable, "-c", GATEWAY, port, *files], stdout=subprocess.PIPE)

    first = run("0")
    assert first.stdout
    port = (await asyncio.to_thread(first.stdout.readline)).decode().strip()
    async with AsyncClient(trust) as client:
        assert (await client.request("GET", f"https://localhost:{port}/")).status == 200
        first.send_signal(signal.SIGKILL)
        first.wait()
        second = run(port)
        assert second.stdout
        await asyncio.to_thread(second.stdout.readline)
        for _ in range(5):
            try:
                response = await asyncio.wait_for(client.request("GET", f"https://localhost:{port}/"), 5)
                break
            except headrace.errors.ConnectionLostError:
                continue  # The one that learnt of it.
        assert await response.read() == b"hello"
        second.kill()
        second.wait()
    first.stdout.close()
    second.stdout.close()


async def test_answers_that_nobody_reads_do_not_stop_the_others(gateway: Gateway, trust: Trust) -> None:
    async with AsyncClient(trust) as client:
        url = f"{origin(gateway)}/v1/x"
        unread = [
            await client.request("POST", url, JSON, script(events=3000, interval_s=0, size=1000))
            for _ in range(8)
        ]
        whole = await (await client.request("POST", url, JSON, script(events=3, interval_s=0))).read()
        assert whole.endswith(b"data: [DONE]\n\n")
        for response in unread:
            response.stop()


def test_a_child_of_a_fork_may_make_a_client_of_its_own(ca_file: Path, certificate: Any) -> None:
    async def main() -> None:
        async with Server(config(), certificate.chain_pem, certificate.key_pem, echo) as server:
            url = origin(server)

            def ask() -> int:
                with httpx2.Client(transport=headrace.httpx2.Transport(ca_file, http3="only")) as client:
                    return client.post(url, content=b"x", timeout=10).status_code

            assert await asyncio.to_thread(ask) == 200
            child = os.fork()
            if child == 0:
                status = 1
                try:
                    status = 0 if ask() == 200 else 2
                finally:
                    os._exit(status)
            _, status = await asyncio.to_thread(os.waitpid, child, 0)
            assert status == 0

    asyncio.run(main())


@pytest.mark.parametrize(
    ("url", "headers"),
    [
        ("/a b", []),
        ("/ü", []),
        ("/#f", []),
        ("/", [("host", "x")]),
        ("/", [("connection", "close")]),
        ("/", [("te", "gzip")]),
        ("/", [("x", "a\r\nb: c")]),
    ],
)
async def test_a_request_that_must_not_leave_does_not(
    serve: Serve, trust: Trust, url: str, headers: list[tuple[str, str]]
) -> None:
    server = await serve(echo)
    async with await connect(origin(server), trust) as connection:
        if url == "/#f":
            with pytest.raises(RequestError):
                connection.request("GET", url, headers)
            return
        async with AsyncClient(trust) as client:
            with pytest.raises(RequestError):
                await client.request("GET", origin(server) + url, headers)


@pytest.mark.parametrize("extensions", [{"target": b"/a\r\nx: y"}, {"target": b"no slash"}])
async def test_a_target_that_is_none_is_refused(serve: Serve, ca_file: Path, extensions: Any) -> None:
    server = await serve(echo)
    async with httpx2.AsyncClient(transport=headrace.httpx2.AsyncTransport(ca_file, http3="only")) as client:
        with pytest.raises(httpx2.LocalProtocolError):
            await client.get(origin(server), extensions=extensions)
        with pytest.raises(httpx2.LocalProtocolError):
            await client.get(origin(server), headers={"host": "x\r\ny: z"})


async def test_an_answer_whose_body_was_never_asked_for_is_abandoned(
    gateway: Gateway, source: Source, ca_file: Path
) -> None:
    transport = headrace.httpx2.AsyncTransport(ca_file, http3="only", abandon_after=0.2)
    async with httpx2.AsyncClient(transport=transport) as client:
        asked = {"model": "scripted", "script": {"events": 1_000_000, "interval_s": 0.005}}
        request = client.build_request("POST", f"{origin(gateway)}/v1/x", json=asked)
        response = await client.send(request, stream=True)
        await eventually(lambda: source.runs[0].aborted_ns)
        await response.aclose()
    with pytest.raises(ConfigError, match="abandon_after"):
        headrace.httpx2.AsyncTransport(ca_file, abandon_after=0)
    with pytest.raises(ConfigError, match="keep_idle"):
        headrace.httpx2.AsyncTransport(ca_file, keep_idle=0)


async def test_the_end_of_a_process_stops_what_is_generated_for_it(
    gateway: Gateway, source: Source, ca_file: Path
) -> None:
    code = (
        "import sys, threading, time, httpx2, headrace.httpx2\n"
        "client = httpx2.Client(transport=headrace.httpx2.Transport(sys.argv[2], http3='only'))\n"
        "asked = {'model': 'scripted', 'script': {'events': 1000000, 'interval_s': 0.01}}\n"
        "def read():\n"
        "    with client.stream('POST', sys.argv[1], json=asked) as response:\n"
        "        for _ in response.iter_raw(): pass\n"
        "threading.Thread(target=read, daemon=True).start()\n"
        "time.sleep(0.5)\n"
    )
    arguments = [sys.executable, "-c", code, f"{origin(gateway)}/v1/x", str(ca_file)]
    assert await asyncio.to_thread(subprocess.call, arguments) == 0
    await eventually(lambda: source.runs and source.runs[0].aborted_ns)


async def test_a_client_that_is_used_is_not_closed_as_idle(serve: Serve, ca_file: Path) -> None:
    server = await serve(echo)
    transport = headrace.httpx2.AsyncTransport(ca_file, http3="only", keep_idle=0.4)
    async with httpx2.AsyncClient(transport=transport) as client:
        await client.get(origin(server))
        for _ in range(20):
            await asyncio.sleep(0.05)
            assert (await client.get(origin(server))).extensions["headrace"].is_connection_reused
        await asyncio.sleep(0.6)
        assert not (await client.get(origin(server))).extensions["headrace"].is_connection_reused


async def test_credit_is_given_back_stream_by_stream(start: Start, trust: Trust) -> None:
    """quinn alone keeps it back until an eighth of the limit is due."""
    async with Source() as source:
        gateway = await start(source, limits={"max_streams_per_connection": 16})
        async with await connect(origin(gateway), trust) as connection:
            silent = script(events=1, head_delay_s=60)
            held = [connection.request("POST", "/v1/x", JSON, silent) for _ in range(15)]
            await eventually(lambda: len(source.runs) == 15)
            for _ in range(20):
                body = await connection.request("POST", "/v1/x", JSON, script(events=1, interval_s=0)).read()
                assert body
            for response in held:
                response.stop()
