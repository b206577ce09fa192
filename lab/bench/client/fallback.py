"""What a network that drops UDP costs the first request, and the next ones.

    sudo python -m bench fallback [--rounds 10]

Two network namespaces joined by a veth pair. On the side of the server a routing rule drops every UDP
datagram that comes in, as many company networks do. By turns a fresh client that never tries HTTP/3 and a
fresh one that races it (`http3="race"`, the default) ask twice each, over TCP in the end; timed in the
client's Python.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx2

from bench import common, peers
from headrace.httpx2 import AsyncTransport
from headrace_lab.link.namespaces import Namespace, enter, ip, joined
from headrace_lab.measure.statistics import median

ADDRESS = "10.99.0.1"
CLIENT, SERVER = Namespace("client"), Namespace("server")


@contextlib.contextmanager
def without_udp() -> Iterator[None]:
    with joined(CLIENT, SERVER, {"wire": ("10.99.0.2/24", f"{ADDRESS}/24")}):
        ip("-n", SERVER.name, "rule", "add", "pref", "1", "iif", "wire", "ipproto", "udp", "blackhole")
        # The rule for the server's own addresses comes first of all unless it is moved.
        ip("-n", SERVER.name, "rule", "add", "pref", "2", "lookup", "local")
        ip("-n", SERVER.name, "rule", "del", "pref", "0", "lookup", "local")
        yield


TRANSPORTS: dict[str, Callable[[], httpx2.AsyncBaseTransport]] = {
    "tcp": lambda: httpx2.AsyncHTTPTransport(verify=False, http2=True),
    "race": lambda: AsyncTransport(verify=False),
}


async def ask(url: str, transport: httpx2.AsyncBaseTransport) -> list[float]:
    """Milliseconds of two requests by a fresh client."""
    took = []
    async with httpx2.AsyncClient(transport=transport) as client:
        for _ in range(2):
            began = time.perf_counter()
            response = await client.post(url, json={"model": "x", "script": {"events": 1, "interval_s": 0}})
            took.append((time.perf_counter() - began) * 1e3)
            if response.http_version != "HTTP/2":
                raise RuntimeError(f"{response.http_version}: UDP was not dropped")
    return took


def main(arguments: list[str] | None = None, keep: bool = True) -> dict[str, Any]:
    parser = common.parser("fallback", __doc__)
    parser.add_argument("--rounds", type=int, default=10)
    options = parser.parse_args(arguments)
    common.need_root(parser)
    warnings.simplefilter("ignore")  # verify=False is meant: the certificate is for localhost.
    took: dict[str, list[list[float]]] = {"tcp": [], "race": []}
    with tempfile.TemporaryDirectory() as temporary, without_udp():
        folder = Path(temporary)
        peers.certificate(folder)
        enter(SERVER.name)
        os.environ["HEADRACE_LISTEN__HOST"] = "0.0.0.0"
        with common.source({}) as upstream, peers.headrace(upstream, folder, 1) as proxy:
            enter(CLIENT.name)
            url = f"https://{ADDRESS}:{proxy.origin.rpartition(':')[2]}/v1/x"
            for turn in range(options.rounds):
                for name in ("tcp", "race") if turn % 2 else ("race", "tcp"):
                    took[name].append(asyncio.run(ask(url, TRANSPORTS[name]())))
            enter(SERVER.name)
    first, second = ({name: median([each[n] for each in of]) for name, of in took.items()} for n in (0, 1))
    result: dict[str, Any] = {
        "rounds": options.rounds,
        "first_ms": first,
        "second_ms": second,
        "added_to_the_first_ms": first["race"] - first["tcp"],
        "added_to_the_second_ms": second["race"] - second["tcp"],
    }
    for name in ("first", "second"):
        added = result[f"added_to_the_{name}_ms"]
        print(f"{name:6} request, ms: {common.shown(result[f'{name}_ms'])}; added {added:.1f}")
    if keep:
        common.write("client/fallback", f"python -m bench fallback --rounds {options.rounds}", result)
    return result
