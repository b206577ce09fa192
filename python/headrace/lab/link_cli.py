"""`python -m headrace.lab.link`: a link by hand, or its measurement of itself."""

from __future__ import annotations

import argparse
import contextlib
import json
import signal
import sys
from typing import Any

from headrace.errors import ConfigError
from headrace.lab import link, link_check
from headrace.lab.profiles import PROFILES


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m headrace.lab.link",
        description=link.__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--profile", default="fiber", help=f"one of {', '.join(PROFILES)}, or fields as JSON")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--log", help="keep the packet log here")
    parser.add_argument("--self-test", action="store_true", help="measure the emulator against itself")
    parser.add_argument("--quick", action="store_true", help="a shorter self test")
    options = parser.parse_args(arguments)
    if options.self_test:
        return link_check.main(options.quick)
    profile = json.loads(options.profile) if options.profile.startswith("{") else options.profile

    def end(*_: Any) -> None:
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, end)
    with contextlib.suppress(KeyboardInterrupt), link.Link(profile, options.seed, options.log) as made:
        _say(
            {
                "client": made.client.name,
                "client_address": made.client_address,
                "server": made.server.name,
                "server_address": made.server_address,
            }
        )
        for line in sys.stdin:
            try:
                _say(made.command(json.loads(line)))
            except (ConfigError, ValueError) as error:
                _say({"error": str(error)})
        signal.pause()
    _say(made.result())
    return 0


def _say(answer: dict[str, Any]) -> None:
    print(json.dumps(answer), flush=True)
