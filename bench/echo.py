"""Tokens through a lossy link: stalls, gaps, first tokens, and what the echo costs.

    sudo nice -n -5 python -m bench.echo [--seeds 3]

The lab's link between two namespaces (round trip 60 ms), the gateway before the scripted model server, 16
streams on one new connection, a token each 20 ms. Clients: qh3, which knows nothing of an echo, and
headrace's own. Variants of the server: with the echo, without it, and CUBIC without it. A stall is a gap of
more than 80 ms. Runs that the link calls void are counted, and left out.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import os
import ssl
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

from bench import common, peers
from headrace.client import Trust
from headrace.lab import load
from headrace.lab.link import Link
from headrace.lab.profiles import Profile

STALL_MS = 80.0
PATHS: dict[str, dict[str, float]] = {
    "0 %": {},
    "1 %": {"loss": 0.01},
    "3 %": {"loss": 0.03},
    "5 %": {"loss": 0.05},
    "3 % in runs of 3": {"loss": 0.03, "burst": 3},
    "3 % in runs of 6": {"loss": 0.03, "burst": 6},
}
VARIANTS = {
    "echo": {},
    "no echo": {"HEADRACE_ECHO__MODE": "off"},
    "no echo with cubic": {"HEADRACE_ECHO__MODE": "off", "HEADRACE_LISTEN__CONGESTION": "cubic"},
}
TIMEOUT_S = 60.0


async def of_qh3(host: str, port: int, streams: int, body: bytes) -> list[list[int]]:
    """When each event of each stream came, in ns."""
    from qh3.asyncio.client import connect
    from qh3.asyncio.protocol import QuicConnectionProtocol
    from qh3.h3.connection import H3_ALPN, H3Connection
    from qh3.h3.events import DataReceived
    from qh3.quic.configuration import QuicConfiguration

    arrivals: dict[int, list[int]] = defaultdict(list)
    ended: set[int] = set()
    done = asyncio.Event()

    class Client(QuicConnectionProtocol):
        def __init__(self, *arguments: Any, **options: Any) -> None:
            super().__init__(*arguments, **options)
            self.http = H3Connection(self._quic)

        def quic_event_received(self, event: Any) -> None:
            now = time.monotonic_ns()
            for each in self.http.handle_event(event):
                if isinstance(each, DataReceived):
                    arrivals[each.stream_id] += [now] * each.data.count(b"\n\n")
                    if each.stream_ended:
                        ended.add(each.stream_id)
                        if len(ended) == streams:
                            done.set()

    configuration = QuicConfiguration(is_client=True, alpn_protocols=H3_ALPN, server_name="localhost")
    configuration.verify_mode = ssl.CERT_NONE
    async with connect(host, port, configuration=configuration, create_protocol=Client) as client:
        assert isinstance(client, Client)
        http = client.http
        head = [(b":method", b"POST"), (b":scheme", b"https"), (b":authority", b"localhost")]
        head += [(b":path", b"/v1/chat/completions"), (b"content-type", b"application/json")]
        for _ in range(streams):
            stream = client._quic.get_next_available_stream_id()
            http.send_headers(stream, head)
            http.send_data(stream, body, end_stream=True)
        client.transmit()
        await asyncio.wait_for(done.wait(), TIMEOUT_S)
    return list(arrivals.values())


async def of_headrace(host: str, port: int, streams: int, request: dict[str, Any]) -> list[list[int]]:
    origin = f"https://{host}:{port}"
    logs = await asyncio.wait_for(load.run(origin, Trust(anybody=True), 1, streams, request), TIMEOUT_S)
    wrong = [log.error for log in logs if log.error]
    if wrong:
        raise RuntimeError(f"{len(wrong)} streams broke: {wrong[0]}")
    return [log.arrivals_ns for log in logs]


def client(arguments: list[str]) -> None:
    """Runs in the client's namespace; prints one JSON line."""
    name, host, port, streams, events = arguments
    script = {"events": int(events), "interval_s": 0.02}
    request = {"model": "x", "stream": True, "script": script}
    began = time.monotonic_ns()
    if name == "qh3":
        got = asyncio.run(of_qh3(host, int(port), int(streams), json.dumps(request).encode()))
    else:
        got = asyncio.run(of_headrace(host, int(port), int(streams), request))
    gaps = [(b - a) / 1e6 for times in got for a, b in itertools.pairwise(times)]
    firsts = [(times[0] - began) / 1e6 for times in got]
    print(json.dumps({"gaps": gaps, "firsts": firsts}))


def one(
    path: str, name: str, variant: str, streams: int, events: int, seed: int, folder: Path
) -> dict[str, Any]:
    """One run: its gaps, and what both sides say."""
    settings = {"HEADRACE_LISTEN__HOST": "0.0.0.0", **VARIANTS[variant]}
    os.environ.update(settings)
    try:
        with (
            Link(Profile(name=path, delay_ms=30, **PATHS[path]), seed) as link,  # type: ignore[arg-type]
            link.server.entered(),
            common.source({}) as upstream,
            peers.headrace(upstream, folder, 1) as gateway,
        ):
            port = gateway.origin.rpartition(":")[2]
            command = [sys.executable, "-m", "bench.echo", "--as-client", name, link.server_address, port]
            cpu = gateway.cpu_s()
            ran = link.client.run(
                [*command, str(streams), str(events)],
                stdout=subprocess.PIPE,
                text=True,
                timeout=TIMEOUT_S * 2,
            )
            cpu = gateway.cpu_s() - cpu
            result = link.result()
        if ran.returncode:
            raise RuntimeError(f"the client failed: {path}, {name}, {variant}, seed {seed}")
        answer = json.loads(ran.stdout)
        answer |= {"void": result["void"], "down": result["down"], "cpu_us": cpu * 1e6 / len(answer["gaps"])}
        return dict(answer)
    finally:
        for key in settings:
            os.environ.pop(key)


def summary(runs: list[dict[str, Any]]) -> dict[str, Any]:
    counted = [run for run in runs if not run["void"]]
    gaps = [gap for run in counted for gap in run["gaps"]]
    if not gaps:
        return {"runs": 0, "void": len(runs)}
    return {
        "runs": len(counted),
        "void": len(runs) - len(counted),
        "tokens": len(gaps),
        "stalls_per_1000": round(sum(gap > STALL_MS for gap in gaps) * 1000 / len(gaps), 2),
        "gap_ms": {name: round(load.quantile(gaps, q), 1) for name, q in QUANTILES.items()},
        "first_ms": round(load.quantile([first for run in counted for first in run["firsts"]], 0.5), 1),
        "bytes_per_token": round(sum(run["down"]["in_bytes"] for run in counted) / len(gaps), 1),
        "cpu_us_per_token": round(common.median([run["cpu_us"] for run in counted]), 1),
    }


QUANTILES = {"p50": 0.5, "p99": 0.99, "p99.9": 0.999}


def main(arguments: list[str] | None = None, keep: bool = True) -> dict[str, Any]:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--streams", type=int, default=16)
    parser.add_argument("--events", type=int, default=300)
    parser.add_argument("--clients", default="qh3,headrace")
    parser.add_argument("--paths", default=",".join(PATHS))
    parser.add_argument("--variants", default="echo,no echo", help="of " + ", ".join(VARIANTS))
    options = parser.parse_args(arguments)
    common.need_root(parser)
    rows = []
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        peers.certificate(folder)
        for path, name in itertools.product(options.paths.split(","), options.clients.split(",")):
            runs: dict[str, list[dict[str, Any]]] = defaultdict(list)
            # Interleaved: what the machine does meanwhile meets all variants.
            for seed, variant in itertools.product(range(1, options.seeds + 1), options.variants.split(",")):
                runs[variant].append(one(path, name, variant, options.streams, options.events, seed, folder))
            for variant, each in runs.items():
                rows.append({"path": path, "client": name, "variant": variant, **summary(each)})
                print(common.shown(rows[-1]), flush=True)
    result = {"round_trip_ms": 60, "streams": options.streams, "events": options.events, "rows": rows}
    if keep:
        common.write("echo", f"python -m bench.echo --seeds {options.seeds}", result)
    return result


if __name__ == "__main__":
    if sys.argv[1:2] == ["--as-client"]:
        client(sys.argv[2:])
    else:
        main()
