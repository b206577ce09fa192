"""The cells of a scenario, one after the other.

In: a plan, and something that is told how far it is. Out: the result of each cell, as soon as it is there.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Protocol

from headrace.errors import ConfigError
from headrace_lab.run.cell import Cell, Options, run_valid
from headrace_lab.scenarios.scenario import Scenario


class Watcher(Protocol):
    """It is told how far a run is."""

    def begin(self, scenario: Scenario, plan: list[Cell]) -> None: ...
    def cell(self, cell: Cell) -> None: ...
    def tokens(self, count: int) -> None: ...
    def result(self, result: dict[str, Any]) -> None: ...


def perform(
    scenario: Scenario, plan: list[Cell], options: Options, watcher: Watcher
) -> Iterator[dict[str, Any]]:
    """Runs the cells and yields the result of each. A cell whose server or clients fail has a result, too,
    except for the first one: most likely all would fail so, and it raises what was wrong, mostly a
    `ConfigError`."""
    watcher.begin(scenario, plan)
    first = plan[0].seed if plan else 0
    for cell in plan:
        watcher.cell(cell)
        kept = replace(options, keep_timeline=cell.seed == first and not cell.again)
        try:
            result = run_valid(scenario, cell, kept, watcher.tokens)
        except (ConfigError, OSError, subprocess.SubprocessError) as error:
            if cell is plan[0]:
                raise
            result = {**vars(cell), "failed": str(error), "measures": {}}
        watcher.result(result)
        yield result
