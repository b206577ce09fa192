"""A link by hand, or the emulator's measurement of itself: `python -m headrace_lab.link`."""

from __future__ import annotations

import argparse
import contextlib
import json
import signal
import sys
from typing import Any

from headrace.errors import ConfigError, HeadraceError
from headrace_lab import link
from headrace_lab.link import PROFILES, self_test


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m headrace_lab.link",
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
        return self_test.main(options.quick)
    profile = options.profile
    if profile.startswith("{"):
        try:
            profile = json.loads(profile)
        except ValueError as error:
            raise ConfigError(detail=f"--profile: expected a name or a JSON object; {error}") from None

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


if __name__ == "__main__":
    try:
        sys.exit(main())
    except HeadraceError as error:
        print(f"headrace: {error}", file=sys.stderr)
        sys.exit(2)
