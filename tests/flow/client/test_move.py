"""Answers that survive a change of network: a move that the client knows of, and a NAT that forgot it."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Any, cast

from headrace.client import Connection, Trust, connect
from headrace.gateway import Gateway
from headrace_lab.model import Source
from tests.helpers.answers import is_whole
from tests.helpers.requests import JSON, script
from tests.helpers.serving import origin, port_of
from tests.helpers.waiting import eventually

Start = Callable[..., Awaitable[Gateway]]
Dial = Callable[..., Awaitable[Connection]]


async def test_an_answer_goes_on_after_a_move(gateway: Gateway, dial: Dial) -> None:
    connection = await dial(gateway)
    response = connection.request("POST", "/v1/x", JSON, script(events=100, interval_s=0.005))
    body = b""
    before = connection._raw.addresses
    async for batch in response.chunks():
        body += b"".join(chunk.data for chunk in batch)
        if len(response.arrivals) >= 20 and not connection.stats()["path_changes"]:
            connection.migrate()
    assert is_whole(body, 100)
    assert connection.stats()["path_changes"] == 1
    assert before
    assert connection._raw.addresses
    assert connection._raw.addresses[0][1] != before[0][1]
    assert connection._raw.addresses[1] == before[1]


async def test_many_connections_move_at_random_and_keep_their_worker(start: Start, trust: Trust) -> None:
    """Four workers: a datagram from the new address must find the worker that has the connection."""
    count, events = 40, 100
    async with Source() as source:
        gateway = await start(source, listen={"workers": 4})
        connections = [await connect(origin(gateway), trust) for _ in range(count)]
        chance = random.Random(1)

        async def move(connection: Connection) -> None:
            for _ in range(3):
                await asyncio.sleep(chance.random() * 0.2)
                connection.migrate()

        async def one(connection: Connection) -> bytes:
            moves = asyncio.create_task(move(connection))
            response = connection.request("POST", "/v1/x", JSON, script(events=events, interval_s=0.008))
            body = await response.read()
            await moves
            return body

        bodies = await asyncio.gather(*(one(connection) for connection in connections))
        assert all(is_whole(body, events) for body in bodies)
        assert {connection.stats()["path_changes"] for connection in connections} == {3}
        for connection in connections:
            connection.close()


class Nat(asyncio.DatagramProtocol):
    """A NAT with one client behind it. `forget()`: what the server sends to the old port is lost from then
    on; the client's next datagram gets a new one. `shut_out()`: nothing passes the client's port of now."""

    def __init__(self, server: tuple[str, int]) -> None:
        self.server = server
        self.client: Any = None
        self.inside: asyncio.DatagramTransport
        self.outside: asyncio.DatagramTransport | None = None
        self.mappings: list[asyncio.DatagramTransport] = []
        self.waiting: list[bytes] = []
        self.dropped = 0
        self.shut: set[Any] = set()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.inside = cast("asyncio.DatagramTransport", transport)

    def datagram_received(self, data: bytes, address: Any) -> None:
        if address in self.shut:
            return
        self.client = address
        if self.outside is not None:
            self.outside.sendto(data, self.server)
            return
        # A datagram and its copies come at once, and get one mapping.
        self.waiting.append(data)
        if len(self.waiting) == 1:
            self.mapping = asyncio.ensure_future(self.map())

    async def map(self) -> None:
        nat = self

        class Outside(asyncio.DatagramProtocol):
            def datagram_received(self, data: bytes, address: Any) -> None:
                if nat.outside is mapping:
                    nat.inside.sendto(data, nat.client)
                else:
                    nat.dropped += 1

        mapping, _ = await asyncio.get_running_loop().create_datagram_endpoint(
            Outside, local_addr=("127.0.0.1", 0)
        )
        self.outside = mapping
        self.mappings.append(mapping)
        while self.waiting:
            mapping.sendto(self.waiting.pop(0), self.server)

    def forget(self) -> None:
        self.outside = None

    def shut_out(self) -> None:
        self.shut.add(self.client)
        self.outside = None


async def test_a_nat_that_forgot_a_listening_client_is_found_by_asking(
    gateway: Gateway, source: Source, trust: Trust
) -> None:
    """The client has nothing to send: without a question the answer would stand still until the keep-alive
    (10 s)."""
    loop = asyncio.get_running_loop()
    inside, nat = await loop.create_datagram_endpoint(
        lambda: Nat(("127.0.0.1", port_of(gateway))), local_addr=("127.0.0.1", 0)
    )
    connection = await connect(f"https://localhost:{inside.get_extra_info('sockname')[1]}", trust)
    response = connection.request("POST", "/v1/x", JSON, script(events=150, interval_s=0.02))
    await eventually(lambda: len(response.arrivals) > 50)
    nat.forget()
    body = await response.read()
    assert is_whole(body, 150)
    assert len(nat.mappings) == 2
    assert nat.dropped
    gaps = [b - a for (a, _), (b, _) in zip(response.arrivals, response.arrivals[1:], strict=False)]
    print(f"longest gap: {max(gaps) / 1e6:.0f} ms")
    assert max(gaps) < 5e9, "the keep-alive found it, not the question"
    connection.close()
    for transport in (inside, *nat.mappings):
        transport.close()


async def test_a_port_that_is_shut_out_is_left(gateway: Gateway, trust: Trust) -> None:
    """Nothing passes any more, and no route has changed: the client tries another socket by itself."""
    loop = asyncio.get_running_loop()
    inside, nat = await loop.create_datagram_endpoint(
        lambda: Nat(("127.0.0.1", port_of(gateway))), local_addr=("127.0.0.1", 0)
    )
    connection = await connect(f"https://localhost:{inside.get_extra_info('sockname')[1]}", trust)
    response = connection.request("POST", "/v1/x", JSON, script(events=200, interval_s=0.02))
    await eventually(lambda: len(response.arrivals) > 20)
    nat.shut_out()
    assert is_whole(await response.read(), 200)
    assert connection.stats()["path_changes"] >= 1
    connection.close()
    for transport in (inside, *nat.mappings):
        transport.close()


async def test_a_silent_model_costs_a_few_questions(gateway: Gateway, dial: Dial) -> None:
    connection = await dial(gateway)
    response = connection.request("POST", "/v1/x", JSON, script(events=10, interval_s=0.005, end="hang"))
    await eventually(lambda: len(response.arrivals) == 10)
    await asyncio.sleep(0.2)
    sent = connection.stats()["sent_packets"]
    await asyncio.sleep(2.5)
    assert 0 < connection.stats()["sent_packets"] - sent <= 8
