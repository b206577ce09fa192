"""How soon *stop* reaches the model server.

    python -m bench stop [--stops 1000]

Streams of one connection are stopped at random phases, three in ten during a silent prefill, while eight
neighbours stream. From the call of `stop()` until the scripted model server has seen its connection close.
"""

from __future__ import annotations

import asyncio
import json
import random
import tempfile
import time
from pathlib import Path
from typing import Any

from bench import common, peers
from headrace.client import Trust, connect
from headrace_lab.clients import load

PREFILL = {"events": 5, "head_delay_s": 60.0}
ENDLESS = {"events": 1_000_000, "interval_s": 0.01}
NEIGHBOURS = 8


async def measure(origin: str, upstream: str, ca: Path, stops: int) -> tuple[list[float], int]:
    """Milliseconds of every stop; and how many neighbours did not arrive whole."""
    connection = await connect(origin, Trust(ca))
    chance = random.Random(1)
    stopped: dict[str, int] = {}
    seconds = stops / 10 * 0.035 + 2
    events = int(seconds / 0.02)
    request = json.dumps({"model": "x", "script": {"events": events, "interval_s": 0.02}}).encode()

    async def victim(first: int) -> None:
        for number in range(first, first + stops // 10):
            script = PREFILL if chance.random() < 0.3 else ENDLESS
            body = json.dumps({"model": "x", "tag": str(number), "script": script}).encode()
            response = connection.request("POST", "/v1/x", load.HEADERS, body)
            if script is ENDLESS:
                await response.head()
            await asyncio.sleep(0.005 + chance.random() * 0.03)
            stopped[str(number)] = time.monotonic_ns()
            response.stop()

    neighbours = [
        asyncio.create_task(load.one_stream(connection, "/v1/x", request)) for _ in range(NEIGHBOURS)
    ]
    await asyncio.gather(*(victim(group * (stops // 10)) for group in range(10)))
    logs = await asyncio.gather(*neighbours)
    connection.close()
    runs = (await asyncio.to_thread(common.runs, upstream))["runs"]
    ended = {run["tag"]: run["aborted_ns"] for run in runs if run["tag"]}
    disturbed = sum(log.error is not None or len(log.arrivals_ns) != events + 1 for log in logs)
    return [(ended[tag] - at) / 1e6 for tag, at in stopped.items() if ended.get(tag)], disturbed


def main(arguments: list[str] | None = None, keep: bool = True) -> dict[str, Any]:
    parser = common.parser("stop", __doc__)
    parser.add_argument("--stops", type=int, default=1000)
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        peers.certificate(folder)
        with common.source({}) as upstream, peers.headrace(upstream, folder, 2) as proxy:
            took, disturbed = asyncio.run(measure(proxy.origin, upstream, folder / "ca.pem", options.stops))
    result = {
        "stops": len(took),
        "not_seen": options.stops - len(took),
        "neighbours_disturbed": disturbed,
        "ms": {name: load.quantile(took, q) for name, q in common.QUANTILES.items()},
    }
    print(f"{len(took)} of {options.stops} stops, ms: {common.shown(result['ms'])}")
    print(f"{disturbed} of {NEIGHBOURS} neighbours disturbed")
    if keep:
        common.write("gateway/stop", f"python -m bench stop --stops {options.stops}", result)
    return result
