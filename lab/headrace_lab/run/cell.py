"""One cell of a scenario: one server, one protocol, one point, one seed, from nothing to its measures.

Everything is started anew, so that no cell knows of another: the link, the model, the server, the clients.
Everything ends with the cell, whatever happens.
"""

from __future__ import annotations

import contextlib
import json
import select
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from headrace.errors import ConfigError
from headrace_lab import process
from headrace_lab.clients.workload import Workload
from headrace_lab.measure.doubts import doubts, nothing_measured
from headrace_lab.measure.measures import (
    Observed,
    errors,
    first_tokens,
    gap_counts,
    measure,
    model_lateness,
    tokens_of,
    usual_interval_ms,
)
from headrace_lab.measure.verdict import verdict
from headrace_lab.peers import servers
from headrace_lab.run import path
from headrace_lab.run.target import Target
from headrace_lab.scenarios.scenario import Scenario

TRIES = 3
"""How often a run is tried that is void."""
OURS = ("at_s",)
"""The fields of an event that the link is not told."""
MARGIN_S = 30.0
"""The time beyond the clients' own limit after which they are ended."""


@dataclass(frozen=True)
class Cell:
    """What is run. `again`: it is the second run of the baseline, for the noise floor."""

    server: str
    protocol: str
    client: str = "headrace"
    point: float | str | None = None
    seed: int = 1
    again: bool = False


@dataclass(frozen=True)
class Options:
    """What holds for all cells of a run."""

    on: str = "link"
    """One of `headrace_lab.run.path.ON`."""
    target: Target | None = None
    """A server that is not ours; then none is started, and no model."""
    keep_timeline: bool = True


Tell = Callable[[int], None]
"""It is told how many tokens have come so far."""


def run_cell(
    scenario: Scenario, cell: Cell, options: Options, tell: Tell = lambda tokens: None
) -> dict[str, Any]:
    """Returns the result of a cell, as values for JSON. Raises `ConfigError` when something cannot be
    started, or when nothing of what a target answers can be measured."""
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="headrace-lab-")))
        link = stack.enter_context(path.opened(options.on, scenario.link_at(cell.point), cell.seed))
        if options.target:
            seen, version = _against_a_target(scenario, cell, options.target, link, folder, tell), ""
        else:
            seen, version = _against_a_server(scenario, cell, link, folder, tell)
        link_result = link.result()
        seen.packets = path.packets(link_result, seen.log["t0_ns"])
    seen.rtt_ms = 2 * float(link_result.get("profile", {}).get("delay_ms", 0.0))
    link_result.pop("log", None)
    measures, doubtful = measure(seen), doubts(seen)
    result = {**asdict(cell), "version": version, "link": link_result, "rtt_ms": seen.rtt_ms}
    result |= {"void": _void(scenario, link_result, measures, doubtful)}
    result |= {"model_late_ms": model_lateness(seen), "clients_late_ms": seen.log["loop_late_ms"]}
    result |= {"interval_ms": seen.interval_ms, "measures": measures, "doubtful": doubtful}
    result |= {"errors": errors(seen.streams()), "verdict": verdict(seen)}
    result |= {"gaps": gap_counts(seen), "ttft": [round(ms, 2) for ms in first_tokens(seen)]}
    if options.keep_timeline:
        result["timeline"] = timeline(seen)
    return result


def _void(
    scenario: Scenario, link: dict[str, Any], measures: dict[str, float], doubtful: dict[str, str]
) -> str:
    """Returns why the run does not count; empty where it counts."""
    shown = [name for name in scenario.show.measures if name in measures]
    because = list(link.get("void_because", []))
    if shown and all(name in doubtful for name in shown):
        because.append(doubtful[shown[0]])
    return "; ".join(because)


def run_valid(
    scenario: Scenario, cell: Cell, options: Options, tell: Tell = lambda tokens: None
) -> dict[str, Any]:
    """Runs a cell, and runs it again while it is void or one of the shown measures is doubtful: then the
    machine was too busy, which says nothing about a server. `made_again` in the result tells how often.
    The last of `TRIES` is returned as it is. A target is asked once, because each try is at its cost."""
    made_again = 0
    while True:
        result = run_cell(scenario, cell, options, tell) | {"made_again": made_again}
        is_good = not result["void"] and not set(result["doubtful"]) & set(scenario.show.measures)
        if is_good or made_again + 1 == (1 if options.target else TRIES):
            return result
        made_again += 1


def _against_a_target(
    scenario: Scenario, cell: Cell, target: Target, link: path.Path, folder: Path, tell: Tell
) -> Observed:
    load = replace(
        _load(scenario, cell, target.url, target.ca),
        script={},
        request=target.request(scenario),
        path=target.path,
        fields=list(target.header),
    )
    seen = Observed(_clients(link, load, folder, [], tell)[0])
    if problem := nothing_measured(seen):
        raise ConfigError(detail=f"{target.url}{target.path}: {problem}")
    # When a token was due is not known, so the usual gap of this server is taken for its interval.
    seen.interval_ms = usual_interval_ms(seen) or scenario.load.interval_ms
    return seen


def _against_a_server(
    scenario: Scenario, cell: Cell, link: path.Path, folder: Path, tell: Tell
) -> tuple[Observed, str]:
    record = folder / "record.json"
    servers.certificate(folder, link.server_address)
    with _source(link, record, folder) as upstream:
        site = servers.Site(upstream, folder, link.server_address, link.server_port)
        plan = servers.SERVERS[cell.server](site)
        with servers.started(plan, site, link.server.popen) as proxy:
            load = _load(scenario, cell, link.reached_at(proxy.origin), folder / "ca.pem")
            events = [event.model_dump() for event in scenario.events]
            memory = [proxy.memory()]

            def tell_and_look(tokens: int) -> None:
                tell(tokens)
                if scenario.load.slow_places:
                    memory.append(proxy.memory())

            cpu_s = proxy.cpu_s()
            log, done = _clients(link, load, folder, events, tell_and_look)
            cpu_s = proxy.cpu_s() - cpu_s
    seen = Observed(log, json.loads(record.read_text()), events=done, cpu_s=cpu_s)
    seen.interval_ms = scenario.load.interval_ms
    seen.memory_grown = max(memory) - memory[0] if scenario.load.slow_places else None
    return seen, plan.version


def _load(scenario: Scenario, cell: Cell, url: str, ca: Path | None) -> Workload:
    load = scenario.load
    script = {"events": load.tokens, "interval_s": load.interval_ms / 1e3, "note_due": True, **load.script}
    script["note_times"] = load.stop_places > 0
    own = {"tokens", "interval_ms", "script"}
    moves = [event.at_s for event in scenario.events if event.do == "migrate"]
    return Workload(
        url=url,
        protocol=cell.protocol,
        client=cell.client,
        ca=str(ca) if ca else None,
        script=script,
        migrate_at_s=moves,
        seed=cell.seed,
        **{name: value for name, value in load.model_dump().items() if name not in own},
    )


@contextlib.contextmanager
def _source(link: path.Path, record: Path, folder: Path) -> Iterator[str]:
    """Starts the scripted model beside the server, and yields its URL."""
    command = [sys.executable, "-m", "headrace_lab.model", "--record", str(record)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": None}
    with process.process(command, folder / "source.log", link.server.popen, **pipes) as running:
        assert running.stdin is not None
        assert running.stdout is not None
        line = running.stdout.readline()
        if not line:
            raise ConfigError(detail="the scripted model did not start")
        yield json.loads(line)["url"]
        # It writes its record when its input is closed.
        running.stdin.close()
        running.stdin = None
        running.wait(process.START_TIMEOUT_S)


def _clients(
    link: path.Path, load: Workload, folder: Path, events: list[dict[str, Any]], tell: Tell
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Runs the clients, and carries out the events when they are due. Returns the clients' log, and what
    was done when."""
    spec, out = folder / "workload.json", folder / "log.json"
    spec.write_text(json.dumps(asdict(load)))
    command = [sys.executable, "-m", "headrace_lab.clients.workload", str(spec), str(out)]
    errors_file = folder / "workload.log"
    pipes = {"stdout": subprocess.PIPE, "stdin": subprocess.PIPE}
    with errors_file.open("wb") as stderr:
        with process.process(command, errors_file, link.client.popen, stderr=stderr, **pipes) as running:
            done = _attend(running, link, load, events, tell)
        if not out.exists():
            raise ConfigError(detail=f"the clients failed:\n{errors_file.read_text()[-1500:]}")
    return json.loads(out.read_text()), done


def _attend(
    running: subprocess.Popen[bytes],
    link: path.Path,
    load: Workload,
    events: list[dict[str, Any]],
    tell: Tell,
) -> list[dict[str, Any]]:
    assert running.stdout is not None
    waiting = sorted(events, key=lambda event: event["at_s"])
    done: list[dict[str, Any]] = []
    t0_ns = 0
    until = time.monotonic() + load.limit_s + MARGIN_S
    while True:
        now = time.monotonic()
        if now > until:
            raise ConfigError(detail=f"the clients did not end within {load.limit_s + MARGIN_S:g} s")
        while t0_ns and waiting and (t0_ns / 1e9 + waiting[0]["at_s"]) <= now:
            done.append(_do(link, waiting.pop(0)))
        wait = t0_ns / 1e9 + waiting[0]["at_s"] - now if t0_ns and waiting else 0.5
        if not select.select([running.stdout], [], [], max(wait, 0.0))[0]:
            continue
        line = running.stdout.readline()
        if not line:
            return done
        said = json.loads(line)
        if "error" in said:
            raise ConfigError(detail=f"the clients could not begin: {said['error']}")
        if "ready" in said:
            _begin(running, link)
        t0_ns = said.get("t0_ns", t0_ns)
        tell(said.get("tokens", 0))


def _begin(running: subprocess.Popen[bytes], link: path.Path) -> None:
    """Lets the link count its packets from here on, so that every protocol loses the same packets of the
    answers."""
    link.command({"do": "restart"})
    assert running.stdin is not None
    running.stdin.write(b"\n")
    running.stdin.flush()


def _do(link: path.Path, event: dict[str, Any]) -> dict[str, Any]:
    """Carries out an event, and returns it with the moment at which it took effect."""
    at_ns = time.monotonic_ns()
    if event["do"] != "migrate":
        answer = link.command({name: value for name, value in event.items() if name not in OURS})
        at_ns = answer.get("at_ns", at_ns)
    return {**event, "at_ns": at_ns}


def timeline(seen: Observed) -> dict[str, Any]:
    """Returns when the tokens of each stream were due and came, in ms after the beginning, to a tenth."""
    t0 = seen.log["t0_ns"]

    def ms(ns: int) -> float:
        return float(round((ns - t0) / 1e6, 1))

    streams = [
        {
            "number": stream["number"],
            "sent": ms(stream["sent_ns"]),
            "end": ms(stream["end_ns"]),
            "error": stream["error"],
            "stopped": ms(stream["stopped_ns"]) if stream["stopped_ns"] else None,
            "due": [ms(token.due) if token.due else None for token in tokens_of(stream)],
            "at": [ms(token.at) for token in tokens_of(stream)],
        }
        for stream in seen.log["streams"]
    ]
    lost = [[ms(packet.at_ns), "down" if packet.down else "up"] for packet in seen.packets if packet.lost]
    events = [{**event, "at": ms(event["at_ns"])} for event in seen.events]
    return {"streams": streams, "lost": lost, "events": events}
