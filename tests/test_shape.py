"""The shape of the repository: imports go one way, rooms stay small, what is promised is there."""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "python" / "headrace"

# Each may import what stands before it, and itself.
LAYERS = [
    ["errors", "_engine", "extras", "printable"],
    ["dev_certificate", "echo", "events", "loop"],
    ["config"],
    ["exchange"],
    ["server", "client", "observe"],
    ["transport"],
    ["httpx", "httpx2"],
    ["gateway", "local"],
    ["cli"],
]


def modules() -> list[Path]:
    return sorted(path for path in PACKAGE.rglob("*.py"))


def part_of(path: Path) -> str:
    relative = path.relative_to(PACKAGE)
    return relative.parts[0].removesuffix(".py")


def module_of(path: Path) -> str:
    return ".".join(["headrace", *path.relative_to(PACKAGE).with_suffix("").parts]).removesuffix(".__init__")


def imported(path: Path) -> set[str]:
    """The modules of the package that a module imports; for the types alone, too."""
    known = {module_of(other) for other in modules()} | {"headrace._engine"}
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            # `from package import name`: the module `package.name`, or else a name in `package`.
            names = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= (names & known) or {node.module}
    return found & known


def test_imports_go_one_way() -> None:
    level = {name: number for number, names in enumerate(LAYERS) for name in names}
    for path in modules():
        part = part_of(path)
        if part in ("__init__", "__main__"):
            continue
        assert part in level, f"{path} belongs to no layer"
        for other in {name.split(".")[1] for name in imported(path) if name != "headrace"} - {part}:
            assert level[other] < level[part] or (part, other) in ALLOWED, f"{path} imports headrace.{other}"


ALLOWED = {("errors", "_engine"), ("errors", "_engine.pyi")}
"""The error classes read the engine's table when they are first used."""


def circles(imports: dict[str, set[str]]) -> list[set[str]]:
    """Modules that import each other, directly or by way of others: strongly connected components."""

    def reached_from(start: str) -> set[str]:
        seen, todo = set(), [start]
        while todo:
            for name in imports.get(todo.pop(), set()) - seen:
                seen.add(name)
                todo.append(name)
        return seen

    reached = {name: reached_from(name) for name in imports}
    found = {
        frozenset(other for other in reached[name] if name in reached.get(other, ())) for name in imports
    }
    return [set(circle) for circle in found if len(circle) > 1]


def test_no_circle_of_imports_spans_two_folders() -> None:
    """Two modules of one room may know each other; two rooms may not."""
    imports = {module_of(path): imported(path) for path in modules()}
    folder = {module_of(path): path.parent for path in modules()}
    # The package's face names what stands behind it, and is known to everybody.
    del imports["headrace"]
    folder["headrace._engine"] = PACKAGE
    for circle in circles(imports):
        assert len({folder[name] for name in circle}) == 1, circle


def test_circles_are_found() -> None:
    imports = {"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a", "e"}, "e": set()}
    assert circles(imports) == [{"a", "b", "c"}]


MOST_FUNCTION_LINES = 60
MOST_FILES = 12
ROOTS = (PACKAGE, ROOT / "lab", ROOT / "tests")


def python_functions(path: Path) -> Iterator[tuple[str, int]]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield node.name, (node.end_lineno or 0) - node.lineno + 1


def test_no_function_is_longer_than_one_screen() -> None:
    paths = [path for root in ROOTS for path in root.rglob("*.py")]
    lengths = {(str(path), name): lines for path in paths for name, lines in python_functions(path)}
    assert not {where: lines for where, lines in lengths.items() if lines > MOST_FUNCTION_LINES}


def test_no_folder_holds_more_files_than_one_takes_in() -> None:
    folders = {path.parent for root in ROOTS for path in root.rglob("*.py")}
    sizes = {folder: len(list(folder.glob("*.py"))) for folder in folders}
    assert not {str(folder): size for folder, size in sizes.items() if size > MOST_FILES}


def test_crates_depend_one_way() -> None:
    def dependencies(crate: str) -> set[str]:
        manifest = tomllib.loads((ROOT / "crates" / crate / "Cargo.toml").read_text())
        return set(manifest["dependencies"])

    assert not {name for name in dependencies("headrace-core") if name.startswith("headrace")}
    assert not dependencies("headrace-core") & {"tokio", "quinn", "hyper", "pyo3"}
    assert "headrace-py" not in dependencies("headrace-net")
    assert "pyo3" not in dependencies("headrace-net")
    product = dependencies("headrace-core") | dependencies("headrace-net") | dependencies("headrace-py")
    assert not product & {"headrace-sim", "headrace-emulator"}


CRATES = sorted(
    path.parent for path in [*ROOT.glob("crates/*/Cargo.toml"), *ROOT.glob("lab/crates/*/Cargo.toml")]
)


@pytest.mark.parametrize("crate", CRATES, ids=lambda crate: crate.name)
def test_every_file_opens_with_what_it_is(crate: Path) -> None:
    for path in (crate / "src").rglob("*.rs"):
        assert path.read_text().startswith("//! "), path
    for path in modules():
        assert path.read_text().startswith('"""'), path


def test_the_four_that_decide_the_wire_are_pinned_exactly() -> None:
    manifest = (ROOT / "Cargo.toml").read_text()
    for name in ("quinn", "quinn-proto", "rustls", "h2"):
        assert re.search(rf'^{name} = (\{{ version = )?"=', manifest, re.MULTILINE), name


def test_every_file_named_in_the_architecture_exists() -> None:
    text = (ROOT / "ARCHITECTURE.md").read_text() + (ROOT / "lab" / "ARCHITECTURE.md").read_text()
    named = set(re.findall(r"`((?:crates|python|tests|lab|docs)/[\w./-]+)`", text))
    assert len(named) > 20
    missing = {name for name in named if not (ROOT / name).exists()}
    assert not missing


def test_all_says_what_there_is() -> None:
    import headrace

    for name in headrace.__all__:
        assert getattr(headrace, name) is not None
