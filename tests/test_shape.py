"""The shape of the repository: imports go one way, files stay small, what is promised is there."""

from __future__ import annotations

import ast
import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "python" / "headrace"

# Each may import what stands before it, and itself.
LAYERS = [
    ["errors", "_engine"],
    ["config_errors", "dev_certificate", "echo", "loop"],
    ["config_echo"],
    ["config"],
    ["exchange"],
    ["server", "client", "observe"],
    ["httpx", "httpx2"],
    ["gateway", "engines", "lab"],
    ["cli"],
]
MOST_LINES = 420


def modules() -> list[Path]:
    return sorted(path for path in PACKAGE.rglob("*.py"))


def part_of(path: Path) -> str:
    relative = path.relative_to(PACKAGE)
    return relative.parts[0].removesuffix(".py")


def imported(path: Path) -> set[str]:
    """The parts of the package that a module imports."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = [node.module]
            if node.module == "headrace":
                names = [f"headrace.{alias.name}" for alias in node.names]
        found |= {name.split(".")[1] for name in names if name.startswith("headrace.")}
    return found


def test_imports_go_one_way() -> None:
    level = {name: number for number, names in enumerate(LAYERS) for name in names}
    for path in modules():
        part = part_of(path)
        if part in ("__init__", "__main__"):
            continue
        assert part in level, f"{path} belongs to no layer"
        for other in imported(path):
            if other in ("__version__",) or other == part:
                continue
            assert level[other] < level[part] or (part, other) in ALLOWED, f"{path} imports headrace.{other}"


# The error classes read the engine's table when they are first used.
ALLOWED = {("errors", "_engine")}


def test_crates_depend_one_way() -> None:
    def dependencies(crate: str) -> set[str]:
        manifest = tomllib.loads((ROOT / "crates" / crate / "Cargo.toml").read_text())
        return set(manifest["dependencies"])

    assert not {name for name in dependencies("headrace-core") if name.startswith("headrace")}
    assert not dependencies("headrace-core") & {"tokio", "quinn", "hyper", "pyo3"}
    assert "headrace-py" not in dependencies("headrace-net")
    assert "pyo3" not in dependencies("headrace-net")
    assert "headrace-twin" not in dependencies("headrace-net") | dependencies("headrace-py")


def source_files() -> list[Path]:
    roots = [PACKAGE, ROOT / "crates", ROOT / "tests", ROOT / "bench"]
    return [path for root in roots for path in root.rglob("*") if path.suffix in (".py", ".rs")]


def test_no_file_grows_beyond_what_one_reads_in_a_sitting() -> None:
    sizes = {path: len(path.read_text().splitlines()) for path in source_files()}
    assert not {str(path.relative_to(ROOT)): size for path, size in sizes.items() if size > MOST_LINES}


@pytest.mark.parametrize("crate", ["headrace-core", "headrace-net", "headrace-py", "headrace-twin"])
def test_every_file_opens_with_what_it_is(crate: str) -> None:
    for path in (ROOT / "crates" / crate / "src").rglob("*.rs"):
        assert path.read_text().startswith("//! "), path
    for path in modules():
        assert path.read_text().startswith('"""'), path


def test_the_four_that_decide_the_wire_are_pinned_exactly() -> None:
    manifest = (ROOT / "Cargo.toml").read_text()
    for name in ("quinn", "quinn-proto", "rustls", "h2"):
        assert re.search(rf'^{name} = (\{{ version = )?"=', manifest, re.MULTILINE), name


def test_every_file_named_in_the_architecture_exists() -> None:
    text = (ROOT / "ARCHITECTURE.md").read_text()
    named = set(re.findall(r"`((?:crates|python|tests|bench|docs)/[\w./-]+)`", text))
    assert len(named) > 20
    missing = {name for name in named if not (ROOT / name).exists()}
    assert not missing


def test_all_says_what_there_is() -> None:
    import headrace

    for name in headrace.__all__:
        assert getattr(headrace, name) is not None
