"""The documentation says what is so."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


def generator() -> object:
    spec = importlib.util.spec_from_file_location("generate", ROOT / "docs" / "generate.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("page", ["configuration.md", "dialects.md", "errors.md"])
def test_pages_made_from_code_are_fresh(page: str) -> None:
    """After a change: `python docs/generate.py`."""
    assert (ROOT / "docs" / page).read_text() == generator().PAGES[page]()  # type: ignore[attr-defined]


def test_the_page_of_measurements_shows_the_results() -> None:
    """After a change: `python -m bench report`."""
    from bench.report import PAGE, page

    assert PAGE.read_text() == page()


def test_links_lead_somewhere() -> None:
    for page in [*ROOT.glob("*.md"), *(ROOT / "lab").glob("*.md"), *(ROOT / "docs").rglob("*.md")]:
        for target in re.findall(r"\]\(([^)#]+)", page.read_text()):
            if not target.startswith("http"):
                assert (page.parent / target).exists(), f"{page.name}: {target}"


def test_the_configuration_that_is_printed_can_be_read(tmp_path: Path) -> None:
    """With every `#` before a setting taken away, but for those without a default."""
    from headrace.cli.config import commented_toml
    from headrace.config import Config, load

    lines = []
    for line in commented_toml().splitlines():
        setting = re.match(r"# (\w+ = .*|\[\[upstreams\]\])$", line)
        if setting and '"..."' not in line:
            lines.append(setting[1])
        elif line == '# url = "..."':
            lines.append('url = "http://x:1"')
        else:
            lines.append(line)
    file = tmp_path / "all.toml"
    file.write_text("\n".join(lines))
    loaded = load(file)
    assert loaded.limits == Config().limits
    assert loaded.upstreams[0].name == "x:1"


def test_the_readmes_own_handler_runs() -> None:
    text = (ROOT / "README.md").read_text()
    code = re.search(r"async def handle\(exchange: Exchange\).*?\n\n", text, re.DOTALL)
    assert code
    compile(code[0], "README.md", "exec")
