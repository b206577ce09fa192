"""The commands, and what becomes of an error. Each command is a file of its own, which imports what it needs
when it is called."""

from __future__ import annotations

import sys

import typer

from headrace.cli import chat, config, demo, extensions, key, model, serve
from headrace.errors import ConfigError, HeadraceError
from headrace.printable import one_line

app = typer.Typer(
    name="headrace",
    help="LLM token streams over HTTP/3.",
    no_args_is_help=True,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command()(serve.serve)
app.command()(chat.chat)
app.command()(demo.demo)
app.command()(config.config)
app.add_typer(model.app, name="model")
app.add_typer(key.app, name="key")
extensions.add_to(app)


def _print_version(wanted: bool) -> None:
    if wanted:
        from headrace import __version__
        from headrace._engine import build_info

        print(f"headrace {__version__} ({dict(build_info())['profile']})")
        raise typer.Exit


@app.callback()
def _root(
    version: bool = typer.Option(
        False, "--version", help="Print the version.", callback=_print_version, is_eager=True
    ),
) -> None:
    pass


def run() -> None:
    """Runs the command that was asked for. Exits with 2 for a wrong configuration, 1 for other errors."""
    try:
        app()
    except HeadraceError as error:
        for line in str(error).split("\n"):
            print(f"headrace: {one_line(line)}", file=sys.stderr)
        sys.exit(2 if isinstance(error, ConfigError) else 1)
