"""One request of a client, top to bottom: a connection, a stream, the request, the head of its answer.

In: a request and a pool. Out: the engine's stream, once the head of its answer is there; or `None`, when the
pool says that TCP is the better way. `perform` is a generator that yields what it must wait for, so that the
same lines serve threads (`run`) and asyncio (`run_async`). Neither of the two decides anything.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Generator, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

from headrace import _engine, errors
from headrace.client.origin import Origin
from headrace.client.pool import Lease, Pool
from headrace.client.timeouts import Timeouts
from headrace.client.waiting import wait, wait_async

PIECE = 64 * 1024
"""A body that is longer is sent in pieces of this size, so that the write timeout holds for each of them."""
MAX_REPEATS = 1
"""How often a request is sent again that its server has refused before it did anything with it."""
MAX_UNSENT = 3
"""How often a request is tried again of which nothing had left: its connection had died before."""

LEAST_POOL_S = 0.01
"""The stream's task needs a moment to begin, even when the server allows it at once."""
TOO_EARLY = 425
"""The status by which a server asks for a request again, after the handshake (RFC 8470 §5.2)."""
NO_TIMEOUTS = Timeouts(None, None, None, None)


class Wait(NamedTuple):
    """The request waits for something of the engine."""

    start: Callable[[_engine.Bridge | None], Any]
    timeout: float | None
    slug: str
    """The kind of error when it takes too long."""
    patience: float | None = None
    """The seconds that the error names, when this wait is only the rest of them."""


class Trace(NamedTuple):
    """Something happens that a `trace` callback may want to know (by httpcore's names)."""

    name: str
    info: dict[str, Any]


class NextPiece(NamedTuple):
    """The request waits for the next piece of its body."""


Step = Wait | Trace | NextPiece


@dataclass
class Request:
    """What a program asks a server for, and how."""

    method: str
    origin: Origin
    target: str
    """Path and query, as they are sent."""
    headers: list[tuple[str, str]]
    authority: str = ""
    """The field `:authority`; empty: the origin's own."""
    body: bytes | None = b""
    """`None`: the body comes piece by piece from `pieces`, and can be had only once."""
    pieces: Iterator[bytes] | AsyncIterator[bytes] = field(default_factory=lambda: iter(()))
    timeouts: Timeouts = NO_TIMEOUTS
    abandon_after: float | None = None
    """The seconds without a reader after which the answer is stopped."""
    trace: Callable[[str, dict[str, Any]], Any] | None = None
    may_be_early: bool = False
    """It does no harm when the server receives it twice, so it may be sent in early data (0-RTT)."""
    is_patient: bool = False
    """TCP has failed, so an attempt that is under way is worth waiting for."""
    has_begun_body: bool = False
    """A piece of the body was taken from `pieces`, and cannot be had again."""


class Started(NamedTuple):
    """An answer that has started: its head is there."""

    stream: _engine.Stream
    connection: _engine.Connection
    status: int
    headers: list[tuple[str, str]]
    is_reused: bool
    """The connection was there before the request."""


Steps = Generator[Step, Any, Started | None]


def perform(pool: Pool, request: Request) -> Steps:
    """One request, from top to bottom.

    Raises `HeadraceError`s of the side `server`, and never after a byte of the answer was given away.
    """
    _check_length(request)
    repeats, unsent, may_be_early = 0, 0, request.may_be_early
    while True:
        lease = pool.take(request.origin, request.timeouts.connect, request.is_patient)
        if lease is None:
            return None
        connection = lease.connection
        is_early = may_be_early and not lease.is_open
        # When the request may be early, or when there is no TCP, the engine has it before the handshake is
        # done, and sends it in the first flight or right behind it. Otherwise TCP may still win, and until
        # then nothing must have been sent.
        is_ahead = is_early or not (lease.is_open or pool.may_use_tcp)
        if not (lease.is_open or is_ahead) and not (yield from _connect(pool, request, lease)):
            return None
        whole = request.body if request.body is not None and len(request.body) <= PIECE else None
        authority = request.authority or request.origin.authority
        stream = connection.request(
            request.method,
            authority,
            request.target,
            request.headers,
            whole,
            record=False,
            abandon_after=request.abandon_after,
            early=is_early,
        )
        try:
            if is_ahead and not (yield from _connect(pool, request, lease)):
                stream.stop()
                return None
            if whole is None:
                yield from _send_body(request, stream)
            status, headers = yield from _head(request, stream)
        except (errors.RefusedError, errors.ConnectionLostError) as error:
            stream.stop()
            # On a connection that had died before, the stream was not even opened.
            if stream.stream_id is None and not request.has_begun_body:
                unsent += 1
            elif isinstance(error, errors.RefusedError) and request.body is not None:
                repeats += 1
            else:
                raise
            if unsent > MAX_UNSENT or repeats > MAX_REPEATS:
                raise
        except BaseException:
            stream.stop()
            raise
        else:
            if status == TOO_EARLY and stream.early_data and request.body is not None:
                stream.stop()
                may_be_early = False
                continue
            return Started(stream, connection, status, headers, lease.is_open)


def _connect(pool: Pool, request: Request, lease: Lease) -> Generator[Step, Any, bool]:
    """Waits for the connection. Returns `False` when the request should take TCP."""
    info = {"host": request.origin.host, "port": request.origin.port, "timeout": lease.wait}
    yield Trace("connection.connect_quic.started", info)
    try:
        yield Wait(lease.connection.wait_reached, lease.wait, "connect_timeout")
    except errors.HeadraceError as error:
        yield Trace("connection.connect_quic.failed", {"exception": error})
        if pool.may_use_tcp:
            return False
        raise
    yield Trace("connection.connect_quic.complete", {"return_value": lease.connection})
    return True


def _send_body(request: Request, stream: _engine.Stream) -> Generator[Step, Any, None]:
    yield Wait(stream.wait_stream, request.timeouts.pool, "pool_timeout")
    if stream.stream_id is None:
        _ = stream.ended  # It has ended before it was allowed, and raises why. No piece is taken.
    yield Trace("http3.send_request_body.started", {"stream_id": stream.stream_id})
    slices = None
    if request.body is not None:
        slices = iter([request.body[at : at + PIECE] for at in range(0, len(request.body), PIECE)])
    sent = 0
    while True:
        request.has_begun_body = slices is None
        piece = next(slices, None) if slices else (yield NextPiece())
        if piece is None:
            break
        sent += len(piece)
        try:
            yield Wait(partial(stream.send, data=bytes(piece)), request.timeouts.write, "write_timeout")
        except errors.ClosedError:
            return _why_closed(stream)
    if (declared := _declared(request)) not in (None, sent):
        raise errors.make("body_incomplete", f"content-length is {declared}, the body has {sent} bytes")
    stream.finish()
    yield Trace("http3.send_request_body.complete", {"return_value": None})


def _declared(request: Request) -> int | None:
    value = next((value for name, value in request.headers if name == "content-length"), None)
    if value is not None and not (value.isascii() and value.isdecimal()):
        raise errors.make("bad_request", "content-length is not a number of bytes")
    return None if value is None else int(value)


def _check_length(request: Request) -> None:
    """Raises an error when a body that is there whole is not as long as its `content-length` says."""
    declared = _declared(request)
    if request.body and declared not in (None, len(request.body)):
        raise errors.make(
            "body_incomplete", f"content-length is {declared}, the body has {len(request.body)} bytes"
        )


def _why_closed(stream: _engine.Stream) -> None:
    """Why a stream takes no more of the body: the server's answer will say it, unless the connection is
    lost."""
    try:
        _ = stream.ended
    except errors.ConnectionLostError as error:
        raise errors.make("write_lost", error.detail) from None


def _head(
    request: Request, stream: _engine.Stream
) -> Generator[Step, Any, tuple[int, list[tuple[str, str]]]]:
    yield Trace("http3.receive_response_headers.started", {"request": request})
    try:
        yield from _wait_head(request.timeouts, stream)
        found = stream.head
        if found is None:
            _ = stream.ended  # raises how it ended
            raise errors.make("truncated", "the stream ended before the head of its answer")
    except errors.HeadraceError as error:
        yield Trace("http3.receive_response_headers.failed", {"exception": error})
        raise
    status, headers, _ = found
    yield Trace("http3.receive_response_headers.complete", {"return_value": (status, headers)})
    return status, headers


def _wait_head(timeouts: Timeouts, stream: _engine.Stream) -> Generator[Step, Any, None]:
    """Waits for the head. In the usual case that is one wait; only when it has taken as long as the shorter
    of the two timeouts are the two told apart."""
    pool = None if timeouts.pool is None else max(timeouts.pool, LEAST_POOL_S)
    read = timeouts.read
    first = min((limit for limit in (pool, read) if limit is not None), default=None)
    try:
        yield Wait(stream.wait_head, first, "read_timeout")
        return
    except errors.ReadTimeoutError:
        if stream.stream_id is not None and first == read:
            raise
    waited = first or 0.0
    if stream.stream_id is None:
        yield Wait(stream.wait_stream, None if pool is None else pool - waited, "pool_timeout", pool)
        waited = 0.0
    yield Wait(stream.wait_head, None if read is None else read - waited, "read_timeout", read)


def run(steps: Steps, request: Request) -> Started | None:
    """Takes a request through its steps on the calling thread."""
    resume, value = steps.send, None
    while True:
        try:
            wanted = resume(value)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]
        resume = steps.send
        try:
            match wanted:
                case Wait():
                    value = wait(*wanted)
                case NextPiece():
                    value = next(request.pieces, None)  # type: ignore[arg-type]
                case Trace(name, info):
                    value = request.trace(name, info) if request.trace else None
        except BaseException as error:
            resume, value = steps.throw, error


async def run_async(steps: Steps, request: Request) -> Started | None:
    """Takes a request through its steps on the running asyncio loop."""
    resume, value = steps.send, None
    while True:
        try:
            wanted = resume(value)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]
        resume = steps.send
        try:
            match wanted:
                case Wait():
                    value = await wait_async(*wanted)
                case NextPiece():
                    value = await anext(request.pieces, None)  # type: ignore[arg-type]
                case Trace(name, info):
                    value = await request.trace(name, info) if request.trace else None
        except BaseException as error:
            resume, value = steps.throw, error
