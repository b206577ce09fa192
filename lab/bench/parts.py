"""The benchmarks by name: the module of each, what makes it short, and whether it needs root."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any, NamedTuple


class Part(NamedTuple):
    """One benchmark. Its module has `main(arguments, keep)`."""

    module: str
    short: list[str]
    """What `--quick` gives it."""
    needs_root: bool = False
    """It makes network namespaces."""

    def main(self) -> Callable[[list[str], bool], Any]:
        found: Callable[[list[str], bool], Any] = import_module(self.module).main
        return found


PARTS = {
    "tokens": Part("bench.gateway.tokens", ["--seconds", "2"]),
    "stop": Part("bench.gateway.stop", ["--stops", "200"]),
    "requests": Part("bench.gateway.requests", ["--seconds", "2"]),
    "memory": Part("bench.gateway.memory", ["--stall", "5"]),
    "relay_cpu": Part("bench.gateway.relay_cpu", ["--rounds", "1", "--seconds", "3"]),
    "client": Part("bench.client.compare", ["--rounds", "1", "--seconds", "2"]),
    "imports": Part("bench.client.imports", ["--rounds", "3"]),
    "soak": Part("bench.client.soak", ["--requests", "4000"]),
    "fallback": Part("bench.client.fallback", ["--rounds", "2"], True),
    "move": Part("bench.network.move", ["--walks", "2"], True),
    "move_link": Part("bench.network.move_link", ["--rounds", "1"], True),
    "move_many": Part("bench.network.move_many", ["--connections", "40"]),
    "first_token": Part("bench.network.first_token", ["--rounds", "2"], True),
    "replay": Part("bench.network.replay", ["--rounds", "1"]),
    "echo": Part("bench.network.echo", ["--seeds", "1", "--streams", "16", "--paths", "3 %"], True),
    "overload": Part("bench.network.overload", ["--seeds", "1"], True),
    "drain": Part("bench.gateway.drain", ["--streams", "40", "--events", "150", "--people", "2"], True),
}
"""All of these are run by `python -m bench`, in this order."""

BY_HAND = {
    "timeline": Part("bench.network.timeline", [], True),
}
"""What prints something to look at and keeps nothing: run by name alone."""
