"""The emulator measures itself: `python -m headrace_lab.link --self-test`.

In: this machine. Out: whether delay, losses and rate are what they should be, with every core busy. The
delay is taken from the moment before `send` to the kernel's stamp of the arrival, so it includes what a
sender and the two devices add to the emulator's own lateness. The losses are computed a second time here,
and the rate is compared with that of the kernel's token bucket filter (`tc qdisc add ... tbf`) on the same
namespaces.
"""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import NamedTuple

from headrace_lab.link.link import Link
from headrace_lab.link.process import DEVICE
from headrace_lab.link.profiles import Profile

PORT = 5000
DELAY_MS = 10.0
EVERY_S = 0.002
LOSS, BURST = 0.05, 3.0
RATE_MBIT = 10.0
WITHIN_MS = 0.5
WITHIN_RATE = 0.02

SO_TIMESTAMPNS = 35
SO_RCVBUFFORCE = 33
IP_UDP = 28
"""The length of both headers."""
MASK = (1 << 64) - 1


class Check(NamedTuple):
    """One line of the self test."""

    name: str
    is_right: bool
    shown: str


def main(quick: bool) -> int:
    """Prints the checks. Returns 1 when one of them failed."""
    failed = 0
    for check in checks(quick):
        failed += not check.is_right
        print(f"{'ok  ' if check.is_right else 'FAIL'}  {check.name}: {check.shown}", flush=True)
    return 1 if failed else 0


def checks(quick: bool = False) -> Iterator[Check]:
    """Yields the checks: in about ten seconds when they are quick, in half a minute otherwise."""
    yield from _delay(2.0 if quick else 8.0)
    yield _losses(2_000 if quick else 20_000)
    yield _rate(1.5 if quick else 4.0)


class _Sockets:
    """A UDP socket at each end; every datagram holds its number, and the kernel stamps its arrival."""

    def __init__(self, link: Link) -> None:
        with link.server.entered():
            self.server = self._make()
            self.server.bind((link.server_address, PORT))
        with link.client.entered():
            self.client = self._make()
            self.client.bind((link.client_address, PORT))
        self.client.connect((link.server_address, PORT))
        self.server.connect((link.client_address, PORT))
        # The kernel stamps by another clock.
        self.offset_ns = time.time_ns() - time.monotonic_ns()

    @staticmethod
    def _make() -> socket.socket:
        made = socket.socket(socket.AF_INET, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
        made.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
        made.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, 1 << 24)
        return made

    def arrivals(self, at: socket.socket) -> Iterator[tuple[int, int]]:
        """Yields the number and the monotonic nanoseconds of each datagram that has come."""
        with contextlib.suppress(BlockingIOError):
            while True:
                data, control, _, _ = at.recvmsg(2048, 64)
                seconds, nanoseconds = struct.unpack("qq", control[0][2][:16])
                number = int.from_bytes(data[:8], "big")
                yield number, seconds * 1_000_000_000 + nanoseconds - self.offset_ns

    def close(self) -> None:
        self.client.close()
        self.server.close()


@contextlib.contextmanager
def _sockets(profile: Profile) -> Iterator[tuple[Link, _Sockets]]:
    with Link(profile, seed=1) as link:
        sockets = _Sockets(link)
        try:
            yield link, sockets
        finally:
            sockets.close()


@contextlib.contextmanager
def _busy(seconds: float) -> Iterator[None]:
    """Keeps every core busy with a loop that ends by itself in any case."""
    code = f"import time\nend = time.monotonic() + {seconds}\nwhile time.monotonic() < end: pass"
    loops = [subprocess.Popen([sys.executable, "-c", code]) for _ in range(os.cpu_count() or 1)]
    try:
        time.sleep(0.3)
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


@contextlib.contextmanager
def _prompt() -> Iterator[None]:
    """Runs this thread before ordinary ones and behind the emulator: the link is measured, not the meter."""
    policy, parameters = os.sched_getscheduler(0), os.sched_getparam(0)
    os.sched_setscheduler(0, os.SCHED_FIFO | os.SCHED_RESET_ON_FORK, os.sched_param(10))
    try:
        yield
    finally:
        os.sched_setscheduler(0, policy, parameters)


def _delay(seconds: float) -> Iterator[Check]:
    """Sends packets both ways, with all cores busy."""
    errors_ms: list[float] = []
    with _sockets(Profile(delay_ms=DELAY_MS)) as (link, sockets):
        count = round(seconds / EVERY_S)
        sent: dict[socket.socket, list[int]] = {sockets.client: [], sockets.server: []}
        with _busy(seconds + 10), _prompt():
            due = time.monotonic()
            for number in range(count):
                for sender, times in sent.items():
                    times.append(time.monotonic_ns())
                    sender.send(number.to_bytes(8, "big") + bytes(192))
                due += EVERY_S
                time.sleep(max(0.0, due - time.monotonic()))
            time.sleep(0.1)
        for receiver, sender in ((sockets.server, sockets.client), (sockets.client, sockets.server)):
            for number, at in sockets.arrivals(receiver):
                errors_ms.append((at - sent[sender][number]) / 1e6 - DELAY_MS)
        result = link.result()
    late = result["lateness_ms"]
    shown = (
        f"p50 {late['p50']:.3f}, p99 {late['p99']:.3f}, max {late['max']:.3f} ms of {late['packets']} packets"
    )
    yield Check("lateness of the emulator, all cores busy", late["p99"] <= WITHIN_MS, shown)
    errors_ms.sort()
    p50, p99 = (errors_ms[int(len(errors_ms) * q)] for q in (0.5, 0.99))
    shown = f"p50 {p50:.3f}, p99 {p99:.3f}, max {errors_ms[-1]:.3f} ms over {DELAY_MS:g} ms"
    yield Check("delay from send to arrival, all cores busy", p99 <= WITHIN_MS, shown)
    arrived, all_sent = len(errors_ms), 2 * count
    is_whole = arrived == all_sent and not result["device_drops"]
    shown = f"{arrived} of {all_sent} packets, device drops {result['device_drops'] or 0}"
    yield Check("nothing else is lost", is_whole, shown)


def _losses(count: int) -> Check:
    """Compares the packets that do not arrive with the schedule."""
    with _sockets(Profile(delay_ms=1, loss=LOSS, burst=BURST)) as (link, sockets):
        got: dict[socket.socket, list[int]] = {sockets.client: [], sockets.server: []}

        def drain() -> None:
            for receiver, numbers in got.items():
                numbers.extend(number for number, _ in sockets.arrivals(receiver))

        for number in range(count):
            for sender in got:
                sender.send(number.to_bytes(8, "big"))
            if number % 100 == 0:
                time.sleep(0.002)
                drain()
        time.sleep(0.3)
        drain()
        result = link.result()
    lost = [set(range(count)) - set(got[receiver]) for receiver in (sockets.server, sockets.client)]
    expected = [set(schedule(1, lane, count, LOSS, BURST)) for lane in (0, 1)]
    counted = [result[side]["dropped"]["loss"] for side in ("up", "down")]
    is_right = lost == expected and counted == [len(each) for each in expected] and not result["device_drops"]
    shown = " and ".join(f"{len(a)} (scheduled {len(b)})" for a, b in zip(lost, expected, strict=True))
    drops = result["device_drops"] or 0
    return Check(
        "losses up and down, packet by packet", is_right, f"{shown} of {count} each; device drops {drops}"
    )


def schedule(seed: int, lane: int, count: int, loss: float, burst: float) -> Iterator[int]:
    """Yields the indices of the packets that a link loses, computed apart from the emulator. `lane`: 0 up,
    1 down."""

    def mix(value: int) -> int:
        z = (value + 0x9E3779B97F4A7C15) & MASK
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
        return z ^ (z >> 31)

    key = mix(seed ^ mix(lane << 8 | 1))
    was_lost = False
    for index in range(count):
        draw = (mix((key + index * 0x9E3779B97F4A7C15) & MASK) >> 11) / (1 << 53)
        in_good_state = loss / (burst * (1 - loss)) if burst > 1 else loss
        was_lost = draw < (1 - 1 / burst if was_lost and burst > 1 else in_good_state)
        if was_lost:
            yield index


def _rate(seconds: float) -> Check:
    """Sends twice as much as passes through the emulator's bottleneck, and through the kernel's."""
    with _sockets(Profile(delay_ms=1, rate_mbit=RATE_MBIT, queue_kb=100)) as (_, sockets):
        ours = _throughput(sockets, seconds)
    with _sockets(Profile(delay_ms=1)) as (link, sockets):
        limit = f"root tbf rate {RATE_MBIT:g}mbit burst 3000 limit 100000"
        link.client.run(["tc", "qdisc", "add", "dev", DEVICE, *limit.split()], check=True)
        theirs = _throughput(sockets, seconds)
    difference = ours / theirs - 1
    shown = f"{ours:.3f} Mbit/s, tbf {theirs:.3f}: {100 * difference:+.2f} %"
    return Check(f"a rate of {RATE_MBIT:g} Mbit/s", abs(difference) <= WITHIN_RATE, shown)


def _throughput(sockets: _Sockets, seconds: float) -> float:
    """Returns Mbit/s of IP packets at the server, without the first half second: a filter begins with a
    burst."""
    size = 1200
    every = (size + IP_UDP) * 8 / (2e6 * RATE_MBIT)
    arrivals: list[int] = []
    began = time.monotonic()
    sent = 0
    while (now := time.monotonic() - began) < seconds:
        while sent * every < now:
            with contextlib.suppress(BlockingIOError):
                sockets.client.send(sent.to_bytes(8, "big") + bytes(size - 8))
            sent += 1
        arrivals.extend(at for _, at in sockets.arrivals(sockets.server))
        time.sleep(0.002)
    steady = [at for at in arrivals if at > (began + 0.5) * 1e9]
    return (len(steady) - 1) * (size + IP_UDP) * 8e3 / (steady[-1] - steady[0])
