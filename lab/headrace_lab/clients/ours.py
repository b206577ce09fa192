"""HTTP/3 by headrace's own client; its engine stamps what it reads."""

from __future__ import annotations

import asyncio
import time
from functools import cache

from headrace import _engine
from headrace.client import Connection, Response, Trust, connect
from headrace.client.connection import config
from headrace.errors import HeadraceError
from headrace_lab.clients.client import Destination, Request
from headrace_lab.clients.sink import Sink


@cache
def _remembered(destination: Destination, trust: Trust) -> _engine.ClientConfig:
    """Makes one configuration for all connections to a server: tickets are kept with it."""
    return config(trust)


class OurClient:
    """One connection."""

    def __init__(self, destination: Destination) -> None:
        self.destination = destination
        self.connection: Connection
        self.tasks: set[asyncio.Task[None]] = set()

    async def connect(self) -> None:
        trust = Trust(self.destination.ca) if self.destination.ca else Trust(anybody=True)
        if self.destination.resumed:
            # The handshake is not waited for: a request leaves with the first flight.
            made = _remembered(self.destination, trust)
            raw = _engine.Connection.open(
                made, self.destination.host, self.destination.port, self.destination.host
            )
            self.connection = Connection(raw, self.destination.authority)
        else:
            self.connection = await connect(self.destination.url, trust)

    async def send(self, request: Request, sink: Sink) -> _Answer:
        sink.sent_ns = time.monotonic_ns()
        response = self.connection.request(
            request.method, request.path, list(request.fields), request.body, early=self.destination.resumed
        )
        answer = _Answer(response, sink)
        task = asyncio.ensure_future(answer.read())
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)
        return answer

    def migrate(self) -> None:
        self.connection.migrate()

    def stats(self) -> dict[str, float]:
        return self.connection.stats()

    def close(self) -> None:
        self.connection.close()


class _Answer:
    def __init__(self, response: Response, sink: Sink) -> None:
        self.response, self.sink = response, sink
        self.may_read = asyncio.Event()
        self.may_read.set()

    async def read(self) -> None:
        sink, response = self.sink, self.response
        try:
            status = await response.head()
            sink.head(response.head_at_ns, status, dict(response.headers))
            async for batch in response.chunks():
                for chunk in batch:
                    sink.data(chunk.at_ns, chunk.data)
                await self.may_read.wait()
            sink.end(time.monotonic_ns())
        except HeadraceError as error:
            sink.end(time.monotonic_ns(), error.kind.slug)

    def stop(self) -> None:
        self.response.stop()

    def pause(self) -> None:
        self.may_read.clear()

    def resume(self) -> None:
        self.may_read.set()
