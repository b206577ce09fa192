"""What a scenario's clients do, in a process: `python -m headrace_lab.clients.workload SPEC OUT`.

In: a `Workload` as a JSON file. Out: a JSON log of every stream, written when all have ended. On standard
output `{"ready": true}` when all connections are open; a line on standard input begins the workload, which
`{"t0_ns": ...}` answers; then, four times a second, how many tokens have come. It ends by itself
(`limit_s`). CLOCK_MONOTONIC is the same in all network namespaces, so the times can be compared with the
model's.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import random
import resource
import sys
import time
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from headrace_lab.clients.choose import make_client
from headrace_lab.clients.client import Client, Destination, Handle, Request
from headrace_lab.clients.sink import UNFINISHED, Sink

WARM_UP = {"events": 2, "interval_s": 0.001}
BULK = {"events": 10**7, "interval_s": 0, "framing": "raw", "size": 16_000}
BULK_STARTS_S = 0.5
SILENCE_NS = 10_000_000_000
"""An answer that had no token for so long does not go on."""
TICKETS_S = 0.5
"""It takes session tickets less time than this to arrive."""


@dataclass
class Workload:
    """What the clients do. Durations are in seconds."""

    url: str
    protocol: str = "http3"
    client: str = "headrace"
    ca: str | None = None
    path: str = "/v1/chat/completions"
    connections: int = 1
    streams: int = 1
    """Streams on each connection."""
    rounds: int = 1
    """Requests in the place of each stream, one after the other."""
    pause_s: float = 0.0
    """The pause between two rounds."""
    script: dict[str, Any] = field(default_factory=dict)
    """What the scripted model answers; empty for a real one."""
    request: dict[str, Any] = field(default_factory=dict)
    """The body of each request to a server that is not ours; empty: the scripted model is asked."""
    fields: list[tuple[str, str]] = field(default_factory=list)
    """Further header fields, for example an API key."""
    spread_s: float = 0.02
    """The time over which the starts are spread."""
    cold: bool = False
    """Each request has a fresh connection. Otherwise all connections are open and were used once before
    the beginning."""
    resumed: bool = False
    """The client of cold requests was there before and comes back with a ticket, where it can; its
    requests have an `Idempotency-Key`, and leave in early data (0-RTT)."""
    stop_places: int = 0
    """How many places stop their answers, at a moment drawn from `stop_after_s`; the others do not."""
    stop_after_s: tuple[float, float] = (0.1, 0.2)
    slow_places: int = 0
    """How many places stop reading at `slow_at_s`, for `slow_for_s`; their answers have `slow_script`."""
    slow_at_s: float = 1.0
    slow_for_s: float = 2.0
    slow_script: dict[str, Any] = field(default_factory=dict)
    migrate_at_s: list[float] = field(default_factory=list)
    """When the client moves to another socket by itself."""
    bulk: bool = False
    """Two endless downloads run beside the tokens: one over the protocol, one over HTTP/1.1."""
    seed: int = 1
    limit_s: float = 60.0
    """The time after which whatever still runs has failed."""


@dataclass
class Run:
    """A workload that is being run."""

    load: Workload
    sinks: list[Sink] = field(default_factory=list)
    clients: list[Client] = field(default_factory=list)
    bulk_sinks: list[Sink] = field(default_factory=list)
    t0_ns: int = 0
    handles: dict[int, Handle] = field(default_factory=dict)
    late: list[float] = field(default_factory=list)
    """How many seconds too late this loop woke, at each of its ticks."""

    def destination(self) -> Destination:
        return Destination(self.load.url, Path(self.load.ca) if self.load.ca else None, self.load.resumed)

    def request(self, script: dict[str, Any], tag: str, seed: int) -> Request:
        body = dict(self.load.request)
        if not body:
            body = {"model": "scripted", "stream": True, "tag": tag}
            if script:
                body["script"] = {**script, "seed": seed}
        fields = [("content-type", "application/json"), ("accept", "text/event-stream")]
        fields += [("accept-encoding", "gzip"), *((name, value) for name, value in self.load.fields)]
        if self.load.resumed:
            fields.append(("idempotency-key", f"{tag} {seed} {self.load.seed}"))
        return Request(self.load.path, tuple(fields), json.dumps(body).encode())

    async def open(self) -> None:
        """Opens all connections and uses each once, so that what a server does only once is not measured."""
        load = self.load
        places = load.connections if load.protocol != "http1" else 1
        for number in range(places):
            made = make_client(load.protocol, load.client, self.destination())
            self.clients.append(made)
            together = load.connections * load.streams if load.protocol == "http1" else 1
            for _ in range(together):
                await made.connect()
            warm = [Sink(-1, number, "warm-up", load.path) for _ in range(together)]
            if not load.request:
                request = self.request(WARM_UP, "warm-up", 1)
                handles = [await made.send(request, sink) for sink in warm]
                await asyncio.wait_for(asyncio.gather(*(sink.ended.wait() for sink in warm)), 20)
                del handles
            for sink in warm:
                if sink.error:
                    raise ConnectionError(f"the first request failed: {sink.error}")

    async def place(self, number: int) -> None:
        """Runs one place: a request, or several one after the other."""
        load = self.load
        chance = random.Random(f"{load.seed} {number}")
        total = load.connections * load.streams
        await asyncio.sleep(load.spread_s * (number + chance.random()) / total)
        for turn in range(load.rounds):
            sink = Sink(number, number % load.connections, f"{number}.{turn}", load.path)
            self.sinks.append(sink)
            try:
                await self._one(sink, number, chance)
            except Exception as error:  # What a client raises is a result.
                sink.end(time.monotonic_ns(), type(error).__name__)
            if turn + 1 < load.rounds:
                await asyncio.sleep(load.pause_s * chance.uniform(0.5, 1.5))

    async def _one(self, sink: Sink, number: int, chance: random.Random) -> None:
        load = self.load
        is_slow = load.stop_places <= number < load.stop_places + load.slow_places
        script = load.slow_script if is_slow else load.script
        request = self.request(script, sink.tag, chance.randrange(1, 2**31))
        on = self.clients[sink.connection % len(self.clients)] if self.clients else None
        if load.cold or on is None:
            sink.connect_ns = time.monotonic_ns()
            on = make_client(load.protocol, load.client, self.destination())
            await on.connect()
        handle = await on.send(request, sink)
        self.handles[id(sink)] = handle
        if number < load.stop_places:
            await asyncio.sleep(chance.uniform(*load.stop_after_s))
            if not sink.end_ns:
                sink.stopped_ns = time.monotonic_ns()
                handle.stop()
        if is_slow:
            await asyncio.sleep(load.slow_at_s)
            handle.pause()
            await asyncio.sleep(load.slow_for_s)
            handle.resume()
        await sink.ended.wait()
        self.handles.pop(id(sink), None)
        if load.cold:
            on.close()

    async def bulk(self) -> None:
        """Runs two downloads that fill the link, from `BULK_STARTS_S` on, until they are cancelled after
        the last token."""
        await asyncio.sleep(BULK_STARTS_S)
        for number, protocol in enumerate((self.load.protocol, "http1")):
            made = make_client(
                protocol, self.load.client if protocol == "http3" else "headrace", self.destination()
            )
            await made.connect()
            self.clients.append(made)
            sink = Sink(-2, number, f"bulk {protocol}", keep_tokens=False)
            self.handles[id(sink)] = await made.send(self.request(BULK, sink.tag, 1), sink)
            self.bulk_sinks.append(sink)

    async def migrate(self) -> None:
        for at_s in self.load.migrate_at_s:
            await asyncio.sleep(max(0.0, at_s - (time.monotonic_ns() - self.t0_ns) / 1e9))
            for each in self.clients:
                with contextlib.suppress(NotImplementedError):
                    each.migrate()

    async def tell(self) -> None:
        """Tells how many tokens have come so far, and notes how late this loop wakes."""
        told, loop = 0.0, asyncio.get_running_loop()
        while True:
            due = loop.time() + 0.01
            await asyncio.sleep(0.01)
            self.late.append(loop.time() - due)
            if loop.time() - told > 0.25:
                told = loop.time()
                print(json.dumps({"tokens": sum(len(sink.tokens) for sink in self.sinks)}), flush=True)

    async def all(self, begin: Callable[[], Awaitable[None]] | None) -> None:
        load = self.load
        if not load.cold or load.resumed:
            await self.open()
        if load.resumed:
            # The client has been there, and leaves with what it remembers.
            await asyncio.sleep(TICKETS_S)
            for each in self.clients:
                each.close()
        if begin:
            await begin()
        gc.collect()
        gc.freeze()
        gc.disable()
        self.t0_ns = time.monotonic_ns()
        print(json.dumps({"t0_ns": self.t0_ns}), flush=True)
        beside = [asyncio.ensure_future(self.tell()), asyncio.ensure_future(self.migrate())]
        if load.bulk:
            beside.append(asyncio.ensure_future(self.bulk()))
        places = [asyncio.ensure_future(self.place(n)) for n in range(load.connections * load.streams)]
        _, late = await asyncio.wait(places, timeout=load.limit_s)
        now = time.monotonic_ns()
        for sink in self.sinks:
            # A real model's answer may take longer than the lab waits; the scripted model's does not.
            is_going_on = self.load.request and sink.tokens and now - sink.tokens[-1][3] < SILENCE_NS
            sink.end(now, UNFINISHED if is_going_on else "timeout")
        for sink in self.bulk_sinks:
            sink.end(now, "stopped")
        for task in (*late, *beside):
            task.cancel()
        await asyncio.gather(*late, *beside, return_exceptions=True)

    def log(self) -> dict[str, Any]:
        used = resource.getrusage(resource.RUSAGE_SELF)
        late = sorted(self.late)
        return {
            "workload": asdict(self.load),
            "t0_ns": self.t0_ns,
            "streams": [sink.as_log() for sink in self.sinks],
            "bulk": [sink.as_log() for sink in self.bulk_sinks],
            "transport": [made.stats() for made in self.clients],
            "cpu_s": used.ru_utime + used.ru_stime,
            "loop_late_ms": late[int(len(late) * 0.99)] * 1e3 if late else 0.0,
        }


async def perform(load: Workload, begin: Callable[[], Awaitable[None]] | None = None) -> dict[str, Any]:
    """Runs a workload in the running loop. `begin` is awaited when all connections are open."""
    run = Run(load)
    await run.all(begin)
    log = run.log()
    for made in run.clients:
        with contextlib.suppress(Exception):
            made.close()
    return log


async def _told_to_begin() -> None:
    print(json.dumps({"ready": True}), flush=True)
    if not await asyncio.to_thread(sys.stdin.readline):
        raise EOFError("standard input was closed before the beginning")


def main(arguments: list[str]) -> None:
    spec, out = (Path(name) for name in arguments)
    load = Workload(**json.loads(spec.read_text()))
    try:
        log = asyncio.run(perform(load, _told_to_begin))
    except Exception as error:
        print(json.dumps({"error": f"{type(error).__name__}: {error}"}), flush=True)
        sys.exit(1)
    out.write_text(json.dumps(log))


if __name__ == "__main__":
    main(sys.argv[1:])
