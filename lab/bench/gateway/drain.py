"""What a deploy costs the people who are being answered.

    sudo python -m bench drain [--streams 200]

Two gateways, A and B, at two addresses of one name, as two nodes behind DNS are. While answers stream through
A, a token every 20 ms, and clients of four kinds keep asking by the name, A gets SIGTERM. Counted: streams
whose bytes are not exactly what the model server sent, requests that failed, and A's exit status.

httpx over HTTP/2 does not notice that a server has ended an idle connection (it never looks for GOAWAY):
there, and only there, a request that failed before its answer began is sent once more, as OpenAI's SDK does,
and counted. The name is known only inside (a mount namespace with a hosts file of its own), which needs root.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import json
import os
import random
import signal
import ssl
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import httpx2

from bench import common, peers
from headrace import dev_certificate
from headrace.client import AsyncClient, Trust
from headrace.httpx2 import AsyncTransport
from headrace_lab.clients import load
from headrace_lab.model import Script, body_of

NAME = "gateway.test"
ADDRESSES = {"A": "127.0.0.1", "B": "127.0.0.2"}
CLONE_NEWNS = 0x00020000
CONNECTIONS = 4
SHORT = {"events": 10, "interval_s": 0.02}
Ask = Callable[[str, bytes], Awaitable[bytes]]


def know_the_name(folder: Path) -> None:
    """The calling thread, and what it starts, finds both addresses under the name."""
    libc = ctypes.CDLL(None, use_errno=True)
    hosts = folder / "hosts"
    lines = [f"{address} {NAME}\n" for address in ADDRESSES.values()]
    hosts.write_text(Path("/etc/hosts").read_text() + "".join(lines))
    if libc.unshare(CLONE_NEWNS):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), "unshare")
    subprocess.run(["mount", "--make-rprivate", "/"], check=True)
    subprocess.run(["mount", "--bind", str(hosts), "/etc/hosts"], check=True)


@contextlib.contextmanager
def gateway(name: str, port: int, upstream: str, folder: Path) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "headrace", "serve", "--host", ADDRESSES[name], "--port", str(port)]
    command += ["--upstream", upstream, "--certificate", "cert.pem", "--key", "key.pem"]
    with (folder / f"{name}.log").open("w") as log:
        started = subprocess.Popen([*command, "--log-format", "json"], cwd=folder, stderr=log, text=True)
        try:
            yield started
        finally:
            started.terminate()
            started.wait(60)


async def ready(name: str, folder: Path) -> None:
    for _ in range(1000):
        if '"event": "ready"' in (folder / f"{name}.log").read_text():
            return
        await asyncio.sleep(0.02)
    raise RuntimeError((folder / f"{name}.log").read_text())


def is_whole(body: bytes, events: int) -> bool:
    found = body.split(b"\n\n")
    numbers = [event.split(b'"n":')[1].split(b",")[0] for event in found[:-2] if b'"n":' in event]
    return numbers == [b"%d" % number for number in range(events)] and found[-2:] == [b"data: [DONE]", b""]


@contextlib.asynccontextmanager
async def clients(ca: Path, retries: list[str]) -> AsyncIterator[dict[str, Ask]]:
    """Ways to ask, by name: each takes a URL and a body, returns the answer, and raises what goes wrong."""
    trusting = ssl.create_default_context(cafile=ca)

    def of_httpx(client: httpx2.AsyncClient, retries: list[str] | None = None) -> Ask:
        async def ask(url: str, body: bytes) -> bytes:
            request = client.build_request("POST", url, content=body, headers=load.HEADERS)
            try:
                answer = await client.send(request, stream=True)
            except httpx2.ProtocolError as error:
                if retries is None:
                    raise
                retries.append(str(error))
                answer = await client.send(request, stream=True)
            try:
                return await answer.raise_for_status().aread()
            finally:
                await answer.aclose()

        return ask

    async with contextlib.AsyncExitStack() as stack:
        ours = await stack.enter_async_context(AsyncClient(Trust(ca)))

        async def ask(url: str, body: bytes) -> bytes:
            return await (await ours.request("POST", url, load.HEADERS, body)).read()

        transport = await stack.enter_async_context(httpx2.AsyncClient(transport=AsyncTransport(str(ca))))
        http2 = await stack.enter_async_context(httpx2.AsyncClient(verify=trusting, http1=False, http2=True))
        http1 = await stack.enter_async_context(httpx2.AsyncClient(verify=trusting))
        yield {
            "headrace.AsyncClient": ask,
            "headrace.httpx2": of_httpx(transport),
            "httpx2, HTTP/2": of_httpx(http2, retries),
            "httpx2, HTTP/1.1": of_httpx(http1),
        }


async def keep_asking(ask: Ask, url: str, over: asyncio.Event, chance: random.Random) -> Counter[str]:
    """Short answers, one after the other, with pauses as people make; how they went."""
    body = json.dumps({"model": "scripted", "script": SHORT}).encode()
    seen: Counter[str] = Counter()
    while not over.is_set():
        try:
            seen["ok" if is_whole(await ask(url, body), int(SHORT["events"])) else "incomplete"] += 1
        except Exception as error:
            seen[f"{type(error).__name__}: {error}"] += 1
        await asyncio.sleep(chance.random() * 0.5)
    return seen


async def stream(client: AsyncClient, url: str, tag: str, script: dict[str, Any]) -> bytes:
    body = json.dumps({"model": "scripted", "tag": tag, "script": script}).encode()
    answer = await client.request("POST", url, load.HEADERS, body)
    parts = bytearray()
    with contextlib.suppress(Exception):
        async for batch in answer.chunks():
            for chunk in batch:
                parts += chunk.data
    return bytes(parts)


async def measure(
    url: str, folder: Path, upstream: str, streams: int, events: int, people: int
) -> dict[str, Any]:
    """A runs. B is started, A drains."""
    port = int(url.split(":")[2].partition("/")[0])
    script = {"events": events, "interval_s": 0.02, "note_times": True}
    ca, over, retries = folder / "ca.pem", asyncio.Event(), list[str]()
    with contextlib.ExitStack() as stack:
        a = stack.enter_context(gateway("A", port, upstream, folder))
        await ready("A", folder)
        readers = [
            stack.enter_context(contextlib.closing(AsyncClient(Trust(ca)))) for _ in range(CONNECTIONS)
        ]
        long = [
            asyncio.create_task(stream(readers[number % CONNECTIONS], url, str(number), script))
            for number in range(streams)
        ]
        asking: list[tuple[str, asyncio.Task[Counter[str]]]] = []
        async with contextlib.AsyncExitStack() as askers:
            for number in range(people):
                ways = await askers.enter_async_context(clients(ca, retries))
                for name, ask in ways.items():
                    asked = keep_asking(ask, url, over, random.Random(f"{name} {number}"))
                    asking.append((name, asyncio.create_task(asked)))
            await asyncio.sleep(0.5)
            stack.enter_context(gateway("B", port, upstream, folder))
            await ready("B", folder)
            await asyncio.sleep(0.5)
            running = sum(not task.done() for task in long)
            a.send_signal(signal.SIGTERM)
            status = await asyncio.to_thread(a.wait, 60)
            bodies = await asyncio.gather(*long)
            await asyncio.sleep(1)
            over.set()
            went: dict[str, Counter[str]] = {}
            for name, task in asking:
                went.setdefault(name, Counter()).update(await task)
    runs = await asyncio.to_thread(common.runs, upstream)
    sent = {run["tag"]: run["times_ns"] for run in runs["runs"] if run["tag"]}
    whole = sum(
        body == body_of(Script(events=events), sent.get(str(number), []))
        for number, body in enumerate(bodies)
    )
    served = {name: len(common.access_log(folder / f"{name}.log")) for name in ADDRESSES}
    failed = {
        name: {reason: count for reason, count in seen.items() if reason != "ok"}
        for name, seen in went.items()
    }
    return {
        "streams": {"all": streams, "running_at_sigterm": running, "cut": streams - whole},
        "people": people,
        "requests": {name: seen["ok"] for name, seen in went.items()},
        "failed": {name: seen for name, seen in failed.items() if seen},
        "sent_again": {"httpx2, HTTP/2": len(retries)},
        "exit_status": status,
        "served": served,
    }


def main(arguments: list[str] | None = None, keep: bool = True) -> dict[str, Any]:
    parser = common.parser("drain", __doc__)
    parser.add_argument("--streams", type=int, default=200)
    parser.add_argument("--events", type=int, default=300, help="tokens of each, one every 20 ms")
    parser.add_argument("--people", type=int, default=10, help="who keep asking, by each kind of client")
    options = parser.parse_args(arguments)
    common.need_root(parser)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        for file, text in zip(("cert.pem", "key.pem", "ca.pem"), dev_certificate.make([NAME]), strict=True):
            (folder / file).write_text(text)
        with common.source({}) as upstream:
            know_the_name(folder)
            url = f"https://{NAME}:{peers.free_port()}/v1/x"
            result = asyncio.run(
                measure(url, folder, upstream, options.streams, options.events, options.people)
            )
    print(json.dumps(result))
    if keep:
        common.write("gateway/drain", f"python -m bench drain --streams {options.streams}", result)
    return result
