"""Which cells a scenario has, and in which order they are run.

For each seed and point all servers and protocols are run, back and forth by turns (ABBA), so that whatever
the machine does meanwhile hits all of them alike. The baseline is run twice each time: what those two differ
by is noise.
"""

from __future__ import annotations

from headrace.errors import ConfigError
from headrace_lab.clients.choose import PROTOCOLS
from headrace_lab.measure.statistics import abba
from headrace_lab.run.cell import Cell
from headrace_lab.scenarios.scenario import Scenario

Stack = tuple[str, str, str]
"""Server, protocol, client."""


def cells(scenario: Scenario, first_seed: int = 1, stacks: list[Stack] | None = None) -> list[Cell]:
    """Returns all cells, in the order in which they are run."""
    chosen = stacks or scenario.stacks()
    made: list[Cell] = []
    for turn in range(scenario.run.seeds):
        for point in scenario.points():
            both = [(stack, False) for stack in chosen]
            again = [s for s in chosen if f"{s[0]}/{s[1]}" == scenario.run.baseline and s[2] == "headrace"]
            both += [(stack, True) for stack in again]
            made += [Cell(*stack, point, first_seed + turn, is_again) for stack, is_again in abba(both, turn)]
    return made


def choose(scenario: Scenario, servers: list[str], protocols: list[str]) -> list[Stack]:
    """Returns the stacks that a command line asks for; without a choice, the scenario's. Raises
    `ConfigError` when none is left."""
    _check(protocols)
    run = scenario.run.model_copy(
        update={"servers": servers or scenario.run.servers, "protocols": protocols or scenario.run.protocols}
    )
    run = type(run).model_validate(run.model_dump() | {"baseline": None})
    stacks = scenario.model_copy(update={"run": run}).stacks()
    if not stacks:
        raise ConfigError(detail="the controls speak HTTP/1.1 alone: add --protocol http1")
    return stacks


def choose_on_target(scenario: Scenario, protocols: list[str], url: str) -> list[Stack]:
    """Returns the stacks of a server that is not ours. Without TLS there is HTTP/1.1 alone."""
    _check(protocols)
    if url.startswith("https:"):
        return [("target", protocol, "headrace") for protocol in protocols or scenario.run.protocols]
    if set(protocols) - {"http1"}:
        raise ConfigError(
            detail=f"--protocol: {url} can be asked over http1 alone: HTTP/2 and HTTP/3 need https://"
        )
    return [("target", "http1", "headrace")]


def _check(protocols: list[str]) -> None:
    for name in protocols:
        if name not in PROTOCOLS:
            raise ConfigError(detail=f"--protocol: expected some of {', '.join(PROTOCOLS)}; got {name!r}")
