//! What QUIC knows of a connection, in numbers.

use std::time::Duration;

use crate::quic::echo::counts::{Counts, Tally};

/// What QUIC knows of the client's connection, since it began.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transport {
    pub round_trip: Duration,
    pub congestion_window: u64,
    pub sent_packets: u64,
    /// Declared lost, and sent again.
    pub lost_packets: u64,
    pub echo: Counts,
}

impl Transport {
    /// The connection now, with what its echo did so far.
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
