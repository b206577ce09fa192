"""One request and its answer: what a handler works with.

The class is the engine's own (`crates/headrace-py/src/exchange.rs`); its methods are described in
`_engine.pyi`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from headrace._engine import Exchange, Recording, Records, RelayReport, RelayRequest, Request, Target

__all__ = ["Exchange", "Handler", "Recording", "Records", "RelayReport", "RelayRequest", "Request", "Target"]

Handler = Callable[[Exchange], Awaitable[None]]
"""A function that takes one exchange and answers it. When it returns or raises before the answer is finished,
the answer is reset."""
