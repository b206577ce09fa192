"""A measure that the machine was too slow for does not count, and a run without one is void."""

from __future__ import annotations

from typing import Any

import pytest

from headrace_lab.measure.doubts import SCALES, doubts
from headrace_lab.measure.measures import MEASURES, Observed
from headrace_lab.report.compare import is_empty, values
from headrace_lab.report.page import faults, finding
from headrace_lab.run.cell import _void
from headrace_lab.scenarios.scenario import parse
from tests.lab.logs import observed, stream

SCENARIO = """
title = "t"
[run]
servers = ["headrace"]
protocols = ["http3"]
[show]
measures = ["gap_p99_ms", "stalls_per_1000", "cut_streams"]
"""


def seen(
    model_ms: float = 0.0, clients_ms: float = 0.0, protocol: str = "http2", client: str = "headrace"
) -> Observed:
    """Tokens every 20 ms, each sent by the model so late."""
    tokens = stream([20.0 * n + 40 + model_ms for n in range(50)])
    tokens["tokens"] = [[n, due, due + int(model_ms * 1e6), at] for n, due, _, at in tokens["tokens"]]
    made = observed(tokens, load={"protocol": protocol, "client": client})
    made.log["loop_late_ms"] = clients_ms
    return made


@pytest.mark.parametrize("who", ["model", "clients"])
@pytest.mark.parametrize(
    ("late_ms", "scales"), [(4.0, set()), (11.0, {"token"}), (21.0, {"token", "trip", "stall"})]
)
def test_a_measure_is_doubtful_above_its_scale(who: str, late_ms: float, scales: set[str]) -> None:
    """Half an interval for gaps, a quarter of the round trip (60 ms) for first tokens, an interval for
    stalls."""
    found = doubts(seen(**{f"{who}_ms": late_ms}))
    assert {MEASURES[name].scale for name in found} == scales
    assert all(reason.startswith(f"the lateness of the {who} was over ") for reason in found.values())


def test_every_scale_is_used_and_every_measure_of_time_has_one() -> None:
    assert {measure.scale for measure in MEASURES.values()} == {*SCALES, ""}
    assert all(measure.scale for measure in MEASURES.values() if measure.unit == "ms")


def test_our_own_client_does_not_wait_for_its_loop() -> None:
    """Its engine takes the times; a foreign client for HTTP/3 is Python."""
    assert not doubts(seen(clients_ms=50, protocol="http3"))
    assert doubts(seen(clients_ms=50, protocol="http3", client="qh3"))


def cell(**fields: Any) -> dict[str, Any]:
    made = {"server": "headrace", "protocol": "http3", "client": "headrace", "point": None, "seed": 1}
    return made | {"again": False, "void": "", "doubtful": {}, "errors": {}, "verdict": [], **fields}


def result(*cells: dict[str, Any]) -> dict[str, Any]:
    return {"scenario": parse(SCENARIO, "x.toml").model_dump(mode="json"), "cells": list(cells)}


def test_a_doubtful_figure_is_shown_nowhere_and_said() -> None:
    """The others of the same run count."""
    of = result(
        cell(
            measures={"gap_p99_ms": 99.0, "stalls_per_1000": 3.0},
            doubtful={"gap_p99_ms": "the model was late"},
        )
    )
    assert not values(of, "gap_p99_ms")
    assert values(of, "stalls_per_1000")
    assert finding(of).startswith("Stalls per 1,000 tokens, best first")
    assert faults(of) == ["headrace HTTP/3 does not count: gap between tokens, p99: the model was late"]


def test_a_run_with_nothing_but_doubtful_figures_is_void() -> None:
    """What is shown decides; a void run of the link's is void in any case."""
    scenario = parse(SCENARIO, "x.toml")
    measures = {"gap_p99_ms": 1.0, "stalls_per_1000": 1.0, "ttft_p50_ms": 1.0}
    late = dict.fromkeys(["gap_p99_ms", "stalls_per_1000"], "the model was late")
    assert _void(scenario, {}, measures, late) == "the model was late"
    assert _void(scenario, {}, measures, {"gap_p99_ms": "the model was late"}) == ""
    assert _void(scenario, {"void_because": ["a device dropped"]}, measures, {}) == "a device dropped"


@pytest.mark.parametrize(
    ("made", "words"),
    [
        (cell(measures={}, failed="it did not start"), "could not be run: it did not start"),
        (cell(measures={"gap_p99_ms": 1.0}, void="too busy"), "a run does not count: too busy"),
        (cell(measures={"late_p50_ms": 1.0}), ""),
    ],
    ids=["failed", "void", "other measures"],
)
def test_nothing_measured_is_said_only_where_it_is_so(made: dict[str, Any], words: str) -> None:
    """With the reason, where one is known."""
    assert is_empty(result(made))
    assert finding(result(made)).startswith("Nothing was measured")
    assert words in finding(result(made))


def test_a_point_without_figures_does_not_hide_the_others() -> None:
    """The finding is of the last point that has any."""
    of = result(cell(point=0.01, measures={"gap_p99_ms": 30.0}), cell(point=0.05, measures={}, failed="no"))
    of["scenario"]["sweep"] = {"key": "loss", "values": [0.01, 0.05], "title": ""}
    assert finding(of) == "Gap between tokens, p99, ms, at 1 % loss, best first: headrace HTTP/3 30."
