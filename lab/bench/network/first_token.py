"""What a first token costs over a network with a delay, counted in its round trips.

    sudo python -m bench first_token [--rounds 15]

The lab's link without loss, with delays for round trips (R) of 20, 50, 100 and 200 ms. What counts as R is
what an ICMP echo takes on the same path, in the same turns (`bench.network.ping`): the delay, and what two
network stacks and the emulator add to it. From the call of the client's `request` until the engine has
read the first token from its socket (the lab's rule), and until Python has it: on an open connection
(*warm*), on a new one (*cold*), and on a new one to a server that the client knows (*early*: 0-RTT; the
request has an `Idempotency-Key`). The same client asks headrace, Caddy and Envoy, by turns; behind each is
a model server that answers at once (`bench.network.instant_model`). For comparison httpx2 over HTTP/2, to
headrace: until Python has it. Then cold again at R = 60 ms with 3 % of packets lost in both directions, by
the lab's own cells: there the tail counts."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import ssl
import sys
import tempfile
import time
import uuid
from collections.abc import AsyncIterable, Awaitable, Callable
from pathlib import Path
from typing import Any, NamedTuple

import httpx2

from bench import common, peers
from bench.network.ping import ping_ms
from headrace import AsyncClient, Trust
from headrace_lab.clients.load import HEADERS, quantile
from headrace_lab.link import Link
from headrace_lab.link.namespaces import enter
from headrace_lab.link.profiles import Profile
from headrace_lab.run.cell import Cell, Options, run_valid
from headrace_lab.scenarios.scenario import Load, RunPart, Scenario, Show

ROUND_TRIPS_MS = (20, 50, 100, 200)
PATH = "/v1/chat/completions"
BODY = json.dumps({"model": "x", "stream": True}).encode()
WARM_UP = 8
"""Rounds before the first that counts; one before those of each further round trip."""
KEEP_IDLE_S = 0.3
"""The time after which the client closes its connection: what comes then is early."""
AWAY_S = 0.5
"""The time after which the close has reached the server, too."""


class Took(NamedTuple):
    """Milliseconds from the call to the first token."""

    socket: float
    """Read by the engine. Over HTTP/2 the same as `python`."""
    python: float


Times = dict[str, Took]
Way = Callable[[str, Path, float], Awaitable[Times]]
"""Asks an origin, with the certificate to trust and the milliseconds of a round trip."""


async def first(parts: AsyncIterable[Any], began_ns: int) -> Took:
    """All are read."""
    took: Took | None = None
    async for part in parts:
        if took is None:
            now_ns = time.monotonic_ns()
            at_ns = part[0].at_ns if isinstance(part, list) else now_ns
            took = Took((at_ns - began_ns) / 1e6, (now_ns - began_ns) / 1e6)
    if took is None:
        raise RuntimeError("an answer without a token")
    return took


async def ask(client: AsyncClient, origin: str, key: str | None = None) -> tuple[Took, bool]:
    """Until the first token; and whether the request was early."""
    headers = [*HEADERS, *([("idempotency-key", key)] if key else [])]
    began_ns = time.monotonic_ns()
    response = await client.request("POST", origin + PATH, headers, BODY)
    took = await first(response.chunks(), began_ns)
    if response.status != 200:
        raise RuntimeError(f"{origin} answered {response.status}")
    return took, response.early_data


async def http3(origin: str, ca: Path, trip_ms: float) -> Times:
    async with AsyncClient(Trust(ca), keep_idle=KEEP_IDLE_S) as client:
        cold, _ = await ask(client, origin)
        warm, _ = await ask(client, origin)
        await asyncio.sleep(KEEP_IDLE_S + AWAY_S + trip_ms / 1e3)
        back, is_early = await ask(client, origin, str(uuid.uuid4()))
    return {"cold": cold, "warm": warm, "early" if is_early else "resumed": back}


async def http2(origin: str, ca: Path, trip_ms: float) -> Times:
    trust = ssl.create_default_context(cafile=str(ca))
    times: Times = {}
    async with httpx2.AsyncClient(http1=False, http2=True, verify=trust) as client:
        for name in ("cold", "warm"):
            began_ns = time.monotonic_ns()
            async with client.stream("POST", origin + PATH, headers=HEADERS, content=BODY) as response:
                times[name] = await first(response.aiter_raw(), began_ns)
    return times


async def measure(link: Link, origins: dict[str, str], ca: Path, rounds: int) -> list[dict[str, Any]]:
    async def ping(_: str, __: Path, trip_ms: float) -> Times:
        # As long a pause before it as before a server's answer.
        await asyncio.sleep(trip_ms / 1e3)
        took = await ping_ms(link.server_address)
        return {"ping": Took(took, took)}

    ways: list[tuple[str, Way, str]] = [(name, http3, origin) for name, origin in origins.items()]
    ways.append(("ping", ping, ""))
    # Not between them: what came after it would find the processor's caches without the engine.
    apart: list[tuple[str, Way, str]] = [("http2", http2, origins["headrace"])]
    rows: list[dict[str, Any]] = []
    for trip in ROUND_TRIPS_MS:
        # The first ones also load modules, and Python learns the types of what it runs.
        warm_up = 1 if rows else WARM_UP
        link.command({"do": "profile", "profile": Profile(delay_ms=trip / 2)})
        samples: dict[str, dict[str, list[Took]]] = {}
        for in_turn in (ways, apart):
            for number in range(-warm_up, rounds):
                turn = number % len(in_turn)
                for name, take, origin in in_turn[turn:] + in_turn[:turn]:
                    times = await take(origin, ca, trip)
                    for case, took in times.items() if number >= 0 else ():
                        samples.setdefault(name, {}).setdefault(case, []).append(took)
        echo_ms = quantile([took.socket for took in samples.pop("ping")["ping"]], 0.5)
        print(f"R {trip:3} ms, by ping {echo_ms:.2f}")
        for name, cases in samples.items():
            row = {case: summary(taken, echo_ms) for case, taken in cases.items()}
            rows.append({"server": name, "delay_ms": trip, "round_trip_ms": echo_ms, "cases": row})
            shown = ", ".join(
                f"{case} {of['p50']:.1f} (p90 {of['p90']:.1f}; python {of['python_p50']:.1f})"
                for case, of in row.items()
            )
            print(f"R {trip:3} ms, {name:8} ms: {shown}", flush=True)
    return rows


def lossy(seeds: int) -> list[dict[str, Any]]:
    """Cold first tokens where packets are lost; one that never came counts as one after the load's limit."""
    taken: dict[str, list[float]] = {}
    load = Load(streams=8, rounds=25, tokens=1, cold=True, spread_s=0.2)  # type: ignore[call-arg]
    limit_ms, places = load.limit_s * 1e3, load.streams * load.rounds
    for seed, server in itertools.product(range(1, seeds + 1), LOSSY_SERVERS):
        scenario = Scenario(
            name="cold",
            title="cold",
            link={"delay_ms": LOSSY_TRIP_MS / 2, "loss": LOSS},
            load=load,
            run=RunPart(servers=[server], protocols=["http3"]),  # type: ignore[call-arg]
            show=Show(measures=["ttft_p99_ms"]),
        )
        result = run_valid(scenario, Cell(server, "http3", seed=seed), Options(keep_timeline=False))
        if not result["void"]:
            missing = [limit_ms] * (places - len(result["ttft"]))
            taken.setdefault(server, []).extend(result["ttft"] + missing)
    rows = [
        {"server": name, "samples": len(all), **{p: quantile(all, q) for p, q in QUANTILES.items()}}
        for name, all in taken.items()
    ]
    for row in rows:
        print(common.shown(row), flush=True)
    return rows


LOSS, LOSSY_TRIP_MS = 0.03, 60.0
LOSSY_SERVERS = ("headrace", "headrace-no-echo", "caddy", "envoy")
QUANTILES = {"p50": 0.5, "p90": 0.9, "p99": 0.99}


def summary(taken: list[Took], trip: float) -> dict[str, Any]:
    at_socket, in_python = [each.socket for each in taken], [each.python for each in taken]
    return {
        "samples": len(taken),
        "p50": quantile(at_socket, 0.5),
        "p90": quantile(at_socket, 0.9),
        "round_trips": quantile(at_socket, 0.5) / trip,
        "python_p50": quantile(in_python, 0.5),
    }


def main(arguments: list[str] | None = None, keep: bool = True) -> dict[str, Any]:
    parser = common.parser("first_token", __doc__)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--seeds", type=int, default=4, help="of the runs with loss")
    options = parser.parse_args(arguments)
    common.need_root(parser)
    with tempfile.TemporaryDirectory() as temporary, Link(Profile(delay_ms=10)) as link:
        folder, host = Path(temporary), link.server_address
        peers.certificate(folder, host)
        with contextlib.ExitStack() as stack:
            enter(link.server.name)
            upstream = stack.enter_context(common.model("bench.network.instant_model"))
            # Of Envoy's workers each knows its own tickets alone: with two, half of what comes back is early.
            proxies = [
                stack.enter_context(peers.headrace(upstream, folder, 2, max_streams=100, host=host)),
                stack.enter_context(peers.caddy(upstream, folder, 2, host=host)),
                stack.enter_context(peers.envoy(upstream, folder, 1, host=host)),
            ]
            enter(link.client.name)
            origins = {proxy.name: proxy.origin for proxy in proxies}
            rows = asyncio.run(measure(link, origins, folder / "ca.pem", options.rounds))
            enter(link.server.name)
        link_result = link.result()
    if link_result["void"]:
        sys.exit(f"this counts for nothing: {'; '.join(link_result['void_because'])}")
    lossy_rows = lossy(options.seeds)
    result: dict[str, Any] = {
        "rounds": options.rounds,
        "versions": {proxy.name: proxy.version for proxy in proxies},
        "rows": rows,
        "lossy": {"loss": LOSS, "round_trip_ms": LOSSY_TRIP_MS, "rows": lossy_rows},
        "link": {
            name: link_result[name] for name in ("lateness_ms", "realtime", "awake", "void", "void_because")
        },
    }
    print(json.dumps(result["link"]))
    if keep:
        common.write("network/first_token", f"python -m bench first_token --rounds {options.rounds}", result)
    return result
