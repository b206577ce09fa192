"""What a stream costs in memory, and what a reader that does not read costs.

    python -m bench memory [--streams 1000] [--stall 30]

Private memory of the proxy's process (what one more of it would cost): idle, after a first connection has
come and gone; with 1,000 silent streams on 20 connections; and while a model server wants to send 50 MB to a
client that has stopped reading.
"""

from __future__ import annotations

import asyncio
import json
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any

from bench import common, peers
from headrace.client import Trust, connect
from headrace_lab.clients import load

CONNECTIONS = 20
STREAMS_ALLOWED = 100
"""On one connection: the default of all three. headrace keeps about 90 bytes for each that is allowed."""
PROXIES = peers.PROXIES | {"headrace": partial(peers.headrace, max_streams=STREAMS_ALLOWED)}
EVENT_BYTES = 1000
STALLED_EVENTS = 50_000
"""50 MB."""


async def open_streams(proxy: peers.Proxy, ca: Path, streams: int) -> dict[str, float]:
    """Bytes for each connection, and for each stream that has begun and waits for its next token."""
    first = await connect(proxy.origin, Trust(ca))
    await first.request("GET", "/v1/models").read()
    first.close()
    await asyncio.sleep(1)
    before = proxy.memory()
    connections = [await connect(proxy.origin, Trust(ca)) for _ in range(CONNECTIONS)]
    for connection in connections:
        await connection.request("GET", "/v1/models").read()
    connected = proxy.memory()
    script = {"events": 2, "interval_s": 60.0}
    body = json.dumps({"model": "x", "script": script}).encode()
    held = [
        connections[number % CONNECTIONS].request("POST", "/v1/x", load.HEADERS, body)
        for number in range(streams)
    ]
    await asyncio.wait_for(asyncio.gather(*(response.head() for response in held)), 30)
    await asyncio.sleep(1)
    opened = proxy.memory()
    for connection in connections:
        connection.close()
    return {
        "idle_mb": before / 1e6,
        "connection_kb": (connected - before) / CONNECTIONS / 1e3,
        "stream_kb": (opened - connected) / streams / 1e3,
    }


async def stalled_reader(proxy: peers.Proxy, upstream: str, ca: Path, seconds: float) -> dict[str, Any]:
    connection = await connect(proxy.origin, Trust(ca))
    await connection.request("GET", "/v1/models").read()
    before = proxy.memory()
    script = {"events": STALLED_EVENTS, "interval_s": 0, "size": EVENT_BYTES}
    body = json.dumps({"model": "x", "tag": "stalled", "script": script}).encode()
    response = connection.request("POST", "/v1/x", load.HEADERS, body)
    await response.head()
    highest, until = 0, time.monotonic() + seconds
    while time.monotonic() < until:
        await asyncio.sleep(0.5)
        highest = max(highest, proxy.memory() - before)
    run = stalled_run(await asyncio.to_thread(common.runs, upstream))
    sent_while_stalled = run["sent_bytes"]
    whole = len(await response.read())
    connection.close()
    return {
        "seconds": seconds,
        "grown_mb": highest / 1e6,
        "sent_by_the_model_mb": sent_while_stalled / 1e6,
        "model_was_stopped": run["paused"] > 0,
        "arrived_mb": whole / 1e6,
        "is_whole": whole == STALLED_EVENTS * EVENT_BYTES + len(b"data: [DONE]\n\n"),
    }


def stalled_run(record: dict[str, Any]) -> dict[str, Any]:
    return next(run for run in record["runs"] if run["tag"] == "stalled")


def main(arguments: list[str] | None = None, keep: bool = True) -> dict[str, Any]:
    parser = common.parser("memory", __doc__)
    parser.add_argument("--streams", type=int, default=1000)
    parser.add_argument("--stall", type=float, default=30)
    options = parser.parse_args(arguments)
    result: dict[str, Any] = {"streams": options.streams}
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        peers.certificate(folder)
        for name, start in PROXIES.items():
            with common.source({}) as upstream, start(upstream, folder, 2) as proxy:
                result[name] = asyncio.run(open_streams(proxy, folder / "ca.pem", options.streams))
                print(f"{name:9} {common.shown(result[name])}", flush=True)
        with (
            common.source({}) as upstream,
            PROXIES["headrace"](upstream, folder, 2) as proxy,
        ):
            result["stalled_reader"] = asyncio.run(
                stalled_reader(proxy, upstream, folder / "ca.pem", options.stall)
            )
    print(f"a reader that stops for {options.stall:g} s: {common.shown(result['stalled_reader'])}")
    if keep:
        common.write("gateway/memory", f"python -m bench memory --stall {options.stall:g}", result)
    return result
