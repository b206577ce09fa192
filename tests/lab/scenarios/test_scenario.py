"""Scenarios: those that come with the package hold, and a wrong one says what is wrong."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from headrace.errors import ConfigError
from headrace_lab.run.plan import cells
from headrace_lab.scenarios.scenario import load, parse, shipped

GOOD = """
title = "t"
[run]
servers = ["headrace"]
protocols = ["http3"]
[show]
measures = ["gap_p99_ms"]
"""


@pytest.mark.parametrize("name", shipped())
def test_what_is_shipped_is_right(name: str) -> None:
    """Also with `--quick`, which is never longer."""
    scenario = load(name)
    assert scenario.title.endswith(("?", "."))
    assert 0 < len(cells(scenario.quickened())) <= len(cells(scenario))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            ('"headrace"', '"nobody"'),
            "x.toml: run: servers: expected some of headrace, headrace-no-echo, caddy, envoy",
        ),
        (('"http3"', '"spdy"'), "x.toml: run.protocols.0: expected 'http1', 'http2' or 'http3'; got 'spdy'"),
        (("gap_p99_ms", "speed"), "x.toml: show: measures: expected some of stalls_per_1000"),
        (("title", "titel"), "x.toml: title is missing; x.toml: titel: there is no such key"),
        (("[show]", "[load]\nstreams = 0\n[show]"), "x.toml: load.streams: expected"),
        (
            ("[show]", "[load]\nscript = {evnts = 3}\n[show]"),
            "x.toml: load: script: expected fields of a script; .*evnts",
        ),
        (
            ("[show]", "[quick]\nload = {tokn = 3}\n[show]"),
            "x.toml: .*quick.load: tokn: there is no such key",
        ),
        (
            ('["http3"]', '["http3"]\nbaseline = "caddy/http3"'),
            "run.baseline: expected server/protocol of those",
        ),
        (("[show]", "[show"), "x.toml: expected TOML"),
    ],
)
def test_what_is_wrong_is_named(change: tuple[str, str], words: str) -> None:
    """The file, the key, and what was expected."""
    with pytest.raises(ConfigError, match=words):
        parse(GOOD.replace(*change), "x.toml")


def test_a_scenario_that_is_not_there() -> None:
    with pytest.raises(
        ConfigError, match=r"scenario 'nope': expected a path to a .toml file, or one of .*fan-out"
    ):
        load("nope")
    with pytest.raises(ConfigError, match=r"nope.toml: this file does not exist"):
        load("nope.toml")


def test_the_baseline_is_run_twice_and_the_order_turns() -> None:
    text = GOOD.replace('["http3"]', '["http2", "http3"]\nseeds = 2\nbaseline = "headrace/http3"')
    order = [(cell.protocol, cell.again, cell.seed) for cell in cells(parse(text, "x.toml"))]
    assert order == [
        ("http2", False, 1),
        ("http3", False, 1),
        ("http3", True, 1),
        ("http3", True, 2),
        ("http3", False, 2),
        ("http2", False, 2),
    ]


def test_the_manual_lists_the_scenarios_and_its_example_can_be_run() -> None:
    """`docs/lab.md` asks the same questions as `headrace lab list`."""
    page = (Path(__file__).parents[3] / "docs" / "lab.md").read_text()
    listed = dict(re.findall(r"^\| `([\w-]+)` \| (.+) \|$", page, re.MULTILINE))
    assert listed == {name: load(name).title for name in shipped()}
    example = re.search(r"```toml\n(.+?)```", page, re.DOTALL)
    assert example
    assert cells(parse(example[1], "mine.toml"))
