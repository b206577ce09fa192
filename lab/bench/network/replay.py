"""What an attacker gains by recording first flights with early data (0-RTT) and sending them again.

    python -m bench replay [--rounds 8]

500 clients come back, each with a completion in its first flight; a relay on the way keeps the datagrams.
They are sent again, round after round, each time from other ports: to the worker that took them, by both ways
that datagrams find it (BPF; forwarding, whichever worker the kernel hands them to), and to a server that was
started again. Half of the requests have an `Idempotency-Key`; the others are on a path where the policy is to
run them at once, so that nothing but the single use of tickets stands between a replay and a second
generation. Between two rounds half-open handshakes are forgotten, so that each replay begins a handshake of
its own.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any

from tests.helpers.udp_relay import UdpRelay

from bench import common
from headrace import AsyncClient, Config, Trust, dev_certificate
from headrace.gateway import Gateway
from headrace_lab.clients import load
from headrace_lab.model import Source

FLIGHTS, WORKERS, HANDSHAKE_S = 500, 4, 0.25
AT_ONCE = 20
FORGOTTEN_S = 4.0
"""The time after which a server that gave up a handshake has forgotten its connection ID: three probe
timeouts of a path that it knows nothing of (RFC 9000 §10.2). Until then a replay would only be a late
packet of it."""

BODY = json.dumps({"model": "scripted", "script": {"events": 2, "interval_s": 0.001}}).encode()


def gateway(certificate: dev_certificate.Certificate, source: Source, steering: str, port: int) -> Gateway:
    sections: dict[str, Any] = {
        "listen": {"port": port, "workers": WORKERS, "steering": steering},
        "upstreams": [{"url": source.url, "models": ["*"]}],
        "early_data": {"routes": {"/v1/unkeyed": "run"}},
        # Otherwise Retry would meet the replays before their tickets do.
        "limits": {"retry_above_handshakes": 10_000, "max_handshakes": 10_000},
        "timeouts": {"handshake_s": HANDSHAKE_S},
    }
    config = Config(**sections)
    return Gateway(config, certificate.chain_pem, certificate.key_pem)


async def record(port: int, trust: Trust, number: int) -> list[bytes]:
    """The first flight of a client that comes back, after all of it was answered."""
    async with UdpRelay(port) as relay:
        at = f"https://localhost:{relay.port}"
        async with AsyncClient(trust, keep_idle=0.05) as client:
            await (await client.request("GET", f"{at}/healthz")).read()
            await asyncio.sleep(0.5)
            relay.kept.clear()
            is_keyed = number % 2 == 0
            headers = [*load.HEADERS, *([("idempotency-key", f"flight {number}")] if is_keyed else [])]
            path = "/v1/chat/completions" if is_keyed else "/v1/unkeyed"
            response = await client.request("POST", at + path, headers, BODY, replay_safe=True)
            await response.read()
            if not response.early_data:
                raise RuntimeError(f"flight {number} had no early data")
            # What follows the server's first answer is of no use to anybody else.
            flight = relay.kept[:3]
        # The relay takes the client's goodbye along.
        await asyncio.sleep(0.1)
        return flight


async def replay(port: int, flights: list[list[bytes]], rounds: int) -> None:
    loop = asyncio.get_running_loop()
    for _ in range(rounds):
        for flight in flights:
            transport, _ = await loop.create_datagram_endpoint(
                asyncio.DatagramProtocol, remote_addr=("127.0.0.1", port)
            )
            for datagram in flight:
                transport.sendto(datagram)
            transport.close()
        await asyncio.sleep(FORGOTTEN_S)


async def attack(steering: str, rounds: int) -> list[dict[str, Any]]:
    certificate = dev_certificate.make(["localhost"])
    trust = Trust(ca_pem=certificate.ca_pem)
    async with Source() as source:
        target = gateway(certificate, source, steering, 0)
        async with target:
            port = target.server.address[1]
            flights: list[list[bytes]] = []
            for first in range(0, FLIGHTS, AT_ONCE):
                numbers = range(first, first + AT_ONCE)
                flights += await asyncio.gather(*(record(port, trust, number) for number in numbers))
            await asyncio.sleep(FORGOTTEN_S)
            generated = len(source.runs)
            rows = [await count("the same server", target, source, flights, rounds)]
        target = gateway(certificate, source, steering, port)
        async with target:
            rows.append(await count("started again", target, source, flights, rounds // 4))
    if generated != FLIGHTS:
        raise RuntimeError(f"{FLIGHTS} flights were {generated} generations")
    return [{"steering": steering, **row} for row in rows]


async def count(
    where: str, target: Gateway, source: Source, flights: list[list[bytes]], rounds: int
) -> dict[str, Any]:
    before = target.server.snapshot()
    generated = len(source.runs)
    await replay(target.server.address[1], flights, rounds)
    after = target.server.snapshot()
    return {
        "where": where,
        "attempts": rounds * len(flights),
        "tickets_refused": after["unknown_tickets_total"] - before["unknown_tickets_total"],
        "early_requests": after["early_requests_total"] - before["early_requests_total"],
        "generations": len(source.runs) - generated,
    }


def main(arguments: list[str] | None = None, keep: bool = True) -> dict[str, Any]:
    parser = common.parser("replay", __doc__)
    parser.add_argument("--rounds", type=int, default=8, help="and a quarter of it after a restart")
    options = parser.parse_args(arguments)
    rows = [row for steering in ("bpf", "forward") for row in asyncio.run(attack(steering, options.rounds))]
    for row in rows:
        print(common.shown(row))
    result = {"flights": FLIGHTS, "workers": WORKERS, "rows": rows}
    if keep:
        common.write("network/replay", f"python -m bench replay --rounds {options.rounds}", result)
    return result
