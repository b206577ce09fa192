"""How long an answer stands still when the network changes, over a path with a delay.

    sudo python -m bench move_link [--rounds 4]

The lab's link at round trips (R) of 20, 60 and 200 ms, without loss. Five connections at a time have an
answer each, a token every 20 ms; a second after its beginning, at a random moment of its rhythm, the network
changes:

- *known*: the client's routes change to another address. It sees that, and moves.
- *known, cut*: the same, and the old address is gone at once.
- *port*: a NAT forgets its mappings; the client, which only listens, is told nothing.
- *address*: the same, and the NAT has another address.

The longest gap between two tokens of each answer; 20 ms of it are the tokens' own. headrace's client asks
headrace, and at 60 ms also Caddy and Envoy.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import random
import tempfile
from pathlib import Path
from typing import Any

from bench import common, peers
from headrace.client import Connection, Trust, connect
from headrace.errors import HeadraceError
from headrace_lab.clients import load
from headrace_lab.link import Link
from headrace_lab.link.namespaces import enter
from headrace_lab.link.profiles import Profile

ROUND_TRIPS_MS = (20, 60, 200)
PEERS_AT_MS = 60
CHANGES: dict[str, dict[str, Any]] = {
    "known": {"do": "move"},
    "known, cut": {"do": "move", "cut": True},
    "port": {"do": "rebind_port"},
    "address": {"do": "rebind_address"},
}
AT_ONCE = 5
EVENTS, EVERY_S, CHANGE_S = 120, 0.02, 1.0
WORKERS = 4


def allowed_ms(change: str, trip: int) -> float:
    """What the gap may be."""
    return trip + 20 if change.startswith("known") else 250 + 2 * trip


async def answer(connection: Connection) -> float | str:
    """Milliseconds of its longest gap, or how it broke off."""
    body = json.dumps({"model": "x", "script": {"events": EVENTS, "interval_s": EVERY_S}}).encode()
    response = connection.request("POST", "/v1/x", load.HEADERS, body, record=True)
    try:
        times = [at for at, _ in await response.records()]
    except HeadraceError as error:
        return str(error)
    return max(b - a for a, b in itertools.pairwise(times)) / 1e6


async def once(link: Link, origin: str, change: dict[str, Any], chance: random.Random) -> list[float | str]:
    connections = [await connect(origin, Trust(anybody=True)) for _ in range(AT_ONCE)]
    answers = asyncio.gather(*(answer(connection) for connection in connections))
    await asyncio.sleep(CHANGE_S + link.profile.delay_ms * 2 / 1e3 + chance.random() * EVERY_S)
    await asyncio.to_thread(link.command, change)
    gaps = await answers
    for connection in connections:
        connection.close()
    return gaps


async def measure(link: Link, origins: dict[str, str], rounds: int) -> list[dict[str, Any]]:
    rows, chance = [], random.Random(1)
    for trip in ROUND_TRIPS_MS:
        link.command({"do": "profile", "profile": Profile(delay_ms=trip / 2)})
        asked = [name for name in origins if name == "headrace" or trip == PEERS_AT_MS]
        for server, (name, change) in itertools.product(asked, CHANGES.items()):
            seen = [one for _ in range(rounds) for one in await once(link, origins[server], change, chance)]
            gaps = [one for one in seen if isinstance(one, float)]
            broken = [one for one in seen if isinstance(one, str)]
            allowed = allowed_ms(name, trip)
            row: dict[str, Any] = {
                "server": server,
                "change": name,
                "round_trip_ms": trip,
                "samples": len(gaps),
                "broken": broken,
                "gap_ms": {of: load.quantile(gaps, q) for of, q in common.QUANTILES.items() if gaps},
                "allowed_ms": allowed,
                "beyond": sum(gap > allowed for gap in gaps),
            }
            rows.append(row)
            shown = (
                f"{common.shown(row['gap_ms'])}; {row['beyond']} beyond {allowed:.0f}; {len(broken)} broken"
            )
            print(f"R {trip:3} ms, {server:8}, {name:10}: {shown}", flush=True)
    return rows


def main(arguments: list[str] | None = None, keep: bool = True) -> dict[str, Any]:
    parser = common.parser("move_link", __doc__)
    parser.add_argument("--rounds", type=int, default=4)
    options = parser.parse_args(arguments)
    common.need_root(parser)
    with tempfile.TemporaryDirectory() as temporary, Link(Profile(delay_ms=10)) as link:
        folder, host = Path(temporary), link.server_address
        peers.certificate(folder, host)
        with contextlib.ExitStack() as stack:
            enter(link.server.name)
            upstream = stack.enter_context(common.source({}))
            proxies = [
                stack.enter_context(start(upstream, folder, WORKERS, host=host))
                for start in (peers.headrace, peers.caddy, peers.envoy)
            ]
            enter(link.client.name)
            origins = {proxy.name: proxy.origin for proxy in proxies}
            rows = asyncio.run(measure(link, origins, options.rounds))
            enter(link.server.name)
        emulator = {
            name: link.result()[name] for name in ("lateness_ms", "realtime", "awake", "void", "void_because")
        }
    result: dict[str, Any] = {"rows": rows, "link": emulator}
    print(json.dumps(emulator))
    if keep:
        common.write("network/move_link", f"python -m bench move_link --rounds {options.rounds}", result)
    return result
