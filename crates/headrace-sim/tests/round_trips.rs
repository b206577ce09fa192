//! What the transport costs in round trips, equal to what physics allows, or documented as today's state.

#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::time::Duration;

use headrace_sim::measures::{
    self, Change, EVERY, Gap, Start, change, each_lost, first_flight_lost, loss_limit, stop, ttft,
};
use headrace_sim::{Role, Setup, Tls};

const ROUND_TRIPS: [u64; 4] = [20, 50, 100, 200];

fn round_trips() -> impl Iterator<Item = Duration> {
    ROUND_TRIPS.into_iter().map(Duration::from_millis)
}

/// Equal within 1 %.
#[track_caller]
fn assert_is(measured: Duration, expected: Duration, what: &str) {
    let difference = measured.abs_diff(expected);
    assert!(difference <= expected / 100, "{what}: {measured:?}, expected {expected:?}");
}

#[test]
fn the_first_token_takes_one_round_trip_and_a_handshake_one_more() {
    for trip in round_trips() {
        assert_is(ttft(trip, Start::Warm).unwrap(), trip, "warm");
        assert_is(ttft(trip, Start::Cold).unwrap(), trip * 2, "cold");
        assert_is(ttft(trip, Start::Early).unwrap(), trip, "early");
    }
    // The client repeats its first datagram meanwhile.
    let long = Duration::from_millis(1500);
    assert_is(ttft(long, Start::Cold).unwrap(), long * 2, "a path longer than the first probe");
}

#[test]
fn a_stop_is_known_after_half_a_round_trip() {
    for trip in round_trips() {
        assert_is(stop(trip).unwrap(), trip / 2, "stop");
    }
}

/// Each of 200 packets in a row is lost, one in each run. A packet number that quinn skips counts as a packet, so
/// some are found earlier.
#[test]
fn a_lost_packet_stalls_one_stream_for_as_long_as_its_detection_takes() {
    for trip in round_trips() {
        for streams in [1, 4] {
            let limit = loss_limit(trip, EVERY / streams as u32);
            let mut all = each_lost(trip, streams, true, 200).unwrap();
            assert!(all.len() == 200 && all.iter().all(|lost| lost.streams == 1), "{trip:?}");
            all.sort_by_key(|lost| lost.stall);
            assert_is(all[199].stall, limit, &format!("{trip:?}, {streams} streams: the longest"));
            assert_is(all[10].stall, limit, &format!("{trip:?}, {streams} streams: 95 % of them"));
        }
    }
}

/// Sixteen tokens of 190 bytes fill two packets and a bit.
#[test]
fn tokens_that_share_a_packet_are_late_together_and_no_others() {
    for trip in round_trips() {
        for lost in each_lost(trip, 16, false, 30).unwrap() {
            assert!(lost.stall <= loss_limit(trip, EVERY) * 101 / 100, "{lost:?}");
            assert!((1..=9).contains(&lost.streams), "{lost:?}");
        }
    }
}

/// With and without an acknowledgement that is due anyway.
fn gaps(trip: Duration, how: Change) -> [Gap; 2] {
    [0, 1].map(|stream| {
        change(Setup::new(1, trip, &Tls::new(false, 1).unwrap()).unwrap(), trip, how, stream).unwrap()
    })
}

fn gap(trip: Duration, how: Change) -> Gap {
    gaps(trip, how)[0]
}

#[test]
fn tokens_take_one_round_trip_of_the_new_path() {
    for trip in round_trips() {
        for how in [Change::Known, Change::KnownGone, Change::SilentPort, Change::SilentAddress] {
            assert_is(gap(trip, how).datagram, trip, &format!("{how:?}"));
        }
        assert_is(gap(trip, Change::Known).token, trip, "in order, when nothing was lost");
    }
}

/// Until the new path is validated, the server may send three times what it got: the client sends enough for the
/// tokens of a usual round trip (200 a second here). Over a longer one the last of them wait.
#[test]
fn a_known_move_delays_no_token_over_a_usual_round_trip() {
    for trip in round_trips() {
        let late = gap(trip, Change::Known).repaired;
        if trip <= Duration::from_millis(50) {
            assert!(late.is_zero(), "{trip:?}: {late:?}");
        } else {
            assert!(late <= trip * 2, "{trip:?}: {late:?}");
        }
    }
}

/// What was lost with the old path is repaired when the new one has told of it; it is found by time, and a
/// congestion controller that stays has a queue of what it may send.
#[test]
fn today_what_was_lost_with_the_old_path_comes_after_two_round_trips() {
    for trip in round_trips() {
        for how in [Change::KnownGone, Change::SilentPort, Change::SilentAddress] {
            assert!(gap(trip, how).repaired <= trip * 215 / 100, "{how:?}");
        }
    }
}

/// It is found by a probe after 50 ms of silence, or by an acknowledgement that waited for a second packet (25 ms).
#[test]
fn a_silent_change_is_found_within_the_detectors_time() {
    for trip in round_trips() {
        for how in [Change::SilentPort, Change::SilentAddress] {
            let mut found = gaps(trip, how).map(|gap| gap.found);
            found.sort_unstable();
            assert_eq!(found, [25, 50].map(Duration::from_millis), "{trip:?} {how:?}");
        }
    }
}

/// A probe waits three times the round trip that is assumed before one was measured (RFC 9002 §6.2.2).
#[test]
fn today_a_lost_first_datagram_costs_a_second() {
    for trip in round_trips() {
        let probe = Duration::from_millis(999);
        assert_is(first_flight_lost(trip, Role::Client, 1).unwrap(), probe + trip * 2, "the client's");
        assert_is(first_flight_lost(trip, Role::Server, 1).unwrap(), probe + trip * 3, "the server's");
    }
}

/// A packet arrives, its acknowledgement tells of the loss, the repair arrives; tokens are 20 ms apart.
#[test]
fn after_an_outage_tokens_come_again_within_two_round_trips() {
    for trip in round_trips() {
        let next = measures::outage(trip, Duration::from_millis(500)).unwrap();
        assert!(next <= trip * 3 / 2 + EVERY, "{trip:?}: {next:?}");
    }
}
