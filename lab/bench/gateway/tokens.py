"""How long a token is on its way through the gateway.

    python -m bench tokens [--seconds 10] [--streams 100]

100 streams, 50 tokens a second each, spread. Two figures: what the gateway itself measures (from the read of
an event until it is with the transport), and the whole way, from the scripted model's stamp just before it
writes until our client's engine has read the token from its socket. The second one contains the model's own
Python, both loopback hops and three processes on two cores; it is an upper bound of departure minus arrival.
"""

from __future__ import annotations

import asyncio
import json
import tempfile
from pathlib import Path
from typing import Any

from bench import common, peers
from headrace.client import Trust, connect
from headrace_lab.clients import load
from headrace_lab.measure.statistics import median


async def measure(origin: str, upstream: str, ca: Path, streams: int, seconds: float) -> list[float]:
    """Milliseconds from the model's stamp to the client's, of every token."""
    script = {"events": int(seconds * 50), "interval_s": 0.02, "note_times": True}
    bodies = [{"model": "x", "stream": True, "tag": str(n), "script": script} for n in range(streams)]
    connection = await connect(origin, Trust(ca))

    async def one(number: int) -> load.StreamLog:
        await asyncio.sleep(0.02 * 10.5 * number / streams)
        return await load.one_stream(connection, "/v1/x", json.dumps(bodies[number]).encode())

    logs = await asyncio.gather(*(one(number) for number in range(streams)))
    connection.close()
    by_tag = {run["tag"]: run for run in (await asyncio.to_thread(common.runs, upstream))["runs"]}
    ways = []
    for number, log in enumerate(logs):
        if log.error:
            raise RuntimeError(log.error)
        sent = by_tag[str(number)]["times_ns"]
        # The last frame is [DONE], which was not stamped.
        ways += [(got - at) / 1e6 for at, got in zip(sent, log.arrivals_ns[:-1], strict=True)]
    return ways


def main(arguments: list[str] | None = None, keep: bool = True) -> dict[str, Any]:
    parser = common.parser("tokens", __doc__)
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--streams", type=int, default=100)
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        peers.certificate(folder)
        with common.source({}) as upstream, peers.headrace(upstream, folder, 2, log="json") as proxy:
            ways = asyncio.run(
                measure(proxy.origin, upstream, folder / "ca.pem", options.streams, options.seconds)
            )
        holds = [entry["gateway_p99_ms"] for entry in common.access_log(proxy.log) if entry.get("events")]
    result: dict[str, Any] = {
        "tokens": len(ways),
        "whole_way_ms": {name: load.quantile(ways, q) for name, q in common.QUANTILES.items()},
        "in_gateway_p99_ms": {"median_stream": median(holds), "worst_stream": max(holds)},
    }
    print(f"{len(ways)} tokens; the whole way, ms: {common.shown(result['whole_way_ms'])}")
    print(f"in the gateway, p99 of a stream, ms: {common.shown(result['in_gateway_p99_ms'])}")
    if keep:
        common.write("gateway/tokens", f"python -m bench tokens --seconds {options.seconds:g}", result)
    return result
