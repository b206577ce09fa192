"""The packets of one first token each: warm, cold and early, as `docs/first-token.md` draws them.

    sudo python -m bench timeline [--round-trip-ms 50]

Through the lab's link, from headrace's client to headrace. In milliseconds from the call of `request`: when a
packet left one side and reached the other, and its bytes of IP.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
import uuid
from pathlib import Path

from bench import common, peers
from bench.network import first_token
from headrace import AsyncClient, Trust
from headrace_lab.link import Link
from headrace_lab.link import log as link_log
from headrace_lab.link.namespaces import enter
from headrace_lab.link.profiles import Profile

Span = tuple[str, int, float]
"""Which case, when it began (monotonic ns), how long it took (ms)."""


async def ask(client: AsyncClient, origin: str, name: str, key: str | None = None) -> Span:
    began = time.monotonic_ns()
    took, is_early = await first_token.ask(client, origin, key)
    if key and not is_early:
        raise RuntimeError("it was not early")
    return name, began, took.python


async def measure(origin: str, ca: Path, trip_ms: float) -> list[Span]:
    # The first also loads modules and opens the way to the model server.
    await first_token.http3(origin, ca, trip_ms)
    async with AsyncClient(Trust(ca), keep_idle=first_token.KEEP_IDLE_S) as client:
        cold = await ask(client, origin, "cold")
        await asyncio.sleep(0.1 + trip_ms / 1e3)
        warm = await ask(client, origin, "warm")
        await asyncio.sleep(first_token.KEEP_IDLE_S + first_token.AWAY_S + trip_ms / 1e3)
        early = await ask(client, origin, "early", str(uuid.uuid4()))
    return [warm, cold, early]


def main(arguments: list[str] | None = None, keep: bool = True) -> None:
    """Prints the packets; there is nothing to keep."""
    parser = common.parser("timeline", __doc__)
    parser.add_argument("--round-trip-ms", type=float, default=50)
    options = parser.parse_args(arguments)
    common.need_root(parser)
    trip = options.round_trip_ms
    with tempfile.TemporaryDirectory() as temporary, Link(Profile(delay_ms=trip / 2)) as link:
        folder, host = Path(temporary), link.server_address
        peers.certificate(folder, host)
        enter(link.server.name)
        with (
            common.model("bench.network.instant_model") as upstream,
            peers.headrace(upstream, folder, 2, host=host) as proxy,
        ):
            enter(link.client.name)
            spans = asyncio.run(measure(proxy.origin, folder / "ca.pem", trip))
            enter(link.server.name)
        packets = link_log.read(link.result()["log"])
    for name, began, took in spans:
        print(f"{name}: the first token after {took:.1f} ms")
        for packet in packets:
            left, came = (packet.in_ns - began) / 1e6, (packet.out_ns - began) / 1e6
            if -1 < left < took:
                arrow = "──►" if packet.direction == "up" else "◄──"
                print(f"  {left:6.1f} {arrow} {came:6.1f}  {packet.length} B")
