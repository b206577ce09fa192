"""One request and its answer: what a handler works with.

The class is the engine's own (`crates/headrace-py/src/exchange.rs`); its methods are described in
`_engine.pyi`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from headrace._engine import (
    Exchange,
    RelayReport,
    RelayRequest,
    ReplayBudget,
    ReplayBuffer,
    Request,
    Target,
)

__all__ = [
    "Exchange",
    "Handler",
    "RelayReport",
    "RelayRequest",
    "ReplayBudget",
    "ReplayBuffer",
    "Request",
    "Target",
]

Handler = Callable[[Exchange], Awaitable[None]]
"""A function that takes one exchange and answers it. When it returns or raises before the answer is finished,
the answer is reset."""
