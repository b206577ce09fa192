"""Which connection a request gets, and when it takes TCP; with scripted connections and a clock of our
own."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.client.alt_svc import AltSvcCache
from headrace.client.origin import Origin
from headrace.client.pool import FIRST_PAUSE_S, MAX_PAUSE_S, Pool
from headrace.errors import ClosedError, ConfigError

ORIGIN = Origin("api.example", 443)


class Fake:
    """A connection that does what the test says."""

    def __init__(self, to: tuple[str, int, str]) -> None:
        self.to = to
        self.is_open, self.is_usable = False, True
        self.streams = self.waiting = 0

    def reach(self) -> None:
        self.is_open = True

    def fail(self) -> None:
        self.is_open = self.is_usable = False

    close = fail


class World:
    def __init__(self, **options: Any) -> None:
        self.now = 0.0
        self.made: list[Fake] = []
        self.pool = Pool(self.connect, clock=lambda: self.now, **options)  # type: ignore[arg-type]

    def connect(self, *to: Any) -> Fake:
        self.made.append(Fake(to))
        return self.made[-1]

    def take(self, timeout: float | None = 5.0) -> tuple[Any, bool, float | None] | None:
        return self.pool.take(ORIGIN, timeout)


def test_requests_share_a_connection() -> None:
    world = World()
    assert world.take() == (world.made[0], False, 0.25)
    world.made[0].reach()
    assert world.take() == (world.made[0], True, None)
    assert len(world.made) == 1
    assert world.made[0].to == ("api.example", 443, "api.example")


def test_a_network_that_drops_udp_costs_one_wait() -> None:
    world = World()
    assert world.take() == (world.made[0], False, 0.25)
    world.now = 0.1
    assert world.take() == (world.made[0], False, 0.15)
    world.now = 0.25
    assert world.take() is None
    assert len(world.made) == 1


def test_a_connection_that_comes_late_is_used_from_then_on() -> None:
    world = World()
    world.take()
    world.now = 1.0
    assert world.take() is None
    world.made[0].reach()
    assert world.take() == (world.made[0], True, None)


def test_a_blocked_origin_is_probed_later_and_later_and_nobody_waits() -> None:
    world = World()
    world.take()
    world.made[0].fail()
    pause = FIRST_PAUSE_S
    for probes in range(1, 10):
        assert world.take() is None
        world.now += pause - 1
        assert world.take() is None
        assert len(world.made) == probes
        world.now += 1
        assert world.take() is None
        assert len(world.made) == probes + 1
        world.made[-1].fail()
        pause = min(pause * 2, MAX_PAUSE_S)
    assert world.take() is None
    world.now += MAX_PAUSE_S
    assert world.take() is None
    world.made[-1].reach()
    assert world.take() == (world.made[-1], True, None)


def test_only_http3_waits_as_long_as_the_caller_says() -> None:
    world = World(http3="only")
    assert world.take(7.0) == (world.made[0], False, 7.0)
    world.now = 0.5
    assert world.take(None) == (world.made[0], False, None)
    world.made[0].fail()
    assert world.take(7.0) == (world.made[1], False, 7.0)


def test_a_server_that_comes_up_is_found_by_the_next_request() -> None:
    """An old attempt sends its next packet only after many seconds."""
    world = World(http3="only")
    world.take()
    world.now = 8.0
    assert world.take() == (world.made[1], False, 5.0)
    assert world.made[0].is_usable, "whoever waits for it may go on to"


def test_when_tcp_failed_an_attempt_under_way_is_worth_waiting_for() -> None:
    world = World()
    world.take()
    world.now = 0.3
    assert world.take() is None
    assert world.pool.take(ORIGIN, 5.0, is_patient=True) == (world.made[0], False, 5.0)


def test_by_alt_svc_an_origin_is_tried_once_it_has_said_so() -> None:
    cache = AltSvcCache()
    world = World(http3="alt-svc", alt_svc=cache)
    assert world.take() is None
    assert not world.made
    cache.note(ORIGIN, 'h3="alt.example:8443"')
    assert world.take() == (world.made[0], False, 0.25)
    # The certificate must be the origin's (RFC 7838 §2.1).
    assert world.made[0].to == ("alt.example", 8443, "api.example")


def test_the_callers_patience_bounds_the_wait_for_http3() -> None:
    world = World()
    assert world.take(0.1) == (world.made[0], False, 0.1)


def test_a_dead_connection_is_replaced() -> None:
    world = World()
    world.take()
    world.made[0].reach()
    world.take()
    world.made[0].fail()
    assert world.take() == (world.made[1], False, 0.25)


def test_a_further_connection_is_opened_when_no_stream_is_free() -> None:
    world = World(max_connections=2)
    world.take()
    world.made[0].reach()
    world.made[0].streams, world.made[0].waiting = 101, 1
    assert world.take() == (world.made[0], True, None)
    assert len(world.made) == 2
    world.made[1].reach()
    assert world.take() == (world.made[1], True, None)
    world.made[1].streams, world.made[1].waiting = 110, 10
    assert world.take() == (world.made[0], True, None)
    assert len(world.made) == 2
    world.made[0].waiting, world.made[1].waiting = 1, 0
    assert world.take() == (world.made[1], True, None)


def test_a_pause_stays_a_pause_however_often_it_failed() -> None:
    world = World()
    for _ in range(2000):
        world.take()
        world.made[-1].fail()
        world.take()
        world.now += MAX_PAUSE_S
    assert world.take() is None


def test_prewarm_begins_one_connection() -> None:
    world = World()
    assert world.pool.prewarm(ORIGIN) is world.pool.prewarm(ORIGIN)
    world.made[0].reach()
    assert world.pool.prewarm(ORIGIN) is world.made[0]
    assert world.take() == (world.made[0], True, None)


def test_a_closed_pool_closes_its_connections_and_says_so() -> None:
    world = World()
    world.take()
    world.pool.close()
    assert not world.made[0].is_usable
    with pytest.raises(ClosedError):
        world.take()
    with pytest.raises(ClosedError):
        world.pool.prewarm(ORIGIN)


@pytest.mark.parametrize("text", ["http://x", "https://", "x", "https://x:port", "https://x:99999"])
def test_an_origin_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="https://host"):
        Origin.parse(text)
