"""The transports for httpx and httpx2: how an answer comes, over HTTP/3 or TCP, sync and async."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx
import httpx2
import pytest

import headrace.httpx
import headrace.httpx2
from headrace import AsyncClient, Client, Server, Trust
from headrace.exchange import Exchange
from headrace.gateway import Gateway
from headrace_lab.model import Script, Source
from tests.helpers.requests import JSON, script
from tests.helpers.serving import origin, port_of
from tests.helpers.udp_relay import mute_udp

Start = Callable[..., Awaitable[Gateway]]
Serve = Callable[..., Awaitable[Server]]
FAMILIES = [(httpx2, headrace.httpx2), (httpx, headrace.httpx)]
BODY = {"model": "scripted", "stream": True, "script": {"events": 5, "interval_s": 0}}

PLAIN = {"model": "scripted"}
BODY_SCRIPT = Script(events=5, interval_s=0.01)
SILENT = Script(events=5, head_delay_s=60)

each_family = pytest.mark.parametrize(("family", "ours"), FAMILIES, ids=["httpx2", "httpx"])


async def echo(exchange: Exchange) -> None:
    """Answers with what it was asked."""
    body = await exchange.body()
    asked = exchange.request
    text = json.dumps([asked.method, asked.target, asked.authority, asked.headers, body.decode()])
    await exchange.answer(200, [("content-type", "application/json")], text.encode())


def in_thread(call: Callable[[], Any]) -> Awaitable[Any]:
    return asyncio.to_thread(call)


@each_family
async def test_an_answer_is_whole_and_says_how_it_came(
    gateway: Gateway, ca_file: Path, family: Any, ours: Any
) -> None:
    transport = ours.AsyncTransport(str(ca_file), http3="only")
    async with family.AsyncClient(transport=transport) as client:
        first = await client.post(f"{origin(gateway)}/v1/chat/completions", json=BODY)
        second = await client.post(f"{origin(gateway)}/v1/chat/completions", json=BODY)
    for response in (first, second):
        assert response.status_code == 200
        assert response.http_version == "HTTP/3"
        assert response.content.endswith(b"data: [DONE]\n\n")
        stats = response.extensions["headrace"]
        assert len(stats.arrivals) == 6
        assert sum(size for _, size in stats.arrivals) == len(response.content)
        assert stats.path["rtt"] > 0
        stream = response.extensions["network_stream"]
        assert stream.get_extra_info("server_addr") == ("127.0.0.1", port_of(gateway))
        assert stream.get_extra_info("client_addr")[0] == "127.0.0.1"
        assert stream.get_extra_info("client_addr")[1] > 0
        assert stream.get_extra_info("ssl_object") is None
    assert not first.extensions["headrace"].is_connection_reused
    assert second.extensions["headrace"].is_connection_reused
    assert second.extensions["stream_id"] == first.extensions["stream_id"] + 4


@each_family
async def test_the_sync_transport_does_the_same(
    gateway: Gateway, ca_file: Path, family: Any, ours: Any
) -> None:
    def ask() -> list[Any]:
        with family.Client(transport=ours.Transport(str(ca_file), http3="only")) as client:
            return [client.post(f"{origin(gateway)}/v1/chat/completions", json=BODY) for _ in range(2)]

    first, second = await in_thread(ask)
    assert first.http_version == second.http_version == "HTTP/3"
    assert len(first.content) == len(second.content)
    assert second.extensions["headrace"].is_connection_reused


@each_family
async def test_what_is_asked_arrives(serve: Serve, ca_file: Path, family: Any, ours: Any) -> None:
    server = await serve(echo)
    transport = ours.AsyncTransport(str(ca_file), http3="only")
    async with family.AsyncClient(transport=transport) as client:
        response = await client.request(
            "PUT",
            f"{origin(server)}/a%20b/?q=1&q=%C3%A9",
            headers=[
                ("X-Twice", "1"),
                ("X-Twice", "2"),
                ("Connection", "keep-alive"),
                ("Host", "other.example"),
            ],
            content="é".encode(),
        )
    method, path, authority, headers, body = response.json()
    assert (method, path, authority, body) == ("PUT", "/a%20b/?q=1&q=%C3%A9", "other.example", "é")
    assert [value for name, value in headers if name == "x-twice"] == ["1", "2"]
    assert not {"connection", "host"} & {name for name, _ in headers}


@each_family
@pytest.mark.parametrize("size", [0, 1, 64 * 1024, 300_000])
async def test_a_body_arrives_whole_or_in_pieces(
    serve: Serve, ca_file: Path, family: Any, ours: Any, size: int
) -> None:
    async def length(exchange: Exchange) -> None:
        await exchange.answer(200, [], str(len(await exchange.body())).encode())

    server = await serve(length)
    whole = b"x" * size

    async def pieces() -> AsyncIterator[bytes]:
        for at in range(0, size, 1000):
            yield whole[at : at + 1000]

    async with family.AsyncClient(transport=ours.AsyncTransport(str(ca_file), http3="only")) as client:
        for content in (whole, pieces()):
            assert (await client.post(origin(server), content=content)).text == str(size)

    def ask() -> list[str]:
        with family.Client(transport=ours.Transport(str(ca_file), http3="only")) as client:
            contents = (whole, (whole[at : at + 1000] for at in range(0, size, 1000)))
            return [client.post(origin(server), content=content).text for content in contents]

    assert await in_thread(ask) == [str(size)] * 2


@each_family
async def test_one_transport_serves_many_loops_and_a_pool_many_threads(
    gateway: Gateway, ca_file: Path, family: Any, ours: Any
) -> None:
    transport = ours.AsyncTransport(str(ca_file), http3="only")

    async def ask() -> Any:
        request = family.Request("POST", f"{origin(gateway)}/v1/chat/completions", json=BODY)
        response = await transport.handle_async_request(request)
        return [part async for part in response.stream]

    def other_loop() -> Any:
        return asyncio.run(ask())

    assert len(b"".join(await ask())) == len(b"".join(await in_thread(other_loop))) > 0
    with family.Client(transport=ours.Transport(str(ca_file), http3="only")) as client:

        def one() -> Any:
            return client.post(f"{origin(gateway)}/v1/chat/completions", json=BODY).extensions["stream_id"]

        ids = await asyncio.gather(*(in_thread(one) for _ in range(20)))
    assert sorted(ids) == list(range(0, 80, 4))
    await transport.aclose()


@each_family
async def test_prewarming_makes_the_connection(
    gateway: Gateway, ca_file: Path, family: Any, ours: Any
) -> None:
    transport = ours.AsyncTransport(str(ca_file))
    await transport.prewarm(origin(gateway))
    async with family.AsyncClient(transport=transport) as client:
        response = await client.post(f"{origin(gateway)}/v1/chat/completions", json=BODY)
    assert response.extensions["headrace"].is_connection_reused
    nowhere = ours.AsyncTransport(str(ca_file))
    with mute_udp() as port, pytest.raises(family.ConnectTimeout):
        await nowhere.prewarm(f"https://localhost:{port}", timeout=0.05)
    await nowhere.aclose()


@each_family
async def test_trace_tells_the_steps(gateway: Gateway, ca_file: Path, family: Any, ours: Any) -> None:
    names: list[str] = []

    async def trace(name: str, info: dict[str, Any]) -> None:
        names.append(name)

    async with family.AsyncClient(transport=ours.AsyncTransport(str(ca_file), http3="only")) as client:
        url = f"{origin(gateway)}/v1/chat/completions"
        await client.post(url, json=BODY, extensions={"trace": trace})
    assert names == [
        "connection.connect_quic.started",
        "connection.connect_quic.complete",
        "http3.receive_response_headers.started",
        "http3.receive_response_headers.complete",
    ]


async def test_streams_beyond_the_servers_limit_wait_their_turn(start: Start, ca_file: Path) -> None:
    source = Source(default=BODY_SCRIPT)
    async with source:
        gateway = await start(source, limits={"max_streams_per_connection": 100})
        transport = headrace.httpx2.AsyncTransport(str(ca_file), http3="only")
        opened: list[int] = []
        async with httpx2.AsyncClient(transport=transport, timeout=30) as client:

            async def one() -> bytes:
                async with client.stream(
                    "POST", f"{origin(gateway)}/v1/x", json={"model": "scripted"}
                ) as response:
                    opened.append(response.extensions["stream_id"])
                    return b"".join([part async for part in response.aiter_raw()])

            bodies = await asyncio.gather(*(one() for _ in range(200)))
    assert len({len(body) for body in bodies}) == 1
    assert sorted(opened) == list(range(0, 800, 4))


async def test_further_connections_are_made_when_that_is_asked_for(start: Start, ca_file: Path) -> None:
    async with Source(default=BODY_SCRIPT) as source:
        gateway = await start(source, limits={"max_streams_per_connection": 10})
        transport = headrace.httpx2.AsyncTransport(str(ca_file), http3="only", max_connections_per_origin=3)
        used = set()
        async with httpx2.AsyncClient(transport=transport, timeout=30) as client:
            await transport.prewarm(origin(gateway))

            async def one(number: int) -> None:
                await asyncio.sleep(number * 0.002)
                async with client.stream(
                    "POST", f"{origin(gateway)}/v1/x", json={"model": "scripted"}
                ) as response:
                    used.add(response.extensions["network_stream"].get_extra_info("client_addr"))
                    await response.aread()

            await asyncio.gather(*(one(number) for number in range(60)))
    assert len(used) == 3


async def test_our_own_client_streams_sync_and_async(gateway: Gateway, trust: Trust) -> None:
    url, body = f"{origin(gateway)}/v1/chat/completions", script(events=5, interval_s=0)
    async with AsyncClient(trust) as client:
        response = await client.request("POST", url, JSON, body)
        assert response.status == 200
        chunks = [chunk async for batch in response.chunks() for chunk in batch]
        assert len(response.arrivals) == 6

    def ask() -> bytes:
        with Client(trust) as client:
            return client.request("POST", url, JSON, body).read()

    whole = b"".join(chunk.data for chunk in chunks)
    assert len(await in_thread(ask)) == len(whole)
    assert whole.endswith(b"data: [DONE]\n\n")


async def test_a_sync_wait_ends_by_ctrl_c(start: Start, ca_file: Path) -> None:
    """The waiting thread looks for signals; here in a process of its own, whose main thread waits."""
    import signal
    import sys

    source = Source(default=SILENT)
    async with source:
        gateway = await start(source)
        code = (
            "import sys, headrace; from pathlib import Path\n"
            "client = headrace.Client(headrace.Trust(Path(sys.argv[2])))\n"
            "print('asking', flush=True)\n"
            "client.request('POST', sys.argv[1], [], b'{\"model\": \"scripted\"}')"
        )
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-c",
            code,
            f"{origin(gateway)}/v1/x",
            str(ca_file),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        assert process.stdout
        await process.stdout.readline()
        while not source.runs:
            await asyncio.sleep(0.01)
        process.send_signal(signal.SIGINT)
        _, errors = await process.communicate()
        assert errors.endswith(b"KeyboardInterrupt\n")
        while source.runs[0].aborted_ns is None:
            await asyncio.sleep(0.01)
