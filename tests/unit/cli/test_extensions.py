"""Commands of other distributions: found by entry points, and named where they are missing."""

from __future__ import annotations

from importlib.metadata import EntryPoint

import pytest
import typer
from typer.testing import CliRunner

from headrace.cli import extensions
from headrace.errors import ConfigError


def with_entries(monkeypatch: pytest.MonkeyPatch, *entries: EntryPoint) -> typer.Typer:
    """A command line of one command, and of what these entry points bring."""
    monkeypatch.setattr(extensions, "entry_points", lambda group: [e for e in entries if e.group == group])
    app = typer.Typer()
    app.command("own")(lambda: print("own"))
    extensions.add_to(app)
    return app


def entry(value: str, name: str = "lab") -> EntryPoint:
    return EntryPoint(name, value, extensions.GROUP)


def test_the_lab_is_found_by_its_entry_point(monkeypatch: pytest.MonkeyPatch) -> None:
    """What `pip install headrace-lab` brings is `headrace lab`."""
    app = with_entries(monkeypatch, entry("headrace_lab.cli:app"))
    shown = CliRunner().invoke(app, ["lab", "list"])
    assert shown.exit_code == 0
    assert "fan-out" in shown.output


@pytest.mark.parametrize("arguments", [[], ["--help"], ["run", "fan-out", "--quick"]], ids=str)
def test_a_lab_that_is_not_installed_names_the_pip_install(
    monkeypatch: pytest.MonkeyPatch, arguments: list[str]
) -> None:
    """Whatever is asked of it, and also how it is in a clone."""
    app = with_entries(monkeypatch)
    error = CliRunner().invoke(app, ["lab", *arguments]).exception
    assert isinstance(error, ConfigError)
    assert "pip install headrace-lab" in str(error)
    assert "pip install ./lab" in str(error)


@pytest.mark.parametrize("value", ["no_such_module:app", "headrace_lab.cli:no_such_name"])
def test_a_broken_extension_says_why_and_leaves_the_others_alone(
    monkeypatch: pytest.MonkeyPatch, value: str
) -> None:
    """An old or half-removed distribution does not take `headrace serve` away."""
    app = with_entries(monkeypatch, entry(value))
    assert CliRunner().invoke(app, ["own"]).output == "own\n"
    error = CliRunner().invoke(app, ["lab"]).exception
    assert isinstance(error, ConfigError)
    assert value in str(error)
    assert "no_such" in str(error)
