"""A plain load: many streams over few or many connections, and when each of their events came.

In: an origin, a number of connections, a number of streams on each, and a request. Out: for every stream
its events with the moment at which the engine read them from the socket, and how it ended.

Run by itself: `python -m headrace_lab.clients.load https://localhost:4433 --connections 1 --streams 64`; it
prints one JSON line.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from headrace.client import Connection, Trust, connect
from headrace.errors import HeadraceError

HEADERS = [("content-type", "application/json"), ("accept", "text/event-stream")]


@dataclass
class StreamLog:
    """One stream. Times are monotonic nanoseconds."""

    sent_ns: int
    head_ns: int = 0
    arrivals_ns: list[int] = field(default_factory=list)
    """When each DATA frame was read."""
    sizes: list[int] = field(default_factory=list)
    body: bytearray | None = None
    status: int = 0
    error: str | None = None


async def one_stream(
    connection: Connection,
    path: str,
    body: bytes,
    keep_body: bool = False,
    headers: list[tuple[str, str]] | None = None,
) -> StreamLog:
    """Sends one request and reads its answer to the end. Without `keep_body` Python sleeps meanwhile: the
    engine takes the times."""
    log = StreamLog(time.monotonic_ns(), body=bytearray() if keep_body else None)
    response = connection.request("POST", path, HEADERS + (headers or []), body, record=not keep_body)
    try:
        log.status = await response.head()
        log.head_ns = response.head_at_ns
        if not keep_body:
            records = await response.records()
            log.arrivals_ns = [at for at, _ in records]
            log.sizes = [size for _, size in records]
            return log
        async for batch in response.chunks():
            for chunk in batch:
                if chunk.is_first:
                    log.arrivals_ns.append(chunk.at_ns)
                    log.sizes.append(len(chunk.data))
                else:
                    log.sizes[-1] += len(chunk.data)
                if log.body is not None:
                    log.body += chunk.data
    except HeadraceError as error:
        log.error = error.kind.slug
    return log


async def run(
    origin: str,
    trust: Trust,
    connections: int,
    streams: int,
    request: dict[str, Any],
    path: str = "/v1/chat/completions",
    spread_s: float = 0.0,
    keep_body: bool = False,
) -> list[StreamLog]:
    """Runs all streams at once, or with their starts spread evenly over `spread_s`."""
    opened = [await connect(origin, trust) for _ in range(connections)]
    body = json.dumps(request).encode()
    total = connections * streams

    async def start(number: int) -> StreamLog:
        await asyncio.sleep(spread_s * number / total)
        return await one_stream(opened[number % connections], path, body, keep_body)

    try:
        return list(await asyncio.gather(*(start(number) for number in range(total))))
    finally:
        for connection in opened:
            connection.close()


def quantile(values: list[float], q: float) -> float:
    """Returns the value below which the share `q` lies; 0.0 where there is no value."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * q))] if ordered else 0.0


def summary(logs: list[StreamLog]) -> dict[str, Any]:
    """Sums up the streams; times are in milliseconds."""
    gaps = [
        (after - before) / 1e6
        for log in logs
        for before, after in zip(log.arrivals_ns, log.arrivals_ns[1:], strict=False)
    ]
    first = [(log.arrivals_ns[0] - log.sent_ns) / 1e6 for log in logs if log.arrivals_ns]
    errors: dict[str, int] = {}
    for log in logs:
        if log.error:
            errors[log.error] = errors.get(log.error, 0) + 1
    return {
        "streams": len(logs),
        "events": sum(len(log.arrivals_ns) for log in logs),
        "bytes": sum(sum(log.sizes) for log in logs),
        "errors": errors,
        "ttft_ms": {"p50": quantile(first, 0.5), "p99": quantile(first, 0.99)},
        "gap_ms": {"p50": quantile(gaps, 0.5), "p99": quantile(gaps, 0.99), "max": max(gaps, default=0.0)},
    }


def main(arguments: list[str]) -> None:
    import argparse

    parser = argparse.ArgumentParser(prog="python -m headrace_lab.clients.load", description=__doc__)
    parser.add_argument("origin")
    parser.add_argument("--connections", type=int, default=1)
    parser.add_argument("--streams", type=int, default=1, help="on each connection")
    parser.add_argument("--request", type=json.loads, default={"model": "scripted", "stream": True})
    parser.add_argument("--path", default="/v1/chat/completions")
    parser.add_argument("--spread", type=float, default=0.0, help="seconds over which the starts are spread")
    parser.add_argument("--ca", type=Path)
    parser.add_argument("--insecure", action="store_true")
    options = parser.parse_args(arguments)
    logs = asyncio.run(
        run(
            options.origin,
            Trust(options.ca, options.insecure),
            options.connections,
            options.streams,
            options.request,
            options.path,
            options.spread,
        )
    )
    print(json.dumps(summary(logs)))


if __name__ == "__main__":
    main(sys.argv[1:])
