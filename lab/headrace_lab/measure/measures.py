"""A run in numbers. Pure: logs go in, measures come out.

In: the clients' log (`headrace_lab.clients.workload`), the model's record (`headrace_lab.model`), the link's
packets. Out: one number for each measure, by the names of `MEASURES`. Everything counts tokens by their
number in the event, never chunks: a proxy that joins ten tokens in one chunk has ten tokens arrive late.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from headrace_lab.clients.sink import UNFINISHED
from headrace_lab.measure.statistics import jain, percentile

STALL_INTERVALS = 4
"""A gap of more than so many intervals is a stall: 80 ms at a token every 20 ms."""


class Measure(NamedTuple):
    title: str
    unit: str
    scale: str = ""
    """A key of `headrace_lab.measure.doubts.SCALES`: how late the lab itself may be. Counts have none."""
    less_is_better: bool = True


MEASURES = {
    "stalls_per_1000": Measure("stalls per 1,000 tokens", "", "stall"),
    "stall_ratio": Measure("share of the time spent in stalls", "%", "stall"),
    "stall_p50_ms": Measure("length of a stall, median", "ms", "stall"),
    "stall_max_ms": Measure("longest stall", "ms", "stall"),
    "gap_p50_ms": Measure("gap between tokens, median", "ms", "token"),
    "gap_p99_ms": Measure("gap between tokens, p99", "ms", "token"),
    "gap_p999_ms": Measure("gap between tokens, p99.9", "ms", "token"),
    "late_p50_ms": Measure("lateness of a token, median", "ms", "token"),
    "late_p99_ms": Measure("lateness of a token, p99", "ms", "token"),
    "jitter_ms": Measure("jitter: mean change of the delay from token to token", "ms", "token"),
    "ttft_p50_ms": Measure("time to the first token, median", "ms", "trip"),
    "ttft_p99_ms": Measure("time to the first token, p99", "ms", "trip"),
    "stalled_per_loss": Measure("streams made late per lost packet", "", "trip"),
    "stop_p50_ms": Measure("stop until the model's connection closed, median", "ms", "trip"),
    "stop_p99_ms": Measure("stop until the model's connection closed, p99", "ms", "trip"),
    "stops_unseen": Measure("stops that the model never saw", ""),
    "wasted_per_stop": Measure("tokens made after a stop, mean", "", "token"),
    "event_gap_ms": Measure("gap around the event, worst stream", "ms", "trip"),
    "recovery_ms": Measure("first token after the outage, median stream", "ms", "trip"),
    "cut_streams": Measure("streams that broke off", "%"),
    "tokens_lost": Measure("tokens that never came", "%"),
    "packets_per_token": Measure("packets to the client per token", ""),
    "bytes_per_token": Measure("bytes to the client per token, with headers", "B"),
    "cpu_us_per_token": Measure("CPU of the server per token", "µs"),
    "memory_grown_mb": Measure("growth of the server's memory", "MB"),
    "fairness": Measure("Jain's index of a download beside one over HTTP/1.1", "", "", False),
    "bulk_mbit": Measure("download beside the tokens", "Mbit/s", "", False),
}


class Token(NamedTuple):
    """One token. Times are monotonic ns; `due` is 0 where the model does not say."""

    number: int
    due: int
    sent: int
    at: int


@dataclass(frozen=True)
class Packet:
    """One packet at the link."""

    at_ns: int
    down: bool
    """From the server to the client."""
    size: int
    lost: bool


@dataclass
class Observed:
    """All that is known of one run. `rtt_ms` and `interval_ms` are the nominal values."""

    log: dict[str, Any]
    record: dict[str, Any] = field(default_factory=dict)
    packets: list[Packet] = field(default_factory=list)
    rtt_ms: float = 0.0
    interval_ms: float = 20.0
    events: list[dict[str, Any]] = field(default_factory=list)
    """What was done to the link: `do`, `at_ns`, and `seconds` where it lasts."""
    cpu_s: float | None = None
    memory_grown: int | None = None

    @property
    def stall_ms(self) -> float:
        return STALL_INTERVALS * self.interval_ms

    def streams(self) -> list[dict[str, Any]]:
        """Returns the streams that count: they were neither stopped nor slow on purpose."""
        load = self.log["workload"]
        aside = load["stop_places"] + load["slow_places"]
        return [s for s in self.log["streams"] if s["number"] >= aside]


def tokens_of(stream: dict[str, Any]) -> list[Token]:
    """Returns the tokens in the order of their numbers; a token that came twice counts once."""
    seen: dict[int, Token] = {}
    for values in stream["tokens"]:
        token = Token(*values)
        seen.setdefault(token.number, token)
    return [seen[number] for number in sorted(seen)]


def gaps(stream: dict[str, Any], interval_ms: float) -> Iterator[tuple[Token, float]]:
    """Yields each token except the first, and how long it came after the one before, in ms, without what
    the model itself was to wait beyond its interval."""
    for before, token in itertools.pairwise(tokens_of(stream)):
        planned = max((token.due - before.due) / 1e6 - interval_ms, 0.0) if before.due else 0.0
        yield token, max((token.at - before.at) / 1e6 - planned, 0.0)


def lateness(stream: dict[str, Any], rtt_ms: float) -> list[float]:
    """Returns, for each token whose due time is known, received - (due + R/2) in ms."""
    return [(token.at - token.due) / 1e6 - rtt_ms / 2 for token in tokens_of(stream) if token.due]


def model_lateness(seen: Observed) -> float | None:
    """Returns how late the model itself sent, p99 in ms: no server can make up for that."""
    late = [(t.sent - t.due) / 1e6 for s in seen.streams() for t in tokens_of(s) if t.due]
    return percentile(late, 0.99)


def usual_interval_ms(seen: Observed) -> float | None:
    """Returns the median gap between tokens: the interval of a model that does not say when a token is
    due."""
    return percentile([gap for stream in seen.streams() for _, gap in gaps(stream, seen.interval_ms)], 0.5)


def measure(seen: Observed) -> dict[str, float]:
    """Returns all measures that the run says something about."""
    found: dict[str, float | None] = {}
    for part in (_gaps, _late, _first, _stops, _events, _ends, _packets, _server, _bulk):
        found |= part(seen)
    return {name: round(found[name] or 0.0, 4) for name in MEASURES if found.get(name) is not None}


def gap_counts(seen: Observed) -> list[tuple[float, int]]:
    """Counts how often each gap occurred, to a tenth of a millisecond: enough for exact percentiles of
    many runs."""
    counts = Counter(round(gap, 1) for s in seen.streams() for _, gap in gaps(s, seen.interval_ms))
    return sorted(counts.items())


def _gaps(seen: Observed) -> dict[str, float | None]:
    each = [gap for stream in seen.streams() for _, gap in gaps(stream, seen.interval_ms)]
    stalls = [gap for gap in each if gap > seen.stall_ms]
    if not each:
        return {}
    return {
        "gap_p50_ms": percentile(each, 0.5),
        "gap_p99_ms": percentile(each, 0.99),
        "gap_p999_ms": percentile(each, 0.999),
        "stalls_per_1000": len(stalls) / len(each) * 1000,
        "stall_ratio": 100 * sum(gap - seen.interval_ms for gap in stalls) / (sum(each) or 1.0),
        "stall_p50_ms": percentile(stalls, 0.5),
        "stall_max_ms": max(stalls, default=None),
    }


def _late(seen: Observed) -> dict[str, float | None]:
    by_stream = [lateness(stream, seen.rtt_ms) for stream in seen.streams()]
    late = list(itertools.chain(*by_stream))
    changes = [abs(b - a) for each in by_stream for a, b in itertools.pairwise(each)]
    found = {"late_p50_ms": percentile(late, 0.5), "late_p99_ms": percentile(late, 0.99)}
    if changes:
        found["jitter_ms"] = sum(changes) / len(changes)
    lost = sum(packet.lost and packet.down for packet in seen.packets)
    if lost and seen.rtt_ms:
        found["stalled_per_loss"] = sum(_episodes(each, seen.rtt_ms / 4) for each in by_stream) / lost
    return found


def _episodes(late: list[float], limit: float) -> int:
    """Counts how often a stream became late: tokens that are late one after the other count once."""
    return sum(now > limit and before <= limit for before, now in itertools.pairwise([0.0, *late]))


def first_tokens(seen: Observed) -> list[float]:
    """Returns the times to the first token in ms, each from the beginning of the connection where the
        connection was made
    for the request."""
    return [
        (tokens[0].at - (stream["connect_ns"] or stream["sent_ns"])) / 1e6
        for stream in seen.streams()
        if (tokens := tokens_of(stream))
    ]


def _first(seen: Observed) -> dict[str, float | None]:
    first = first_tokens(seen)
    return {"ttft_p50_ms": percentile(first, 0.5), "ttft_p99_ms": percentile(first, 0.99)}


def _stops(seen: Observed) -> dict[str, float | None]:
    runs = {run["tag"]: run for run in seen.record.get("runs", [])}
    stopped = [s for s in seen.log["streams"] if s["stopped_ns"]]
    took, wasted, unseen = [], [], 0
    for stream in stopped:
        run = runs.get(stream["tag"])
        if run is None or not run["aborted_ns"]:
            unseen += 1
            continue
        took.append((run["aborted_ns"] - stream["stopped_ns"]) / 1e6)
        wasted.append(sum(at > stream["stopped_ns"] for at in run["times_ns"]))
    if not stopped or "runs" not in seen.record:
        return {}
    return {
        "stop_p50_ms": percentile(took, 0.5),
        "stop_p99_ms": percentile(took, 0.99),
        "stops_unseen": unseen,
        "wasted_per_stop": sum(wasted) / len(wasted) if wasted else None,
    }


def _events(seen: Observed) -> dict[str, float | None]:
    """Measures how long each stream had nothing around what was done to the link. A stream that never went
    on counts until the end of the run."""
    worst: list[float] = []
    recovered: list[float] = []
    last = max((s["end_ns"] for s in seen.log["streams"]), default=0)
    for event in seen.events:
        begin = event["at_ns"]
        over = begin + int(event.get("seconds", 0.0) * 1e9)
        waits = []
        for stream in seen.streams():
            times = sorted(token.at for token in tokens_of(stream))
            if not times or times[0] > begin or (not stream["error"] and stream["end_ns"] <= begin):
                continue
            # What the link still held arrives after the event began: the longest gap that ends later counts.
            near = [
                (b, b - max(a, 0))
                for a, b in itertools.pairwise([*times, _end(stream, times, last)])
                if b > begin
            ]
            until = over + int((seen.rtt_ms + 10_000) * 1e6)
            gap_end, gap = max((g for g in near if g[0] - g[1] < until), key=lambda g: g[1], default=(0, 0))
            waits.append(gap / 1e6)
            if event.get("seconds"):
                recovered.append(max(gap_end - over, 0) / 1e6)
        worst += [max(waits)] if waits else []
    return {"event_gap_ms": max(worst, default=None), "recovery_ms": percentile(recovered, 0.5)}


def _end(stream: dict[str, Any], times: list[int], last: int) -> int:
    """Returns where the last gap of a stream ends: at its last token or, when it broke off, at the end of
    the run."""
    return max(last, times[-1]) if stream["error"] else times[-1]


def _ends(seen: Observed) -> dict[str, float | None]:
    streams = seen.streams()
    if not streams:
        return {}
    planned = seen.log["workload"]["script"].get("events")
    cut = sum(bool(stream["error"]) and stream["error"] != UNFINISHED for stream in streams)
    found: dict[str, float | None] = {"cut_streams": 100 * cut / len(streams)}
    if planned:
        came = sum(len(tokens_of(stream)) for stream in streams)
        found["tokens_lost"] = 100 * (1 - came / (planned * len(streams)))
    return found


def _count(seen: Observed) -> int:
    return sum(len(tokens_of(stream)) for stream in seen.log["streams"])


def _packets(seen: Observed) -> dict[str, float | None]:
    down = [packet for packet in seen.packets if packet.down]
    count = _count(seen)
    if not down or not count or seen.log["bulk"]:
        return {}
    size = sum(packet.size for packet in down)
    return {"packets_per_token": len(down) / count, "bytes_per_token": size / count}


def _server(seen: Observed) -> dict[str, float | None]:
    count = _count(seen)
    found: dict[str, float | None] = {}
    if seen.cpu_s is not None and count and not seen.log["bulk"]:
        found["cpu_us_per_token"] = seen.cpu_s / count * 1e6
    if seen.memory_grown is not None:
        found["memory_grown_mb"] = seen.memory_grown / 1e6
    return found


def _bulk(seen: Observed) -> dict[str, float | None]:
    rates = [_rate(flow) for flow in seen.log["bulk"]]
    if len(rates) < 2:
        return {}
    return {"fairness": jain(rates), "bulk_mbit": rates[0] / 1e6}


def _rate(flow: dict[str, Any]) -> float:
    """Returns the rate of a download in bits a second."""
    return float(flow["size"] * 8e9 / max(flow["end_ns"] - flow["sent_ns"], 1))


def errors(streams: Iterable[dict[str, Any]]) -> dict[str, int]:
    """Counts how often each error ended a stream that was not stopped."""
    return dict(Counter(s["error"] for s in streams if s["error"] and not s["stopped_ns"]))
