"""A scripted model server: HTTP/1.1, an open-loop schedule, faults by script.

It is a stand-in, and says so in its `server` field: where a test or a benchmark must know when each token was
due, a real model cannot tell. In: requests whose JSON body may hold a `script`. Out: events at absolute times
(a token is due when it is due, whoever reads), and a record of every request: how many events were sent, and
when it was aborted.

`GET /runs` returns the record. `python -m headrace_lab.model` runs the server by itself.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

from headrace_lab.model.script import (
    CONTENT_TYPE,
    Script,
    body_of,
    ending,
    event,
    from_fields,
    offsets,
)

__all__ = ["Run", "Script", "Source", "body_of", "event"]


CLOSING_TURNS = 5
"""The turns of the loop until an accepted connection has been shown to us and is closed."""


@dataclass
class Run:
    """What became of one request. Times are monotonic nanoseconds."""

    number: int
    path: str
    model: str | None
    body_bytes: int
    fields: dict[str, str]
    started_ns: int
    sent: int = 0
    sent_bytes: int = 0
    ended_ns: int | None = None
    """When the last byte was sent."""
    aborted_ns: int | None = None
    """When the client went away before the end."""
    paused: int = 0
    """How many times the socket was full."""
    connection: int = 0
    tag: str | None = None
    """What the request called itself (`tag` in its body)."""
    times_ns: list[int] = field(default_factory=list)


@dataclass
class Source:
    """The server, in the running loop. `default` answers requests without a script."""

    default: Script = field(default_factory=Script)
    models: tuple[str, ...] = ("scripted",)
    runs: list[Run] = field(default_factory=list)
    connections: int = 0
    open_connections: int = 0
    host: str = "127.0.0.1"
    port: int = 0
    keep_runs: int = 100_000
    _server: asyncio.Server | None = None
    _transports: set[asyncio.Transport] = field(default_factory=set)
    _grids: dict[float, _Grid] = field(default_factory=dict)

    async def start(self) -> Source:
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: _Connection(self), self.host, self.port, backlog=1024)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    @property
    def url(self) -> str:
        return f"http://{self.host}:{self.port}"

    async def close(self) -> None:
        if self._server:
            # A connection that asyncio has accepted is lost when the server closes before it is shown to us.
            for listening in self._server.sockets:
                asyncio.get_running_loop().remove_reader(listening)
            for _ in range(CLOSING_TURNS):
                for transport in list(self._transports):
                    transport.abort()
                await asyncio.sleep(0)
            self._server.close()

    async def __aenter__(self) -> Source:
        return await self.start()

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def record(self) -> dict[str, Any]:
        """Returns what `GET /runs` answers."""
        return {
            "runs": [asdict(run) for run in self.runs],
            "connections": self.connections,
            "open_connections": self.open_connections,
        }

    def running(self) -> list[Run]:
        """Returns the requests that have neither ended nor been aborted: the slots that are taken."""
        return [run for run in self.runs if run.ended_ns is None and run.aborted_ns is None]


class _Connection(asyncio.Protocol):
    """One connection: requests one after the other, each answered by its script."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.loop = asyncio.get_running_loop()
        self.buffer = bytearray()
        self.run: Run | None = None
        self.script = source.default
        self.timer: asyncio.TimerHandle | asyncio.Handle | None = None
        self.first = 0.0
        self.due = 0.0
        self.schedule: Iterator[float] = iter(())
        self.full = False
        self.transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        transport.set_write_buffer_limits(high=64 * 1024)
        self.source.connections += 1
        self.source.open_connections += 1
        self.source._transports.add(transport)
        self.number = self.source.connections

    def connection_lost(self, exc: Exception | None) -> None:
        self.source.open_connections -= 1
        self.source._transports.discard(self.transport)
        self._abort()

    def eof_received(self) -> bool:
        self._abort()
        return False

    def pause_writing(self) -> None:
        self.full = True
        if self.run:
            self.run.paused += 1

    def resume_writing(self) -> None:
        self.full = False
        if self.run and self.timer is None and self.script.interval_s == 0:
            self._burst()

    def data_received(self, data: bytes) -> None:
        self.buffer += data
        if self.run is None:
            self._next_request()

    def _next_request(self) -> None:
        end = self.buffer.find(b"\r\n\r\n")
        if end < 0:
            return
        lines = bytes(self.buffer[:end]).decode("latin-1").split("\r\n")
        method, path, *_ = [*lines[0].split(" ", 2), ""]
        fields = {
            name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines[1:])
        }
        if "transfer-encoding" in fields or not path.startswith("/"):
            status, needed = (411, "content-length") if "transfer-encoding" in fields else (400, "path")
            self._answer(status, {"error": {"message": f"the scripted model needs a {needed}"}})
            self.transport.close()
            return
        length = int(fields.get("content-length", 0))
        if len(self.buffer) < end + 4 + length:
            return
        body = bytes(self.buffer[end + 4 : end + 4 + length])
        del self.buffer[: end + 4 + length]
        if method == "GET":
            self._answer_get(path)
            return
        self._begin(path, fields, body)

    def _answer_get(self, path: str) -> None:
        status = 200
        payload: dict[str, Any] = {}
        if path == "/v1/models":
            payload = {
                "object": "list",
                "data": [{"id": name, "object": "model"} for name in self.source.models],
            }
        elif path == "/runs":
            payload = self.source.record()
        else:
            status, payload = 404, {"error": {"message": f"the scripted model has no {path}"}}
        self._answer(status, payload)
        self._next_request()

    def _answer(self, status: int, payload: dict[str, Any]) -> None:
        text = json.dumps(payload).encode()
        head = f"HTTP/1.1 {status} X\r\ncontent-type: application/json\r\ncontent-length: {len(text)}\r\n\r\n"
        self.transport.write(head.encode() + text)

    def _begin(self, path: str, fields: dict[str, str], body: bytes) -> None:
        try:
            request: dict[str, Any] = json.loads(body) if body.startswith(b"{") else {}
        except (ValueError, RecursionError):
            request = {}
        overrides = request.get("script") or {}
        self.script = from_fields(overrides) if overrides else self.source.default
        self.run = Run(
            number=len(self.source.runs),
            path=path,
            model=request.get("model"),
            body_bytes=len(body),
            fields=fields,
            started_ns=time.monotonic_ns(),
            connection=self.number,
            tag=request.get("tag"),
        )
        if len(self.source.runs) < self.source.keep_runs:
            self.source.runs.append(self.run)
        if self.script.head_delay_s:
            self.timer = self.loop.call_later(self.script.head_delay_s, self._send_head)
        else:
            self._send_head()

    def _send_head(self) -> None:
        self.timer = None
        script = self.script
        if script.end == "no_head":
            self._finish()
            return
        framing = {"chunked": "transfer-encoding: chunked", "close": "connection: close"}.get(script.body)
        if framing is None:
            # The moments in it are not known yet, but how many digits they have is.
            framing = f"content-length: {len(body_of(script, [time.monotonic_ns()] * script.events))}"
        kind = CONTENT_TYPE["ndjson" if script.shape == "ollama" else script.framing]
        head = (
            f"HTTP/1.1 {script.status} X\r\nserver: headrace scripted model\r\n"
            f"content-type: {kind}\r\n{framing}\r\n"
        )
        self.transport.write(f"{head}\r\n".encode())
        if script.interval_s == 0 and script.first_delay_s == 0:
            self._burst()
            return
        self.first = self.loop.time() + script.first_delay_s
        self.schedule = offsets(script)
        if script.align:
            grid = self.source._grids.setdefault(script.interval_s, _Grid(script.interval_s))
            grid.add(self)
            return
        self._wait_for_next()

    def _wait_for_next(self) -> None:
        """Open loop: the next event is due when it is due, however late this one was."""
        self.due = self.first + next(self.schedule, 0.0)
        self.timer = self.loop.call_at(self.due, self._tick)

    def _tick(self) -> None:
        self.timer = None
        script, run = self.script, self.run
        if run is None:
            return
        if script.interval_s == 0:
            self._burst()
            return
        if run.sent < script.events:
            self._send_event()
        if run.sent >= script.events:
            self._finish()
            return
        self._wait_for_next()

    def tick_aligned(self, data: bytes) -> bool:
        """Sends one event of a grid. Returns false when there are no more."""
        if self.run is None:
            return False
        self.transport.write(data)
        self.run.sent += 1
        if self.run.sent >= self.script.events:
            self._finish()
            return False
        return True

    def _burst(self) -> None:
        run = self.run
        while run is not None and run.sent < self.script.events:
            if self.full:
                return
            self._send_event()
        if run is not None:
            self._finish()

    def next_event(self, now_ns: int, due_ns: int | None = None) -> bytes:
        """Returns the next event, framed for the wire; it counts as sent. `due_ns`: when its grid was due."""
        assert self.run is not None
        if self.script.note_times:
            self.run.times_ns.append(now_ns)
        return self._framed(
            event(self.script, self.run.sent, now_ns, due_ns or int(self.due * 1e9) or now_ns)
        )

    def _send_event(self) -> None:
        assert self.run is not None
        self.transport.write(self.next_event(time.monotonic_ns()))
        self.run.sent += 1

    def _write(self, data: bytes) -> None:
        self.transport.write(self._framed(data))

    def _framed(self, data: bytes) -> bytes:
        assert self.run is not None
        self.run.sent_bytes += len(data)
        return b"%x\r\n%b\r\n" % (len(data), data) if self.script.body == "chunked" else data

    def _finish(self) -> None:
        script, run = self.script, self.run
        assert run is not None
        if script.end == "hang":
            return
        if script.end == "half":
            half = event(script, run.sent, time.monotonic_ns())
            self._write(half[: len(half) // 2])
        if script.end == "bad_chunk":
            self.transport.write(b"this is not a chunk size\r\n")
        if script.end == "clean":
            if done := ending(script):
                self._write(done)
            if script.body == "chunked":
                self.transport.write(b"0\r\nx-sum: 1\r\n\r\n" if script.trailers else b"0\r\n\r\n")
        run.ended_ns = time.monotonic_ns()
        self.run = None
        if script.end == "reset":
            self.transport.abort()
        elif script.end != "clean" or script.body == "close":
            self.transport.close()
        else:
            self._next_request()

    def _abort(self) -> None:
        if self.timer:
            self.timer.cancel()
            self.timer = None
        if self.run is not None:
            self.run.aborted_ns = time.monotonic_ns()
            self.run = None


class _Grid:
    """One clock for all streams of one interval: their events are made first and then leave in one go."""

    def __init__(self, interval_s: float) -> None:
        self.interval_s = interval_s
        self.streams: list[_Connection] = []
        self.due = 0.0

    def add(self, stream: _Connection) -> None:
        if not self.streams:
            self.due = stream.loop.time() + self.interval_s
            stream.loop.call_at(self.due, self._tick)
        self.streams.append(stream)

    def _tick(self) -> None:
        now = time.monotonic_ns()
        made = [
            (stream, stream.next_event(now, int(self.due * 1e9))) for stream in self.streams if stream.run
        ]
        self.streams = [stream for stream, data in made if stream.tick_aligned(data)]
        if self.streams:
            self.due += self.interval_s
            self.streams[0].loop.call_at(self.due, self._tick)
