"""Whether a measure means anything: the lab must be more punctual than what it measures.

In: a run. Out: the measures that do not count, each with the reason: the model or the clients were
themselves later than the measure's scale allows. Whether the link was late, it says itself
(`headrace_lab.link.emulator`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from headrace_lab.measure.measures import MEASURES, Observed, model_lateness, tokens_of

SCALES: dict[str, Callable[[Observed], float]] = {
    # A gap of four intervals is a stall: one interval more or less can make a stall, or hide it.
    "stall": lambda seen: seen.interval_ms,
    "token": lambda seen: seen.interval_ms / 2,
    # Differences below 5 ms are not asked of a network.
    "trip": lambda seen: max(seen.rtt_ms / 4, 5.0),
}
"""How late the model and the clients may be themselves, p99 in ms, by `Measure.scale`."""


def doubts(seen: Observed) -> dict[str, str]:
    """Returns the measures that do not count, by name, each with the reason."""
    late = {"the model": model_lateness(seen) or 0.0, "the clients": _clients_lateness(seen)}
    found: dict[str, str] = {}
    for name, measure in MEASURES.items():
        if not measure.scale:
            continue
        limit = SCALES[measure.scale](seen)
        who = [name for name, late_ms in late.items() if late_ms > limit]
        if who:
            found[name] = f"the lateness of {' and '.join(who)} was over {limit:.3g} ms (p99)"
    return found


def _clients_lateness(seen: Observed) -> float:
    """Returns how late the clients' event loop woke, p99 in ms. headrace's own client for HTTP/3 takes the
    time of a token in its engine, which does not wait for the loop."""
    load = seen.log["workload"]
    is_engine = load.get("protocol") == "http3" and load.get("client") == "headrace"
    return 0.0 if is_engine else float(seen.log.get("loop_late_ms", 0.0))


def nothing_measured(seen: Observed) -> str:
    """Says in a sentence why nothing that a server answered can be measured; empty where something can."""
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
