"""The part of `docs/measurements.md` that is about clients."""

from __future__ import annotations

from collections import Counter
from typing import Any


def client(result: dict[str, Any]) -> str:
    names = {
        "headrace-httpx2": "headrace's transport in httpx2",
        "headrace": "headrace's own client",
        "pyqwest": f"pyqwest {result['versions']['pyqwest']}",
        "niquests": f"niquests {result['versions']['niquests']}",
        "curl_cffi": f"curl_cffi {result['versions']['curl_cffi']}",
        "httpx2": f"httpx2 {result['versions']['httpx2']} over HTTP/2",
    }
    cases = result["cases"]

    def value(case: str, name: str, field: str, form: str) -> str:
        found = cases[case][name].get(field)
        return "" if found is None else format(found, form)

    cpu, burst, notes = "", "", ""
    for name, title in names.items():
        for case in cases:
            for error, count in Counter(cases[case][name]["errors"]).items():
                notes += f"- {title}, {case}, {count} of {result['rounds']}: {error}\n"
        figures = [value(case, name, "us", ".1f") for case in ("aligned", "spread")]
        figures += [value(case, name, "ours_over", ".2f") for case in ("aligned", "spread")]
        cpu += f"| {title} | {' | '.join(figures)} |\n"
        fields = ("wall_ms", "first_p50_ms", "first_p99_ms")
        burst += f"| {title} | {' | '.join(value('burst', name, field, '.0f') for field in fields)} |\n"
    return (
        "## Clients in Python\n\n"
        "Each client in a process of its own, asyncio, raw bytes (no SSE is parsed), from the same gateway; over\n"
        "HTTP/3 where nothing else is said. CPU: user and system time of the client's process in µs for each\n"
        "190-byte event the model sent, 64 streams, one event every 20 ms; *aligned* and *spread* as above.\n"
        f"*Transport's share*: headrace's transport in httpx2 over this one, median of {result['rounds']} paired ratios.\n\n"
        "| µs | aligned | spread | transport's share, aligned | spread |\n|---|---|---|---|---|\n"
        f"{cpu}\n"
        "200 streams at once over a warm client, 20 events each, 5 ms apart, while the gateway allows 100 on one\n"
        "connection: until all have ended, and until the first byte of each. With one connection it takes at least\n"
        "two rounds of 100 ms; niquests opens up to ten.\n\n"
        "| ms | all have ended | first byte, p50 | p99 |\n|---|---|---|---|\n"
        f"{burst}" + (f"\nRounds that failed, and why:\n\n{notes}" if notes else "")
    )


def imports(result: dict[str, Any]) -> str:
    columns = [name for name in ("before", "now") if name in result["cpu_ms"]]
    rows = ""
    for statement in result["cpu_ms"]["now"]:
        found = [result["cpu_ms"][name][statement] for name in columns]
        cells = [f"{each['median']:.0f} | {each['over_httpx2']:+.0f}" for each in found]
        rows += f"| `{statement}` | {' | '.join(cells)} |\n"
    head = " | ".join(f"{name} | over httpx2" for name in columns)
    return (
        "## What an import costs\n\n"
        "Processor time of a process that runs the statement and ends, user and system; statements take turns, median\n"
        f"of {result['rounds']} rounds. *Before*: headrace as one distribution that brought the server's packages along\n"
        "(commit 8f310fa).\n\n"
        f"| ms | {head} |\n|---|{'---|' * 2 * len(columns)}\n"
        f"{rows}"
    )


def soak(result: dict[str, Any]) -> str:
    rows = "".join(
        f"| {state['requests']} | {state['private_mb']:.1f} | {state['descriptors']} | {state['objects']} |\n"
        for state in result["states"]
    )
    before, after = result["gateway_mb"]
    return (
        "## Whether a client leaks\n\n"
        "Requests by one transport in httpx2, every twentieth of them stopped; counted after a warm-up of 5,000.\n"
        f"The gateway's private memory: {before:.1f} MB before, {after:.1f} MB after.\n\n"
        "| requests | private memory, MB | descriptors | Python objects |\n|---|---|---|---|\n"
        f"{rows}"
    )


def fallback(result: dict[str, Any]) -> str:
    first, second = result["first_ms"], result["second_ms"]
    return (
        "## A network that drops UDP\n\n"
        "Two network namespaces, UDP dropped on the server's side. A fresh client of httpx2's own over TCP, and a\n"
        f"fresh one that tries HTTP/3 first (the default), {result['rounds']} times each by turns; medians.\n\n"
        "| ms | TCP alone | HTTP/3 first | added |\n|---|---|---|---|\n"
        f"| first request | {first['tcp']:.1f} | {first['race']:.1f} | {result['added_to_the_first_ms']:.1f} |\n"
        f"| second request | {second['tcp']:.1f} | {second['race']:.1f} | {result['added_to_the_second_ms']:.1f} |\n"
    )
