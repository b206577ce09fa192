"""What is wrong with a configuration, in words for people.

In: an error of pydantic's, and where the values came from. Out: one line that names the place, the key, what
was expected, and what was found.
"""

from __future__ import annotations

import difflib
import os
from pathlib import Path
from typing import Any, get_args, get_origin

from pydantic import BaseModel

from headrace.printable import clipped


def explain(
    line: Any, model: type[BaseModel], flags: dict[str, Any], values: dict[str, Any], file: Path | None
) -> str:
    """One line for people, about one error. `model`: the class of the whole configuration. `flags`, `values`:
    what the command line and the file have set."""
    path = line["loc"]
    # A key that is missing stands nowhere, but the section in which it is missing does.
    place = path[:-1] if line["type"] == "missing" else path
    key = ".".join(str(part) for part in path)
    variable = "HEADRACE_" + "__".join(str(part) for part in path).upper()
    if _holds(flags, place):
        where = "flag"
    elif any(variable.startswith(name) for name in os.environ if name.startswith("HEADRACE_")):
        where = "environment"
    elif _holds(values, place) or not path:
        where = str(file) if file else "configuration"
    else:
        where = "configuration"
    if line["type"] == "extra_forbidden":
        return f"{where}: {key}: {no_such_key(str(path[-1]), _keys_beside(model, path))}"
    if line["type"] == "value_error":
        return ": ".join(part for part in (where, key, str(line["ctx"]["error"])) if part)
    if line["type"] == "missing":
        return f"{where}: {key}: is missing"
    if path[0] in SECRET:
        return f"{where}: {key}: {_lower(line['msg'])}"
    got = line["input"]
    shown = got if isinstance(got, (bool, int, float)) else repr(clipped(str(got)))
    return f"{where}: {key}: {_lower(line['msg'])}, got {shown}"


SECRET = {"auth"}
"""Sections of which no value is shown: a key that was put in the wrong place must not appear in a log."""


def _lower(text: str) -> str:
    text = text.removeprefix("Input should be ")
    return f"expected {text[:1].lower()}{text[1:]}"


def no_such_key(key: str, known: list[str]) -> str:
    near = difflib.get_close_matches(key, known, n=1)
    hint = f"did you mean {near[0]!r}?" if near else f"expected one of {', '.join(sorted(known))}"
    return f"no such key; {hint}"


def _keys_beside(model: Any, path: tuple[int | str, ...]) -> list[str]:
    for part in path[:-1]:
        if isinstance(part, int):
            continue
        annotation = model.model_fields[part].annotation
        model = get_args(annotation)[0] if get_origin(annotation) is list else annotation
    return list(getattr(model, "model_fields", []))


def _holds(values: Any, path: tuple[int | str, ...]) -> bool:
    for part in path:
        try:
            values = values[part]
        except (KeyError, IndexError, TypeError):
            return False
    return bool(path)
