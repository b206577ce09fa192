"""Every command that the documentation names exists, with the options that it is given."""

from __future__ import annotations

import importlib.util
import itertools
import json
import re
import shlex
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer.main

from bench.parts import BY_HAND, PARTS
from headrace.cli.app import app

ROOT = Path(__file__).parent.parent
PAGES = [*ROOT.glob("*.md"), *ROOT.glob("lab/*.md"), *ROOT.glob("docs/**/*.md")]
RESULTS = sorted(ROOT.glob("lab/bench/results/*/*.json"))
BEFORE = {"sudo", "nice", "-n", "-5", "chrt", "-f", "1", "$", "exec"}
"""What may stand before a command."""
KINDS = ("python", "headrace", "make", "cargo", "pip")


def code_of(page: str) -> Iterator[str]:
    """Lines of code blocks, and code within a sentence."""
    parts = re.split(r"^```.*$", page, flags=re.MULTILINE)
    for number, part in enumerate(parts):
        if number % 2:
            yield from part.replace("\\\n", " ").splitlines()
        else:
            yield from (code.replace("\n", " ") for code in re.findall(r"`([^`]+)`", part))


def commands_in(code: str) -> Iterator[tuple[str, ...]]:
    """The commands of ours in a line of code, each as its words."""
    for piece in re.split(r"\s&&\s|\s\|\s|;\s", code.partition(" #")[0]):
        try:
            words = shlex.split(piece)
        except ValueError:  # Code that is not a command.
            continue
        while words and (words[0] in BEFORE or re.match(r"[A-Z_]+=", words[0])):
            del words[0]
        if words and words[0].rpartition("/")[2] in KINDS:
            yield (words[0].rpartition("/")[2], *words[1:])


def named() -> list[tuple[str, ...]]:
    """All commands that pages and results name, once each."""
    texts = [code for page in PAGES for code in code_of(page.read_text())]
    texts += [json.loads(file.read_text())["command"] for file in RESULTS]
    return sorted({command for text in texts for command in commands_in(text)})


def problem_of_python(words: tuple[str, ...]) -> str | None:
    if words[:1] != ("-m",) or words[1] in ("venv", "pip", "pytest"):
        return None
    module = words[1]
    if importlib.util.find_spec(module) is None:
        return f"there is no module {module}"
    if importlib.util.find_spec(module).submodule_search_locations and not (  # type: ignore[union-attr]
        importlib.util.find_spec(f"{module}.__main__")
    ):
        return f"{module} cannot be run"
    if module != "bench" or len(words) == 2 or words[2].startswith("-"):
        return None
    parts = {**PARTS, **BY_HAND}
    if words[2] not in (*parts, "report", "NAME"):
        return f"there is no benchmark {words[2]}"
    if words[2] not in parts:
        return None
    spec = importlib.util.find_spec(parts[words[2]].module)
    assert spec
    assert spec.origin
    source = Path(spec.origin).read_text()
    return missing_option(words[3:], set(re.findall(r'"(--[\w-]+)"', source)))


def missing_option(words: tuple[str, ...], known: set[str]) -> str | None:
    given = {word.partition("=")[0].strip("[]") for word in words if re.match(r"\[?--\w", word)}
    return f"there is no option {', '.join(sorted(given - known))}" if given - known else None


def problem_of_headrace(words: tuple[str, ...]) -> str | None:
    command = typer.main.get_command(app)
    rest = list(words)
    while hasattr(command, "commands") and rest and not rest[0].startswith("-"):
        if rest[0] not in command.commands:
            return f"there is no command {rest[0]}"
        command = command.commands[rest.pop(0)]
    known = {
        option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)
    }
    return missing_option(tuple(rest), known | {"--help"})


def problem_of_make(words: tuple[str, ...]) -> str | None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    given = {word for word in words if not word.startswith("-") and "=" not in word}
    return f"there is no target {', '.join(sorted(given - targets))}" if given - targets else None


def problem_of_cargo(words: tuple[str, ...]) -> str | None:
    manifests = [*ROOT.glob("crates/*/Cargo.toml"), *ROOT.glob("lab/crates/*/Cargo.toml")]
    crates = {tomllib.loads(file.read_text())["package"]["name"]: file.parent for file in manifests}
    names = [after for word, after in itertools.pairwise(words) if word == "-p"]
    if unknown := set(names) - set(crates):
        return f"there is no crate {', '.join(sorted(unknown))}"
    if "--example" in words:
        file = crates[names[0]] / "examples" / f"{words[words.index('--example') + 1]}.rs"
        return None if file.exists() else f"there is no example {file}"
    return None


def problem_of_pip(words: tuple[str, ...]) -> str | None:
    places = {"headrace": ROOT, ".": ROOT, "headrace-lab": ROOT / "lab", "./lab": ROOT / "lab"}
    for word in words[1:]:
        found = re.fullmatch(r"([\w./-]+)(?:\[([\w,-]+)\])?", word)
        if not found or found[1] not in places:
            continue
        project = tomllib.loads((places[found[1]] / "pyproject.toml").read_text())["project"]
        wanted = set((found[2] or "").split(",")) - {""}
        if wanted - set(project.get("optional-dependencies", {})):
            return f"{found[1]} has no extra {found[2]}"
    return None


PROBLEM = {
    "python": problem_of_python,
    "headrace": problem_of_headrace,
    "make": problem_of_make,
    "cargo": problem_of_cargo,
    "pip": problem_of_pip,
}


@pytest.mark.parametrize("command", named(), ids=" ".join)
def test_a_command_in_the_documentation_exists(command: tuple[str, ...]) -> None:
    """With its options; what stands for something of the reader's (NAME, a file) is not looked at."""
    assert PROBLEM[command[0]](command[1:]) is None


def test_commands_are_found_at_all() -> None:
    found = named()
    for words in (("make", "lab"), ("python", "-m", "bench", "tokens"), ("headrace", "lab", "report")):
        assert any(command[: len(words)] == words for command in found), words
    for wrong in ("python -m bench.tokens", "headrace lab go", "make la", "cargo run -p headrace-twin"):
        (command,) = commands_in(f"sudo {wrong}  # a comment")
        assert PROBLEM[command[0]](command[1:]) is not None, wrong
