"""Which requests may come twice, and so may leave in early data (0-RTT, RFC 8470).

In: a request. Out: whether it may be sent before the handshake with its server is complete; and, where the
user wants it, a key by which the server knows that it came before.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

SAFE_METHODS = {"GET", "HEAD", "OPTIONS"}

REPLAY_SAFE_EXTENSION = "headrace_replay_safe"

ReplaySafe: Mapping[str, bool] = MappingProxyType({REPLAY_SAFE_EXTENSION: True})
"""For `extensions=` of one httpx request: it does no harm when the server receives it twice."""

COMPLETIONS = ("/completions", "/responses", "/messages", "/api/chat", "/api/generate")
"""Ends of the paths whose answer is generated."""


def may_come_twice(method: str, headers: list[tuple[str, str]], is_declared: bool) -> bool:
    """Safe by its method, declared so by the program, or known again by its key."""
    return is_declared or method in SAFE_METHODS or any(name == "idempotency-key" for name, _ in headers)


def add_key(method: str, target: str, headers: list[tuple[str, str]]) -> None:
    """Gives a completion that has none an `Idempotency-Key` of its own."""
    is_completion = method == "POST" and target.partition("?")[0].endswith(COMPLETIONS)
    if is_completion and not any(name == "idempotency-key" for name, _ in headers):
        import uuid

        headers.append(("idempotency-key", str(uuid.uuid4())))
