"""What is shown while a scenario runs: a table that fills cell by cell, and a bar; in a pipe, plain lines."""

from __future__ import annotations

from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from headrace_lab.measure.measures import MEASURES
from headrace_lab.measure.statistics import median
from headrace_lab.run.cell import Cell
from headrace_lab.scenarios.scenario import Scenario, stack_name


class Lines:
    """Prints one line for each cell."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.done = self.cells = 0
        self.measure = ""

    def begin(self, scenario: Scenario, plan: list[Cell]) -> None:
        self.cells, self.done, self.measure = len(plan), 0, scenario.show.measures[0]
        self.console.print(f"{scenario.name}: {scenario.title} ({_runs(self.cells)})", highlight=False)

    def cell(self, cell: Cell) -> None:
        pass

    def tokens(self, count: int) -> None:
        pass

    def result(self, result: dict[str, Any]) -> None:
        self.done += 1
        point = "" if result["point"] is None else f" at {result['point']}"
        name = stack_name(result["server"], result["protocol"], result["client"])
        said = result.get("failed") or result.get("void") or _shown(result, self.measure)
        if doubt := result.get("doubtful", {}).get(self.measure):
            said += f"; does not count: {doubt}"
        again = " (again)" if result["again"] else ""
        line = f"[{self.done}/{self.cells}] {name}{point}, seed {result['seed']}{again}: {said}"
        self.console.print(line, highlight=False, markup=False, soft_wrap=True)

    def __enter__(self) -> Lines:
        return self

    def __exit__(self, *_: object) -> None:
        pass


class Screen:
    """Shows the first measure, by server and point, in a table that fills while the scenario runs."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.scenario: Scenario
        self.rows: list[str] = []
        self.found: dict[tuple[str, Any], list[float]] = {}
        self.running: tuple[str, Any] | None = None
        self.count = 0
        self.problems: list[str] = []
        self.progress = Progress(
            TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
        )
        self.live = Live(console=console, refresh_per_second=5, get_renderable=self._render)

    def begin(self, scenario: Scenario, plan: list[Cell]) -> None:
        self.scenario, self.found, self.problems = scenario, {}, []
        self.rows = list(dict.fromkeys(stack_name(cell.server, cell.protocol, cell.client) for cell in plan))
        for task in self.progress.task_ids:
            self.progress.remove_task(task)
        self.task = self.progress.add_task(scenario.name, total=len(plan))

    def cell(self, cell: Cell) -> None:
        self.running, self.count = (stack_name(cell.server, cell.protocol, cell.client), cell.point), 0

    def tokens(self, count: int) -> None:
        self.count = max(self.count, count)

    def result(self, result: dict[str, Any]) -> None:
        key = (stack_name(result["server"], result["protocol"], result["client"]), result["point"])
        value = result["measures"].get(self.scenario.show.measures[0])
        is_doubtful = self.scenario.show.measures[0] in result.get("doubtful", {})
        if value is not None and not result.get("void") and not is_doubtful:
            self.found.setdefault(key, []).append(value)
        elif problem := result.get("failed") or result.get("void") or _doubt(result, self.scenario):
            self.problems.append(f"{key[0]}: {problem.splitlines()[0]}")
        self.progress.advance(self.task)

    def _render(self) -> Group:
        if not hasattr(self, "scenario"):
            return Group()
        scenario = self.scenario
        measure = MEASURES[scenario.show.measures[0]]
        unit = f", {measure.unit}" if measure.unit else ""
        table = Table(title=scenario.title, title_justify="left")
        table.add_column(f"{measure.title}{unit}")
        for point in scenario.points():
            table.add_column(_point(scenario, point), justify="right", min_width=12)
        for row in self.rows:
            table.add_row(row, *(self._shown(row, point) for point in scenario.points()))
        return Group(table, self.progress, *self.problems[-3:])

    def _shown(self, row: str, point: Any) -> str:
        values = self.found.get((row, point), [])
        now = f"[yellow]{self.count:,} tokens[/]" if self.running == (row, point) else ""
        if not values:
            return now or "[dim]·[/]"
        return f"[bold]{median(values):.3g}[/]{' ' + now if now else ''}"

    def __enter__(self) -> Screen:
        self.live.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self.running = None
        self.live.__exit__(*error)


def watcher(console: Console) -> Screen | Lines:
    """Returns a live view on a terminal, and lines elsewhere."""
    return Screen(console) if console.is_terminal else Lines(console)


def _runs(count: int) -> str:
    return "1 run" if count == 1 else f"{count} runs"


def _doubt(result: dict[str, Any], scenario: Scenario) -> str:
    return str(result.get("doubtful", {}).get(scenario.show.measures[0], ""))


def _point(scenario: Scenario, point: Any) -> str:
    if point is None:
        return ""
    assert scenario.sweep is not None
    shown = f"{point:.3g}" if isinstance(point, float) else str(point)
    return f"{scenario.sweep.title or scenario.sweep.key} {shown}"


def _shown(result: dict[str, Any], first: str) -> str:
    """Returns the first measure, and what is wrong, in words."""
    value = result["measures"].get(first)
    text = (
        f"{MEASURES[first].title} {value:.4g} {MEASURES[first].unit}".rstrip()
        if value is not None
        else "nothing"
    )
    if result["errors"]:
        text += f"; errors {result['errors']}"
    return "; ".join([text, *result["verdict"]])
