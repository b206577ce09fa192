"""What the transports for httpx and httpx2 share.

In: requests of the family's class. Out: answers and errors of the family's classes. `headrace.httpx2` and
`headrace.httpx` bind this to their family. A request goes over HTTP/3 (`client/request.py`) unless the pool
prefers TCP; then the family's own transport sends the whole of it.
"""

from __future__ import annotations

import importlib.util
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

from headrace import errors
from headrace.client import connection as engine
from headrace.client.alt_svc import AltSvcCache
from headrace.client.origin import Origin
from headrace.client.pool import Http3, Pool
from headrace.client.replay import REPLAY_SAFE_EXTENSION, add_key, is_replay_safe
from headrace.client.request import Request, Started, perform, run, run_async
from headrace.client.timeouts import Timeouts
from headrace.client.trust import Cert, Verify, of_httpx, tcp_verify
from headrace.client.waiting import wait, wait_async
from headrace.echo import Mode
from headrace.transport.errors import translated
from headrace.transport.extensions import NetworkStream, Stats

# Fields of HTTP/1.1's connections, which HTTP/3 must not have (RFC 9114 §4.2); `host` becomes `:authority`.
_NOT_SENT = {b"host", b"connection", b"keep-alive", b"proxy-connection", b"transfer-encoding", b"upgrade"}


class Core:
    """One transport, for threads or for asyncio. `family`: the module `httpx` or `httpx2`."""

    family: Any
    stream_class: Any
    tcp_class: str
    _tcp: Any

    def __init__(
        self,
        verify: Verify = True,
        cert: Cert = None,
        *,
        http3: Http3 = "race",
        race_delay: float = 0.25,
        max_connections_per_origin: int = 1,
        keep_idle: float = engine.KEEP_IDLE_S,
        abandon_after: float | None = None,
        idempotency_keys: bool = False,
        alt_svc_cache: Path | str | None = None,
        echo: Mode = "auto",
        tcp: Any = None,
        proxy: None = None,
    ) -> None:
        """`verify`, `cert`: as httpx has them. Of an `ssl.SSLContext`, what rustls can follow is honoured.

        `http3`: `"race"` tries HTTP/3 for every origin, and takes TCP when there is no connection after
        `race_delay` seconds. `"alt-svc"` tries it once the origin has announced it; announcements are kept
        between processes in the file `alt_svc_cache`, when that is given. `"only"` never takes TCP.

        `max_connections_per_origin`: how many connections may be opened when no stream is free. `keep_idle`:
        the seconds after which a connection without streams is closed. `abandon_after`: an answer that nobody
        reads for this many seconds is stopped. `idempotency_keys`: a completion that has no `Idempotency-Key`
        is given one, so that it may be sent in early data (0-RTT). `echo`: when small datagrams are sent a
        second time: while a path is new or loses packets (`auto`), always (`on`), or never (`off`). `tcp`:
        the family's transport for what does not go over HTTP/3; by default its `HTTPTransport` or
        `AsyncHTTPTransport`.

        Raises `ConfigError` for what cannot be honoured.
        """
        if abandon_after is not None and abandon_after <= 0:
            raise errors.ConfigError(
                detail=f"abandon_after: expected more than 0 seconds, got {abandon_after!r}"
            )
        if proxy is not None:
            raise errors.ConfigError(
                detail="proxy: HTTP/3 cannot go through a proxy; for this one, use httpx's own transport"
            )
        if http3 not in get_args(Http3):
            raise errors.ConfigError(
                detail=f"http3: expected one of {', '.join(get_args(Http3))}; got {http3!r}"
            )
        self._abandon_after = abandon_after
        self._adds_keys = idempotency_keys
        self._pool = Pool(
            engine.opener(of_httpx(verify, cert), keep_idle, echo),
            http3,
            max_connections_per_origin,
            race_delay,
            AltSvcCache(Path(alt_svc_cache) if alt_svc_cache is not None else None),
        )
        if tcp is None:
            own = getattr(self.family, self.tcp_class)
            has_http2 = importlib.util.find_spec("h2") is not None
            tcp = own(verify=tcp_verify(verify, cert), http2=has_http2)
        self._tcp = tcp

    def _ours(self, request: Any) -> Request | None:
        """The request as our client takes it; `None` for one that HTTP/3 cannot carry, and that takes TCP."""
        url = request.url
        if url.scheme != "https":
            if self._pool.may_use_tcp and url.scheme == "http":
                return None
            raise self.family.UnsupportedProtocol(
                f"expected an https:// URL, got {url.scheme}://, which does not go over HTTP/3"
            )
        extensions = request.extensions
        headers = [
            (name.lower().decode("latin-1"), value.decode("latin-1"))
            for name, value in request.headers.raw
            if name.lower() not in _NOT_SENT
        ]
        target = extensions.get("target", url.raw_path).decode("latin-1")
        if self._adds_keys:
            add_key(request.method, target, headers)
        whole = isinstance(request.stream, self.family.ByteStream)
        return Request(
            method=request.method,
            origin=_origin(url),
            target=target,
            headers=headers,
            authority=request.headers.get("host", ""),
            body=b"".join(request.stream) if whole else None,
            timeouts=Timeouts.of_extension(extensions.get("timeout")),
            abandon_after=self._abandon_after,
            trace=extensions.get("trace"),
            may_be_early=is_replay_safe(request.method, headers, REPLAY_SAFE_EXTENSION in extensions),
        )

    def _answer(self, started: Started, read_timeout: float | None) -> Any:
        stream = self.stream_class(started.stream, read_timeout)
        extensions = {
            "http_version": b"HTTP/3",
            "stream_id": started.stream.stream_id,
            "network_stream": NetworkStream(started.connection),
            "trailers": lambda: started.stream.trailers or [],
            "headrace": Stats(started),
        }
        headers = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in started.headers]
        return self.family.Response(started.status, headers=headers, stream=stream, extensions=extensions)

    def _note_alt_svc(self, request: Any, response: Any) -> None:
        """Keeps what an answer over TCP says about its origin's HTTP/3."""
        if request.url.scheme == "https" and (value := response.headers.get("alt-svc")):
            self._pool.alt_svc.note(_origin(request.url), value)

    def migrate(self) -> None:
        """Moves all HTTP/3 connections to new sockets. Streams go on.

        When the system's addresses or routes change, this happens by itself. Raises headrace's
        `ConnectError`.
        """
        self._pool.migrate()

    def __repr__(self) -> str:
        return f"<{type(self).__module__}.{type(self).__qualname__} http3={self._pool.http3}>"


def _origin(url: Any) -> Origin:
    """The origin of a URL. Its name is the one of DNS and TLS: in ASCII (IDNA), and without the brackets of
    an IPv6 address."""
    return Origin(url.raw_host.decode("ascii").strip("[]"), url.port or 443)


class SyncCore(Core):
    tcp_class = "HTTPTransport"

    def handle_request(self, request: Any) -> Any:
        """Sends one request over HTTP/3, or by the family's own transport when the pool prefers TCP."""
        ours = self._ours(request)
        if ours is not None:
            if ours.body is None:
                ours.pieces = iter(request.stream)
            if (answer := self._over_http3(ours)) is not None:
                return answer
        try:
            response = self._tcp.handle_request(request)
        except self.family.ConnectError:
            # Nothing was sent. When TCP is refused, an attempt of HTTP/3 that is still under way may succeed.
            if ours is None or (answer := self._over_http3(replace(ours, is_patient=True))) is None:
                raise
            return answer
        self._note_alt_svc(request, response)
        return response

    def _over_http3(self, ours: Request) -> Any:
        """The answer; `None` when TCP is the better way."""
        with translated(self.family):
            started = run(perform(self._pool, ours), ours)
        return self._answer(started, ours.timeouts.read) if started else None

    def prewarm(self, origin: str, timeout: float | None = 5.0) -> None:
        """Makes the connection to `https://host[:port]` now, so that a first request need not.

        Raises the family's `ConnectError` and `ConnectTimeout`.
        """
        with translated(self.family):
            wait(self._pool.prewarm(Origin.parse(origin)).wait_reached, timeout, "connect_timeout")

    def close(self) -> None:
        self._pool.close()
        self._tcp.close()


class AsyncCore(Core):
    tcp_class = "AsyncHTTPTransport"

    async def handle_async_request(self, request: Any) -> Any:
        """Sends one request over HTTP/3, or by the family's own transport when the pool prefers TCP."""
        _need_asyncio()
        ours = self._ours(request)
        if ours is not None:
            if ours.body is None:
                ours.pieces = aiter(request.stream)
            if (answer := await self._over_http3(ours)) is not None:
                return answer
        try:
            response = await self._tcp.handle_async_request(request)
        except self.family.ConnectError:
            # Nothing was sent. When TCP is refused, an attempt of HTTP/3 that is still under way may succeed.
            if ours is None or (answer := await self._over_http3(replace(ours, is_patient=True))) is None:
                raise
            return answer
        self._note_alt_svc(request, response)
        return response

    async def _over_http3(self, ours: Request) -> Any:
        """The answer; `None` when TCP is the better way."""
        with translated(self.family):
            started = await run_async(perform(self._pool, ours), ours)
        return self._answer(started, ours.timeouts.read) if started else None

    async def prewarm(self, origin: str, timeout: float | None = 5.0) -> None:  # noqa: ASYNC109
        """Makes the connection to `https://host[:port]` now, so that a first request need not.

        Raises the family's `ConnectError` and `ConnectTimeout`.
        """
        with translated(self.family):
            connection = self._pool.prewarm(Origin.parse(origin))
            await wait_async(connection.wait_reached, timeout, "connect_timeout")

    async def aclose(self) -> None:
        self._pool.close()
        await self._tcp.aclose()


def _need_asyncio() -> None:
    from asyncio import get_running_loop

    try:
        get_running_loop()
    except RuntimeError:
        raise errors.make(
            "misuse", "the async transport needs a running asyncio loop, and there is none"
        ) from None
