"""The shape of the engine's crates: rooms know what stands below them, functions and folders stay small."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.rust_source import Crate, code_of, functions, use_tree
from tests.test_shape import MOST_FILES, MOST_FUNCTION_LINES, circles

ROOT = Path(__file__).parent.parent

# Each room may import what stands in a line before its own, and itself.
ROOMS = {
    "headrace-core": [
        ["budget", "fields", "json_fields", "shares", "stats"],
        ["complete"],
        ["http1", "http2", "http3", "recovery"],
        ["error"],
        [""],  # the crate's root names the errors
        ["events", "relay"],
        ["replay"],
    ],
    "headrace-net": [
        ["config", "gone", "reply", "tls"],
        ["shares"],
        ["quic", "replay", "upstream"],
        ["client", "downstream", "worker"],
        ["relay"],
        ["exchange"],
        ["http3", "tcp"],
        ["server"],
        [""],
    ],
    "headrace-py": [
        ["convert", "errors"],
        ["dialects", "replay", "report"],
        ["bridge"],
        ["waiter"],
        ["client", "exchange"],
        ["server"],
        [""],
    ],
}


def crates() -> list[Crate]:
    """The engine's, and the lab's."""
    manifests = [*ROOT.glob("crates/*/Cargo.toml"), *ROOT.glob("lab/crates/*/Cargo.toml")]
    return [Crate(path.parent / "src") for path in sorted(manifests)]


def rust_files() -> list[Path]:
    return [path for crate in crates() for path in crate.source.parent.rglob("*.rs")]


@pytest.mark.parametrize("name", ROOMS)
def test_rooms_import_one_way(name: str) -> None:
    """A room of the engine knows what stands below it, and nothing beside or above it."""
    crate = Crate(ROOT / "crates" / name / "src")
    level = {room: number for number, rooms in enumerate(ROOMS[name]) for room in rooms}
    for module, named in crate.imports().items():
        room = module[0] if module else ""
        assert room in level, f"{name}: {room} is no room; put it into ROOMS"
        for other in {other[0] if other else "" for other in named} - {room}:
            assert level[other] < level[room], (
                f"{name}: {'/'.join(module)} imports from {other or 'the root'}"
            )


def test_no_circle_of_imports_spans_two_folders() -> None:
    """Two files of one room may know each other; files of two rooms may not, by way of others neither."""
    for crate in crates():
        modules = crate.modules()
        names = {module: "::".join(module) or "crate" for module in modules}
        imports = {
            names[module]: {names[other] for other in named} for module, named in crate.imports().items()
        }
        folder = {names[module]: path.parent for module, path in modules.items()}
        for circle in circles(imports):
            assert len({folder[name] for name in circle}) == 1, (crate.source, circle)


def test_no_function_is_longer_than_one_screen() -> None:
    lengths = {(str(path), name): lines for path in rust_files() for name, lines in functions(path)}
    assert len(lengths) > 500
    assert not {where: lines for where, lines in lengths.items() if lines > MOST_FUNCTION_LINES}


def test_no_folder_holds_more_files_than_one_takes_in() -> None:
    sizes = {path.parent: len(list(path.parent.glob("*.rs"))) for path in rust_files()}
    assert not {str(folder): size for folder, size in sizes.items() if size > MOST_FILES}


def test_the_engine_has_no_loose_file_but_five() -> None:
    loose = {path.name for path in (ROOT / "crates" / "headrace-net" / "src").glob("*.rs")}
    assert loose == {"lib.rs", "config.rs", "gone.rs", "reply.rs", "worker.rs"}


def test_use_trees_are_read_to_their_leaves() -> None:
    tree = "crate::a::{self, b::{C, D as E}, f::*,\n    g}"
    assert list(use_tree(tree)) == [
        ["crate", "a"],
        ["crate", "a", "b", "C"],
        ["crate", "a", "b", "D"],
        ["crate", "a", "f"],
        ["crate", "a", "g"],
    ]


def test_only_code_is_read() -> None:
    text = "a /* { \n */ \"}\\\"\" 'x' '{' b'\\x7b' r#\"{\"}\"# &'a str // crate::b\nc"
    assert code_of(text).split() == ["a", "&'a", "str", "c"]
    assert code_of(text).count("\n") == text.count("\n")


def test_every_way_to_name_a_module_is_an_import(tmp_path: Path) -> None:
    """`use` trees, paths in code, `super` in a test's module, and a module's own children."""
    files = {
        "lib.rs": "pub mod a; pub mod b;",
        "a/mod.rs": "mod child; fn f() { child::g(); crate::b::h() }",
        "a/child.rs": "use super::super::b::{self, deep::{X}}; // crate::nothing",
        "b/mod.rs": "pub mod deep; mod tests { use super::*; use super::deep::Y; }",
        "b/deep.rs": 'const TEXT: &str = "crate::a";',
    }
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    assert Crate(tmp_path).imports() == {
        (): set(),
        ("a",): {("a", "child"), ("b",)},
        ("a", "child"): {("b",), ("b", "deep")},
        ("b",): {("b", "deep")},
        ("b", "deep"): set(),
    }


def test_functions_are_counted_from_their_first_line_to_their_last(tmp_path: Path) -> None:
    path = tmp_path / "a.rs"
    path.write_text("trait T { fn no(&self); }\nfn one(a: [u8; 2]) -> u8 { 1 }\nfn three() {\n    '{';\n}\n")
    assert list(functions(path)) == [("one", 1), ("three", 3)]
