"""The engine, as Python sees it (`crates/headrace-py`). It decides nothing and has no defaults.

Methods that return `asyncio.Future` start at once; they may be awaited or not. Durations are seconds. Header
fields are pairs of text in Latin-1, names in lower case. Errors are those of `headrace.errors`.
"""

import asyncio
import builtins
from collections.abc import Callable
from typing import final

from headrace.errors import HeadraceError

__all__ = [
    "Bridge",
    "Connection",
    "Exchange",
    "RelayReport",
    "RelayRequest",
    "Request",
    "Server",
    "Stream",
    "Target",
    "build_info",
    "error_kinds",
    "monotonic_ns",
]

_Fields = list[tuple[str, str]]

def build_info() -> list[tuple[str, str]]:
    """Version and build profile of this binary."""

def monotonic_ns() -> int:
    """The clock by which the engine stamps what it receives; that of `time.monotonic_ns()`."""

def error_kinds() -> list[tuple[str, str, bool, int, int, str]]:
    """The table of error kinds: slug, side, retryable, HTTP status, HTTP/3 code, sentence."""

@final
class Bridge:
    """From the engine's threads to one asyncio loop; see `headrace.loop`."""

    def __new__(cls, event_loop: asyncio.AbstractEventLoop) -> Bridge: ...
    def fileno(self) -> int:
        """The descriptor that is readable when there is something to drain."""

    def drain(self) -> None:
        """Resolves futures and hands over exchanges, on the loop's thread."""

@final
class Target:
    """Where a model server is. `protocol`: `auto` (ALPN over TLS, HTTP/1.1 without), `http1`, `http2`."""

    def __new__(cls, tls: bool, host: str, port: int, protocol: str) -> Target: ...

@final
class Server:
    """A running server. Dropping it closes every connection."""

    @staticmethod
    def start(config_json: str, bridge: Bridge, on_exchange: Callable[[Exchange], None]) -> Server:
        """Binds, and starts the workers. Raises `ConfigError`."""

    @property
    def address(self) -> tuple[str, int]: ...
    @property
    def steered(self) -> bool:
        """Whether the kernel delivers datagrams by connection ID."""

    def snapshot(self) -> list[tuple[str, int]]:
        """Gauges and counts."""

    def fetch(
        self,
        target: Target,
        verb: str,
        path: str,
        headers: _Fields,
        body: bytes,
        *,
        connect_timeout: float,
        head_timeout: float,
        max_bytes: int,
    ) -> asyncio.Future[tuple[int, _Fields, bytes]]:
        """Asks an upstream on the gateway's own behalf: status, fields, body. Raises `UpstreamError`."""

    def drain(self, grace: float) -> asyncio.Future[int]:
        """Takes nothing new, waits at most `grace` for what runs, closes; how many answers were cut."""

    def close(self) -> None:
        """Closes every connection at once, and waits for the workers."""

@final
class Request:
    """What the client asked, but for the body."""

    @property
    def method(self) -> str: ...
    @property
    def scheme(self) -> str: ...
    @property
    def authority(self) -> str: ...
    @property
    def target(self) -> str:
        """Path and query, as the client sent them."""

    @property
    def path(self) -> str:
        """The path without its query."""

    @property
    def headers(self) -> _Fields: ...
    def header(self, name: str) -> str | None:
        """The first value of a field."""

    @property
    def protocol(self) -> str:
        """`HTTP/3`, `HTTP/2` or `HTTP/1.1`."""

    @property
    def client(self) -> tuple[str, int]:
        """IP address and port."""

    @property
    def early_data(self) -> bool:
        """The request came in 0-RTT data and may be a replay (RFC 8470)."""

@final
class RelayRequest:
    """What an upstream is to be asked.

    The client's request goes on as it came, but for the fields in `remove` and `set` and, unless it is
    `None`, the `body`. A status in `held_statuses` is reported instead of relayed. `answer_headers` are set
    in the answer's head.
    """

    def __new__(
        cls,
        request: Request,
        target: Target,
        path: str,
        *,
        remove: list[str],
        set: _Fields,
        body: bytes | None,
        connect_timeout: float,
        head_timeout: float,
        idle_timeout: float,
        held_statuses: list[int],
        answer_headers: _Fields,
    ) -> RelayRequest: ...

@final
class RelayReport:
    """How a relay went. Times are taken where the bytes pass."""

    @property
    def cause(self) -> str:
        """`done`, `stopped`, `lost`, `upstream_failed`, `timeout` or `abandoned`."""

    @property
    def error(self) -> HeadraceError | None:
        """Why, when the cause is a failure; it was not raised."""

    @property
    def untouched(self) -> bool:
        """Nothing was sent to the client: another upstream may be tried."""

    @property
    def status(self) -> int | None:
        """The upstream's status."""

    @property
    def framing(self) -> str:
        """`sse`, `ndjson` or `raw`."""

    @property
    def started(self) -> float:
        """Unix time."""

    @property
    def head(self) -> float | None:
        """Until the upstream's head had come."""

    @property
    def ttft(self) -> float | None:
        """Until the first event was with the transport."""

    @property
    def duration(self) -> float: ...
    @property
    def events(self) -> int: ...
    @property
    def bytes(self) -> int:
        """Of the body, as the upstream sent it."""

    @property
    def upstream_reused(self) -> bool:
        """The upstream's connection had carried a request before."""

    @property
    def gaps(self) -> list[tuple[float, int]]:
        """Between the arrivals of two events: `(upper edge, count)`."""

    def gap(self, q: float) -> float:
        """The gap below which the share `q` (0 to 1) lies, within 12 %."""

    @property
    def holds(self) -> list[tuple[float, int]]:
        """From an event's arrival until it was with the transport: `(upper edge, count)`."""

    def hold(self, q: float) -> float:
        """The time in the gateway below which the share `q` (0 to 1) of all events lies, within 12 %."""

@final
class Exchange:
    """One request and its answer. Dropping it resets an answer that is not finished.

    Await each call before the next; only `gone` may be awaited beside another.
    """

    @property
    def id(self) -> int: ...
    @property
    def request(self) -> Request: ...
    @property
    def phase(self) -> str:
        """`open`, `answering`, `relaying`, `finished` or `reset`."""

    @property
    def events(self) -> int: ...
    @property
    def bytes(self) -> int: ...
    def body(self) -> asyncio.Future[builtins.bytes]:
        """The whole body. Raises `RequestError`, `ClientGoneError`, `OverloadedError`."""

    def respond(self, status: int, headers: _Fields) -> asyncio.Future[None]:
        """Sends the head of an answer."""

    def send(self, data: builtins.bytes) -> asyncio.Future[None]:
        """Sends bytes as one DATA frame; resolves once they fit `limits.stream_budget_bytes`.

        Raises `ClientGoneError`.
        """

    def finish(self, trailers: _Fields | None = None) -> asyncio.Future[None]:
        """Ends the answer, once all of it is with the transport."""

    def answer(self, status: int, headers: _Fields, body: builtins.bytes) -> asyncio.Future[None]:
        """A whole answer; `content-length` is set."""

    def reset(self, code: int) -> None:
        """Breaks the answer off (RFC 9114 §8.1). Never waits; does nothing once the answer is over."""

    def relay(self, request: RelayRequest) -> asyncio.Future[RelayReport]:
        """Relays an upstream's answer; see `RelayReport` for how it may end."""

    def gone(self) -> asyncio.Future[str]:
        """Resolves with `stopped` or `lost` when the client is gone."""

@final
class Connection:
    """One HTTP/3 connection to a server."""

    @staticmethod
    def connect(
        bridge: Bridge,
        host: str,
        port: int,
        *,
        trust: str,
        ca_pem: str,
        handshake_timeout: float,
        idle_timeout: float,
        max_head_bytes: int,
        stream_window: int,
        connection_window: int,
    ) -> asyncio.Future[Connection]:
        """`trust`: `system` (and the PEM text), `only` (the PEM text) or `anybody`. Raises `ConnectError`."""

    def request(
        self, verb: str, authority: str, path: str, headers: _Fields, body: bytes, record: bool
    ) -> Stream:
        """Sends a request. `record`: keep times and sizes of the answer's DATA frames instead of their
        bytes."""

    def close(self) -> None: ...
    @property
    def is_closed(self) -> bool: ...
    def stats(self) -> list[tuple[str, float]]:
        """What the transport knows of the path."""

@final
class Stream:
    """One request and its answer as it comes. Dropping it stops the answer."""

    def wait_head(self) -> asyncio.Future[None]:
        """Resolves when the head is there, or the stream has ended without one."""

    def wait_more(self) -> asyncio.Future[None]:
        """Resolves when there are chunks to take, or the stream has ended."""

    @property
    def head(self) -> tuple[int, _Fields, int] | None:
        """Status, fields, and when they were read (monotonic ns)."""

    def take(self) -> list[tuple[int, bytes, bool]]:
        """All chunks that are there: when they were read, their bytes, whether they begin a DATA frame."""

    def take_records(self) -> list[tuple[int, int]]:
        """Of a recorded stream: when each DATA frame came, and its size."""

    @property
    def ended(self) -> bool:
        """False while the stream runs or has chunks to take. Raises `StreamError` after a bad end."""

    @property
    def trailers(self) -> _Fields | None: ...
    @property
    def stream_id(self) -> int | None: ...
    def stop(self) -> None:
        """Sends STOP_SENDING (H3_REQUEST_CANCELLED). Never waits."""
