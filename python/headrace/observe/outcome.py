"""What became of one request. The gateway fills it in, and the access log reads it."""

from __future__ import annotations

from dataclasses import dataclass, field

from headrace.exchange import RelayReport


@dataclass
class Outcome:
    """What became of one request."""

    status: int | None = None
    """The gateway's own status; `None` when an upstream's answer was relayed."""
    cause: str | None = None
    """Why the gateway answered itself; `None` when `report` says how it went."""
    is_early: bool = False
    """The request came in early data."""
    is_joined: bool = False
    """It got the answer that another request with the same `Idempotency-Key` had begun."""
    key: str | None = None
    """The name of its API key."""
    model: str | None = None
    upstream: str | None = None
    """The name of the upstream whose answer, or failure, the client was told."""
    runs: int = 0
    """How often the request was sent to a model server."""
    tried: list[str] = field(default_factory=list)
    """The upstreams that were asked, in order, each with what came of it."""
    report: RelayReport | None = None
