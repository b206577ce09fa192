"""The shape of the lab: its rooms import one way, and the product holds nothing of it."""

from __future__ import annotations

import ast
import tomllib
from collections.abc import Iterator
from pathlib import Path

import headrace
from headrace import _engine

ROOT = Path(__file__).parents[2]
LAB = ROOT / "lab" / "headrace_lab"

ROOMS = [
    "_emulator",
    "process",
    "link",
    "model",
    "clients",
    "measure",
    "peers",
    "scenarios",
    "run",
    "report",
    "cli",
]
"""Each may import those before it, and itself."""
MOST_FILES = 12


def imports(path: Path) -> Iterator[str]:
    """Modules of the lab that a file imports, anywhere in it."""
    for node in ast.walk(ast.parse(path.read_text())):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        yield from (name for name in names if name.split(".")[0] == "headrace_lab")


def test_the_rooms_import_one_way() -> None:
    level = {room: number for number, room in enumerate(ROOMS)}
    for path in LAB.rglob("*.py"):
        room = path.relative_to(LAB).parts[0].removesuffix(".py")
        if room in ("__init__", "__main__"):
            continue
        for name in imports(path):
            other = name.split(".")[1]
            assert other == room or level[other] < level[room], f"{path} imports {name}"


def test_no_module_of_the_lab_is_in_a_circle_of_imports() -> None:
    """Not even within a room: what two files know of each other stands in a third."""
    files = {path: ".".join(path.relative_to(LAB.parent).with_suffix("").parts) for path in LAB.rglob("*.py")}
    names = {name.removesuffix(".__init__") for name in files.values()}
    uses: dict[str, set[str]] = {}
    for path, name in files.items():
        own = name.removesuffix(".__init__")
        found = {n if n in names else n.rpartition(".")[0] for n in imports(path)}
        uses[own] = {n for n in found if n in names and n != own and not own.startswith(f"{n}.")}
    while leaves := {name for name, used in uses.items() if not used & set(uses)}:
        for name in leaves:
            del uses[name]
    assert not uses


def test_no_room_is_too_full() -> None:
    for folder in {path.parent for path in LAB.rglob("*.py")}:
        files = [path for path in folder.iterdir() if path.suffix in (".py", ".toml")]
        assert len(files) <= MOST_FILES, folder


def test_the_lab_goes_with_this_version_of_headrace() -> None:
    """It uses headrace's own modules, so another version of it may not do."""
    manifest = tomllib.loads((ROOT / "lab" / "pyproject.toml").read_text())
    assert f"headrace[serve]=={headrace.__version__}" in manifest["project"]["dependencies"]


def test_the_product_holds_nothing_of_the_lab() -> None:
    """Neither its package nor its engine; only the place where the command comes in knows its name."""
    package = ROOT / "python" / "headrace"
    for path in package.rglob("*.py"):
        assert not list(imports(path)), path
    assert not hasattr(_engine, "Link")
