"""What is wrong with a server is named; what a lossy link does is not taken for it."""

from __future__ import annotations

from headrace_lab.measure.verdict import verdict
from tests.lab.logs import observed, stream

STEADY = [30.0 + 20 * n for n in range(50)]


def test_nothing_is_wrong_with_a_steady_stream() -> None:
    assert verdict(observed(stream(STEADY))) == []


def test_bursts_behind_lost_packets_are_no_fault_of_the_server() -> None:
    """Each tenth token is lost and comes 90 ms late, with the four behind it."""
    arrivals = [max(30.0 + 20 * n, 30.0 + 20 * (n - n % 10) + (90 if n % 10 < 5 else 0)) for n in range(100)]
    assert verdict(observed(stream(arrivals), lost=[200.0 * n for n in range(10)])) == []


def test_a_proxy_that_buffers() -> None:
    (said,) = verdict(observed(stream([1100.0] * 50)))
    assert said.startswith("buffers: in 1 of 1 answers")


def test_a_proxy_that_coalesces() -> None:
    arrivals = [60.0 * (n // 3) + 80 for n in range(60)]
    (said,) = verdict(observed(stream(arrivals)))
    assert said == "coalesces: 68% of the tokens came together with others, about every 60 ms"


def test_a_proxy_that_compresses() -> None:
    (said,) = verdict(observed(stream([1100.0] * 50, encoding="gzip")))
    assert said.startswith("compresses: content-encoding gzip")


def test_a_failure_that_looks_like_an_end() -> None:
    (said,) = verdict(observed(stream(STEADY), stream(STEADY[:20], number=1, done=False)))
    assert said.startswith("hides a failure: 1 of 2 answers")
    cut = stream(STEADY[:20], done=False, error="cut")
    told = stream(STEADY[:20], done=False, said_error=True)
    assert verdict(observed(cut, told)) == []


def test_a_model_that_numbers_nothing_can_be_judged_too() -> None:
    nothing = [None] * 50
    (said,) = verdict(observed(stream([1100.0] * 50, nothing)))
    assert said.startswith("buffers")
    assert verdict(observed(stream(STEADY, nothing))) == []


def test_a_real_answer_that_waited_for_its_turn_is_not_buffered() -> None:
    """A model with few slots makes the others wait; then their tokens come one by one."""
    waited = [9000.0 + 15 * n for n in range(50)]
    assert verdict(observed(stream(waited, [None] * 50))) == []
