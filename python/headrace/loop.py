"""The bridge of the running asyncio loop: one for each loop, made at its first use."""

from __future__ import annotations

import asyncio
from weakref import WeakKeyDictionary

from headrace import _engine

_bridges: WeakKeyDictionary[asyncio.AbstractEventLoop, _engine.Bridge] = WeakKeyDictionary()


def bridge() -> _engine.Bridge:
    """The bridge from the engine's threads to the running loop.

    Raises `RuntimeError` when no loop runs.
    """
    loop = asyncio.get_running_loop()
    found = _bridges.get(loop)
    if found is None:
        found = _bridges[loop] = _engine.Bridge(loop)
        loop.add_reader(found.fileno(), found.drain)
    return found
