"""Queues: tokens that do not fit through the link, and a bulk transfer over TCP with CUBIC beside ours.

    sudo nice -n -5 python -m bench overload [--seeds 5] [--at-once 2]

The lab's link (round trip 60 ms) with a bottleneck:

- `tokens`: 16 streams, a token every 20 ms, together 1.5 times what 1 Mbit/s with a queue of 32 kB takes;
- `tokens beside TCP`: the same, and a TCP connection that sends all it can;
- `bulk beside TCP`: 10 Mbit/s with a queue of 64 kB, a stream that sends all it can, and such a TCP
  connection.

Servers: headrace as it is (`steady`, echo), and with CUBIC without the echo. Client: qh3. Shares are of what
came through the link after ten seconds, until the fortieth, by its log.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from bench import common
from headrace.config import Config
from headrace.gateway import Gateway
from headrace_lab.clients.workload import Workload
from headrace_lab.link import Link
from headrace_lab.link import log as link_log
from headrace_lab.link.profiles import Profile
from headrace_lab.measure.statistics import median, percentile
from headrace_lab.peers import servers as peers

NARROW = {"delay_ms": 30.0, "rate_mbit": 1.0, "queue_kb": 32.0}
WIDE = {"delay_ms": 30.0, "rate_mbit": 10.0, "queue_kb": 64.0}
SECONDS = 40.0
FROM_S = 10.0
TOKENS: dict[str, Any] = {"events": 1000, "interval_s": 0.02}
CASES: dict[str, tuple[dict[str, float], dict[str, Any], int, bool]] = {
    "tokens": (NARROW, TOKENS, 16, False),
    "tokens beside TCP": (NARROW, TOKENS, 16, True),
    "bulk beside TCP": (WIDE, {"events": 1_000_000, "interval_s": 0.0, "size": 1200}, 1, True),
}
SERVERS = {"steady, echo": ("steady", "auto"), "cubic, no echo": ("cubic", "off")}
"""Congestion controller, and mode of the echo."""


@dataclass(frozen=True)
class Run:
    case: str
    server: str
    seed: int


@contextlib.contextmanager
def tcp_bulk(link: Link) -> Iterator[None]:
    """All that a TCP connection with CUBIC can send, from the server's side, for `SECONDS`."""
    with link.client.entered():
        listener = socket.create_server((link.client_address, 0))
    with link.server.entered():
        sender = socket.socket()
    sender.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, b"cubic")
    sender.connect(listener.getsockname())
    receiver, _ = listener.accept()
    until = time.monotonic() + SECONDS
    sender.settimeout(SECONDS)

    def send() -> None:
        with contextlib.suppress(OSError):
            while time.monotonic() < until:
                sender.send(bytes(65536))

    def receive() -> None:
        with contextlib.suppress(OSError):
            while receiver.recv(1 << 16):
                pass

    threads = [threading.Thread(target=each) for each in (send, receive)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        for each in (sender, receiver):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
        for thread in threads:
            thread.join()
        for each in (sender, receiver, listener):
            each.close()


@contextlib.asynccontextmanager
async def gateway(server: str, upstream: str, link: Link, folder: Path) -> AsyncIterator[Gateway]:
    congestion, mode = SERVERS[server]
    fields: dict[str, Any] = {
        "listen": {"host": link.server_address, "port": 0, "workers": 1, "congestion": congestion},
        "echo": {"mode": mode},
        "upstreams": [{"url": upstream, "models": ["*"]}],
    }
    peers.certificate(folder, link.server_address)
    chain, key = ((folder / name).read_text() for name in ("cert.pem", "key.pem"))
    async with Gateway(Config(**fields), chain, key) as running:
        yield running


async def _perform(run: Run, link: Link, folder: Path, upstream: str) -> dict[str, Any]:
    _, script, streams, beside_tcp = CASES[run.case]
    with link.server.entered():
        async with gateway(run.server, upstream, link, folder) as running:
            load = Workload(
                url=f"https://{link.server_address}:{running.server.address[1]}",
                client="qh3",
                ca=str(folder / "ca.pem"),
                streams=streams,
                script=script,
                seed=run.seed,
                spread_s=0.02,
                limit_s=SECONDS if beside_tcp else 120.0,
            )
            (folder / "load.json").write_text(json.dumps(asdict(load)))
            files = (str(folder / name) for name in ("load.json", "log"))
            command = [sys.executable, "-m", "headrace_lab.clients.workload", *files]
            client = link.client.popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
            assert client.stdin is not None
            assert client.stdout is not None
            await asyncio.to_thread(client.stdout.readline)
            copies, last_copy, began = running.server.snapshot()["echo_copies_total"], 0.0, time.monotonic()
            with tcp_bulk(link) if beside_tcp else contextlib.nullcontext():
                client.stdin.write(b"\n")
                client.stdin.flush()
                ended = asyncio.ensure_future(asyncio.to_thread(client.communicate))
                while not ended.done():
                    await asyncio.sleep(0.02)
                    now = running.server.snapshot()["echo_copies_total"]
                    if now != copies:
                        copies, last_copy = now, time.monotonic() - began
            return {"began_ns": int(began * 1e9), "last_copy_s": last_copy}


def one(run: Run) -> dict[str, Any]:
    fields, _, _, beside_tcp = CASES[run.case]
    with (
        tempfile.TemporaryDirectory() as name,
        Link(Profile(name=run.case, **fields), run.seed) as link,  # type: ignore[arg-type]
        contextlib.ExitStack() as stack,
    ):
        folder = Path(name)
        with link.server.entered():
            upstream = stack.enter_context(common.source({}))
        found = asyncio.run(_perform(run, link, folder, upstream))
        log = json.loads((folder / "log").read_text())
        result = link.result()
        window = (found["began_ns"] + FROM_S * 1e9, found["began_ns"] + SECONDS * 1e9)
        through = {link_log.TCP: 0, link_log.UDP: 0}
        for packet in link_log.read(result["log"]):
            if packet.direction == "down" and packet.out_ns and window[0] <= packet.out_ns < window[1]:
                through[packet.protocol] += packet.length
    seconds = SECONDS - FROM_S
    answer = {"last_copy_s": found["last_copy_s"], "void": bool(result["void"])}
    if beside_tcp:
        rates = {"tcp_mbit": link_log.TCP, "ours_mbit": link_log.UDP}
        return answer | {key: through[protocol] * 8e-6 / seconds for key, protocol in rates.items()}
    arrivals = [[token[-1] for token in stream["tokens"]] for stream in log["streams"]]
    gaps = [(b - a) / 1e6 for times in arrivals for a, b in itertools.pairwise(times)]
    done = max(stream["end_ns"] for stream in log["streams"]) - log["t0_ns"]
    whole = sum(not stream["error"] for stream in log["streams"])
    quantiles = {f"gap_{name}_ms": percentile(gaps, share) for name, share in QUANTILES.items()}
    return answer | {"done_s": done / 1e9, "whole": whole, **quantiles}


QUANTILES = {"p99": 0.99, "p999": 0.999}


def main(arguments: list[str] | None = None, keep: bool = True) -> dict[str, Any]:
    parser = common.parser("overload", __doc__)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--at-once", type=int, default=2, help="runs, each on a link of its own (default 2)")
    options = parser.parse_args(arguments)
    common.need_root(parser)
    runs = [
        Run(case, server, seed + 1) for case in CASES for seed in range(options.seeds) for server in SERVERS
    ]
    results = dict(common.at_once(one, runs, options.at_once, lambda run: run.case))
    rows = []
    for case, server in itertools.product(CASES, SERVERS):
        its = [r for run, r in results.items() if (run.case, run.server) == (case, server) and not r["void"]]
        if not its:
            raise RuntimeError(f"{case}, {server}: every run was void; is the machine busy?")
        medians = {key: round(median([r[key] for r in its]), 2) for key in its[0] if key != "void"}
        worst = {"latest_copy_s": round(max(r["last_copy_s"] for r in its), 2)}
        rows.append({"case": case, "server": server, "runs": len(its), **medians, **worst})
        print(common.shown(rows[-1]), flush=True)
    result = {"round_trip_ms": 60, "rows": rows}
    if keep:
        common.write(
            "network/overload",
            f"python -m bench overload --seeds {options.seeds} --at-once {options.at_once}",
            result,
        )
    return result
