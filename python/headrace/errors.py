"""What can go wrong, as exceptions.

In: a kind of the engine's one table (`crates/headrace-core/src/error.rs`), and what was seen. Out: an
exception whose class says which programs may want to catch it, and whose fields say the rest. This file must
not decide what follows from an error.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import NamedTuple


class Kind(NamedTuple):
    """A kind of error: a row of the engine's table."""

    slug: str
    """Its stable name, such as `upstream_connect_timeout`; also the `code` of a JSON error."""
    side: str
    """Whose fault it is: `client`, `us`, `upstream`, or `server` (a server that our own client talks to)."""
    retryable: bool
    """Whether the same request may succeed elsewhere or later."""
    status: int
    """The HTTP status that the client is answered with, while no head was sent."""
    h3_code: int
    """The code with which the stream is reset, once a head was sent (RFC 9114 §8.1)."""
    sentence: str
    """What it says to people."""


@cache
def kinds() -> dict[str, Kind]:
    """All kinds, by slug."""
    from headrace import _engine

    return {row[0]: Kind(*row) for row in _engine.error_kinds()}


class HeadraceError(Exception):
    """Anything that headrace raises on purpose. `detail`: what was seen, beside the kind's own sentence."""

    def __init__(self, slug: str, detail: str = "") -> None:
        self.kind = kinds()[slug]
        self.detail = detail
        super().__init__(f"{self.kind.sentence}: {detail}" if detail else self.kind.sentence)

    def __reduce__(self) -> tuple[type[HeadraceError], tuple[str, str]]:
        return type(self), (self.kind.slug, self.detail)


class ConfigError(HeadraceError):
    """The configuration is wrong; the message names the file, the key, and what was expected."""

    def __init__(self, slug: str = "config", detail: str = "") -> None:
        super().__init__(slug, detail)

    def __str__(self) -> str:
        return self.detail or super().__str__()


def with_file(error: ConfigError, files: Mapping[str, object]) -> ConfigError:
    """The same error, which also names the file of the setting with which it begins. `files`: by setting."""
    setting, colon, rest = error.detail.partition(": ")
    file = files.get(setting) if colon else None
    return error if file is None else ConfigError(detail=f"{setting}: {file}: {rest}")


class UsageError(HeadraceError):
    """A call that is not possible in this state of the object."""


class ClosedError(UsageError):
    """The exchange, stream or connection is already closed."""


class InternalError(HeadraceError):
    """A fault in headrace itself; please report it."""


class OverloadedError(HeadraceError):
    """The gateway has reached one of its limits, or is going away."""


class RequestError(HeadraceError):
    """The client's request cannot be answered as it is."""


class ClientGoneError(HeadraceError):
    """The client stopped the answer, or its connection was lost."""


class UpstreamError(HeadraceError):
    """A model server could not be reached, or broke its answer off."""


class UpstreamTimeoutError(UpstreamError, TimeoutError):
    """A model server took too long."""


class ConnectError(HeadraceError, ConnectionError):
    """The server could not be reached, or its certificate was not accepted."""


class ConnectTimeoutError(ConnectError, TimeoutError):
    """The server did not complete the handshake in time."""


class PoolTimeoutError(ConnectError, TimeoutError):
    """The server allowed no further stream in time."""


class StreamError(HeadraceError):
    """An answer that did not come to its end."""


class ReadTimeoutError(StreamError, TimeoutError):
    """The server was silent for too long."""


class WriteTimeoutError(StreamError, TimeoutError):
    """The server did not take the request's body in time."""


class RefusedError(StreamError):
    """The server refused the request before it began."""


class StreamResetError(StreamError):
    """The server reset the stream."""


class TruncatedError(StreamError):
    """The answer ended before it was complete."""


class ConnectionLostError(StreamError, ConnectionError):
    """The connection to the server was lost."""


class ProtocolError(StreamError):
    """The server broke the protocol."""


CLASSES: dict[str, type[HeadraceError]] = {
    "stopped": ClientGoneError,
    "lost": ClientGoneError,
    "bad_request": RequestError,
    "head_too_large": RequestError,
    "body_too_large": RequestError,
    "body_incomplete": RequestError,
    "idempotency_key_reused": RequestError,
    "idempotency_key_too_late": RequestError,
    "too_early": RequestError,
    "request_timeout": RequestError,
    "client_stalled": RequestError,
    "method_refused": RequestError,
    "coding_refused": RequestError,
    "overloaded": OverloadedError,
    "shutting_down": OverloadedError,
    "gateway_draining": OverloadedError,
    "closed": ClosedError,
    "misuse": UsageError,
    "config": ConfigError,
    "internal": InternalError,
    "upstream_resolve": UpstreamError,
    "upstream_connect": UpstreamError,
    "upstream_connect_timeout": UpstreamTimeoutError,
    "upstream_tls": UpstreamError,
    "upstream_closed": UpstreamError,
    "upstream_protocol": UpstreamError,
    "upstream_status": UpstreamError,
    "upstream_head_timeout": UpstreamTimeoutError,
    "upstream_idle_timeout": UpstreamTimeoutError,
    "connect": ConnectError,
    "connect_timeout": ConnectTimeoutError,
    "tls": ConnectError,
    "pool_timeout": PoolTimeoutError,
    "write_timeout": WriteTimeoutError,
    "read_timeout": ReadTimeoutError,
    "refused": RefusedError,
    "stream_reset": StreamResetError,
    "connection_lost": ConnectionLostError,
    "write_lost": ConnectionLostError,
    "protocol": ProtocolError,
    "truncated": TruncatedError,
}
"""The exception for each kind."""


def make(slug: str, detail: str = "") -> HeadraceError:
    """Makes the exception for a kind; the engine calls this for every error that it raises."""
    return CLASSES[slug](slug, detail)
