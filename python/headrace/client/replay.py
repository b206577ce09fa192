"""Which requests a server may receive twice, so that they may be sent in early data (0-RTT, RFC 8470).

In: a request. Out: whether it may be sent before the handshake with its server is complete; and, where the
program wants it, a key by which the server knows a request that it has received before.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from headrace.events.dialects import is_generation

SAFE_METHODS = {"GET", "HEAD", "OPTIONS"}

REPLAY_SAFE_EXTENSION = "headrace_replay_safe"

ReplaySafe: Mapping[str, bool] = MappingProxyType({REPLAY_SAFE_EXTENSION: True})
"""The `extensions=` of an httpx request that does no harm when the server receives it twice."""


def is_replay_safe(method: str, headers: list[tuple[str, str]], is_declared: bool) -> bool:
    """Whether a request may be received twice: its method is safe, the program says so, or it has a key by
    which the server knows it again."""
    return is_declared or method in SAFE_METHODS or any(name == "idempotency-key" for name, _ in headers)


def add_key(method: str, target: str, headers: list[tuple[str, str]]) -> None:
    """Gives a request whose answer is generated an `Idempotency-Key` of its own, unless it has one."""
    if is_generation(method, target) and not any(name == "idempotency-key" for name, _ in headers):
        import uuid

        headers.append(("idempotency-key", str(uuid.uuid4())))
