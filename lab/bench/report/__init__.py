"""`docs/measurements.md`, made from what `lab/bench/results/` holds: `python -m bench report`.

In: results, one JSON file for each benchmark. Out: one section for each. A test fails when the page and
the results differ."""

from bench.report.page import PAGE, page, write

__all__ = ["PAGE", "page", "write"]
