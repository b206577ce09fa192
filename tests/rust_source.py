"""What a crate's files say of its shape: which modules a module names, and how long its functions are.

In: the files under a crate's `src`. Out: modules by name, the modules that each of them names, functions and
their lengths. It reads tokens, not the language: comments, strings and characters are taken out, and what is
left is searched for `use` trees and for paths that begin with `crate`, `super`, `self` or a module of the
file's own.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_NOT_CODE = re.compile(
    r"""
      //[^\n]*
    | /\*.*?\*/
    | b?r(?P<hashes>\#*)"(?:.*?)"(?P=hashes)
    | b?"(?:\\.|[^"\\])*"
    | b?'(?:\\(?:x[0-9a-fA-F]{2}|u\{[0-9a-fA-F]+\}|.)|[^'\\\n])'
    """,
    re.VERBOSE | re.DOTALL,
)


def code_of(text: str) -> str:
    """The code alone; every line stays where it is."""
    return _NOT_CODE.sub(lambda found: "\n" * found[0].count("\n") or " ", text)


def _end_of_block(code: str, start: int) -> int:
    """Behind the brace that closes the one at `start`."""
    depth = 0
    for at in range(start, len(code)):
        depth += {"{": 1, "}": -1}.get(code[at], 0)
        if depth == 0:
            return at + 1
    raise ValueError("a block without an end")


@dataclass(frozen=True)
class Crate:
    """The modules of one crate: `()` is its root, `("relay", "ends")` the file `relay/ends.rs`."""

    source: Path

    def modules(self) -> dict[tuple[str, ...], Path]:
        found = {}
        for path in sorted(self.source.rglob("*.rs")):
            parts = path.relative_to(self.source).with_suffix("").parts
            found[parts[:-1] if parts[-1] in ("mod", "lib", "main") else parts] = path
        return found

    def imports(self) -> dict[tuple[str, ...], set[tuple[str, ...]]]:
        """Which modules each module names, in `use` trees and in its code, its tests among it."""
        modules = self.modules()
        return {
            module: {
                target
                for named in _paths(code_of(path.read_text()), module, modules)
                if (target := _nearest(named, modules)) not in (None, module)
            }
            for module, path in modules.items()
        }


def functions(path: Path) -> Iterator[tuple[str, int]]:
    """Every function of a file, and its lines."""
    code = code_of(path.read_text())
    for found in re.finditer(r"\bfn\s+(\w+)", code):
        ends = re.compile(r"[{;]").search(code, _behind_signature(code, found.end()))
        if ends and ends[0] == "{":
            end = _end_of_block(code, ends.start())
            yield found[1], code.count("\n", found.start(), end) + 1


def _behind_signature(code: str, start: int) -> int:
    """Behind the parameters' closing parenthesis: an array's type in them may hold a semicolon."""
    depth = 0
    for at in range(code.index("(", start), len(code)):
        depth += {"(": 1, ")": -1}.get(code[at], 0)
        if depth == 0:
            return at + 1
    raise ValueError("a function without an end")


def _nearest(named: tuple[str, ...], modules: dict[tuple[str, ...], Path]) -> tuple[str, ...] | None:
    """The module that a path leads into."""
    while named not in modules:
        if not named:
            return None
        named = named[:-1]
    return named


def _paths(
    code: str, module: tuple[str, ...], modules: dict[tuple[str, ...], Path]
) -> Iterator[tuple[str, ...]]:
    """All paths that begin in this crate, from its root."""
    inline = [
        (found.start(), _end_of_block(code, found.end() - 1), found[1])
        for found in re.finditer(r"\bmod\s+(\w+)\s*\{", code)
    ]

    def here(at: int) -> tuple[str, ...]:
        return (*module, *(name for start, end, name in inline if start < at < end))

    def resolve(path: list[str], at: int) -> tuple[str, ...] | None:
        base = here(at)
        if path[0] == "crate":
            return tuple(path[1:])
        if path[0] in ("self", "super"):
            while path and path[0] in ("self", "super"):
                base = base[:-1] if path[0] == "super" else base
                path = path[1:]
            return (*base, *path)
        return (*module, *path) if (*module, path[0]) in modules else None

    spans = []
    for found in re.finditer(r"\buse\s+([^;]+);", code):
        spans.append(found.span())
        for path in use_tree(found[1]):
            if named := resolve(path, found.start()):
                yield named
    for found in re.finditer(r"(?<![\w:$])((?:\w+\s*::\s*)+)(\w+|\{|\*)", code):
        if not any(start <= found.start() < end for start, end in spans):
            path = [name.strip() for name in found[1].split("::") if name.strip()] + [found[2]]
            if named := resolve(path, found.start()):
                yield named


def use_tree(tree: str) -> Iterator[list[str]]:
    """The paths of a `use` declaration: `a::{self, b::{C, D as E}}` has `a`, `a::b::C` and `a::b::D`."""
    tree = re.sub(r"\s+as\s+\w+", "", tree).strip()
    opens = tree.find("{")
    if opens < 0:
        yield [name.strip() for name in tree.split("::") if name.strip() not in ("", "*")]
        return
    prefix = [name.strip() for name in tree[:opens].split("::") if name.strip()]
    for branch in _branches(tree[opens + 1 : tree.rindex("}")]):
        for path in use_tree(branch):
            yield prefix if path == ["self"] and prefix else prefix + path


def _branches(text: str) -> Iterator[str]:
    """The parts between the commas that stand in no braces of their own."""
    depth, start = 0, 0
    for at, character in enumerate(text):
        depth += {"{": 1, "}": -1}.get(character, 0)
        if character == "," and depth == 0:
            yield text[start:at]
            start = at + 1
    if text[start:].strip():
        yield text[start:]
