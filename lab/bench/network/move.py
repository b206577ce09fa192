"""How long an answer stands still when the client walks from one network to another.

    sudo python -m bench move [--walks 20]

Two network namespaces joined by two veth pairs, `wifi` and `mobile`. While an answer streams, a token each 20
ms, the route to the server changes from one to the other, and the network that was left goes down. The client
is told nothing: it follows the system's routes. The longest gap between two tokens of each walk; 20 ms of it
are the tokens' own.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import tempfile
from pathlib import Path
from typing import Any

from bench import common, peers
from headrace.client import Connection, Trust, connect
from headrace_lab.clients import load
from headrace_lab.link.namespaces import Namespace, enter, ip, joined

LINKS = {"wifi": ("10.99.1.2/24", "10.99.1.1/24"), "mobile": ("10.99.2.2/24", "10.99.2.1/24")}
ADDRESS = "10.99.3.1"
EVENTS = 100
CLIENT, SERVER = Namespace("client"), Namespace("server")


def route(over: str) -> None:
    ip("-n", CLIENT.name, "route", "replace", f"{ADDRESS}/32", "via", LINKS[over][1].partition("/")[0])


async def walk(connection: Connection, to: str) -> float:
    """Milliseconds of the longest gap."""
    body = json.dumps({"model": "x", "script": {"events": EVENTS, "interval_s": 0.02}}).encode()
    response = connection.request("POST", "/v1/x", load.HEADERS, body, record=True)
    await asyncio.sleep(0.8)
    leave = next(name for name in LINKS if name != to)
    await asyncio.to_thread(ip, "-n", CLIENT.name, "link", "set", to, "up")
    await asyncio.to_thread(route, to)
    await asyncio.to_thread(ip, "-n", CLIENT.name, "link", "set", leave, "down")
    times = [at for at, _ in await response.records()]
    if len(times) != EVENTS + 1:
        raise RuntimeError(f"{len(times)} of {EVENTS + 1} events arrived")
    return max(b - a for a, b in itertools.pairwise(times)) / 1e6


async def measure(origin: str, walks: int) -> tuple[list[float], float]:
    connection = await connect(origin, Trust(anybody=True))
    gaps = [await walk(connection, "wifi" if turn % 2 else "mobile") for turn in range(walks)]
    changes = connection.stats()["path_changes"]
    connection.close()
    return gaps, changes


def main(arguments: list[str] | None = None, keep: bool = True) -> dict[str, Any]:
    parser = common.parser("move", __doc__)
    parser.add_argument("--walks", type=int, default=20)
    options = parser.parse_args(arguments)
    common.need_root(parser)
    with tempfile.TemporaryDirectory() as temporary, joined(CLIENT, SERVER, LINKS):
        folder = Path(temporary)
        peers.certificate(folder)
        ip("-n", SERVER.name, "addr", "add", f"{ADDRESS}/32", "dev", "lo")
        route("wifi")
        enter(SERVER.name)
        os.environ["HEADRACE_LISTEN__HOST"] = "0.0.0.0"
        with common.source({}) as upstream, peers.headrace(upstream, folder, 2) as proxy:
            enter(CLIENT.name)
            port = proxy.origin.rpartition(":")[2]
            gaps, changes = asyncio.run(measure(f"https://{ADDRESS}:{port}", options.walks))
            enter(SERVER.name)
    result: dict[str, Any] = {
        "walks": len(gaps),
        "path_changes": changes,
        "longest_gap_ms": {name: load.quantile(gaps, q) for name, q in common.QUANTILES.items()},
    }
    shown = common.shown(result["longest_gap_ms"])
    print(f"{len(gaps)} walks, {changes:g} path changes; longest gap, ms: {shown}")
    if keep:
        common.write("network/move", f"python -m bench move --walks {options.walks}", result)
    return result
