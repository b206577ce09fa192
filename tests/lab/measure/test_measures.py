"""Every measure, of logs made by hand."""

from __future__ import annotations

import pytest

from headrace_lab.measure.measures import (
    Packet,
    errors,
    first_tokens,
    gap_counts,
    lateness,
    measure,
    model_lateness,
)
from tests.lab.logs import at, observed, stream


def test_a_steady_stream_has_no_stalls_and_is_not_late() -> None:
    found = measure(observed(stream([30.0 + 20 * n for n in range(100)])))
    assert found["stalls_per_1000"] == 0
    assert found["gap_p50_ms"] == found["gap_p99_ms"] == 20.0
    assert found["late_p50_ms"] == found["late_p99_ms"] == 0.0
    assert found["jitter_ms"] == 0.0
    assert "stall_p50_ms" not in found
    assert found["cut_streams"] == 0


def test_gaps_are_between_tokens_not_between_chunks() -> None:
    """Four tokens in one chunk are one long gap and three of nothing."""
    arrivals = [80.0 * (n // 4) + 90 for n in range(40)]
    assert gap_counts(observed(stream(arrivals))) == [(0.0, 30), (80.0, 9)]


def test_a_gap_over_four_intervals_is_a_stall() -> None:
    """Exactly four are none."""
    arrivals = [0.0, 20.0, 100.0, 181.0, 200.0]
    found = measure(observed(stream(arrivals)))
    assert found["stalls_per_1000"] == 250.0
    assert found["stall_p50_ms"] == found["stall_max_ms"] == 81.0
    assert found["stall_ratio"] == pytest.approx(100 * 61 / 200, abs=1e-3)


def test_silence_that_the_model_planned_is_no_stall() -> None:
    due = [0.0, 20.0, 520.0, 540.0]
    found = measure(observed(stream([d + 30 for d in due], due)))
    assert found["stalls_per_1000"] == 0
    assert found["gap_p999_ms"] == 20.0


def test_lateness_is_received_minus_due_and_half_a_round_trip() -> None:
    assert lateness(stream([30.0, 57.5]), 60.0) == [0.0, 7.5]
    assert lateness(stream([30.0, 50.0], [None, None]), 60.0) == []


def test_the_models_own_lateness_is_known() -> None:
    late = stream([30.0, 57.5])
    late["tokens"][1][2] = at(25.0)
    assert model_lateness(observed(late)) == 5.0
    assert model_lateness(observed()) is None


def test_jitter_is_the_mean_change_of_the_delay() -> None:
    found = measure(observed(stream([30.0, 54.0, 70.0, 94.0])))
    assert found["jitter_ms"] == 4.0


def test_the_first_token_counts_from_the_request_or_from_the_connections_begin() -> None:
    warm = stream([100.0], sent=40.0)
    cold = stream([200.0], sent=120.0, connect_ns=10.0)
    assert first_tokens(observed(warm, cold)) == [60.0, 190.0]


def test_streams_made_late_per_lost_packet() -> None:
    """One lost packet that holds up three streams counts three; tokens late in a row are one time."""
    late = [30.0, 50.0, 140.0, 141.0, 142.0, 143.0, 150.0, 170.0]
    fine = [30.0 + 20 * n for n in range(8)]
    streams = [stream(late, number=n) for n in range(3)] + [stream(fine, number=3)]
    assert measure(observed(*streams, lost=[40.0]))["stalled_per_loss"] == 3.0
    assert measure(observed(*streams, lost=[40.0, 41.0]))["stalled_per_loss"] == 1.5
    assert "stalled_per_loss" not in measure(observed(*streams))


def run(tag: str, aborted: float | None, times: list[float]) -> dict[str, object]:
    return {"tag": tag, "aborted_ns": at(aborted) if aborted is not None else None} | {
        "times_ns": [at(t) for t in times]
    }


def test_a_stop_is_timed_at_the_model_and_wasted_tokens_are_those_made_after_it() -> None:
    stopped = stream([30.0, 50.0], number=0, stopped_ns=55.0, error="stopped")
    unseen = stream([30.0, 50.0], number=1, stopped_ns=55.0, error="stopped")
    record = {"runs": [run("0.0", 86.0, [0.0, 20.0, 40.0, 60.0, 80.0]), run("1.0", None, [])]}
    found = measure(observed(stopped, unseen, record=record, load={"stop_places": 2}))
    assert found["stop_p50_ms"] == found["stop_p99_ms"] == 31.0
    assert found["wasted_per_stop"] == 2.0
    assert found["stops_unseen"] == 1


def test_stopped_and_slow_streams_are_not_among_the_others() -> None:
    stopped, slow = stream([0.0, 500.0], number=0), stream([0.0, 900.0], number=1)
    fine = stream([30.0, 50.0], number=2)
    found = measure(observed(stopped, slow, fine, load={"stop_places": 1, "slow_places": 1}))
    assert found["stalls_per_1000"] == 0


def test_the_gap_around_a_migration_is_that_of_the_worst_stream() -> None:
    quick = stream([0.0, 20.0, 40.0, 90.0, 110.0], number=0)
    slow = stream([0.0, 20.0, 40.0, 240.0, 260.0], number=1)
    event = {"do": "rebind_port", "at_ns": at(45)}
    found = measure(observed(quick, slow, events=[event]))
    assert found["event_gap_ms"] == 200.0
    assert "recovery_ms" not in found


def test_a_stream_that_breaks_off_at_an_event_has_a_gap_until_the_end() -> None:
    dead = stream([0.0, 20.0], number=0, end=30_000.0, error="lost")
    found = measure(observed(dead, events=[{"do": "rebind_port", "at_ns": at(25)}]))
    assert found["event_gap_ms"] == 29_980.0
    assert found["cut_streams"] == 100.0


def test_recovery_is_counted_from_the_outages_end() -> None:
    """Of the median stream."""
    streams = [
        stream([0.0, 20.0, 40.0, back, back + 20], number=n) for n, back in enumerate([1100, 1150, 1400])
    ]
    event = {"do": "outage", "at_ns": at(50), "seconds": 1.0}
    found = measure(observed(*streams, events=[event]))
    assert found["recovery_ms"] == 100.0
    assert found["event_gap_ms"] == 1360.0


def test_packets_and_bytes_per_token_are_those_to_the_client() -> None:
    packets = [Packet(at(n), True, 250, False) for n in range(6)] + [
        Packet(at(n), False, 60, False) for n in range(9)
    ]
    found = measure(observed(stream([30.0, 50.0, 70.0, 90.0]), packets=packets))
    assert (found["packets_per_token"], found["bytes_per_token"]) == (1.5, 375.0)


def test_cpu_and_memory_are_the_servers() -> None:
    found = measure(observed(stream([30.0, 50.0]), cpu_s=0.0001, memory_grown=3_000_000))
    assert (found["cpu_us_per_token"], found["memory_grown_mb"]) == (50.0, 3.0)


def test_fairness_is_jains_index_of_the_two_downloads() -> None:
    flow = {"sent_ns": at(0), "end_ns": at(1000)}
    found = measure(observed(stream([30.0, 50.0]), bulk=[flow | {"size": 750_000}, flow | {"size": 250_000}]))
    assert found["fairness"] == 0.8
    assert found["bulk_mbit"] == 6.0
    assert "packets_per_token" not in found


def test_tokens_that_never_came_are_counted() -> None:
    found = measure(observed(stream([30.0, 50.0, 70.0]), load={"script": {"events": 4}}))
    assert found["tokens_lost"] == 25.0


def test_a_token_that_comes_twice_counts_once() -> None:
    twice = stream([30.0, 50.0, 70.0])
    twice["tokens"].append([1, at(20), at(20), at(75)])
    assert gap_counts(observed(twice)) == [(20.0, 2)]


def test_errors_are_counted_but_for_those_of_stopped_streams() -> None:
    streams = [
        stream([1.0], error="cut"),
        stream([1.0], error="cut"),
        stream([1.0], error="x", stopped_ns=1.0),
    ]
    assert errors(streams) == {"cut": 2}


def test_nothing_is_made_up_of_nothing() -> None:
    assert measure(observed()) == {}
