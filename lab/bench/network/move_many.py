"""Whether answers survive when many clients move at random, and their server has several workers.

    python -m bench move_many [--connections 200]

Each connection has one answer, a token every 20 ms, and meanwhile moves three times to another socket,
each at a random moment. The server's kernel must bring every datagram to the worker that has its
connection, whatever its new address. An answer survives when each of its bytes is what the model server
sent.
"""

from __future__ import annotations

import asyncio
import json
import random
import tempfile
from pathlib import Path
from typing import Any

from bench import common, peers
from headrace.client import Connection, Trust, connect
from headrace_lab.clients import load
from headrace_lab.model import Script, body_of

WORKERS, MOVES, EVENTS = 4, 3, 250


async def answer(connection: Connection, tag: str) -> bytes:
    script = {"events": EVENTS, "interval_s": 0.02, "note_times": True}
    body = json.dumps({"model": "x", "tag": tag, "script": script}).encode()
    return await connection.request("POST", "/v1/x", load.HEADERS, body).read()


async def walk(connection: Connection, chance: random.Random) -> None:
    for _ in range(MOVES):
        await asyncio.sleep(chance.random() * EVENTS * 0.02 / MOVES)
        connection.migrate()


async def measure(origin: str, upstream: str, ca: Path, count: int) -> dict[str, Any]:
    trust, chance = Trust(ca), random.Random(1)
    connections = [await connect(origin, trust) for _ in range(count)]
    walks = [asyncio.create_task(walk(connection, chance)) for connection in connections]
    answers = [answer(connection, str(number)) for number, connection in enumerate(connections)]
    bodies = await asyncio.gather(*answers, return_exceptions=True)
    await asyncio.gather(*walks)
    runs = await asyncio.to_thread(common.runs, upstream)
    sent = {run["tag"]: run["times_ns"] for run in runs["runs"] if run["tag"]}
    survived = sum(
        body == body_of(Script(events=EVENTS), sent.get(str(number), []))
        for number, body in enumerate(bodies)
    )
    moves = sum(int(connection.stats()["path_changes"]) for connection in connections)
    for connection in connections:
        connection.close()
    return {"connections": count, "workers": WORKERS, "moves": moves, "survived": survived}


def main(arguments: list[str] | None = None, keep: bool = True) -> dict[str, Any]:
    parser = common.parser("move_many", __doc__)
    parser.add_argument("--connections", type=int, default=200)
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        peers.certificate(folder)
        with common.source({}) as upstream, peers.headrace(upstream, folder, WORKERS) as proxy:
            result = asyncio.run(measure(proxy.origin, upstream, folder / "ca.pem", options.connections))
    print(common.shown(result))
    if keep:
        common.write(
            "network/move_many", f"python -m bench move_many --connections {options.connections}", result
        )
    return result
