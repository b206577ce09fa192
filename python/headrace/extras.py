"""The extras of the distribution, and what to say when one of them is not installed.

In: an import that failed. Out: a sentence that names the missing package and the command that installs it.
`headrace` alone is the engine and the client, and needs no other package.
"""

from __future__ import annotations

EXTRAS = {
    "pydantic": "serve",
    "pydantic_settings": "serve",
    "rich": "serve",
    "typer": "serve",
    "xllamacpp": "local",
}
"""Which extra brings a package (`[project.optional-dependencies]` of pyproject.toml)."""


def missing(error: ModuleNotFoundError, what: str) -> ModuleNotFoundError:
    """The error to raise instead: `what` needs the package. An import that no extra brings stays as it is."""
    package = (error.name or "").partition(".")[0]
    extra = EXTRAS.get(package)
    if extra is None:
        return error
    command = f"pip install 'headrace[{extra}]'"
    text = f"{what} needs the package {package}, which is not installed; to install it, run `{command}`"
    return ModuleNotFoundError(text, name=error.name)
