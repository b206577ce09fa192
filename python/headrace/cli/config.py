"""`headrace config`: every setting with its default and its reason, as a TOML file to start from."""

from __future__ import annotations

import json
import textwrap
from pathlib import Path
from typing import Any

WIDTH = 96


def config() -> None:
    """Print a configuration file with every setting, its default and its reason.

    Try `headrace config > headrace.toml`, and remove the `#` before the settings that are to be different.
    """
    print(commented_toml(), end="")


def commented_toml() -> str:
    from headrace.config import Config, Upstream

    parts = [
        "# headrace.toml. Flags win over the environment (HEADRACE_SECTION__KEY), and that over this file.\n"
    ]
    for name, field in Config.model_fields.items():
        if name == "upstreams":
            parts.append("# [[upstreams]]\n" + _section(Upstream))
        else:
            parts.append(f"[{name}]\n" + _section(type(field.default)))
    return "\n".join(parts)


def _section(model: Any) -> str:
    lines = [*_comment((model.__doc__ or "").strip()), ""]
    for name, field in model.model_fields.items():
        lines += _comment(field.description or "")
        if field.is_required() or field.default is None:
            lines.append(f'# {name} = "..."')
        else:
            lines.append(f"# {name} = {_toml(field.default)}")
    return "\n".join(lines) + "\n"


def _comment(text: str) -> list[str]:
    return [f"#   {line}" for line in textwrap.wrap(" ".join(text.split()), WIDTH)]


def _toml(value: Any) -> str:
    if isinstance(value, Path):
        return json.dumps(str(value))
    return json.dumps(value)
