//! What QUIC knows of a connection, in numbers.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

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
