"""Writes `docs/measurements.md` from `bench/results/`: `python -m bench.report`. A test fails when they
differ."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

from bench.common import RESULTS

PAGE = Path(__file__).parent.parent / "docs" / "measurements.md"
PEERS = ("caddy", "envoy")


def page() -> str:
    """Of what has been measured."""
    files = {name: RESULTS / f"{name}.json" for name in SECTIONS}
    parts = {name: json.loads(file.read_text()) for name, file in files.items() if file.exists()}
    return INTRODUCTION + "\n".join(f"{SECTIONS[name](part)}\n{about(part)}" for name, part in parts.items())


def write() -> str:
    PAGE.write_text(page())
    return "docs/measurements.md"


INTRODUCTION = """\
# Measurements

What headrace costs and how fast it is, beside Caddy and Envoy (their PyPI wheels). `make bench` makes all of
it again, `make bench-quick` a short form that keeps nothing. Every table ends with the command, the commit
and the machine it comes from.

How to read them: everything runs on one machine, over loopback, with the model server, the proxy and the load
sharing its cores, so absolute figures belong to that machine. Only figures of one table compare: proxies take
turns within a run, each alone. The model server is a script
([`headrace.lab.source`](../python/headrace/lab/source.py)), because a real model's own pauses would hide what
is measured here; `make demo` runs a real one. Where a path has a delay, the lab's link
([`headrace.lab.link`](../python/headrace/lab/link.py)) makes it. Loss is not measured yet.

"""


def about(result: dict[str, Any]) -> str:
    machine = result["machine"]
    return (
        f"`{result['command']}` · commit {result['commit']} · {result['date']} · {machine['cpu']}, "
        f"{machine['cores']} cores, Linux {machine['kernel']}, Python {machine['python']}\n"
    )


def tokens(result: dict[str, Any]) -> str:
    inside = result["in_gateway_p99_ms"]
    return (
        "## A token's way through the gateway\n\n"
        f"{result['tokens']} tokens of 100 streams, 50 a second each. *In the gateway*: from the read of an event\n"
        "until its DATA frame is with the transport, as the `RelayReport` has it. *The whole way*: from the model's\n"
        "stamp before it writes to the read of the client's socket; in it are the model's Python, two loopback hops\n"
        "and three processes on two cores.\n\n"
        "| ms | p50 | p90 | p99 | max |\n|---|---|---|---|---|\n"
        f"| the whole way | {quantiles(result['whole_way_ms'])} |\n"
        f"| in the gateway, p99 of the median stream | | | {inside['median_stream']:.3f} | |\n"
        f"| in the gateway, p99 of the worst stream | | | {inside['worst_stream']:.3f} | |\n"
    )


def stop(result: dict[str, Any]) -> str:
    return (
        "## Stop\n\n"
        f"{result['stops']} streams stopped at random phases, three in ten during a silent prefill, all on one\n"
        "connection with eight neighbours. From the client's `stop()` until the model server saw its connection\n"
        f"closed. Neighbours disturbed: {result['neighbours_disturbed']}; stops not seen: {result['not_seen']}.\n\n"
        "| ms | p50 | p90 | p99 | max |\n|---|---|---|---|---|\n"
        f"| stop to upstream closed | {quantiles(result['ms'])} |\n"
    )


def requests(result: dict[str, Any]) -> str:
    short = result["short_requests"]
    return (
        "## First token and short requests\n\n"
        "200 requests a second, open loop, by turns straight to the model server (HTTP/1.1, kept alive) and through\n"
        "the gateway (HTTP/3, warm), timed in the client's Python. *added*: the difference of the two quantiles.\n\n"
        "| ms | p50 | p90 | p99 | max |\n|---|---|---|---|---|\n"
        f"| straight | {quantiles(result['first_token_direct_ms'])} |\n"
        f"| through the gateway | {quantiles(result['first_token_gateway_ms'])} |\n"
        f"| added | {quantiles(result['added_ms'] | {'max': None})} |\n\n"
        f"Short requests: of {short['offered_per_s']:g} offered a second, {short['answered_per_s']:.0f} a second were\n"
        "answered, by one process with two workers, the model server and the load beside it on two cores.\n\n"
        "| ms | p50 | p90 | p99 | max |\n|---|---|---|---|---|\n"
        f"| a whole short request | {quantiles(short['ms'])} |\n"
    )


def memory(result: dict[str, Any]) -> str:
    stalled = result["stalled_reader"]
    rows = "".join(
        f"| {name} | {of['idle_mb']:.1f} | {of['connection_kb']:.0f} | {of['stream_kb']:.1f} |\n"
        for name in ("headrace", *PEERS)
        for of in [result[name]]
    )
    return (
        "## Memory\n\n"
        "Private memory of the proxy's process: idle, for each further connection, and for each stream that has\n"
        f"begun and waits for its next token ({result['streams']} streams on 20 connections, 100\n"
        "allowed on each).\n\n"
        "| | idle, MB | connection, kB | stream, kB |\n|---|---|---|---|\n"
        f"{rows}\n"
        f"A reader that stops for {stalled['seconds']:g} s while the model wants to send 50 MB: the gateway grew by\n"
        f"{stalled['grown_mb']:.1f} MB, the model's send stalled after {stalled['sent_by_the_model_mb']:.1f} MB (the\n"
        "kernel's socket buffers), and after it read on, "
        f"{'every byte arrived' if stalled['is_whole'] else 'bytes were missing'}.\n"
    )


def relay_cpu(result: dict[str, Any]) -> str:
    rows = ""
    missed = ", ".join(
        f"{row['case']} against {name.capitalize()}"
        for row in result["rows"]
        for name in PEERS
        if row["ours_over"][name] > 0.5
    )
    for row in result["rows"]:
        values = " | ".join(f"{row['median'][name]:.1f}" for name in ("headrace", *PEERS))
        ratios = " | ".join(f"{row['ours_over'][name]:.2f}" for name in PEERS)
        rows += f"| {row['case']} | {values} | {ratios} |\n"
    versions = ", ".join(f"{name.capitalize()} {result['versions'][name]}" for name in PEERS)
    return (
        "## CPU of a relayed token\n\n"
        f"CPU of the proxy's process in µs for each 190-byte SSE event, one worker each; {versions}. *1x64*: 64\n"
        "streams on one connection; *64x1*: 64 connections with one stream. *aligned*: all tokens at one moment, as\n"
        "a batch's decode step sends them; *spread*: over the interval of 20 ms. Median of "
        f"{len(result['rows'][0]['samples']['headrace'])} rounds; the ratios are medians of paired ratios.\n\n"
        "| case | headrace | Caddy | Envoy | of Caddy's | of Envoy's |\n|---|---|---|---|---|---|\n"
        f"{rows}\n"
        f"The aim is half of each peer's; it is missed in {missed or 'no case'}. With one stream on a connection each\n"
        "token has a datagram, a wake-up and half an acknowledgement of its own, so nothing is shared, and the kernel's\n"
        "part (a `recv`, a `sendmsg` over loopback, the sleep between; much the same for all three) is about half of\n"
        "what headrace takes. The other half is most of all QUIC's own work for a connection that is cold in the cache.\n"
    )


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
        "190-byte event the model sent, 64 streams, one event each 20 ms; *aligned* and *spread* as above.\n"
        f"*Transport's share*: headrace's transport in httpx2 over this one, median of {result['rounds']} paired ratios.\n\n"
        "| µs | aligned | spread | transport's share, aligned | spread |\n|---|---|---|---|---|\n"
        f"{cpu}\n"
        "200 streams at once over a warm client, 20 events each, 5 ms apart, while the gateway allows 100 on one\n"
        "connection: until all have ended, and until the first byte of each. With one connection it takes at least\n"
        "two rounds of 100 ms; niquests opens up to ten.\n\n"
        "| ms | all have ended | first byte, p50 | p99 |\n|---|---|---|---|\n"
        f"{burst}" + (f"\nRounds that failed, and why:\n\n{notes}" if notes else "")
    )


def quantiles(values: dict[str, Any]) -> str:
    shown = (values[name] for name in ("p50", "p90", "p99", "max"))
    return " | ".join("" if value is None else f"{value:.3f}" for value in shown)


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


def move(result: dict[str, Any]) -> str:
    return (
        "## A walk from one network to another\n\n"
        "Two network namespaces joined by two links. While an answer streams, a token each 20 ms, the route changes\n"
        "from one link to the other and the link that was left goes down; the client is told nothing and follows the\n"
        f"system's routes. {result['walks']} walks on one connection, every event of every answer arrived. The links\n"
        "have no delay of their own, so this is what headrace and the kernel take; a real path adds its round trip.\n\n"
        "| ms | p50 | p90 | p99 | max |\n|---|---|---|---|---|\n"
        f"| longest gap of a walk (20 ms of it are the tokens') | {quantiles(result['longest_gap_ms'])} |\n"
    )


def move_link(result: dict[str, Any]) -> str:
    rows = "".join(
        f"| {row['server']} | {row['change']} | {row['round_trip_ms']} | {figures} | {row['allowed_ms']:.0f} |"
        f" {row['beyond']} of {row['samples']} | {len(row['broken'])} |\n"
        for row in result["rows"]
        for figures in [" | ".join(f"{row['gap_ms'].get(name, 0):.0f}" for name in ("p50", "p90", "max"))]
    )
    return (
        "## A change of network, over a path with a delay\n\n"
        "The lab's link, without loss, at three round trips (R). A token each 20 ms; the longest gap between two of\n"
        "them, in which 20 ms are the tokens' own. *known*: the client's routes change to another address, by which\n"
        "the old one still works; *cut*: it is gone at once; *port*, *address*: a NAT gives the client another one\n"
        "and tells nobody, while the client only listens. *aim*: R + 20 ms, and 250 ms + 2 R for what nobody is told.\n"
        f"The emulator was {result['link']['lateness_ms']['p99']:.2f} ms late (p99). More in [moving.md](moving.md).\n\n"
        "| server | change | R, ms | p50 | p90 | max | aim | beyond it | broke off |\n"
        "|---|---|---|---|---|---|---|---|---|\n"
        f"{rows}\n"
        "With the old path cut, the tokens that were on it are lost; the server knows that when the first\n"
        "acknowledgement has come by the new path, at 2 R, and until then they hold up those behind them.\n"
    )


def move_many(result: dict[str, Any]) -> str:
    return (
        "## Many walks at one time\n\n"
        f"{result['connections']} connections to {result['workers']} workers over loopback, each with an answer, a "
        f"token each 20 ms; {result['moves']} moves to\n"
        "other sockets, each at a random moment. Answers of which every byte was what the model server had sent:\n"
        f"**{result['survived']}** of {result['connections']}.\n"
    )


def first_token(result: dict[str, Any]) -> str:
    versions = result["versions"]
    names = {
        "headrace": "headrace",
        "caddy": f"Caddy {versions['caddy']}",
        "envoy": f"Envoy {versions['envoy']}",
        "http2": "httpx2, HTTP/2",
    }
    rows = ""
    for row in result["rows"]:
        trip, cells = row["round_trip_ms"], []
        for case, trips in (("warm", 1), ("cold", 2), ("early", 1)):
            if not (found := row["cases"].get(case)):
                cells.append("not offered")
                continue
            whole = (3 if case == "cold" else 1) if row["server"] == "http2" else trips
            cells.append(
                f"{whole} R + {found['p50'] - whole * trip:.1f} (p90 {found['p90'] - whole * trip:.1f})"
            )
        rows += f"| {trip} | {names[row['server']]} | {' | '.join(cells)} |\n"
    return (
        "## A first token over a path with a delay\n\n"
        "The lab's link, without loss, at four round trips (R). From the call in the client's Python until the first\n"
        "token is in its hands, as whole round trips and the milliseconds on top, in which are the client, the\n"
        "server, the scripted model server and its loopback. *warm*: on an open connection; *cold*: on a new one;\n"
        "*early*: on a new one to a server that was asked before, the request in its first flight (0-RTT). Median\n"
        f"(and p90) of {result['rounds']}. The emulator was {result['link']['lateness_ms']['p99']:.2f} ms late (p99), "
        "in each direction. headrace's\n"
        "client asks all three servers, each at its default settings; Envoy runs one worker, because each of its\n"
        "workers takes its own tickets alone. More in [first-token.md](first-token.md).\n\n"
        "| R, ms | server | warm | cold | early |\n|---|---|---|---|---|\n"
        f"{rows}"
    )


def replay(result: dict[str, Any]) -> str:
    rows = "".join(
        f"| {row['where']} | {row['steering']} | {row['attempts']} | {row['tickets_refused']} |"
        f" {row['early_requests']} | {row['generations']} |\n"
        for row in result["rows"]
    )
    return (
        "## Recorded first flights\n\n"
        f"The first flights of {result['flights']} clients, each with a completion in early data, were kept on the way "
        "and sent again,\n"
        f"to a server with {result['workers']} workers and to one that was started again; half of them without an "
        "`Idempotency-Key`,\n"
        "on a path where the policy is to run them at once. *refused*: the server began a handshake, and knew the\n"
        "ticket as used.\n\n"
        "| server | steering | sent again | tickets refused | requests taken | generations |\n"
        f"|---|---|---|---|---|---|\n{rows}"
    )


def echo(result: dict[str, Any]) -> str:
    rows, steady = [], []
    for row in result["rows"]:
        gap, name = row["gap_ms"], row["server"].replace("-no-echo", ", no echo")
        shape = f"| {row['streams']} | {row['path']} | {row['client']} | {name} |"
        rows.append(
            f"{shape} {row['stalls_per_1000']:.2f} | {row['worst_seed']:.1f} | {gap['p99']:.0f} |"
            f" {gap['p99.9']:.0f} | {row.get('stalled_per_loss', 0):.2f} | {row['bytes_per_token']:.0f} |"
            f" {row['cpu_us_per_token']:.0f} | {row['runs']} |\n"
        )
        if "further_bytes_per_token" in row:
            steady.append(
                f"| {row['streams']} | {row['client']} | {name} | {row['further_bytes_per_token']:.1f} |"
                f" {row['further_cpu_us_per_token']:.1f} ± {row['further_cpu_us_per_token_spread']:.1f} |\n"
            )
    return (
        "## Lost packets\n\n"
        f"The lab's link, a round trip of {result['round_trip_ms']} ms, packets lost in both directions; 16 streams on "
        "one warm connection,\n"
        f"or one alone; {result['tokens']} tokens each, one each 20 ms, those of all streams at once: what [the echo]"
        "(echo.md) does. A stall is\n"
        "a gap of more than 80 ms. The connection's first five seconds, in which all is sent twice or thrice, are "
        "most of\n"
        "each run, so bytes and CPU are those of the worst case.\n\n"
        "| streams | lost | client | server | stalls per 1,000 tokens | worst seed | gap p99, ms | p99.9 | streams late "
        "per lost packet | bytes per token | CPU per token, µs | runs |\n"
        "|---|---|---|---|---|---|---|---|---|---|---|---|\n"
        + "".join(rows)
        + "\nWithout loss, from the seventh "
        "second on (medians, and half of the range over the runs):\n\n"
        "| streams | client | server | bytes per token | CPU per token, µs |\n|---|---|---|---|---|\n"
        + "".join(steady)
    )


def overload(result: dict[str, Any]) -> str:
    rows, shares = [], []
    for row in result["rows"]:
        if "tcp_mbit" in row:
            shares.append(
                f"| {row['case']} | {row['server']} | {row['tcp_mbit']:.2f} | {row['ours_mbit']:.2f} |"
                f" {row['latest_copy_s']:.2f} | {row['runs']} |\n"
            )
        else:
            rows.append(
                f"| {row['server']} | {row['done_s']:.1f} | {row['gap_p99_ms']:.0f} | {row['gap_p999_ms']:.0f} |"
                f" {row['latest_copy_s']:.2f} | {row['runs']} |\n"
            )
    return (
        "## A link that is full\n\n"
        f"The lab's link, a round trip of {result['round_trip_ms']} ms, 1 Mbit/s with a queue of 32 kB, and 1.5 Mbit/s "
        "of tokens (16 streams,\n20 s) for it; the client is qh3. Medians of the runs; the last copy of all runs.\n\n"
        "| server | done after, s | gap p99, ms | p99.9 | last copy after, s | runs |\n|---|---|---|---|---|---|\n"
        + "".join(rows)
        + "\nBeside a TCP connection with CUBIC that sends all it can: the same tokens on the same link, and a stream "
        "that sends\nall it can at 10 Mbit/s with a queue of 64 kB. What came through from the eleventh second to the "
        "fortieth:\n\n| | server | TCP, Mbit/s | headrace, Mbit/s | last copy after, s | runs |\n"
        "|---|---|---|---|---|---|\n" + "".join(shares)
    )


def drain(result: dict[str, Any]) -> str:
    streams, kinds = result["streams"], result["requests"]
    rows = [
        f"| {kind} | {count + sum(result['failed'].get(kind, {}).values())} |"
        f" {sum(result['failed'].get(kind, {}).values())} | {result['sent_again'].get(kind, 0)} |\n"
        for kind, count in kinds.items()
    ]
    return (
        "## A deploy\n\n"
        f"Two gateways at two addresses of one name. {streams['running_at_sigterm']} answers, a token each 20 ms, "
        "run through\n"
        f"the first, and {result['people']} people with each kind of client keep asking by the name, when it gets "
        "SIGTERM.\n"
        f"Answers whose bytes are not exactly what the model server sent: **{streams['cut']}**; exit status "
        f"{result['exit_status']}. httpx over HTTP/2\n"
        "does not notice GOAWAY on an idle connection; there a request that failed before its answer began was\n"
        "sent once more, as OpenAI's SDK does.\n\n"
        f"| client | requests | failed | sent again |\n|---|---|---|---|\n{''.join(rows)}"
    )


SECTIONS = {
    "tokens": tokens,
    "stop": stop,
    "requests": requests,
    "memory": memory,
    "relay_cpu": relay_cpu,
    "client": client,
    "soak": soak,
    "fallback": fallback,
    "move": move,
    "move_link": move_link,
    "move_many": move_many,
    "first_token": first_token,
    "replay": replay,
    "echo": echo,
    "overload": overload,
    "drain": drain,
}

if __name__ == "__main__":
    print(f"-> {write()}")
