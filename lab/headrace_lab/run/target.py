"""A server that is not ours: what it is asked, and what of a scenario makes sense for it.

In: a URL, and what its API wants. Out: the body of a request; a scenario without what only an emulated link
or a scripted model can do. The way to a target is this machine's own network: nothing is known of its delay
or losses. This file must not know how requests are sent.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from headrace.errors import ConfigError
from headrace_lab.scenarios.scenario import Scenario

PROMPT = "Write a long story."


class Form(NamedTuple):
    """How an answer is asked for in the words of an API."""

    prompt: Callable[[str], dict[str, Any]]
    limit: Callable[[int], dict[str, Any]]
    """Returns the members that bound an answer's tokens."""


def _messages(text: str) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": text}]}


FORMS = {
    "/chat/completions": Form(_messages, lambda tokens: {"max_tokens": tokens}),
    "/completions": Form(lambda text: {"prompt": text}, lambda tokens: {"max_tokens": tokens}),
    "/responses": Form(lambda text: {"input": text}, lambda tokens: {"max_output_tokens": tokens}),
    "/messages": Form(_messages, lambda tokens: {"max_tokens": tokens}),
    "/api/chat": Form(_messages, lambda tokens: {"options": {"num_predict": tokens}}),
    "/api/generate": Form(lambda text: {"prompt": text}, lambda tokens: {"options": {"num_predict": tokens}}),
}
"""The forms by the end of the path; a path with another end is asked as the first."""


KNOWN_ON_A_TARGET = (
    "stalls_per_1000",
    "stall_ratio",
    "stall_p50_ms",
    "stall_max_ms",
    "gap_p50_ms",
    "gap_p99_ms",
    "gap_p999_ms",
    "ttft_p50_ms",
    "ttft_p99_ms",
    "cut_streams",
)
"""Measures that need neither the link, nor the scripted model's record, nor the server's process."""


@dataclass(frozen=True)
class Target:
    """A server that is not ours."""

    url: str
    path: str = "/v1/chat/completions"
    model: str = ""
    header: tuple[tuple[str, str], ...] = ()
    """Further header fields, for example an API key."""
    body: dict[str, Any] = field(default_factory=dict)
    """Further members of a request's body; they replace those that the lab writes."""
    max_tokens: int | None = None
    """The most tokens of each answer; without it, as many as the scenario's answers have."""
    ca: Path | None = None
    """The file with the certificates to trust; without it, no certificate is checked."""

    def tokens(self, scenario: Scenario) -> int:
        """Returns the most tokens that an answer may have."""
        return self.max_tokens or scenario.load.tokens

    def request(self, scenario: Scenario) -> dict[str, Any]:
        """Returns the body of every request."""
        path = self.path.partition("?")[0].rstrip("/")
        known = (form for end, form in FORMS.items() if path.endswith(end))
        form = next(known, FORMS["/chat/completions"])
        asked = {"model": self.model, "stream": True, **form.prompt(PROMPT)}
        return {**asked, **form.limit(self.tokens(scenario)), **self.body}

    def cost(self, scenario: Scenario, runs: int) -> str:
        """Says in a sentence what a scenario asks the target for: it is at the target's cost."""
        load = scenario.load
        answers = runs * load.connections * load.streams * load.rounds
        return (
            f"asking {self.url} for {answers:,} answers of at most {self.tokens(scenario):,} tokens each "
            f"(runs: {runs})"
        )

    def scenario(self, scenario: Scenario) -> Scenario:
        """Returns the scenario as it can be run on a target: at one point, without a link, with the
        target's own model.

        Raises `ConfigError` when nothing would be left of it.
        """
        if missing := _needs(scenario):
            raise ConfigError(
                detail=f"{scenario.name} cannot be run with --target: it needs {' and '.join(missing)}; "
                "try fan-out, cold-start, stop or worked-example"
            )
        about = (
            f"Asked of {self.url}{self.path} over this machine's own network. There is no emulated link, so "
            "the scenario's delay and losses do not hold, and when a token was due is not known."
        )
        host = re.sub(r"[^\w.-]", "-", urlsplit(self.url).netloc.rpartition("@")[2])
        name = f"{scenario.name}-{host}"
        changed: dict[str, Any] = {
            "name": name,
            "title": f"{scenario.name}, on {self.url}",
            "about": about,
            "link": {},
            "sweep": None,
        }
        run = scenario.run.model_copy(update={"baseline": None})
        show = scenario.show.model_copy(update={"measures": _measures(scenario)})
        load = scenario.load.model_copy(update={"script": {}})
        return scenario.model_copy(update={**changed, "run": run, "load": load, "show": show})


def _measures(scenario: Scenario) -> list[str]:
    return [name for name in scenario.show.measures if name in KNOWN_ON_A_TARGET]


def _needs(scenario: Scenario) -> list[str]:
    """Returns what a scenario needs that a target does not have."""
    load = scenario.load
    link = sorted({event.do for event in scenario.events} - {"migrate"})
    return [
        what
        for what, is_needed in (
            (f"a link ({', '.join(link)})", bool(link)),
            ("a download without an end beside the tokens", load.bulk),
            ("answers of its own for slow readers", load.slow_places > 0),
            ("a model that breaks off", load.script.get("end", "clean") != "clean"),
            ("measures that a target does not give", not _measures(scenario)),
        )
        if is_needed
    ]
