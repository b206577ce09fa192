"""Profiles and commands of a link: what is wrong is said before anything runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from headrace.errors import ConfigError
from headrace_lab.link import commands, profiles
from headrace_lab.link.profiles import Profile


@pytest.mark.parametrize(
    "name", ["fiber", "wifi-good", "wifi-bad", "lte-driving", "5g", "train", "satellite"]
)
def test_every_named_profile_has_a_source_and_plans(name: str) -> None:
    profile = Profile.named(name)
    assert len(profile.source) > 20
    for direction in ("up", "down"):
        assert profile.plan(direction)["delay_ns"] > 0


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"loss": 1.5}, "loss = 1.5 .* between 0 and 1"),
        ({"loss": 0.9, "burst": 2}, "loss = 0.9 .* at most 0.67 in bursts of 2"),
        ({"delay_ms": -1}, "delay_ms = -1"),
        ({"delay_ms": "5"}, "delay_ms = '5' .* a number"),
        ({"drops_up": [-1]}, "drops_up = .* indices of packets"),
        ({"jitter_ms": 5}, "delay_ms = 0.0 .* at least jitter_ms"),
        ({"pause_every_s": 1, "pause_min_ms": 5, "pause_mean_ms": 3, "pause_max_ms": 9}, "pause_mean_ms"),
        ({"latency": 3}, "has no field 'latency'"),
        ({"script": ({"do": "rebind_port"},)}, "needs one of at_s"),
        ({"script": ({"at_s": 1, "do": "move"},)}, "'move' cannot stand in a link's script"),
        ({"script": ({"at_s": 0, "do": "restart"},)}, "'restart' cannot stand in a link's script"),
    ],
)
def test_what_no_network_can_be_is_refused(fields: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        Profile.of(fields)


def test_an_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(ConfigError, match="wifi-bad, lte-driving"):
        Profile.of("3g")


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ({"do": "explode"}, "cannot do 'explode'; it can: profile, loss"),
        ({"do": "outage"}, "needs 'seconds'"),
        ({"do": "outage", "seconds": -1}, "seconds = -1"),
        ({"do": "outage", "seconds": 1, "sides": "up"}, "has no field 'sides'"),
        ({"do": "loss", "loss": 0.1, "direction": "left"}, "up, down or both"),
        ({"do": "drop", "count": True}, "count = True"),
        ({"do": "profile"}, "needs 'profile'"),
    ],
)
def test_a_wrong_command_names_the_key(command: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        commands.translate(command, Profile.plans)


def test_a_command_reaches_the_emulator_with_every_field() -> None:
    made = commands.translate({"do": "outage", "seconds": 0.5}, Profile.plans)
    assert made == {"do": "outage", "length_ns": 500_000_000, "held": False, "direction": "both"}
    step = commands.step({"before_down": 7, "do": "drop"}, Profile.plans)
    assert step == {"when": {"down": 7}, "command": {"do": "drop", "count": 1, "direction": "both"}}


def test_a_trace_is_read_and_a_wrong_one_named(tmp_path: Path) -> None:
    trace = tmp_path / "x.down"
    trace.write_text("0\n5\n5\n12\n")
    assert Profile(trace_down=trace).plan("down")["trace_ms"] == [0, 5, 5, 12]
    assert Profile(trace_down=trace).plan("up")["trace_ms"] == []
    for wrong, said in (
        ("a", "milliseconds on each line"),
        ("5 2", "must rise"),
        ("", "must rise"),
    ):
        trace.write_text(wrong)
        with pytest.raises(ConfigError, match=said):
            profiles.read_trace(trace)
    with pytest.raises(ConfigError, match="cannot be read"):
        profiles.read_trace(tmp_path / "none")
