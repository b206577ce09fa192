"""What is done with a request in early data (0-RTT, RFC 8470).

In: a request that may be a replay: it came before its handshake was complete, or a proxy before us says so
(`Early-Data: 1`). Out: it may go on now, or the client was answered 425. A replay must not start a second
generation, so what is neither safe nor idempotent waits for the handshake: a round trip, and nobody sees an
error.
"""

from __future__ import annotations

from dataclasses import dataclass

from headrace.config import EarlyData, Policy
from headrace.errors import kinds
from headrace.exchange import Exchange, Request
from headrace.gateway.answers import send_error
from headrace.gateway.paths import begins

SAFE_METHODS = {"GET", "HEAD", "OPTIONS"}
TOO_EARLY = 425
"""What an upstream answers that wants a request again after the handshake (RFC 8470 §5.2)."""


@dataclass
class Counts:
    """Requests in early data."""

    accepted: int = 0
    """Ran at once."""
    waited: int = 0
    """Waited for the handshake."""
    refused: int = 0
    """Were answered 425."""
    retried: int = 0
    """An upstream answered 425, and was asked again after the handshake."""


def is_early(exchange: Exchange) -> bool:
    """It may be a replay: of the client's connection to us, or of one before that."""
    return exchange.may_be_replay or exchange.request.header("early-data") == "1"


def policy_of(request: Request, config: EarlyData) -> Policy:
    routes = [beginning for beginning in config.routes if begins(request.path, beginning)]
    if routes:
        return config.routes[max(routes, key=len)]
    if request.method in SAFE_METHODS:
        return config.safe
    return config.idempotent if is_idempotent(request) else config.other


def is_idempotent(request: Request) -> bool:
    """Its answer is recorded under its key, and a replay joins it."""
    return request.method == "POST" and bool(request.header("idempotency-key"))


async def admit(exchange: Exchange, config: EarlyData, counts: Counts) -> bool:
    """Whether the request may go on, now; if not, it was answered."""
    policy = policy_of(exchange.request, config)
    if policy == "run":
        counts.accepted += 1
        return True
    # For a handshake with somebody else, nobody can wait here.
    if policy == "wait" and exchange.request.header("early-data") != "1":
        counts.waited += 1
        await exchange.handshake()
        return True
    counts.refused += 1
    kind = kinds()["too_early"]
    await send_error(exchange, kind.slug, kind.sentence)
    return False
