//! How a relay went.
//!
//! In: what the relay saw. Out: cause, times and counts, for the log, for metrics, and for the handler's next
//! step.

use std::time::{Duration, SystemTime};

use headrace_core::Error;
use headrace_core::events::Piece;
use headrace_core::events::formats::{Format, RAW};
use headrace_core::relay::Cause;
use headrace_core::stats::Histogram;
use http::StatusCode;

use crate::gone::Gone;
use crate::quic::stats::Transport;
use crate::relay::held::Held;

/// What a relay left of the client's stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// Nothing was sent; the handler may go on.
    Untouched,
    Finished,
    Reset,
}

/// How a relay went. Times are taken here, where the bytes pass.
#[derive(Clone, Debug)]
pub struct RelayReport {
    pub cause: Cause,
    /// Why, when the cause is a failure.
    pub error: Option<Error>,
    pub end: End,
    pub status: Option<StatusCode>,
    pub format: &'static Format,
    pub started: SystemTime,
    /// The time from the start to the head of the upstream's answer.
    pub head: Option<Duration>,
    /// The time from the start until the first event was with the transport (TTFT).
    pub first_event: Option<Duration>,
    pub duration: Duration,
    pub events: u64,
    /// How many bytes the body had, as they came.
    pub bytes: u64,
    /// The times between the arrivals of two events (ITL).
    pub gaps: Histogram,
    /// The times from an event's arrival until it was with the transport.
    pub holds: Histogram,
    pub upstream_reused: bool,
    /// How often the request was sent to the upstream: twice, where it was proven that the first was not processed.
    pub runs: u32,
    /// What an answer said whose status was held.
    pub held: Option<Held>,
    /// What QUIC knows of the client's connection; `None` over TCP.
    pub transport: Option<Transport>,
}

impl RelayReport {
    /// The report when the client was gone before anything was asked of an upstream.
    pub fn gone(gone: Gone) -> Self {
        let cause = if gone == Gone::Stopped { Cause::Stopped } else { Cause::Lost };
        Self { cause, end: End::Reset, ..Self::begin() }
    }

    /// Counts a piece that is handed on.
    pub fn note_piece(&mut self, piece: &Piece<'_>) {
        self.events += u64::from(piece.is_event);
    }

    /// A report of a relay that begins now.
    pub fn begin() -> Self {
        Self {
            cause: Cause::Abandoned,
            error: None,
            end: End::Untouched,
            status: None,
            format: &RAW,
            started: SystemTime::now(),
            head: None,
            first_event: None,
            duration: Duration::ZERO,
            events: 0,
            bytes: 0,
            gaps: Histogram::default(),
            holds: Histogram::default(),
            upstream_reused: false,
            runs: 0,
            held: None,
            transport: None,
        }
    }
}
