"""The page: its introduction, and the section of each benchmark.

In: the results on disk. Out: Markdown.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench.common import RESULTS
from bench.report import client, gateway, network

PAGE = Path(__file__).parents[3] / "docs" / "measurements.md"


def page() -> str:
    """Returns the page, of what has been measured."""
    files = {name: RESULTS / f"{name}.json" for name in SECTIONS}
    parts = {name: json.loads(file.read_text()) for name, file in files.items() if file.exists()}
    return INTRODUCTION + "\n".join(f"{SECTIONS[name](part)}\n{about(part)}" for name, part in parts.items())


def write() -> str:
    PAGE.write_text(page())
    return "docs/measurements.md"


INTRODUCTION = """\
# Measurements

What headrace costs and how fast it is, beside Caddy and Envoy (their PyPI wheels). `make bench` makes it
again, `make bench-quick` a short form that keeps nothing. Every table ends with the command, the commit
and the machine it comes from.

How to read them: everything runs on one machine, over loopback, with the model server, the proxy and the load
sharing its cores, so absolute figures belong to that machine. Only figures of one table compare: proxies take
turns within a run, each alone. The model server is a script
([`headrace_lab.model`](../lab/headrace_lab/model/source.py)), because a real model's own pauses would hide what
is measured here; `make demo` runs a real one. Where a path has a delay, the lab's link
([`headrace_lab.link`](../lab/headrace_lab/link/link.py)) makes it.

"""


def about(result: dict[str, Any]) -> str:
    machine = result["machine"]
    return (
        f"`{result['command']}` · commit {result['commit']} · {result['date']} · {machine['cpu']}, "
        f"{machine['cores']} cores, Linux {machine['kernel']}, Python {machine['python']}\n"
    )


SECTIONS: dict[str, Callable[[dict[str, Any]], str]] = {
    "gateway/tokens": gateway.tokens,
    "gateway/stop": gateway.stop,
    "gateway/requests": gateway.requests,
    "gateway/memory": gateway.memory,
    "gateway/relay_cpu": gateway.relay_cpu,
    "gateway/relay_cpu_asleep": gateway.relay_cpu_asleep,
    "client/client": client.client,
    "client/imports": client.imports,
    "client/soak": client.soak,
    "client/fallback": client.fallback,
    "network/move": network.move,
    "network/move_link": network.move_link,
    "network/move_many": network.move_many,
    "network/first_token": network.first_token,
    "network/replay": network.replay,
    "network/echo": network.echo,
    "network/overload": network.overload,
    "gateway/drain": gateway.drain,
}
