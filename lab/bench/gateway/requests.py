"""What the gateway adds to a first token, and how many short requests it takes.

    python -m bench requests [--seconds 10]

First token: 200 requests a second, open loop, by turns straight to the scripted model (HTTP/1.1, kept
alive) and through the gateway (HTTP/3, warm). Both are timed in Python, until the first bytes of the body
have reached it; the gateway's way has one more hop between threads in it. In half of the turns the
processors are kept from sleeping (`common.awake`), where that is allowed. Short requests: 2,500 a second,
open loop, on all cores together with the model and the load.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from bench import common, peers
from headrace.client import Connection, Trust, connect
from headrace_lab.clients import load

WAYS = ("direct", "gateway")
BODY = json.dumps({"model": "x", "script": {"events": 1, "interval_s": 0}}).encode()


class Direct(asyncio.Protocol):
    """One HTTP/1.1 connection to the model, as thin as it can be."""

    def __init__(self) -> None:
        self.got = b""
        self.first: asyncio.Future[float]
        self.end: asyncio.Future[None]
        self.transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.got += data
        if not self.first.done() and b"data:" in self.got:
            self.first.set_result(time.perf_counter())
        if self.got.endswith(b"0\r\n\r\n"):
            self.end.set_result(None)

    async def ask(self) -> float:
        loop = asyncio.get_running_loop()
        self.got, self.first, self.end = b"", loop.create_future(), loop.create_future()
        began = time.perf_counter()
        head = f"POST /v1/x HTTP/1.1\r\nhost: x\r\ncontent-length: {len(BODY)}\r\n\r\n".encode()
        self.transport.write(head + BODY)
        took = await self.first - began
        await self.end
        return took * 1e3


class DirectPool:
    def __init__(self, url: str) -> None:
        self.address = urlsplit(url)
        self.idle: list[Direct] = []

    async def ask(self) -> float:
        if self.idle:
            direct = self.idle.pop()
        else:
            host, port = self.address.hostname, self.address.port
            _, direct = await asyncio.get_running_loop().create_connection(Direct, host, port)  # type: ignore[arg-type]
        took = await direct.ask()
        self.idle.append(direct)
        return took


async def through(connection: Connection) -> float:
    began = time.perf_counter()
    response = connection.request("POST", "/v1/x", load.HEADERS, BODY)
    first = 0.0
    async for _ in response.chunks():
        first = first or time.perf_counter()
    return (first - began) * 1e3


async def offer(
    ask: Callable[[], Awaitable[float]], rate: float, seconds: float
) -> tuple[list[float], float]:
    """Open loop: a request is due when it is due, however many are still out. Milliseconds each; and the
    answers in a second until the last."""
    loop, tasks = asyncio.get_running_loop(), []
    start = last = loop.time()

    async def one() -> float:
        nonlocal last
        took = await ask()
        last = loop.time()
        return took

    for number in range(int(rate * seconds)):
        due = start + number / rate
        if (wait := due - loop.time()) > 0:
            await asyncio.sleep(wait)
        tasks.append(asyncio.ensure_future(one()))
    took = list(await asyncio.gather(*tasks))
    return took, len(took) / (last - start)


async def measure(origin: str, upstream: str, ca: Path, seconds: float, rate: float) -> dict[str, Any]:
    connection = await connect(origin, Trust(ca))
    pool = DirectPool(upstream)
    took: dict[str, dict[str, list[float]]] = {"awake": {}, "asleep": {}}
    await offer(lambda: through(connection), 50, 1)
    for turn in range(20):
        with common.awake() if turn // 2 % 2 else contextlib.nullcontext(False) as is_awake:
            asks = list(zip(WAYS, (pool.ask, lambda: through(connection)), strict=True))
            for way, ask in asks if turn % 2 else reversed(asks):
                into = took["awake" if is_awake else "asleep"].setdefault(way, [])
                into += (await offer(ask, 200, seconds / 10))[0]
    connections = [await connect(origin, Trust(ca)) for _ in range(8)]
    turn = 0

    async def ask_any() -> float:
        nonlocal turn
        turn += 1
        return await through(connections[turn % 8])

    short, answered = await offer(ask_any, rate, seconds)
    for each in [connection, *connections]:
        each.close()
    quantiles = common.QUANTILES.items()
    first_token: dict[str, dict[str, dict[str, float]]] = {}
    for state, ways in took.items():
        if ways:
            rows = {way: {name: load.quantile(ways[way], q) for name, q in quantiles} for way in WAYS}
            direct, gateway = (rows[way] for way in WAYS)
            first_token[state] = rows | {"added": {name: gateway[name] - direct[name] for name in gateway}}
    return {
        "first_token_ms": first_token,
        "short_requests": {
            "offered_per_s": rate,
            "answered_per_s": answered,
            "ms": {name: load.quantile(short, q) for name, q in quantiles},
        },
    }


def main(arguments: list[str] | None = None, keep: bool = True) -> dict[str, Any]:
    parser = common.parser("requests", __doc__)
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--rate", type=float, default=2500)
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        peers.certificate(folder)
        with common.source({}) as upstream, peers.headrace(upstream, folder, 2) as proxy:
            result = asyncio.run(
                measure(proxy.origin, upstream, folder / "ca.pem", options.seconds, options.rate)
            )
    for state, rows in result["first_token_ms"].items():
        for way, times in rows.items():
            print(f"first token, ms, processors {state:6} {way:7} {common.shown(times)}")
    short = result["short_requests"]
    print(f"{short['answered_per_s']:.0f} of {options.rate:g} a second; ms: {common.shown(short['ms'])}")
    if keep:
        common.write("gateway/requests", f"python -m bench requests --seconds {options.seconds:g}", result)
    return result
