"""`pip install headrace` as a client has it: the wheel in an environment with nothing else, and an SDK on it.

`make test` makes that environment (`.venv/thin-client`).
"""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from headrace.gateway import Gateway
from tests.helpers.serving import origin
from tests.interop.dialects import ANSWER, Dialects
from tests.interop.test_recipes import RECIPES, SETTINGS

FOLDER = Path(__file__).parents[2] / ".venv" / "thin-client" / "bin"

pytestmark = pytest.mark.skipif(not FOLDER.exists(), reason="`make .venv/thin` makes its environment")


def run(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, cwd="/")


def python(code: str) -> subprocess.CompletedProcess[str]:
    return run(str(FOLDER / "python"), "-c", code)


def test_the_wheel_needs_no_other_package() -> None:
    done = python(
        "from importlib.metadata import requires\n"
        "import headrace\n"
        "assert 'site-packages' in headrace.__file__\n"
        "print([line for line in requires('headrace') or [] if 'extra ==' not in line])"
    )
    assert (done.stdout, done.stderr) == ("[]\n", "")


def test_the_command_says_what_it_needs() -> None:
    done = run(str(FOLDER / "headrace"), "serve")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        "headrace: the command line needs pydantic_settings, typer; to install what is missing, run "
        "`pip install 'headrace[serve]'`\n"
    )


@pytest.mark.parametrize("recipe", [recipe for recipe in RECIPES if recipe.section == "OpenAI: chat"])
async def test_the_openai_sdk_gets_its_whole_answer(
    recipe: object, start: Callable[..., Awaitable[Gateway]], ca_file: Path
) -> None:
    with Dialects() as dialects:
        at = origin(await start(dialects))
        names = f"ORIGIN, CA, MODEL = {at!r}, {str(ca_file)!r}, 'scripted'"
        code = f"{SETTINGS.code}\n{names}\n{recipe.code}"  # type: ignore[attr-defined]
        # Over HTTP/3, whatever else is there.
        only = "import headrace.transport.core as core\ncore.Core.__init__.__kwdefaults__['http3'] = 'only'\n"
        done = await asyncio.to_thread(python, only + code)
        assert (done.stdout.rstrip("\n"), done.stderr) == (ANSWER, "")
        assert [run.path for run in dialects.runs] == ["/v1/chat/completions"]
