"""Logs made by hand: what clients would have seen, in milliseconds."""

from __future__ import annotations

from typing import Any

from headrace_lab.measure.measures import Observed, Packet

MS = 1_000_000
START = 1_000_000 * MS


def at(ms: float) -> int:
    return START + int(ms * MS)


def stream(
    arrivals: list[float],
    due: list[float] | None = None,
    number: int = 0,
    sent: float = 0.0,
    end: float | None = None,
    **fields: Any,
) -> dict[str, Any]:
    """Token `n` was due at `due[n]` (20 ms apart unless it is said) and came at `arrivals[n]`."""
    due = [20.0 * n for n in range(len(arrivals))] if due is None else due
    tokens = [
        [n, at(d) if d is not None else 0, at(d or 0), at(a)]
        for n, (d, a) in enumerate(zip(due, arrivals, strict=True))
    ]
    last = end if end is not None else max(arrivals, default=sent)
    return {
        "number": number,
        "connection": 0,
        "tag": f"{number}.0",
        "connect_ns": 0,
        "sent_ns": at(sent),
        "head_ns": at(sent),
        "end_ns": at(last),
        "stopped_ns": 0,
        "status": 200,
        "encoding": "",
        "error": "",
        "done": True,
        "said_error": False,
        "size": 190 * len(arrivals),
        "chunks": len(arrivals),
        "tokens": tokens,
    } | {name: at(value) if name.endswith("_ns") else value for name, value in fields.items()}


def observed(*streams: dict[str, Any], **fields: Any) -> Observed:
    """`lost`: when packets to the client were lost. `load`: of the workload."""
    load = {"stop_places": 0, "slow_places": 0, "script": {}} | fields.pop("load", {})
    bulk = fields.pop("bulk", [])
    lost = [Packet(at(ms), True, 300, True) for ms in fields.pop("lost", [])]
    log = {"workload": load, "t0_ns": START, "streams": list(streams), "bulk": bulk}
    return Observed(log, **{"packets": lost, "rtt_ms": 60.0, **fields})
