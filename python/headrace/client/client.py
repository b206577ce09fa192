"""headrace's own client: HTTP/3 alone, and every chunk comes with the moment at which it was read.

In: requests. Out: answers whose head is there. `Client` blocks the calling thread, `AsyncClient` its asyncio
task. All requests of a client to one origin share a connection. A program that also wants TCP, or that uses
an SDK, takes `headrace.httpx2`.
"""

from __future__ import annotations

from collections.abc import AsyncIterable, Iterable, Iterator
from types import TracebackType
from typing import Self
from urllib.parse import urlsplit

from headrace import errors
from headrace.client.connection import KEEP_IDLE_S, Answer, Chunk, Response, opener
from headrace.client.origin import Origin
from headrace.client.pool import Pool
from headrace.client.replay import add_key, is_replay_safe
from headrace.client.request import Request, Started, perform, run, run_async
from headrace.client.timeouts import Timeouts
from headrace.client.trust import Trust
from headrace.client.waiting import wait, wait_async
from headrace.echo import Mode

Headers = list[tuple[str, str]]
DEFAULT_TIMEOUTS = Timeouts(connect=5.0, read=None, write=60.0, pool=60.0)


class _Core:
    """`trust`: which servers to believe, and what to show them. `timeouts`: for every request.
    `max_connections_per_origin`: how many connections may be opened when no stream is free. `keep_idle`: the
    seconds after which a connection without streams is closed. `idempotency_keys`: a completion that has no
    `Idempotency-Key` is given one, so that it may be sent in early data. `echo`: when small datagrams are
    sent a second time: while a path is new or loses packets (`auto`), always (`on`), or never (`off`). Raises
    `ConfigError`."""

    def __init__(
        self,
        trust: Trust | None = None,
        *,
        timeouts: Timeouts = DEFAULT_TIMEOUTS,
        max_connections_per_origin: int = 1,
        keep_idle: float = KEEP_IDLE_S,
        idempotency_keys: bool = False,
        echo: Mode = "auto",
    ) -> None:
        self._adds_keys = idempotency_keys
        self._timeouts = timeouts
        self._pool = Pool(opener(trust or Trust(), keep_idle, echo), "only", max_connections_per_origin)

    def _request(
        self, method: str, url: str, headers: Headers | None, body: bytes | None, replay_safe: bool
    ) -> Request:
        origin = Origin.parse(url)
        parts = urlsplit(url)
        fields = [(name.lower(), value) for name, value in headers or []]
        if body:
            fields.append(("content-length", str(len(body))))
        target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        if self._adds_keys:
            add_key(method, target, fields)
        may_be_early = is_replay_safe(method, fields, replay_safe)
        return Request(
            method, origin, target, fields, body=body, timeouts=self._timeouts, may_be_early=may_be_early
        )

    def migrate(self) -> None:
        """Moves all connections to new sockets, and so to the path that the system prefers now. Streams go
        on.

        When the system's addresses or routes change, this happens by itself. Raises `ConnectError`.
        """
        self._pool.migrate()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._pool!r}>"


class SyncResponse(Answer):
    """One answer as it comes, for a thread that waits for it."""

    def __init__(self, started: Started, read_timeout: float | None) -> None:
        super().__init__(started.stream)
        self._timeout = read_timeout

    def chunks(self) -> Iterator[list[Chunk]]:
        """The body: each list holds everything that has come since the last one.

        Raises `StreamError` when the answer breaks off.
        """
        while not self._raw.ended:
            if batch := self._raw.take():
                yield [Chunk(*chunk) for chunk in batch]
            else:
                wait(self._raw.wait_more, self._timeout, "read_timeout")

    def read(self) -> bytes:
        """The whole body. Raises `StreamError` when the answer breaks off."""
        return b"".join(chunk.data for batch in self.chunks() for chunk in batch)


class Client(_Core):
    __doc__ = f"A client that blocks the calling thread; any number of threads may share it. {_Core.__doc__}"

    def request(
        self,
        method: str,
        url: str,
        headers: Headers | None = None,
        content: bytes | Iterable[bytes] = b"",
        *,
        replay_safe: bool = False,
    ) -> SyncResponse:
        """Sends a request, and returns when the head of its answer is there.

        `content`: the body, whole or piece by piece. `replay_safe`: the request does no harm when the server
        receives it twice, so it may be sent in early data. Raises `ConfigError` when `url` is not an `https`
        URL, `ConnectError`, `StreamError`, and their subclasses.
        """
        whole = content if isinstance(content, bytes) else None
        wanted = self._request(method, url, headers, whole, replay_safe)
        if not isinstance(content, bytes):
            wanted.pieces = iter(content)
        return SyncResponse(_started(run(perform(self._pool, wanted), wanted)), self._timeouts.read)

    def prewarm(self, origin: str) -> None:
        """Makes the connection to `https://host[:port]` now. Raises `ConnectError`."""
        wait(self._pool.prewarm(Origin.parse(origin)).wait_reached, self._timeouts.connect, "connect_timeout")

    def close(self) -> None:
        """Closes all connections. Answers that still run end with an error."""
        self._pool.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class AsyncClient(_Core):
    __doc__ = f"A client for asyncio; any number of loops may share it. {_Core.__doc__}"

    async def request(
        self,
        method: str,
        url: str,
        headers: Headers | None = None,
        content: bytes | AsyncIterable[bytes] = b"",
        *,
        replay_safe: bool = False,
    ) -> Response:
        """Sends a request, and returns when the head of its answer is there.

        `content`: the body, whole or piece by piece. `replay_safe`: the request does no harm when the server
        receives it twice, so it may be sent in early data. Raises `ConfigError` when `url` is not an `https`
        URL, `ConnectError`, `StreamError`, and their subclasses.
        """
        whole = content if isinstance(content, bytes) else None
        wanted = self._request(method, url, headers, whole, replay_safe)
        if not isinstance(content, bytes):
            wanted.pieces = aiter(content)
        started = _started(await run_async(perform(self._pool, wanted), wanted))
        return Response(started.stream, self._timeouts.read)

    async def prewarm(self, origin: str) -> None:
        """Makes the connection to `https://host[:port]` now. Raises `ConnectError`."""
        connection = self._pool.prewarm(Origin.parse(origin))
        await wait_async(connection.wait_reached, self._timeouts.connect, "connect_timeout")

    def close(self) -> None:
        """Closes all connections, without waiting. Answers that still run end with an error."""
        self._pool.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _started(found: Started | None) -> Started:
    """The answer. A pool that may not use TCP always finds a way, or raises."""
    if found is None:
        raise errors.make("internal", "the pool chose TCP, although this client has none")
    return found
