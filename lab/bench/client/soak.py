"""Whether a client leaks: 100,000 requests by one transport, every twentieth of them stopped.

    python -m bench soak [--requests 100000]

Private memory, descriptors and Python objects of the client's process after the first 5,000 requests and
after each quarter of the rest, and the gateway's memory before and after.
"""

from __future__ import annotations

import asyncio
import gc
import os
import tempfile
from pathlib import Path
from typing import Any

import httpx2

from bench import common, peers
from headrace.httpx2 import AsyncTransport

WARM_UP = 5000
AT_ONCE = 20
SHORT: dict[str, Any] = {"json": {"model": "x", "script": {"events": 1, "interval_s": 0}}}
LONG: dict[str, Any] = {"json": {"model": "x", "script": {"events": 100, "interval_s": 0.01}}}


async def requests(client: httpx2.AsyncClient, url: str, count: int) -> None:
    async def some() -> None:
        for number in range(count // AT_ONCE):
            if number % 20 == 19:
                async with client.stream("POST", url, **LONG):
                    pass
            else:
                await client.post(url, **SHORT)

    await asyncio.gather(*(some() for _ in range(AT_ONCE)))


def state(after: int) -> dict[str, Any]:
    gc.collect()
    return {
        "requests": after,
        "private_mb": peers.private_memory(os.getpid()) / 1e6,
        "descriptors": len(os.listdir("/proc/self/fd")),
        "objects": len(gc.get_objects()),
    }


async def measure(url: str, ca: Path, count: int) -> list[dict[str, Any]]:
    async with httpx2.AsyncClient(transport=AsyncTransport(str(ca), http3="only")) as client:
        await requests(client, url, WARM_UP)
        states = [state(0)]
        for quarter in range(1, 5):
            await requests(client, url, count // 4)
            states.append(state(quarter * count // 4))
            print(common.shown(states[-1]), flush=True)
    return states


def main(arguments: list[str] | None = None, keep: bool = True) -> dict[str, Any]:
    parser = common.parser("soak", __doc__)
    parser.add_argument("--requests", type=int, default=100_000)
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        peers.certificate(folder)
        with common.source({}) as upstream, peers.headrace(upstream, folder, 1) as proxy:
            before = proxy.memory()
            states = asyncio.run(measure(f"{proxy.origin}/v1/x", folder / "ca.pem", options.requests))
            result = {"states": states, "gateway_mb": [before / 1e6, proxy.memory() / 1e6]}
    if keep:
        common.write("client/soak", f"python -m bench soak --requests {options.requests}", result)
    return result
