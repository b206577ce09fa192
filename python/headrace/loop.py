"""The bridge of the running asyncio loop: one for each loop, made at its first use.

A thread that waits needs no bridge, so asyncio, which takes 10 ms to import, is imported only when it is
used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from headrace import _engine

if TYPE_CHECKING:
    import asyncio

_bridges: WeakKeyDictionary[asyncio.AbstractEventLoop, _engine.Bridge] = WeakKeyDictionary()


def bridge() -> _engine.Bridge:
    """The bridge from the engine's threads to the running loop.

    Raises `RuntimeError` when no loop runs.
    """
    from asyncio import get_running_loop

    loop = get_running_loop()
    found = _bridges.get(loop)
    if found is None:
        found = _bridges[loop] = _engine.Bridge(loop)
        loop.add_reader(found.fileno(), found.drain)
    return found
