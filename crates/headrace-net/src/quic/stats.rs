//! What QUIC knows of a connection, in numbers.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use quinn::{ConnectionStats, FrameStats};

use crate::quic::echo::controller;
use crate::quic::echo::counts::{Counters, Counts};

/// What QUIC knows of a connection, since it began.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transport {
    pub round_trip: Duration,
    pub congestion_window: u64,
    pub sent_packets: u64,
    /// Packets that were declared lost, and whose data was sent again.
    pub lost_packets: u64,
    pub echo: Counts,
}

impl Transport {
    /// The numbers of the connection now, with what its echo did so far.
    pub fn of(connection: &quinn::Connection, tally: &Tally) -> Self {
        let path = connection.stats().path;
        Self {
            round_trip: path.rtt,
            congestion_window: path.cwnd,
            sent_packets: path.sent_packets,
            lost_packets: path.lost_packets,
            echo: tally.look(connection),
        }
    }
}

/// What has passed on a connection so far, as far as it tells whether the other side is there, and busy for nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Frames that came.
    pub heard: u64,
    /// Frames that left and must be acknowledged (RFC 9002 §2).
    pub elicits: u64,
    /// Frames of streams that left, and that came.
    sent_pieces: u64,
    came_pieces: u64,
    /// Frames that came and say nothing of a stream's contents.
    control: u64,
    datagrams: u64,
    bytes: u64,
}

/// A client may send so many frames of control for each of ours with contents: MAX_STREAM_DATA and MAX_DATA.
const CONTROL_PER_PIECE: u64 = 2;
/// And so many datagrams: acknowledgements, with their copies.
const DATAGRAMS_PER_PIECE: u64 = 4;
/// A datagram with so many bytes is worth reading.
const WORTHWHILE: u64 = 600;

impl Traffic {
    pub fn of(stats: &ConnectionStats) -> Self {
        let (came, left) = (&stats.frame_rx, &stats.frame_tx);
        Self {
            heard: control(came) + came.acks + came.stream + came.crypto,
            elicits: control(left) + left.stream + left.crypto + u64::from(left.handshake_done),
            sent_pieces: left.stream,
            came_pieces: came.stream,
            control: control(came),
            datagrams: stats.udp_rx.datagrams,
            bytes: stats.udp_rx.bytes,
        }
    }

    /// How many frames of control the other side may have sent since then beside its budget.
    pub fn earned_until(&self, now: &Self) -> u64 {
        (now.sent_pieces - self.sent_pieces) * CONTROL_PER_PIECE + (now.came_pieces - self.came_pieces)
    }

    /// How much of what came since then moves nothing on: frames of control; or datagrams with next to nothing in
    /// them, of which a flood costs the same whatever they say.
    pub fn useless_until(&self, now: &Self) -> u64 {
        let pieces = now.sent_pieces - self.sent_pieces;
        let worth = pieces * DATAGRAMS_PER_PIECE + (now.bytes - self.bytes) / WORTHWHILE;
        let crumbs = (now.datagrams - self.datagrams).saturating_sub(worth);
        crumbs.max(now.control - self.control)
    }
}

/// All frames but those with contents and acknowledgements.
fn control(frames: &FrameStats) -> u64 {
    frames.ack_frequency
        + frames.data_blocked
        + frames.datagram
        + frames.immediate_ack
        + frames.max_data
        + frames.max_stream_data
        + frames.max_streams_bidi
        + frames.max_streams_uni
        + frames.new_connection_id
        + frames.new_token
        + frames.path_challenge
        + frames.path_response
        + frames.ping
        + frames.reset_stream
        + frames.retire_connection_id
        + frames.stop_sending
        + frames.stream_data_blocked
        + frames.streams_blocked_bidi
        + frames.streams_blocked_uni
}

/// What the echo of one connection did, over all its paths: a connection that moves to another address gets another
/// controller from quinn, which counts anew. A path that came and went between two looks is not in it.
#[derive(Debug, Default)]
pub struct Tally {
    state: Mutex<(Counts, Arc<Counters>)>,
}

impl Tally {
    /// The connection's counts until now.
    pub fn look(&self, connection: &quinn::Connection) -> Counts {
        let Some(now) = controller::counters(connection.congestion_state()) else { return Counts::default() };
        let (before, current) = &mut *self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if !Arc::ptr_eq(&now, current) {
            *before = *before + current.counts();
            *current = now;
        }
        *before + current.counts()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn traffic(change: impl FnOnce(&mut ConnectionStats)) -> Traffic {
        let mut stats = ConnectionStats::default();
        change(&mut stats);
        Traffic::of(&stats)
    }

    fn useless(change: impl FnOnce(&mut ConnectionStats)) -> u64 {
        Traffic::default().useless_until(&traffic(change))
    }

    #[test]
    fn a_reader_of_tokens_is_not_busy_for_nothing() {
        // Each token acknowledged by a datagram of its own, and a MAX_STREAM_DATA with every tenth.
        let reader = |stats: &mut ConnectionStats| {
            (stats.frame_tx.stream, stats.udp_rx.datagrams, stats.udp_rx.bytes) = (1000, 1000, 40_000);
            (stats.frame_rx.acks, stats.frame_rx.max_stream_data) = (1000, 100);
        };
        assert_eq!(useless(reader), 100);
        assert_eq!(Traffic::default().earned_until(&traffic(reader)), 2000);
    }

    #[test]
    fn an_upload_in_full_datagrams_is_not_busy_for_nothing() {
        assert_eq!(
            useless(|stats| {
                (stats.udp_rx.datagrams, stats.udp_rx.bytes, stats.frame_rx.stream) = (1000, 1_200_000, 1000);
            }),
            0
        );
    }

    #[test]
    fn floods_are_useless_whatever_they_consist_of() {
        assert_eq!(useless(|stats| stats.frame_rx.ping = 5000), 5000);
        assert_eq!(useless(|stats| stats.frame_rx.max_data = 5000), 5000);
        // Acknowledgements of nothing, and a stream byte by byte.
        let crumbs = |stats: &mut ConnectionStats| {
            (stats.udp_rx.datagrams, stats.udp_rx.bytes) = (5000, 30 * 5000);
        };
        assert_eq!(useless(crumbs), 4750);
    }

    #[test]
    fn acknowledgements_elicit_nothing() {
        let acks = traffic(|stats| (stats.frame_tx.acks, stats.frame_rx.acks) = (7, 5));
        assert_eq!((acks.elicits, acks.heard), (0, 5));
    }
}
