"""Commands that other distributions bring, such as `headrace lab`.

In: what is installed: each entry point of the group `headrace.commands` names a Typer application. Out: a
command for each. A command that is known here but not installed says which `pip install` brings it; one that
cannot be loaded says why, and leaves the others alone. This file must not know what the commands do.
"""

from __future__ import annotations

from importlib.metadata import EntryPoint, entry_points
from typing import NamedTuple

import typer

from headrace.errors import ConfigError

GROUP = "headrace.commands"


class Known(NamedTuple):
    """A distribution that belongs to headrace and is installed apart from it."""

    help: str
    distribution: str
    folder: str
    """Where it is in a clone of the repository."""


KNOWN = {
    "lab": Known("Measure what a link does to token streams, over each protocol.", "headrace-lab", "lab"),
}


def add_to(app: typer.Typer) -> None:
    """Adds every command that is installed, and a hint for every known one that is not."""
    found = {entry.name: entry for entry in entry_points(group=GROUP)}
    for entry in found.values():
        _add(app, entry)
    for name, known in KNOWN.items():
        if name not in found:
            message = (
                f"`headrace {name}` comes with a distribution of its own, which is not installed here: "
                f"pip install {known.distribution} (in a clone of headrace: pip install ./{known.folder})"
            )
            _add_hint(app, name, f"{known.help} [not installed]", message)


def _add(app: typer.Typer, entry: EntryPoint) -> None:
    try:
        command = entry.load()
    except Exception as error:  # Whatever another distribution raises, the other commands still work.
        message = (
            f"`headrace {entry.name}` cannot be loaded from {entry.value}: {type(error).__name__}: {error}"
        )
        _add_hint(app, entry.name, "[cannot be loaded]", message)
        return
    app.add_typer(command, name=entry.name)


def _add_hint(app: typer.Typer, name: str, help_: str, message: str) -> None:
    """A command that takes any arguments, `--help` too, and answers with the message."""

    @app.command(
        name,
        help=help_,
        add_help_option=False,
        context_settings={"allow_extra_args": True, "ignore_unknown_options": True},
    )
    def hint() -> None:
        raise ConfigError(detail=message)
