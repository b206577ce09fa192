"""The command line. `app.py` has the list of commands; each is a file of its own."""

from __future__ import annotations

import sys

from headrace import extras

__all__ = ["main"]


def main() -> None:
    """Runs the command line; an error of ours is a sentence, not a traceback."""
    try:
        extras.need("serve", "the command line")
    except ModuleNotFoundError as error:
        print(f"headrace: {error}", file=sys.stderr)
        sys.exit(2)

    from headrace.cli import app

    app.run()
