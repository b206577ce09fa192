"""What an import costs: a client does not load, and need not have installed, what only a server needs."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from headrace.extras import PACKAGES

PYPROJECT = Path(__file__).parents[2] / "pyproject.toml"
ALL = sorted({package for packages in PACKAGES.values() for package in packages})
OF_THE_SERVER = {*PACKAGES["serve"], "rich"}


def run(code: str, *without: str) -> subprocess.CompletedProcess[str]:
    """Runs `code` in a new process in which some packages are not installed."""
    blocked = "".join(f"sys.modules[{name!r}] = None\n" for name in without)
    return subprocess.run(
        [sys.executable, "-c", f"import sys\n{blocked}{code}"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.mark.parametrize("module", ["headrace", "headrace.client", "headrace.httpx", "headrace.httpx2"])
def test_a_client_loads_nothing_of_the_server(module: str) -> None:
    """And asyncio only where the family's own import brings it: a thread does not need it."""
    family = module.removeprefix("headrace.") if "httpx" in module else "sys"
    done = run(
        f"import {family}\nbefore = set(sys.modules)\nimport {module}\n"
        "print(*{name.partition('.')[0] for name in set(sys.modules) - before})"
    )
    assert not done.stderr
    assert not set(done.stdout.split()) & (OF_THE_SERVER | {"asyncio"})


def test_the_client_needs_no_other_package() -> None:
    """Its names are there when everything that the extras bring is missing."""
    names = "AsyncClient, Client, Exchange, Handler, HeadraceError, ReplaySafe, Timeouts, Trust, __version__"
    done = run(f"from headrace import {names}\nimport headrace.httpx2\nheadrace.httpx2.Transport()", *ALL)
    # httpx2 itself may be had with or without rich.
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("name", ["Config", "Server"])
def test_a_server_without_its_extra_says_what_to_install(name: str) -> None:
    done = run(f"from headrace import {name}", "pydantic_settings")
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == (
        "ModuleNotFoundError: a server needs pydantic_settings; to install what is missing, run "
        "`pip install 'headrace[serve]'`"
    )


@pytest.mark.parametrize("package", PACKAGES["serve"])
def test_a_command_without_its_extra_says_what_to_install(package: str) -> None:
    """One sentence and status 2, whichever package is missing."""
    done = run("sys.argv[1:] = ['serve']\nfrom headrace.cli import main\nmain()", package)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        f"headrace: the command line needs {package}; to install what is missing, run "
        "`pip install 'headrace[serve]'`\n"
    )


def test_every_package_of_an_extra_is_known_by_its_extra() -> None:
    """So that none can be missing without a word."""
    extras = tomllib.loads(PYPROJECT.read_text())["project"]["optional-dependencies"]
    for extra, packages in PACKAGES.items():
        brought = {line.partition(">")[0].replace("-", "_") for line in extras[extra]}
        assert brought - {"headrace[serve]"} <= set(packages)


def test_dependencies_of_the_client_are_none() -> None:
    assert tomllib.loads(PYPROJECT.read_text())["project"]["dependencies"] == []


def test_every_name_of_the_package_is_where_it_says() -> None:
    """The lazy names and those that a type checker sees are the same."""
    import headrace

    assert set(headrace.__all__) == {*headrace._MODULES, "__version__"}
    for name in headrace.__all__:
        assert getattr(headrace, name) is not None
    assert set(headrace.__all__) <= set(dir(headrace))
    with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
        _ = headrace.Nothing
