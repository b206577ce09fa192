"""One client, measured in this process: `python -m bench.client.one --client pyqwest --case spread ...`.

In: a gateway that runs already, before the scripted model. Out: one JSON line: what was measured, or `error`.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

from bench import common
from bench.client.clients import BURST, CLIENTS, PATH, Ask
from headrace_lab.clients.load import quantile

CASES = ("aligned", "spread", "burst")
STREAMS = 64
INTERVAL_S = 0.02
EVENT_BYTES = 190
SETTLE_S = 2.0
BURST_SCRIPT = {"events": 20, "interval_s": 0.005}
BURST_TIMEOUT_S = 20.0
CLOSE_S = 1.0


def _request(script: dict[str, Any]) -> bytes:
    return json.dumps({"model": "scripted", "stream": True, "script": script}).encode()


async def steady(ask: Ask, phase: str, seconds: float) -> dict[str, Any]:
    """CPU in µs of one event, and how many of the events that were due have arrived."""
    count = Counter(bytes=0, pieces=0)

    def note(size: int) -> None:
        count["bytes"] += size
        count["pieces"] += 1

    script = {"events": int((seconds + SETTLE_S + 5) / INTERVAL_S), "interval_s": INTERVAL_S}
    body = _request(script | {"size": EVENT_BYTES, "align": phase == "aligned"})

    async def one(number: int) -> None:
        if phase == "spread":
            await asyncio.sleep(INTERVAL_S * 10.5 * number / STREAMS)
        await ask(body, note)

    tasks = [asyncio.create_task(one(number)) for number in range(STREAMS)]
    await asyncio.sleep(SETTLE_S)
    began, cpu, before = time.monotonic(), time.process_time(), count.copy()
    await asyncio.sleep(seconds)
    took, cpu = time.monotonic() - began, time.process_time() - cpu
    for task in tasks:
        if task.done():
            task.result()
            raise RuntimeError("a stream ended early")
        task.cancel()
    events = (count["bytes"] - before["bytes"]) / EVENT_BYTES
    return {
        "us": cpu / events * 1e6,
        "arrived": events / (STREAMS * took / INTERVAL_S),
        "pieces_per_event": (count["pieces"] - before["pieces"]) / events,
    }


async def burst(ask: Ask) -> dict[str, Any]:
    """Milliseconds from the first request until all streams have ended, and until each one's first byte."""
    body = _request(BURST_SCRIPT)
    first: list[float] = []
    errors: Counter[str] = Counter()

    async def one() -> None:
        seen = 0

        def note(size: int) -> None:
            nonlocal seen
            if not seen:
                first.append((time.perf_counter() - began) * 1e3)
            seen += size

        try:
            await ask(body, note)
            if seen < EVENT_BYTES * BURST_SCRIPT["events"]:
                raise RuntimeError("an answer was cut off")
        except Exception as error:
            errors[_named(error)] += 1

    began = time.perf_counter()
    tasks = [asyncio.create_task(one()) for _ in range(BURST)]
    _, unfinished = await asyncio.wait(tasks, timeout=BURST_TIMEOUT_S)
    result: dict[str, Any] = {"wall_ms": (time.perf_counter() - began) * 1e3}
    result |= {f"first_{name}_ms": quantile(first, common.QUANTILES[name]) for name in ("p50", "p99")}
    if unfinished:
        errors[f"not ended after {BURST_TIMEOUT_S:g} s"] = len(unfinished)
    if errors:
        result["error"] = "; ".join(f"{count} of {BURST}: {error}" for error, count in errors.items())
    return result


def _named(error: BaseException) -> str:
    lines = str(error).splitlines()
    return f"{type(error).__name__}: {lines[0] if lines else ''}"[:120]


async def measure(options: argparse.Namespace) -> None:
    try:
        async with CLIENTS[options.client](f"{options.origin}{PATH}", options.ca) as ask:
            await ask(_request({"events": 1}), lambda _: None)
            what = burst(ask) if options.case == "burst" else steady(ask, options.case, options.seconds)
            _answer(await what)
    except Exception as error:
        _answer({"error": _named(error)})


def _answer(result: dict[str, Any]) -> None:
    print(json.dumps(result), flush=True)
    # What a client does in closing is of no interest, and some take seconds.
    end = threading.Timer(CLOSE_S, os._exit, [0])
    end.daemon = True
    end.start()


def main() -> None:
    parser = common.parser("one", __doc__)
    parser.add_argument("--client", choices=CLIENTS, required=True)
    parser.add_argument("--case", choices=CASES, required=True)
    parser.add_argument("--origin", required=True, help="https://localhost:port")
    parser.add_argument("--ca", type=Path, required=True, help="PEM file")
    parser.add_argument("--seconds", type=float, default=5, help="the steady window")
    asyncio.run(measure(parser.parse_args()))


if __name__ == "__main__":
    main()
