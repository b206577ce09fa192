"""One request, step by step, with scripted connections and a clock of our own: what it waits for, and how
often it is sent."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from headrace import errors
from headrace.client.origin import Origin
from headrace.client.pool import Pool
from headrace.client.request import MAX_REPEATS, NextPiece, Request, Started, Steps, Trace, Wait, perform
from headrace.client.timeouts import Timeouts

ORIGIN = Origin("api.example", 443)
RACE_DELAY_S = 0.25


class FakeStream:
    """A stream whose answer is there at once, or that ends with an error of some kind."""

    def __init__(self, answer: int | str, early: bool) -> None:
        self.answer, self.early_data = answer, early
        self.stream_id = 0
        self.is_stopped = False
        self.head = (answer, [], 0)

    def wait_head(self, _: Any) -> None:
        if isinstance(self.answer, str):
            raise errors.make(self.answer)

    def wait_stream(self, _: Any) -> None:
        pass

    def send(self, _: Any, data: bytes) -> None:
        pass

    def finish(self) -> None:
        pass

    def stop(self) -> None:
        self.is_stopped = True


class FakeConnection:
    """A connection that is reached, or never is; each request on it gets the next of the answers."""

    streams = waiting = 0
    is_usable = True

    def __init__(self, is_open: bool, answers: list[int | str]) -> None:
        self.is_open, self.answers = is_open, answers
        self.made: list[FakeStream] = []

    def wait_reached(self, _: Any) -> None:
        self.is_open = True

    def request(self, *_: Any, early: bool, **__: Any) -> FakeStream:
        self.made.append(FakeStream(self.answers.pop(0), early))
        return self.made[-1]


class World:
    """A pool, what it connects to, and the time that requests have waited."""

    def __init__(self, is_open: bool, answers: list[int | str], http3: Any = "race") -> None:
        self.now = 0.0
        self.is_mute = not answers
        """The network drops what is sent."""
        self.connection = FakeConnection(is_open, answers)
        connect: Any = lambda *_: self.connection  # noqa: E731
        self.pool = Pool(connect, http3, race_delay=RACE_DELAY_S, clock=lambda: self.now)

    def ask(self, **fields: Any) -> Started | None:
        timeouts = Timeouts(5.0, 5.0, 5.0, 5.0)
        request = Request("POST", ORIGIN, "/", [], **{"timeouts": timeouts, **fields})
        return self._drive(perform(self.pool, request), iter([b"a", b"piece"]))

    def _drive(self, steps: Steps, pieces: Iterator[bytes]) -> Started | None:
        step, value = steps.send, None
        while True:
            try:
                wanted = step(value)  # type: ignore[arg-type]
            except StopIteration as end:
                return end.value  # type: ignore[no-any-return]
            step, value = steps.send, None
            try:
                match wanted:
                    case Wait(start, timeout, slug) if start == self.connection.wait_reached and self.is_mute:
                        assert timeout is not None
                        self.now += timeout
                        raise errors.make(slug)
                    case Wait(start):
                        start(None)
                    case NextPiece():
                        value = next(pieces, None)  # type: ignore[assignment]
                    case Trace():
                        pass
            except errors.HeadraceError as error:
                step, value = steps.throw, error  # type: ignore[assignment]


def test_a_network_that_drops_udp_costs_the_first_request_the_race_delay_and_later_ones_nothing() -> None:
    """And none of them was sent by QUIC, so that TCP may send it."""
    world = World(is_open=False, answers=[])
    assert world.ask() is None
    assert world.now == RACE_DELAY_S
    for _ in range(3):
        assert world.ask() is None
    assert world.now == RACE_DELAY_S
    assert world.connection.made == []


def test_a_shorter_connect_timeout_is_the_longest_wait() -> None:
    world = World(is_open=False, answers=[])
    assert world.ask(timeouts=Timeouts(0.1, None, None, None)) is None
    assert world.now == 0.1


def test_without_tcp_the_wait_for_a_connection_is_the_connect_timeout() -> None:
    world = World(is_open=False, answers=[200], http3="only")
    world.is_mute = True
    with pytest.raises(errors.ConnectTimeoutError):
        world.ask()
    assert world.now == 5.0
    assert world.connection.made[0].is_stopped


def test_a_request_that_was_refused_untouched_is_sent_again_so_often_and_no_more() -> None:
    world = World(is_open=True, answers=["refused"] * 100)
    world.pool.prewarm(ORIGIN)
    with pytest.raises(errors.RefusedError):
        world.ask()
    assert len(world.connection.made) == MAX_REPEATS + 1
    world.connection.answers[:] = ["refused", 200]
    assert (started := world.ask()) is not None
    assert started.status == 200


def test_a_request_that_may_have_run_is_never_sent_again() -> None:
    world = World(is_open=True, answers=["connection_lost", 200])
    world.pool.prewarm(ORIGIN)
    with pytest.raises(errors.ConnectionLostError):
        world.ask()
    assert len(world.connection.made) == 1


def test_a_body_that_comes_in_pieces_is_not_sent_again() -> None:
    world = World(is_open=True, answers=["refused", 200])
    """Its pieces cannot be had a second time."""
    world.pool.prewarm(ORIGIN)
    with pytest.raises(errors.RefusedError):
        world.ask(body=None)
    assert len(world.connection.made) == 1


def test_a_request_that_came_too_early_is_sent_again_once_and_not_early() -> None:
    world = World(is_open=False, answers=[425, 425], http3="only")
    started = world.ask(may_be_early=True)
    assert started is not None
    assert started.status == 425
    assert [stream.early_data for stream in world.connection.made] == [True, False]
