"""HTTP/3 connections and the answers that come over them.

In: an origin, whom to trust, and requests. Out: answers, chunk by chunk, each with the moment at which the
engine read it from the socket. Python is woken once for many: `chunks()` yields everything that has come.
"""

from __future__ import annotations

import atexit
import json
from collections.abc import AsyncIterator, Callable
from types import TracebackType
from typing import NamedTuple, cast, get_args

from headrace import _engine, echo
from headrace.client.origin import Origin
from headrace.client.trust import Trust
from headrace.client.waiting import Alarm
from headrace.errors import ConfigError, HeadraceError, with_file
from headrace.loop import bridge

HANDSHAKE_TIMEOUT_S = 5.0
# An attempt in the background may take longer than any request waits for it.
BACKGROUND_HANDSHAKE_TIMEOUT_S = 30.0
# A connection without streams is kept for this long, so that the next first token comes soon.
KEEP_IDLE_S = 300.0
# A connection that is silent for this long is dead. The engine asks (PING) after a third of it, which is
# sooner than the 30 s after which the strictest NATs forget a UDP mapping.
IDLE_TIMEOUT_S = 30.0
# A server that owes us acknowledgements for so long (and for three probe timeouts, and for twice the longest
# silence that its path came back from) is taken for gone: a killed one is noticed within 3 s. An answer with
# an `Idempotency-Key` is waited for longer, for its server keeps it.
SUSPECT_S = 2.25
MAX_HEAD_BYTES = 64 * 1024
# How much of one answer may be unread before its server must wait: a few thousand tokens.
STREAM_WINDOW = 1024 * 1024
# The same for all answers of a connection together: enough that those which nobody reads do not stop the
# others.
CONNECTION_WINDOW = 128 * 1024 * 1024
# Frames of a server that move nothing on (empty, unknown): so many at once, then so many a second. Servers
# send a few for each connection.
USELESS_BURST = 1000
USELESS_PER_S = 200

# A process that ends stops the answers that are generated for it.
atexit.register(_engine.close_connections)


def config(
    trust: Trust,
    handshake_timeout: float = HANDSHAKE_TIMEOUT_S,
    keep_idle: float = KEEP_IDLE_S,
    echo_mode: echo.Mode = "auto",
) -> _engine.ClientConfig:
    """The engine's configuration. Raises `ConfigError`."""
    if keep_idle <= 0:
        raise ConfigError(detail=f"keep_idle: expected more than 0 seconds, got {keep_idle!r}")
    if echo_mode not in get_args(echo.Mode):
        raise ConfigError(detail=f"echo: expected one of {', '.join(get_args(echo.Mode))}; got {echo_mode!r}")
    kind, pem = trust.read()
    try:
        return _engine.ClientConfig(
            trust=kind,
            ca_pem=pem,
            identity=trust.read_identity(),
            handshake_timeout=handshake_timeout,
            idle_timeout=IDLE_TIMEOUT_S,
            keep_idle=keep_idle,
            suspect=SUSPECT_S,
            max_head_bytes=MAX_HEAD_BYTES,
            stream_window=STREAM_WINDOW,
            connection_window=CONNECTION_WINDOW,
            useless_burst=USELESS_BURST,
            useless_per_second=USELESS_PER_S,
            echo=json.dumps(echo.engine(echo_mode)),
        )
    except ConfigError as error:
        raise with_file(error, trust.files()) from None


def opener(
    trust: Trust, keep_idle: float, echo_mode: echo.Mode = "auto"
) -> Callable[[str, int, str], _engine.Connection]:
    """The function by which a pool makes connections: it takes a host, a port, and the name that the
    certificate must have.

    Raises `ConfigError`.
    """
    made = config(trust, BACKGROUND_HANDSHAKE_TIMEOUT_S, keep_idle, echo_mode)
    return lambda host, port, name: _engine.Connection.open(made, host, port, name)


class Chunk(NamedTuple):
    """Some bytes of an answer's body: a DATA frame, or a part of one that lies across two packets."""

    at_ns: int
    """When the engine read them, by the clock of `time.monotonic_ns()`."""
    data: bytes
    is_first: bool
    """A DATA frame begins with them (RFC 9114 §7.2.1)."""


async def connect(
    origin: str, trust: Trust | None = None, timeout_s: float = HANDSHAKE_TIMEOUT_S
) -> Connection:
    """Connects to `https://host[:port]` by HTTP/3.

    Raises `ConnectError`, `ConnectTimeoutError`, `ConfigError`.
    """
    to = Origin.parse(origin)
    raw = _engine.Connection.open(config(trust or Trust(), timeout_s), to.host, to.port, to.host)
    await raw.wait_reached(bridge())
    return Connection(raw, to.authority)


class Connection:
    """One connection; its requests share it and do not wait for each other."""

    def __init__(self, raw: _engine.Connection, authority: str) -> None:
        self._raw = raw
        self._authority = authority

    def request(
        self,
        method: str,
        path: str,
        headers: list[tuple[str, str]] | None = None,
        body: bytes = b"",
        record: bool = False,
        early: bool = False,
    ) -> Response:
        """Sends a request, without waiting. The names of fields must be in lower case.

        `record`: the engine keeps when each DATA frame came, and not what was in it (`Response.records()`),
        for measurements that Python must not disturb. `early`: the request does no harm when the server
        receives it twice, so it may be sent in early data (0-RTT).
        """
        fields = list(headers or [])
        if body:
            fields.append(("content-length", str(len(body))))
        raw = self._raw.request(
            method, self._authority, path, fields, body, record=record, abandon_after=None, early=early
        )
        return Response(raw)

    def stats(self) -> dict[str, float]:
        """What the transport knows: `rtt` (s), `congestion_window` (bytes), `lost_packets`, `sent_packets`,
        `path_changes`, `echo_copies`, ..."""
        return cast("dict[str, float]", self._raw.stats() or {})

    @property
    def is_open(self) -> bool:
        return self._raw.is_open

    def migrate(self) -> None:
        """Moves to a new socket, and so to the path that the system prefers now. Streams go on.

        When the system's addresses or routes change, this happens by itself. Raises `ConnectError`.
        """
        self._raw.migrate()

    def close(self) -> None:
        self._raw.close()

    async def __aenter__(self) -> Connection:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return repr(self._raw)


class Answer:
    """An answer, however its chunks are waited for. Dropping it stops it."""

    def __init__(self, raw: _engine.Stream) -> None:
        self._raw = raw
        self._head: tuple[int, list[tuple[str, str]], int] | None = None

    def _known_head(self) -> tuple[int, list[tuple[str, str]], int]:
        """The head, which is taken from the engine once, because its fields are made anew each time. Until it
        is there, a status of 0 and no fields."""
        self._head = self._head or self._raw.head
        return self._head or (0, [], 0)

    @property
    def status(self) -> int:
        """The status; 0 before the head is there."""
        return self._known_head()[0]

    @property
    def headers(self) -> list[tuple[str, str]]:
        """The fields of the head, their names in lower case; none before it is there."""
        return self._known_head()[1]

    @property
    def head_at_ns(self) -> int:
        """When the head was read, by the clock of `time.monotonic_ns()`; 0 before it is there."""
        return self._known_head()[2]

    def header(self, name: str) -> str | None:
        """The first value of a field; `None` when there is none, or no head yet."""
        return next((value for found, value in self.headers if found == name), None)

    @property
    def trailers(self) -> list[tuple[str, str]] | None:
        return self._raw.trailers

    @property
    def stream_id(self) -> int | None:
        """The QUIC stream's id; `None` until the stream is open."""
        return self._raw.stream_id

    @property
    def arrivals(self) -> list[tuple[int, int]]:
        """When each DATA frame came (`time.monotonic_ns()`), and its size in bytes: at most the first
        65,536."""
        return self._raw.arrivals()

    @property
    def early_data(self) -> bool:
        """Whether the request was sent in early data (0-RTT), and the server took it."""
        return self._raw.early_data

    def stop(self) -> None:
        """Stops the answer, without waiting: the server is told (STOP_SENDING, H3_REQUEST_CANCELLED), and
        ends the generation."""
        self._raw.stop()

    def __repr__(self) -> str:
        return repr(self._raw)


class Response(Answer):
    """One answer as it comes, for asyncio. `timeout`: how long its body may be silent, in seconds."""

    def __init__(self, raw: _engine.Stream, timeout: float | None = None) -> None:
        super().__init__(raw)
        self._timeout = timeout

    async def head(self) -> int:
        """Waits for the head, and returns the status. Raises `StreamError`."""
        await self._raw.wait_head(bridge())
        if not self.status:
            _ = self._raw.ended  # raises how it ended
            raise HeadraceError("protocol", "the stream ended before the head of its answer")
        return self.status

    async def chunks(self) -> AsyncIterator[list[Chunk]]:
        """The body: each list holds everything that has come since the last one.

        Raises `StreamError` when the answer breaks off.
        """
        raw, alarm, here = self._raw, Alarm(self._timeout), bridge()
        try:
            while True:
                if batch := raw.take():
                    yield [Chunk(*chunk) for chunk in batch]
                elif raw.ended:
                    return
                await alarm.over(raw.wait_more(here))
        finally:
            alarm.stop()

    async def read(self) -> bytes:
        """The whole body. Raises `StreamError` when the answer breaks off."""
        parts = [chunk.data async for batch in self.chunks() for chunk in batch]
        return b"".join(parts)

    async def records(self) -> list[tuple[int, int]]:
        """Waits until an answer that was asked for with `record` has ended, and returns its `arrivals`.

        Raises `StreamError` when the answer broke off.
        """
        while not self._raw.ended:
            await self._raw.wait_more(bridge())
        return self.arrivals
