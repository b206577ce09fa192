"""The engine, as Python sees it (`crates/headrace-py`). It decides nothing and has no defaults.

Methods that return `asyncio.Future` start at once; they may be awaited or not. Durations are seconds. Header
fields are pairs of text in Latin-1, names in lower case. Errors are those of `headrace.errors`.
"""

import asyncio
import builtins
from collections.abc import Callable, Sequence
from typing import Any, Self, TypedDict, final, overload, type_check_only

from headrace.errors import HeadraceError

__all__ = [
    "Bridge",
    "ClientConfig",
    "Connection",
    "Exchange",
    "RelayReport",
    "RelayRequest",
    "ReplayBudget",
    "ReplayBuffer",
    "Request",
    "Server",
    "Stream",
    "Target",
    "Waiter",
    "build_info",
    "close_connections",
    "dialects",
    "dialects_of",
    "error_body",
    "error_kinds",
    "is_generation",
    "is_last_event",
    "make_certificate",
    "monotonic_ns",
]

_Fields = list[tuple[str, str]]

@type_check_only
class EchoCounts(TypedDict):
    """What an echo did on one connection."""

    echo_copies: int
    """Copies that were sent, batches as one."""
    echo_copied_bytes: int
    echo_repaired: int
    """Losses of which a copy arrived."""
    echo_doubtful: int
    """At most so many packets were sent again in vain."""

@type_check_only
class TransportStats(EchoCounts):
    """What QUIC knows of a connection, since it began."""

    rtt: float
    """Seconds."""
    congestion_window: int
    """Bytes."""
    lost_packets: int
    """Declared lost, and sent again."""
    sent_packets: int

@type_check_only
class ConnectionStats(TransportStats):
    """What a client knows of its connection beside that."""

    path_changes: int
    """How often it has moved to another socket."""
    sent_bytes: int
    received_datagrams: int
    received_bytes: int

@type_check_only
class ServerStats(TypedDict):
    """Gauges, and counts (`_total`), of a whole server."""

    exchanges: int
    connections: int
    handshakes: int
    exchanges_total: int
    connections_total: int
    early_requests_total: int
    """Requests that came in early data (0-RTT)."""
    unknown_tickets_total: int
    """Tickets that clients showed and that were not known, or no longer."""
    runs_total: int
    """Times that a request was sent to a model server."""
    repeats_total: int
    """Of those, times that one was sent again: the first had provably not been processed."""
    refused_total: int
    """Connections and requests refused at a limit."""
    displaced_total: int
    """Handshakes, connections, requests and bodies that lost their place to somebody else, at a limit."""
    breaches_total: int
    """Connections closed because the client broke the protocol."""
    echo_copies_total: int
    echo_copied_bytes_total: int
    echo_repaired_total: int
    echo_doubtful_total: int
    buffered_bytes: int
    """Bodies of requests that are held."""
    unread_growth_bytes: int
    """What the windows of connections over HTTP/3 have grown by."""
    pooled_upstreams: int
    """Idle connections to model servers."""

def build_info() -> list[tuple[str, str]]:
    """Version and build profile of this binary."""

def monotonic_ns() -> int:
    """The clock by which the engine stamps what it receives; that of `time.monotonic_ns()`."""

def make_certificate(names: Sequence[str], not_before: float, not_after: float) -> tuple[str, str, str]:
    """A development certificate: PEM texts of a leaf for `names`, its key, and the authority that signed it.

    The moments are Unix times. Raises `ConfigError` when a name cannot be in a certificate.
    """

def close_connections() -> None:
    """Closes every client connection of the process."""

def error_kinds() -> list[tuple[str, str, bool, int, int, str]]:
    """The table of error kinds: slug, side, retryable, HTTP status, HTTP/3 code, sentence."""

@type_check_only
class DialectRow(TypedDict):
    """A row of the table of API dialects; `headrace.events.dialects.Dialect` says what each is."""

    name: str
    generates: list[str]
    paths: list[str]
    key_fields: list[str]
    key_queries: list[str]
    formats: list[str]
    last: list[str]
    words: list[str]
    texts: list[str]

def dialects() -> list[DialectRow]:
    """The table of API dialects, in its order."""

def dialects_of(target: str) -> list[str]:
    """Names of the dialects that have a path; the first is the one it is taken for."""

def is_generation(target: str) -> bool:
    """Whether the answer to a POST there is generated."""

def error_body(target: str, status: int, code: str, message: str, param: str | None = None) -> bytes:
    """A whole JSON body that tells an error in the words of the API at this path."""

def is_last_event(dialect: str, format: str, event: bytes) -> bool:
    """Whether an event, as it came in this format, is its answer's last. Raises `UsageError`."""

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

    def set_certificate(self, certificate_pem: str, key_pem: str) -> None:
        """Shows another certificate from the next connection on. Raises `ConfigError`."""

    @property
    def address(self) -> tuple[str, int]: ...
    @property
    def steered(self) -> bool:
        """Whether the kernel delivers datagrams by connection ID."""

    def snapshot(self) -> ServerStats:
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
        """Takes nothing new, waits at most `grace` for what runs, tells what still runs, closes; how many
        answers were cut. A second call with less time ends the first one early."""

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
        """The request came in early data (0-RTT, RFC 8470)."""

@final
class RelayRequest:
    """What an upstream is to be asked.

    The client's request goes on as it came, but for the fields in `remove` and `set` and, unless it is
    `None`, the `body`. An answer whose status is in `held_statuses` (ranges, both ends included) is reported
    instead of relayed. `answer_headers` are set in the answer's head.
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
        held_statuses: list[tuple[int, int]],
        answer_headers: _Fields,
    ) -> RelayRequest: ...

@final
class ReplayBudget:
    """What all kept answers may hold together. Beyond `max_bytes`, one that grows keeps only what nobody has
    read yet."""

    def __new__(cls, *, max_bytes: int) -> ReplayBudget: ...
    @property
    def bytes(self) -> int: ...

@final
class ReplayBuffer:
    """An answer that is relayed once and told to any number of clients, each from its first byte.

    The generation ends when the last client that reads it stops it, and `grace` seconds after the last one
    was lost. The last `max_bytes` are kept, and what nobody has read, up to `max_unread`: the fastest client
    paces the model server. `body`: the request's, kept until the answer has begun.
    """

    def __new__(
        cls, budget: ReplayBudget, body: bytes, *, max_bytes: int, max_unread: int, grace: float
    ) -> ReplayBuffer: ...
    def close(self) -> None:
        """There will be no more of it; does nothing once it has ended."""

    @property
    def ended(self) -> bool: ...
    @property
    def status(self) -> int | None:
        """The status of its head; `None` before it is there."""

    @property
    def finished(self) -> bool:
        """It came to its own end."""

    @property
    def failed(self) -> bool:
        """It broke off, or is about to, for everybody has left."""

    @property
    def whole(self) -> bool:
        """Everything since its first byte is kept."""

    @property
    def bytes(self) -> int:
        """What is kept of it."""

    @property
    def readers(self) -> int: ...

@final
class RelayReport:
    """How a relay went. Times are taken where the bytes pass."""

    @property
    def cause(self) -> str:
        """`done`, `stopped`, `lost`, `upstream_failed`, `timeout`, `cut`, `displaced` or `abandoned`."""

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
        """The time until the head of the upstream's answer had come."""

    @property
    def ttft(self) -> float | None:
        """The time until the first event was with the transport."""

    @property
    def duration(self) -> float: ...
    @property
    def events(self) -> int: ...
    @property
    def bytes(self) -> int:
        """How many bytes the body had, as the upstream sent it."""

    @property
    def runs(self) -> int:
        """How often the request was sent: twice, where the first was provably not processed."""

    @property
    def held(self) -> tuple[_Fields, builtins.bytes | None] | None:
        """What an answer said whose status was held: its fields, and its body where that was short and came
        at once."""

    @property
    def upstream_reused(self) -> bool:
        """The upstream's connection had carried a request before."""

    @property
    def gaps(self) -> list[tuple[float, int]]:
        """The times between the arrivals of two events, as `(upper edge, count)`."""

    def gap(self, q: float) -> float:
        """The gap below which the share `q` (0 to 1) lies, within 12 %."""

    @property
    def holds(self) -> list[tuple[float, int]]:
        """The times from an event's arrival until it was with the transport, as `(upper edge, count)`."""

    def hold(self, q: float) -> float:
        """The time in the gateway below which the share `q` (0 to 1) of all events lies, within 12 %."""

    @property
    def transport(self) -> TransportStats | None:
        """What QUIC knows of the client's connection, since it began; `None` over TCP."""

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

    def body_fields(self, names: Sequence[str]) -> asyncio.Future[dict[str, str | bool | None] | None]:
        """Fields at the top of a JSON body, which stays in the engine.

        A text of at most 256 bytes is a `str`, a truth value a `bool`, everything else that is not `null` is
        `None`; what is absent or `null` is left out. The result is `None` when the body is not a JSON object.
        Raises what `body` raises.
        """

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

    def relay_into(self, request: RelayRequest, buffer: ReplayBuffer) -> asyncio.Future[RelayReport]:
        """Begins to relay an upstream's answer into a buffer, for `replay`. The body is the buffer's, unless
        the request has one.

        May be awaited beside `replay`. An `untouched` report leaves the buffer open for another upstream.
        """

    def replay(self, buffer: ReplayBuffer) -> asyncio.Future[RelayReport]:
        """Tells the buffered answer to the client, from its first byte to its end. `untouched`: it ended
        without a head, or had `failed` before."""

    @property
    def may_be_replay(self) -> bool:
        """The request came in early data, and its handshake is not complete yet (RFC 8470)."""

    def own(self, key_name: str) -> None:
        """The exchange, and its connection, belong to whoever has the API key of this name: that is who
        shares what is scarce."""

    def handshake(self) -> asyncio.Future[None]:
        """Resolves when the handshake is complete, and the request no replay. Raises `ClientGoneError`."""

    def gone(self) -> asyncio.Future[str]:
        """Resolves with `stopped` or `lost` when the client is gone."""

@final
class Waiter:
    """The answer to one call, for a thread that waits."""

    def result(self, timeout: float | None = None) -> Any:
        """Raises `TimeoutError` after `timeout` seconds, and what the call came to."""

@final
class ClientConfig:
    """How connections are made."""

    def __new__(
        cls,
        *,
        trust: str,
        ca_pem: str,
        identity: tuple[str, str] | None,
        handshake_timeout: float,
        idle_timeout: float,
        keep_idle: float,
        suspect: float,
        max_head_bytes: int,
        stream_window: int,
        connection_window: int,
        useless_burst: int,
        useless_per_second: int,
        echo: str,
    ) -> Self:
        """`trust`: `system` (and the PEM text), `only` (the PEM text) or `anybody`. Times in seconds, sizes
        in bytes; `echo` is JSON. Raises `ConfigError`."""

@final
class Connection:
    """One HTTP/3 connection to a server.

    What waits takes a bridge, and returns a future of its loop; or `None`, and returns a `Waiter`.
    """

    @staticmethod
    def open(config: ClientConfig, host: str, port: int, name: str) -> Connection:
        """Begins to connect; requests may be made at once. `name`: whose certificate the server must show."""

    @overload
    def wait_reached(self, bridge: Bridge) -> asyncio.Future[None]:
        """Raises `ConnectError`, `ConnectTimeoutError`."""

    @overload
    def wait_reached(self, bridge: None) -> Waiter: ...
    def request(
        self,
        verb: str,
        authority: str,
        path: str,
        headers: _Fields,
        body: bytes | None,
        *,
        record: bool,
        abandon_after: float | None,
        early: bool,
    ) -> Stream:
        """Sends a request. `body`: `None` when it comes by `Stream.send`. `record`: keep times and sizes of
        the answer's DATA frames instead of their bytes. `abandon_after`: seconds without a reader after which
        the answer is stopped. `early`: it may be sent in early data (0-RTT), for it does no harm when it
        comes twice."""

    def close(self) -> None: ...
    def migrate(self) -> None:
        """Moves to a new socket, and so to the path that the system prefers now. Raises `ConnectError`."""

    @property
    def is_open(self) -> bool:
        """It is reached, and not closed since."""

    @property
    def is_usable(self) -> bool:
        """It takes requests, now or once it is reached."""

    @property
    def streams(self) -> int:
        """Streams that have not ended, those that wait for credit among them."""

    @property
    def waiting(self) -> int:
        """Streams that have no credit (MAX_STREAMS) yet."""

    @property
    def addresses(self) -> tuple[tuple[str, int], tuple[str, int]] | None:
        """Ours and the server's, once it is reached."""

    def stats(self) -> ConnectionStats | None:
        """What the transport knows of the path; `None` before it is reached."""

@final
class Stream:
    """One request and its answer as it comes. Dropping it stops the answer."""

    @overload
    def wait_stream(self, bridge: Bridge) -> asyncio.Future[None]:
        """Resolves when the stream has its credit and is open, or has ended."""

    @overload
    def wait_stream(self, bridge: None) -> Waiter: ...
    @overload
    def wait_head(self, bridge: Bridge) -> asyncio.Future[None]:
        """Resolves when the head is there, or the stream has ended without one."""

    @overload
    def wait_head(self, bridge: None) -> Waiter: ...
    @overload
    def wait_more(self, bridge: Bridge) -> asyncio.Future[None]:
        """Resolves when there are chunks to take, or the stream has ended."""

    @overload
    def wait_more(self, bridge: None) -> Waiter: ...
    @overload
    def send(self, bridge: Bridge, data: bytes) -> asyncio.Future[None]:
        """A piece of the request's body. Raises `ClosedError` when the server wants no more of it."""

    @overload
    def send(self, bridge: None, data: bytes) -> Waiter: ...
    def finish(self) -> None:
        """The request's body is whole."""

    @property
    def head(self) -> tuple[int, _Fields, int] | None:
        """Status, fields, and when they were read (monotonic ns)."""

    def take(self) -> list[tuple[int, bytes, bool]]:
        """All chunks that are there: when they were read, their bytes, whether they begin a DATA frame."""

    def take_bytes(self) -> bytes:
        """The bytes of all chunks that are there, joined."""

    def arrivals(self) -> list[tuple[int, int]]:
        """When each DATA frame came (monotonic ns), and its size; of very many, the first."""

    @property
    def ended(self) -> bool:
        """False while the stream runs or has chunks to take. Raises `StreamError` after a bad end."""

    @property
    def trailers(self) -> _Fields | None: ...
    @property
    def early_data(self) -> bool:
        """The request was sent in early data (0-RTT), and the server took it."""

    @property
    def stream_id(self) -> int | None: ...
    def stop(self) -> None:
        """Sends STOP_SENDING (H3_REQUEST_CANCELLED). Never waits."""
