"""Whether a measure means anything: what measures must be finer than what is measured.

In: a run. Out: the measures that do not count, each with the reason: the model or the clients were themselves
later than the measure's scale. That the link kept its times is the link's own to say
(`headrace_lab.link.emulator`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from headrace_lab.measure.measures import MEASURES, Observed, model_lateness, tokens_of

SCALES: dict[str, Callable[[Observed], float]] = {
    # A gap of four intervals is a stall: an interval more or less makes one, or hides it.
    "stall": lambda seen: seen.interval_ms,
    "token": lambda seen: seen.interval_ms / 2,
    # Below 5 ms nothing is asked of a network.
    "trip": lambda seen: max(seen.rtt_ms / 4, 5.0),
}
"""In ms: how late what measures may be itself (p99), by `Measure.scale`."""


def doubts(seen: Observed) -> dict[str, str]:
    """Measures that do not count, by name, each with the reason."""
    late = {"the model": model_lateness(seen) or 0.0, "the clients": _clients_lateness(seen)}
    found: dict[str, str] = {}
    for name, measure in MEASURES.items():
        if not measure.scale:
            continue
        limit = SCALES[measure.scale](seen)
        who = [name for name, late_ms in late.items() if late_ms > limit]
        if who:
            found[name] = f"{' and '.join(who)} had more than {limit:g} ms of lateness of their own (p99)"
    return found


def _clients_lateness(seen: Observed) -> float:
    """Of the clients' event loop. headrace's own client takes the time of a token in its engine, which does
    not wait for the loop."""
    load = seen.log["workload"]
    is_engine = load.get("protocol") == "http3" and load.get("client") == "headrace"
    return 0.0 if is_engine else float(seen.log.get("loop_late_ms", 0.0))


def nothing_measured(seen: Observed) -> str:
    """Why nothing of what a server answered can be measured, in a sentence; empty where something can."""
    streams = seen.log["streams"]
    if any(tokens_of(stream) for stream in streams):
        return ""
    if refusals := [stream for stream in streams if stream["status"] >= 400]:
        status, count = Counter(stream["status"] for stream in refusals).most_common(1)[0]
        said = next(stream.get("refusal", "") for stream in refusals if stream["status"] == status)
        of_all = f"{count} of {len(streams)} requests"
        return f"{of_all} were answered with status {status}{f': {said}' if said else ''}"
    if errors := Counter(stream["error"] for stream in streams if stream["error"]):
        return f"no answer came: {', '.join(f'{kind} ({count})' for kind, count in errors.most_common())}"
    size = sum(stream["size"] for stream in streams)
    return (
        f"{size:,} bytes came, and no token was found in them: expected an answer that is streamed, in the "
        "form of the API that has this path"
    )
