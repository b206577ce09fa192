"""The extras of the distribution, and what to say when one of them is not installed.

In: the name of an extra. Out: nothing, or an error that names the missing packages and the command that
installs them. `headrace` alone is the engine and the client, and needs no other package.
"""

from __future__ import annotations

from importlib.util import find_spec

PACKAGES = {
    "serve": ("pydantic", "pydantic_settings", "typer"),
    "local": ("xllamacpp",),
}
"""What each extra brings (`[project.optional-dependencies]` of pyproject.toml)."""


def need(extra: str, what: str) -> None:
    """Raises `ModuleNotFoundError` when packages of an extra, which `what` needs, are not installed."""
    missing = [package for package in PACKAGES[extra] if find_spec(package) is None]
    if missing:
        command = f"pip install 'headrace[{extra}]'"
        names = ", ".join(missing)
        raise ModuleNotFoundError(f"{what} needs {names}; to install what is missing, run `{command}`")
