"""The part of `docs/measurements.md` that needs a network: paths with a delay, moves, losses, deploys."""

from __future__ import annotations

from typing import Any

from bench.report.figures import quantiles


def move(result: dict[str, Any]) -> str:
    return (
        "## A walk from one network to another\n\n"
        "Two network namespaces joined by two links. While an answer streams, a token every 20 ms, the route changes\n"
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
        "The lab's link, without loss, at three round trips (R). A token every 20 ms; the longest gap between two of\n"
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
        f"token every 20 ms; {result['moves']} moves to\n"
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
            p50, p90, python = (found[of] - whole * trip for of in ("p50", "p90", "python_p50"))
            cells.append(f"{whole} R + {p50:.1f} (p90 {p90:.1f}; {python:.1f})")
        rows += f"| {row['delay_ms']} | {trip:.2f} | {names[row['server']]} | {' | '.join(cells)} |\n"
    return (
        "## A first token over a path with a delay\n\n"
        "The lab's link, without loss, with four delays; R is the round trip as ping measures it on that path, in the\n"
        "same turns: the delay, the two network stacks and the emulator. From the call in the client's Python until the\n"
        "client's engine has read the first token, as whole R and the milliseconds on top, in which are the client, the\n"
        "server, a model server that answers at once, and its loopback. *warm*: on an open connection; *cold*: on a new\n"
        "one; *early*: on a new one to a server that was asked before, the request in its first flight (0-RTT). Median,\n"
        f"in brackets p90, and the median until Python has the token; of {result['rounds']}. The emulator keeps the "
        "processors from\n"
        f"sleeping, and was {result['link']['lateness_ms']['p99']:.2f} ms late (p99) in each direction. headrace's "
        "client\n"
        "asks all three servers by turns, each at its default settings; Envoy runs one worker, because each of its workers\n"
        "takes its own tickets alone. More in [first-token.md](first-token.md).\n\n"
        "| delay, ms | R, ms | server | warm | cold | early |\n|---|---|---|---|---|---|\n"
        f"{rows}{lossy(result.get('lossy'))}"
    )


def lossy(result: dict[str, Any] | None) -> str:
    if result is None:
        return ""
    rows = "".join(
        f"| {row['server'].replace('-no-echo', ', no echo')} | {row['p50']:.0f} | {row['p90']:.0f} |"
        f" {row['p99']:.0f} | {row['p99'] / result['round_trip_ms']:.2f} | {row['samples']} |\n"
        for row in result["rows"]
    )
    return (
        f"\nCold, at a round trip of {result['round_trip_ms']:.0f} ms, with {result['loss']:.0%} of packets lost in "
        "both directions, milliseconds:\n\n| server | p50 | p90 | p99 | p99 in R | samples |\n|---|---|---|---|---|---|\n"
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
        f"or one alone; {result['tokens']} tokens each, one every 20 ms, those of all streams at once: what [the echo]"
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
