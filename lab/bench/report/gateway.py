"""The part of `docs/measurements.md` that is about the gateway itself."""

from __future__ import annotations

from typing import Any

from bench.report.figures import PEERS, quantiles


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
    short, took = result["short_requests"], result["first_token_ms"]
    notes = {"awake": "", "asleep": ", processors may sleep"}
    rows = "".join(
        f"| straight{notes[state]} | {quantiles(of['direct'])} |\n"
        f"| through the gateway{notes[state]} | {quantiles(of['gateway'])} |\n"
        f"| added{notes[state]} | {quantiles(of['added'] | {'max': None})} |\n"
        for state, of in took.items()
    )
    return (
        "## First token and short requests\n\n"
        "200 requests a second, open loop, by turns straight to the model server (HTTP/1.1, kept alive) and through\n"
        "the gateway (HTTP/3, warm), timed in the client's Python. *added*: the difference of the two quantiles;\n"
        "the aim is at most 0.5 at the median and 2 at p99. In half of the turns the processors are kept from\n"
        "sleeping, as under load or in the lab; the gateway's way has more wake-ups in it than the straight one.\n\n"
        "| ms | p50 | p90 | p99 | max |\n|---|---|---|---|---|\n"
        f"{rows}\n"
        f"Short requests: of {short['offered_per_s']:g} offered a second, {short['answered_per_s']:.0f} a second were\n"
        "answered, by one process with two workers, the model server and the load beside it on two cores; the aim is\n"
        "2,000.\n\n"
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
    missed = ", ".join(
        f"{row['case']} against {name.capitalize()}"
        for row in result["rows"]
        for name in PEERS
        if row["ours_over"][name] > 0.5
    )
    versions = ", ".join(f"{name.capitalize()} {result['versions'][name]}" for name in PEERS)
    return (
        "## CPU of a relayed token\n\n"
        f"CPU of the proxy's process in µs for each 190-byte SSE event, one worker each; {versions}. *1x64*: 64\n"
        "streams on one connection; *64x1*: 64 connections with one stream; so with 256. *aligned*: all tokens at one\n"
        "moment, as a batch's decode step sends them; *spread*: over the interval of 20 ms. Median of "
        f"{len(result['rows'][0]['samples']['headrace'])} rounds; the ratios are medians of paired ratios. The\n"
        "processors are kept from sleeping, as in the lab.\n\n"
        f"{cpu_rows(result)}\n"
        f"The aim is half of each peer's; it is missed in\n{missed or 'no case'}. With one stream on a connection each\n"
        "token has a datagram, a wake-up and half an acknowledgement of its own, so nothing is shared, and the kernel's\n"
        "part (a `recv`, a `sendmsg` over loopback, in which the client is woken and its half of the network stack\n"
        "runs, the sleep between) is much the same for all three. The rest is QUIC's own work for a connection that\n"
        "is cold in the cache, and that of tasks which wake each other. With 256 streams the process sleeps less\n"
        "between tokens.\n"
    )


def relay_cpu_asleep(result: dict[str, Any]) -> str:
    return (
        "### The same where processors may sleep\n\n"
        "A virtual machine asks its hypervisor to wake a sleeping processor, and part of that counts as CPU of whoever\n"
        "sends a datagram. This table is not of `make bench`, but of its command alone.\n\n"
        f"{cpu_rows(result)}"
    )


def cpu_rows(result: dict[str, Any]) -> str:
    rows = ""
    for row in result["rows"]:
        values = " | ".join(f"{row['median'][name]:.1f}" for name in ("headrace", *PEERS))
        ratios = " | ".join(f"{row['ours_over'][name]:.2f}" for name in PEERS)
        rows += f"| {row['case']} | {values} | {ratios} |\n"
    return f"| case | headrace | Caddy | Envoy | of Caddy's | of Envoy's |\n|---|---|---|---|---|---|\n{rows}"


def drain(result: dict[str, Any]) -> str:
    streams, kinds = result["streams"], result["requests"]
    rows = [
        f"| {kind} | {count + sum(result['failed'].get(kind, {}).values())} |"
        f" {sum(result['failed'].get(kind, {}).values())} | {result['sent_again'].get(kind, 0)} |\n"
        for kind, count in kinds.items()
    ]
    return (
        "## A deploy\n\n"
        f"Two gateways at two addresses of one name. {streams['running_at_sigterm']} answers, a token every 20 ms, "
        "run through\n"
        f"the first, and {result['people']} people with each kind of client keep asking by the name, when it gets "
        "SIGTERM.\n"
        f"Answers whose bytes are not exactly what the model server sent: **{streams['cut']}**; exit status "
        f"{result['exit_status']}. httpx over HTTP/2\n"
        "does not notice GOAWAY on an idle connection; there a request that failed before its answer began was\n"
        "sent once more, as OpenAI's SDK does.\n\n"
        f"| client | requests | failed | sent again |\n|---|---|---|---|\n{''.join(rows)}"
    )
