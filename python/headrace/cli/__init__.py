"""The command line. `app.py` has the list of commands; each is a file of its own."""

from __future__ import annotations

import sys

from headrace import extras

__all__ = ["main"]


def main() -> None:
    """Runs the command line; an error of ours is a sentence, not a traceback."""
    try:
        from headrace.cli import app
    except ModuleNotFoundError as error:
        if (explained := extras.missing(error, "the command headrace")) is error:
            raise
        print(f"headrace: {explained}", file=sys.stderr)
        sys.exit(2)
    app.run()
