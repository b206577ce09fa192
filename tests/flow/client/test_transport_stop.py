"""Every way to stop an answer of the transports: the generation ends, the connection goes on; and nothing is
left."""

from __future__ import annotations

import asyncio
import gc
import os
from pathlib import Path
from typing import Any

import httpx
import httpx2
import pytest

import headrace.httpx
import headrace.httpx2
from headrace.client.origin import Origin
from headrace.gateway import Gateway
from headrace_lab.model import Source
from tests.helpers.serving import origin
from tests.helpers.waiting import eventually

FAMILIES = [(httpx2, headrace.httpx2), (httpx, headrace.httpx)]
each_family = pytest.mark.parametrize(("family", "ours"), FAMILIES, ids=["httpx2", "httpx"])


def asked(**script: Any) -> dict[str, Any]:
    return {"json": {"model": "scripted", "stream": True, "script": script}}


class Stops:
    """An answer that goes on for ever is begun; then it is stopped in some way."""

    def __init__(self, family: Any, ours: Any, gateway: Gateway, ca_file: Path) -> None:
        self.url = origin(gateway) + "/v1/x"
        self.client = family.AsyncClient(transport=ours.AsyncTransport(str(ca_file), http3="only"))
        self.sync = family.Client(transport=ours.Transport(str(ca_file), http3="only"))

    def build(self, client: Any) -> Any:
        return client.build_request("POST", self.url, **asked(events=1_000_000, interval_s=0.005))

    async def begin(self) -> tuple[Any, Any]:
        response = await self.client.send(self.build(self.client), stream=True)
        parts = response.aiter_raw()
        assert await anext(parts)
        return response, parts

    async def aclose(self) -> None:
        response, _parts = await self.begin()
        await response.aclose()

    async def task_cancelled_while_reading(self) -> None:
        async def read() -> None:
            async with self.client.stream(
                "POST", self.url, **asked(events=1_000_000, interval_s=0.005)
            ) as response:
                async for _ in response.aiter_raw():
                    begun.set()

        begun = asyncio.Event()
        task = asyncio.create_task(read())
        await begun.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    async def task_cancelled_before_the_head(self) -> None:
        task = asyncio.create_task(self.client.post(self.url, **asked(head_delay_s=60)))
        await asyncio.sleep(0.1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    async def leaving_async_with(self) -> None:
        async with self.client.stream(
            "POST", self.url, **asked(events=1_000_000, interval_s=0.005)
        ) as response:
            async for _ in response.aiter_raw():
                break

    async def del_response(self) -> None:
        response, parts = await self.begin()
        del response, parts
        await asyncio.sleep(0)

    async def garbage_collected(self) -> None:
        response, parts = await self.begin()
        cycle = [response, parts]
        cycle.append(cycle)
        del response, parts, cycle
        gc.collect()
        await asyncio.sleep(0)

    async def sync_close(self) -> None:
        def run() -> None:
            response = self.sync.send(self.build(self.sync), stream=True)
            next(response.iter_raw())
            response.close()

        await asyncio.to_thread(run)

    async def leaving_with(self) -> None:
        def run() -> None:
            with self.sync.stream("POST", self.url, **asked(events=1_000_000, interval_s=0.005)) as response:
                next(response.iter_raw())

        await asyncio.to_thread(run)

    async def sync_del(self) -> None:
        def run() -> None:
            response = self.sync.send(self.build(self.sync), stream=True)
            next(response.iter_raw())
            del response

        await asyncio.to_thread(run)


WAYS = [name for name in vars(Stops) if name not in ("build", "begin") and not name.startswith("_")]


@each_family
@pytest.mark.parametrize("way", WAYS)
async def test_stopping_ends_the_generation_and_keeps_the_connection(
    gateway: Gateway, source: Source, ca_file: Path, family: Any, ours: Any, way: str
) -> None:
    stops = Stops(family, ours, gateway, ca_file)
    await getattr(stops, way)()

    def is_stopped() -> Any:
        # httpx keeps an answer in a cycle of its own, which takes more than one pass to go.
        if family is httpx and ("del" in way or "garbage" in way):
            gc.collect()
        return source.runs and source.runs[0].aborted_ns

    await eventually(is_stopped, "the generation goes on")
    if way.startswith("sync") or way == "leaving_with":
        after = await asyncio.to_thread(lambda: stops.sync.post(stops.url, **asked(events=1)))
    else:
        after = await stops.client.post(stops.url, **asked(events=1))
    assert after.extensions["headrace"].is_connection_reused
    assert after.extensions["stream_id"] == 4
    await stops.client.aclose()
    stops.sync.close()


@each_family
async def test_an_answer_that_nobody_reads_is_stopped_when_that_is_asked_for(
    gateway: Gateway, source: Source, ca_file: Path, family: Any, ours: Any
) -> None:
    transport = ours.AsyncTransport(str(ca_file), http3="only", abandon_after=0.2)
    async with family.AsyncClient(transport=transport) as client:
        request = client.build_request(
            "POST", origin(gateway) + "/v1/x", **asked(events=1_000_000, interval_s=0.005)
        )
        kept = await client.send(request, stream=True)
        async for _ in kept.aiter_raw():
            break
        await eventually(lambda: source.runs[0].aborted_ns)
        slow = await client.post(origin(gateway) + "/v1/x", **asked(events=3, interval_s=0.3))
        assert slow.content.endswith(b"data: [DONE]\n\n")


async def test_many_requests_leave_nothing_behind(gateway: Gateway, source: Source, ca_file: Path) -> None:
    transport = headrace.httpx2.AsyncTransport(str(ca_file), http3="only")
    async with httpx2.AsyncClient(transport=transport) as client:

        async def some(count: int) -> None:
            for number in range(count):
                if number % 3:
                    await client.post(origin(gateway) + "/v1/x", **asked(events=1, interval_s=0))
                else:
                    async with client.stream(
                        "POST", origin(gateway) + "/v1/x", **asked(events=100, interval_s=0.01)
                    ):
                        pass

        await some(20)
        before = len(os.listdir("/proc/self/fd"))
        await asyncio.gather(*(some(50) for _ in range(20)))
        connection = transport._pool.prewarm(Origin.parse(origin(gateway)))
        await eventually(lambda: connection.streams == 0)
        await eventually(lambda: source.open_connections <= 30)
        assert len(os.listdir("/proc/self/fd")) - before < 70
        gc.collect()
        assert sum(type(thing).__name__ == "Stream" for thing in gc.get_objects()) < 50
