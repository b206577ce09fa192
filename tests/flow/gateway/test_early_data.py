"""Early data (0-RTT): a client that comes back asks in its first flight, and nothing is generated twice."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

import headrace
from headrace import AsyncClient, Config, Trust, dev_certificate
from headrace.client import connect
from headrace.exchange import Exchange
from headrace.gateway import Gateway
from headrace.server import Server
from headrace_lab.model import Source
from tests.helpers.requests import JSON, script
from tests.helpers.serving import origin
from tests.helpers.udp_relay import UdpRelay, mute_udp
from tests.helpers.waiting import eventually

Start = Callable[..., Awaitable[Gateway]]
Serve = Callable[..., Awaitable[Server]]
KEYED = [*JSON, ("idempotency-key", "one")]
BODY = script(events=3, interval_s=0.001)


async def come_back(client: AsyncClient, server: Gateway | Server | str) -> None:
    """Leaves with a ticket, so that the next request finds no connection and an early way."""
    at = server if isinstance(server, str) else origin(server)
    response = await client.request("GET", f"{at}/healthz")
    await response.read()
    # The tickets come after the handshake.
    await asyncio.sleep(0.1)
    leave(client)


def leave(client: AsyncClient) -> None:
    """Closes the client's connections; what it remembers of the server stays."""
    for site in client._pool._sites.values():
        for connection in [*site.connections, *filter(None, [site.attempt])]:
            connection.close()


@pytest.fixture
def client(trust: Trust) -> Any:
    made = AsyncClient(trust)
    yield made
    made.close()


@contextlib.asynccontextmanager
async def far(server: Gateway | Server) -> AsyncIterator[tuple[UdpRelay, str]]:
    """A way to the server that takes time: what leaves with a first flight is there before its answer."""
    port = (server.server if isinstance(server, Gateway) else server).address[1]
    async with UdpRelay(port) as relay:
        yield relay, f"https://localhost:{relay.port}"


@contextlib.asynccontextmanager
async def held(client: AsyncClient, server: Gateway | Server) -> AsyncIterator[tuple[UdpRelay, str]]:
    """A way to the server on which the end of the next handshake waits for `relay.release()`."""
    async with far(server) as (relay, at):
        await come_back(client, at)
        await asyncio.sleep(0.05)
        relay.hold()
        yield relay, at
        relay.release()


async def test_a_safe_request_runs_in_early_data(gateway: Gateway, client: AsyncClient) -> None:
    """It is answered before the handshake is complete."""
    async with held(client, gateway) as (relay, at):
        response = await client.request("GET", f"{at}/v1/models")
        assert (response.status, response.early_data) == (200, True)
        assert gateway.early.accepted == 1
        assert gateway.server.snapshot()["early_requests_total"] == 1
        assert relay.holds_handshake


async def test_a_first_visit_has_no_early_data(gateway: Gateway, client: AsyncClient) -> None:
    response = await client.request("GET", f"{origin(gateway)}/v1/models")
    assert (response.status, response.early_data) == (200, False)
    assert gateway.server.snapshot()["early_requests_total"] == 0


async def test_a_completion_without_a_key_is_not_sent_early(
    gateway: Gateway, client: AsyncClient, source: Source
) -> None:
    await come_back(client, gateway)
    response = await client.request("POST", f"{origin(gateway)}/v1/chat/completions", JSON, BODY)
    assert (response.status, response.early_data) == (200, False)
    assert b"[DONE]" in await response.read()
    assert gateway.server.snapshot()["early_requests_total"] == 0
    assert "early-data" not in source.runs[0].fields


async def test_a_completion_with_a_key_runs_at_once_and_its_upstream_is_told(
    gateway: Gateway, client: AsyncClient, source: Source
) -> None:
    async with held(client, gateway) as (relay, at):
        response = await client.request("POST", f"{at}/v1/chat/completions", KEYED, BODY)
        assert (response.status, response.early_data) == (200, True)
        assert (gateway.early.accepted, gateway.early.waited) == (1, 0)
        relay.release()
        assert b"[DONE]" in await response.read()
    assert [run.fields.get("early-data") for run in source.runs] == ["1"]


async def test_a_client_that_sends_a_completion_early_waits_and_succeeds(
    gateway: Gateway, client: AsyncClient, source: Source
) -> None:
    """Whatever a client believes to be safe: without a key it runs after the handshake."""
    async with held(client, gateway) as (relay, at):
        url = f"{at}/v1/chat/completions"
        asked = asyncio.create_task(client.request("POST", url, JSON, BODY, replay_safe=True))
        await eventually(lambda: gateway.early.waited == 1)
        assert not source.runs
        relay.release()
        response = await asked
        assert (response.status, response.early_data) == (200, True)
        assert b"[DONE]" in await response.read()
    # After the handshake it is an ordinary request.
    assert [run.fields.get("early-data") for run in source.runs] == [None]


async def test_a_refused_request_is_sent_again_by_the_client(start: Start, client: AsyncClient) -> None:
    """425, which the client's caller does not see (RFC 8470 §5.2)."""
    async with Source() as source:
        gateway = await start(source, early_data={"other": "refuse"})
        async with held(client, gateway) as (relay, at):
            url = f"{at}/v1/chat/completions"
            asked = asyncio.create_task(client.request("POST", url, JSON, BODY, replay_safe=True))
            await eventually(lambda: gateway.early.refused == 1)
            relay.release()
            response = await asked
            assert (response.status, response.early_data) == (200, False)
            assert b"[DONE]" in await response.read()
        assert len(source.runs) == 1


async def test_a_route_has_its_own_policy(start: Start, client: AsyncClient) -> None:
    async with Source() as source:
        gateway = await start(source, early_data={"routes": {"/v1/": "wait", "/v1/x": "run"}})
        async with held(client, gateway) as (relay, at):
            response = await client.request("POST", f"{at}/v1/x", JSON, BODY, replay_safe=True)
            assert response.status == 200
            assert (gateway.early.accepted, gateway.early.waited) == (1, 0)
            relay.release()
            await response.read()
        async with held(client, gateway) as (relay, at):
            asked = asyncio.create_task(client.request("GET", f"{at}/v1/models"))
            await eventually(lambda: gateway.early.waited == 1)
            relay.release()
            assert (await asked).status == 200


async def test_a_proxy_before_us_may_say_that_it_is_early(start: Start, trust: Trust) -> None:
    """`Early-Data: 1`: for somebody else's handshake nobody can wait, and the model server is told, too."""
    early = [*JSON, ("early-data", "1")]
    async with Source() as source:
        gateway = await start(source)
        async with await connect(origin(gateway), trust) as connection:
            refused = connection.request("POST", "/v1/x", early, BODY)
            assert await refused.head() == 425
            assert b"too_early" in await refused.read()
            keyed = connection.request("POST", "/v1/x", [*early, ("idempotency-key", "two")], BODY)
            assert await keyed.head() == 200
            await keyed.read()
        assert [run.fields.get("early-data") for run in source.runs] == ["1"]


async def test_an_upstream_that_refuses_is_asked_again_after_the_handshake(
    certificate: dev_certificate.Certificate, client: AsyncClient
) -> None:
    """A model server's 425 reaches nobody."""
    asked: list[bytes] = []

    async def model(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        if b"POST" in head:
            asked.append(head)
        status = b"425" if b"early-data: 1" in head else b"200"
        writer.write(b"HTTP/1.1 " + status + b" X\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")
        writer.close()

    async with await asyncio.start_server(model, "127.0.0.1", 0) as upstream:
        port = upstream.sockets[0].getsockname()[1]
        made = Config(
            listen={"port": 0}, upstreams=[{"url": f"http://127.0.0.1:{port}", "models": ["scripted"]}]
        )
        async with Gateway(made, certificate.chain_pem, certificate.key_pem) as gateway:
            async with held(client, gateway) as (relay, at):
                request = client.request("POST", f"{at}/v1/chat/completions", KEYED, BODY)
                waiting = asyncio.create_task(request)
                await eventually(lambda: len(asked) == 1)
                relay.release()
                assert (await waiting).status == 200
            assert gateway.early.retried == 1
            assert [b"early-data" in head for head in asked] == [True, False]


async def test_rejected_early_data_is_sent_again(
    start: Start, client: AsyncClient, certificate: Any, source: Source
) -> None:
    """A server that was started again does not know the ticket; nothing is lost, nothing comes twice."""
    first = await start(source)
    port = first.server.address[1]
    await come_back(client, first)
    await first.close()
    second = await start(source, listen={"port": port})
    response = await client.request("POST", f"{origin(second)}/v1/chat/completions", KEYED, BODY)
    assert (response.status, response.early_data) == (200, False)
    assert b"[DONE]" in await response.read()
    assert len(source.runs) == 1
    assert second.server.snapshot()["unknown_tickets_total"] == 1
    assert second.server.snapshot()["early_requests_total"] == 0


async def test_a_large_early_body_is_whole(gateway: Gateway, client: AsyncClient, source: Source) -> None:
    """More than a first flight holds: the rest follows when the server has answered."""
    body = script(events=2)[:-1] + b', "prompt": "' + b"x" * 50_000 + b'"}'
    async with far(gateway) as (_, at):
        await come_back(client, at)
        response = await client.request("POST", f"{at}/v1/chat/completions", KEYED, body)
        assert response.early_data
        assert b"[DONE]" in await response.read()
    assert source.runs[0].body_bytes == len(body)


async def test_a_handler_can_wait_for_the_handshake(serve: Serve, client: AsyncClient) -> None:
    """`exchange.may_be_replay` until then, and not after."""
    seen: list[tuple[bool, bool]] = []

    async def handle(exchange: Exchange) -> None:
        before = exchange.may_be_replay
        await exchange.handshake()
        seen.append((exchange.request.early_data, exchange.may_be_replay))
        await exchange.answer(200, [], b"x" if before else b"-")

    server = await serve(handle)
    async with held(client, server) as (relay, at):
        asked = asyncio.create_task(client.request("GET", f"{at}/"))
        await asyncio.sleep(0.1)
        relay.release()
        assert await (await asked).read() == b"x"
    assert seen == [(False, False), (True, False)]


async def test_without_tickets_there_is_no_early_data(
    start: Start, client: AsyncClient, source: Source
) -> None:
    gateway = await start(source, limits={"max_tickets": 0})
    await come_back(client, gateway)
    response = await client.request("GET", f"{origin(gateway)}/v1/models")
    assert (response.status, response.early_data) == (200, False)


async def test_the_client_adds_keys_when_asked(gateway: Gateway, trust: Trust, source: Source) -> None:
    client = AsyncClient(trust, idempotency_keys=True)
    async with far(gateway) as (_, at):
        await come_back(client, at)
        response = await client.request("POST", f"{at}/v1/chat/completions", JSON, BODY)
        assert response.early_data
        await response.read()
    assert len(source.runs[0].fields["idempotency-key"]) == 36
    client.close()


async def test_the_sdk_transport_goes_early(gateway: Gateway, ca_file: Any, source: Source) -> None:
    """By a key, or by `extensions=headrace.ReplaySafe`."""
    import httpx2

    import headrace.httpx2

    transport = headrace.httpx2.AsyncTransport(ca_file, http3="only")
    async with far(gateway) as (_, at), httpx2.AsyncClient(transport=transport, base_url=at) as client:
        await client.get("/healthz")
        for given in ({"headers": {"Idempotency-Key": "k"}}, {"extensions": headrace.ReplaySafe}):
            await asyncio.sleep(0.1)
            leave(transport)  # type: ignore[arg-type]
            response = await client.post("/v1/x", content=BODY, **given)  # type: ignore[arg-type]
            assert response.extensions["headrace"].is_early_data, given


async def test_a_server_whose_limit_is_smaller_gets_no_larger_head(serve: Serve, client: AsyncClient) -> None:
    """SETTINGS_MAX_FIELD_SECTION_SIZE, also the remembered one (RFC 9114 §7.2.4.2)."""

    async def handle(exchange: Exchange) -> None:
        await exchange.answer(200, [], b"")

    server = await serve(handle, limits={"max_head_bytes": 2048})
    await come_back(client, server)
    with pytest.raises(headrace.HeadraceError, match="the server takes 2048"):
        await client.request("GET", f"{origin(server)}/", [("x-long", "x" * 3000)])


COME_BACK_TO_TWO_ADDRESSES = """
import asyncio, sys
from pathlib import Path
from headrace import AsyncClient, Trust
from tests.flow.gateway.test_early_data import BODY, KEYED, come_back

async def main(ca_file, at):
    async with AsyncClient(Trust(Path(ca_file))) as client:
        await come_back(client, at)
        response = await client.request("POST", f"{at}/v1/chat/completions", KEYED, BODY)
        assert b"[DONE]" in await response.read()

asyncio.run(asyncio.wait_for(main(*sys.argv[1:]), 20))
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="makes a mount namespace, which needs root")
async def test_an_address_that_does_not_answer_keeps_no_early_request(
    start: Start, source: Source, ca_file: Path, tmp_path: Path
) -> None:
    """The name has two: the request that left for the silent one follows the connection to the other."""
    gateway = await start(source, listen={"host": "127.0.0.2"})
    hosts = tmp_path / "hosts"
    hosts.write_text("127.0.0.1 localhost\n127.0.0.2 localhost\n")
    inside = f'mount --bind {hosts} /etc/hosts && exec "$@"'
    child = [sys.executable, "-c", COME_BACK_TO_TWO_ADDRESSES, str(ca_file), origin(gateway)]
    with mute_udp(gateway.server.address[1]):
        process = await asyncio.create_subprocess_exec(
            "unshare", "--mount", "sh", "-c", inside, "sh", *child, stderr=asyncio.subprocess.PIPE
        )
        _, errors = await process.communicate()
    assert process.returncode == 0, errors.decode()
    assert len(source.runs) == 1


async def replay(server_port: int, flight: list[bytes], times: int) -> None:
    """Sends a recorded first flight again, each time from another port."""
    loop = asyncio.get_running_loop()
    for number in range(times):
        transport, _ = await loop.create_datagram_endpoint(
            asyncio.DatagramProtocol, remote_addr=("127.0.0.1", server_port)
        )
        for datagram in flight:
            transport.sendto(datagram)
        if number % 20 == 0:
            await asyncio.sleep(0.002)
        transport.close()


@pytest.mark.parametrize("steering", ["bpf", "forward"])
async def test_a_recorded_flight_generates_once(
    start: Start, trust: Trust, source: Source, steering: str
) -> None:
    """At the same worker, at others (by forwarding: wherever the kernel delivers it), and after a restart."""
    gateway = await start(source, listen={"workers": 4, "steering": steering})
    port = gateway.server.address[1]
    async with UdpRelay(port) as relay:
        client = AsyncClient(trust)
        at = f"https://localhost:{relay.port}"
        await come_back(client, at)
        await eventually(lambda: gateway.server.snapshot()["exchanges"] == 0)
        await asyncio.sleep(0.05)
        relay.kept.clear()
        response = await client.request("POST", f"{at}/v1/chat/completions", KEYED, BODY)
        assert response.early_data
        await response.read()
        flight = relay.kept[:3]
        client.close()
    assert len(source.runs) == 1
    await replay(port, flight, 2000)
    await asyncio.sleep(0.1)
    assert len(source.runs) == 1
    assert gateway.server.snapshot()["early_requests_total"] == 1
    await gateway.close()
    again = await start(source, listen={"port": port, "workers": 4, "steering": steering})
    await replay(port, flight, 500)
    await asyncio.sleep(0.1)
    assert len(source.runs) == 1
    assert again.server.snapshot()["early_requests_total"] == 0
