"""`headrace key`: API keys."""

from __future__ import annotations

import typer

app = typer.Typer(no_args_is_help=True, help="API keys for the gateway's clients.")


@app.callback()
def _root() -> None:
    pass


@app.command()
def new(name: str = typer.Argument(help="Whose key it is; the access log shows this name.")) -> None:
    """Make a key, and print it with the line for the configuration that lets it in."""
    from headrace.gateway.auth import new_key

    if ":" in name or not name.strip():
        raise typer.BadParameter("expected a name that is not empty and has no colon")
    key, entry = new_key(name)
    print(f"key, shown this once:  {key}")
    print(f'for headrace.toml:     [auth]\n                       keys = ["{entry}"]')
