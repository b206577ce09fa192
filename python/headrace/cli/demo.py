"""`headrace demo`: the worked example, with a real model.

There are two generations on one warm connection. The first is stopped by a reset: its slot at the model
server is free a moment later, and the second streams to its end undisturbed. The demo fails when any of this
is not so.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import sys
import time
import urllib.request
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import typer

from headrace.errors import HeadraceError, StreamResetError
from headrace.events import dialects

PATH = "/v1/chat/completions"
STOP_AFTER = 15
"""How many tokens of the first generation are read before it is stopped."""
SECOND_TOKENS = 60
START_TIMEOUT_S = 60.0
SLOT_TIMEOUT_S = 2.0
LARGEST_GAP_MS = 500.0
"""A longer gap in the second stream would be a disturbance, even on a busy laptop."""
SHOWN = 5
"""How many frames of each stream are printed one by one; the others are only counted."""


def demo() -> None:
    """Play the worked example: two generations on one connection, one of them stopped.

    It starts the gateway with the local model on a free port, and ends by itself. The exit status is 1 when
    anything is not as it should be.
    """
    raise typer.Exit(asyncio.run(_play()))


@dataclass
class Generation:
    """One stream, as the client sees it."""

    name: str
    text: str = ""
    frames: int = 0
    events_in_frames: list[int] = field(default_factory=list)
    """How many SSE events each DATA frame has held."""
    arrivals_ns: list[int] = field(default_factory=list)
    partial: bytes = b""
    """The beginning of a frame whose rest comes in the next packet."""
    is_done: bool = False
    """The answer's own last event has come, and FIN after it."""

    def largest_gap_ms(self) -> float:
        times = self.arrivals_ns
        return max(((b - a) / 1e6 for a, b in itertools.pairwise(times)), default=0.0)


class Checks:
    """What must be so, and is printed as it is found."""

    def __init__(self) -> None:
        self.failed = 0

    def expect(self, is_so: bool, what: str) -> None:
        self.failed += not is_so
        print(f"   {'ok  ' if is_so else 'FAIL'} {what}")


async def _play() -> int:
    from headrace.client import Trust, connect
    from headrace.dev_certificate import ca_file

    print("1  the gateway, with a local model (llama.cpp, SmolLM2-135M-Instruct)")
    checks = Checks()
    async with _gateway() as started:
        print(f"   {started.origin}: HTTP/3 on UDP; model {started.model}")
        print(f"   llama.cpp at {started.model_url}, process {started.model_pid}, {started.slots} slots")
        before = time.perf_counter()
        async with await connect(started.origin, Trust(ca_file())) as connection:
            took = (time.perf_counter() - before) * 1e3
            health = connection.request("GET", "/readyz")
            await health.head()
            rtt = connection.stats()["rtt"] * 1e3
            print(f"2  one connection, warm: handshake {took:.1f} ms, round trip {rtt:.2f} ms")
            await _two_generations(connection, started, checks)
    print(f"{'all as it should be' if not checks.failed else f'failed checks: {checks.failed}'}")
    return 1 if checks.failed else 0


async def _two_generations(connection: Any, started: Started, checks: Checks) -> None:
    print("3  two generations on it, at once")
    first, second = Generation("A"), Generation("B")
    # A would go on for long; B ends by itself.
    story = _ask(connection, started.model, "Tell me a long story about a river.", 1500)
    haiku = _ask(connection, started.model, "Write a few lines about water.", SECOND_TOKENS)
    reading = asyncio.create_task(_read(haiku, second))
    await _read(story, first, STOP_AFTER)
    busy = await _busy_slots(started.model_url)
    checks.expect(len(busy) == 2, f"two slots are busy at the model server: {busy}")

    print(f"4  stop A after {first.frames} frames: its stream is reset (STOP_SENDING, H3_REQUEST_CANCELLED)")
    stopped_ns = time.monotonic_ns()
    seen_before_stop = len(second.arrivals_ns)
    story.stop()
    freed_ms = await _wait_for_free_slot(started.model_url, busy, stopped_ns)
    checks.expect(freed_ms is not None, "A's slot is free again")
    if freed_ms is not None:
        now = await _busy_slots(started.model_url)
        print(f"        {freed_ms:.1f} ms after the reset; busy now: {now}")
    reset = await _reset_of(story)
    checks.expect(reset, "A ends with an error that says stopped, not with FIN")

    print("5  B goes on to its end")
    await reading
    both = [*first.events_in_frames, *second.events_in_frames]
    checks.expect(all(count == 1 for count in both), f"each of {len(both)} DATA frames is one event")
    checks.expect(second.is_done, f"B is whole: {second.frames} frames, [DONE], FIN")
    checks.expect(len(second.arrivals_ns) > seen_before_stop, "B went on after A was stopped")
    gap = second.largest_gap_ms()
    checks.expect(gap < LARGEST_GAP_MS, f"B was not disturbed: its largest gap is {gap:.0f} ms")
    print(f"   B said: {' '.join(second.text.split())[:200]}")
    again = _ask(connection, started.model, "Say yes.", 4)
    third = Generation("C")
    await _read(again, third, quiet=True)
    checks.expect(third.is_done, "the same connection serves the next request")


def _ask(connection: Any, model: str, prompt: str, tokens: int) -> Any:
    body = {
        "model": model,
        "stream": True,
        "max_tokens": tokens,
        "ignore_eos": True,
        "messages": [{"role": "user", "content": prompt}],
    }
    headers = [("content-type", "application/json"), ("accept", "text/event-stream")]
    return connection.request("POST", PATH, headers, json.dumps(body).encode())


async def _read(response: Any, into: Generation, frames: int | None = None, quiet: bool = False) -> None:
    """Reads to the end, or until `frames` frames have come, and prints each as it comes."""
    status = await response.head()
    if not quiet:
        kind = response.header("content-type")
        print(f"   {into.name}  stream {response.stream_id:<3} HEADERS  {status} {kind}")
    async for batch in response.chunks():
        for chunk in batch:
            if chunk.is_first:
                into.frames += 1
                into.events_in_frames.append(0)
            into.partial += chunk.data
            if not into.partial.endswith(b"\n\n"):
                continue
            data, into.partial = into.partial, b""
            _count(data, chunk.at_ns, into)
            if not quiet and (into.frames <= SHOWN or into.is_done):
                size = f"{len(data):>4} B"
                print(f"   {into.name}  stream {response.stream_id:<3} DATA     {size}  {_shown(data)}")
            elif not quiet and into.frames == SHOWN + 1:
                print(f"   {into.name}  stream {response.stream_id:<3} ...")
        if frames is not None and into.frames >= frames:
            return
    if not quiet:
        print(f"   {into.name}  stream {response.stream_id:<3} FIN")


def _shown(event: bytes) -> str:
    """What an event says: its piece of text, or else how it begins."""
    text = event.decode("utf-8", "replace").strip()
    with contextlib.suppress(ValueError, KeyError, IndexError):
        content = json.loads(text.removeprefix("data: "))["choices"][0]["delta"]["content"]
        return json.dumps(content, ensure_ascii=False) if content else "the role"
    return text[:60]


def _count(data: bytes, at_ns: int, into: Generation) -> None:
    into.arrivals_ns.append(at_ns)
    into.events_in_frames[-1] += data.count(b"\n\n")
    for line in data.splitlines():
        if dialects.of(PATH).is_last(line):
            into.is_done = True
        elif line.startswith(b"data: {"):
            delta = json.loads(line[6:])["choices"][0]["delta"]
            into.text += delta.get("content") or ""


async def _reset_of(response: Any) -> bool:
    try:
        async for _ in response.chunks():
            pass
    except StreamResetError:
        return True
    except HeadraceError as error:
        return error.kind.slug == "stopped"
    return False


async def _busy_slots(url: str) -> list[int]:
    def ask() -> list[int]:
        with urllib.request.urlopen(f"{url}/slots", timeout=5) as answer:
            return [slot["id"] for slot in json.load(answer) if slot["is_processing"]]

    return await asyncio.to_thread(ask)


async def _wait_for_free_slot(url: str, busy: list[int], since_ns: int) -> float | None:
    """The milliseconds until a slot that was busy is free; `None` when none is after `SLOT_TIMEOUT_S`."""
    while (waited_ms := (time.monotonic_ns() - since_ns) / 1e6) < SLOT_TIMEOUT_S * 1e3:
        if len(await _busy_slots(url)) < len(busy):
            return (time.monotonic_ns() - since_ns) / 1e6
        await asyncio.sleep(0.001)
    print(f"   still busy after {waited_ms:.0f} ms", file=sys.stderr)
    return None


@dataclass
class Started:
    origin: str = ""
    model: str = ""
    model_url: str = ""
    model_pid: int = 0
    slots: int = 0


@contextlib.asynccontextmanager
async def _gateway() -> AsyncIterator[Started]:
    """`headrace serve` in a process of its own, on a free port, with the local model."""
    command = [sys.executable, "-m", "headrace", "serve", "--port", "0", "--log-format", "json"]
    process = await asyncio.create_subprocess_exec(
        *command, stderr=asyncio.subprocess.PIPE, cwd=Path(sys.prefix)
    )
    try:
        yield await asyncio.wait_for(_started(process), START_TIMEOUT_S)
    finally:
        if process.returncode is None:
            process.terminate()
        await process.wait()


async def _started(process: asyncio.subprocess.Process) -> Started:
    """Reads the gateway's log until it is ready."""
    started = Started()
    assert process.stderr is not None
    while line := await process.stderr.readline():
        try:
            entry = json.loads(line)
        except ValueError:
            print(line.decode("utf-8", "replace").rstrip(), file=sys.stderr)
            continue
        if entry.get("event") == "local_model":
            started.model, started.model_url = entry["model"], entry["url"]
            started.model_pid, started.slots = entry["pid"], entry["slots"]
        elif entry.get("event") == "ready":
            started.origin = f"https://localhost:{entry['port']}"
            _discard(process.stderr)
            return started
    raise typer.Exit(await process.wait() or 1)


def _discard(stream: asyncio.StreamReader) -> None:
    """Keeps reading, so that the gateway never has to wait for its log to be read."""

    async def read() -> None:
        while await stream.read(4096):
            pass

    task = asyncio.create_task(read())
    _readers.add(task)
    task.add_done_callback(_readers.discard)


_readers: set[asyncio.Task[None]] = set()
