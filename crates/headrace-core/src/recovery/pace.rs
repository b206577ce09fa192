//! How many bytes a flow that its application limits may have on its way when its path pauses.
//!
//! In: what is sent, acknowledged and lost, with the time. Out: [`Pace::allows`], beside the congestion window. It must
//! not know packets.
//!
//! A radio that stops for a second says nothing about its rate: all that was sent meanwhile arrives after it. So a flow
//! goes on at the pace at which its application makes bytes, as long as nothing says that the path carries less. What
//! tells a queue from a pause is what is acknowledged meanwhile: a queue delivers at the link's rate, a pause delivers
//! nothing and then everything.
//!
//! | what is seen | what the flow may have on its way |
//! |---|---|
//! | acknowledgements come, and no more is on its way than the window | no more than the window |
//! | nothing is acknowledged for [`SILENCE`]: a pause | as much more as it makes meanwhile, up to what it makes in [`PATIENCE`]: then nobody is there any more |
//! | acknowledgements come, and more is acknowledged than is sent: what waited is drained | goes on in the same way |
//! | acknowledgements come, and for [`QUEUE`] worth of bytes less is acknowledged than is sent: a queue | no more than the window |
//! | a queue and a loss, and what was on its way grew beyond the window while nothing was acknowledged | what the path held: the most that was on its way, less what was lost |
//! | a queue and a loss otherwise, or ECN-CE | no more than the window |
//! | no queue, and the application limits the flow | an eighth of what is acknowledged more than after the last loss |
//!
//! A flow that begins to send as fast as it can gains nothing: beyond the window it gets its earlier pace, and
//! [`SPARE`] worth of bytes at once.

use std::time::{Duration, Instant};

/// The longest pauses of recorded radio links last 5.8 s, and what waited is drained after them.
const PATIENCE: f64 = 8.0;
/// The time over which a flow's pace is taken: some tokens of a stream.
const SPAN: Duration = Duration::from_millis(100);
/// So many seconds of its pace a flow may be ahead: streams begin together, and tokens do not come evenly.
const SPARE: f64 = 0.5;
/// What is made up for while a flow is behind its pace: what waited leaves beside what is new.
const CATCHING_UP: f64 = 1.25;
/// The queue that ends a flow's own pace, in seconds of that pace. Links of phones change their rate every 100 ms, and
/// are slower than a few answers for some of these times.
const QUEUE: f64 = 0.5;
/// Without an acknowledgement for so long, the path pauses. Clients acknowledge every second packet, or after 25 ms.
const SILENCE: Duration = Duration::from_millis(100);
/// In seconds: a flow that becomes slower is known to be slower after so long.
const FORGETTING: f64 = 4.0;

/// One flow on one path.
#[derive(Clone, Copy, Debug)]
pub struct Pace {
    /// Bytes a second that the application makes, as far as nothing else limited it.
    rate: f64,
    span: Span,
    /// Bytes that may leave ahead of the pace, and when this was worked out.
    spare: f64,
    counted_at: Instant,
    in_flight: u64,
    /// The most that was in flight since no queue stood.
    most_in_flight: u64,
    acked_at: Instant,
    in_flight_at_ack: u64,
    /// Nothing was acknowledged for [`SILENCE`], and what waits since then is not drained yet.
    is_pausing: bool,
    /// By how much more was sent than acknowledged while acknowledgements came.
    queue: f64,
    /// What the path held when packets were lost last, and has carried since; `None`: nothing was lost.
    held: Option<u64>,
}

/// What was sent within [`SPAN`].
#[derive(Clone, Copy, Debug)]
struct Span {
    began: Instant,
    bytes: u64,
    /// By something else than the application.
    is_limited: bool,
}

/// What an acknowledgement says.
#[derive(Clone, Copy, Debug)]
pub struct Acked {
    pub bytes: u64,
    /// What is in flight after it.
    pub in_flight: u64,
    /// What may be in flight without a pause.
    pub window: u64,
    pub is_app_limited: bool,
    /// Whether a queue stood on the path before it.
    pub is_queueing: bool,
}

impl Pace {
    pub fn new(now: Instant) -> Self {
        Self {
            rate: 0.0,
            span: Span { began: now, bytes: 0, is_limited: false },
            spare: 0.0,
            counted_at: now,
            in_flight: 0,
            most_in_flight: 0,
            acked_at: now,
            in_flight_at_ack: 0,
            is_pausing: false,
            queue: 0.0,
            held: None,
        }
    }

    /// Bytes a second that the application makes.
    pub fn rate(&self) -> u64 {
        self.rate as u64
    }

    pub fn in_flight(&self) -> u64 {
        self.in_flight
    }

    /// Bytes that may be in flight, if the window is not larger.
    pub fn allows(&self) -> u64 {
        if !self.is_pausing || self.queue > self.rate * QUEUE {
            return 0;
        }
        let at_most = self.held.map_or(f64::MAX, |held| held as f64).min(self.rate * PATIENCE);
        (self.in_flight as f64 + self.spare).min(at_most) as u64
    }

    /// Bytes leave. `is_full`: there is no room for more behind them.
    pub fn handle_sent(&mut self, now: Instant, bytes: u64, is_full: bool) {
        if self.in_flight == 0 {
            self.acked_at = now;
        }
        self.is_pausing |= now.saturating_duration_since(self.acked_at) > SILENCE;
        self.take_span(now);
        self.span.bytes += bytes;
        self.span.is_limited |= is_full;
        self.count_spare(now);
        self.spare = (self.spare - bytes as f64).max(0.0);
        self.in_flight += bytes;
        self.most_in_flight = self.most_in_flight.max(self.in_flight);
    }

    pub fn handle_acked(&mut self, now: Instant, acked: Acked) {
        self.count_spare(now);
        self.span.is_limited |= !acked.is_app_limited;
        let grown = acked.in_flight as f64 - self.in_flight_at_ack as f64;
        if grown < 0.0 || now.saturating_duration_since(self.acked_at) <= SILENCE {
            self.queue = (self.queue + grown).max(0.0);
        }
        (self.in_flight, self.in_flight_at_ack, self.acked_at) = (acked.in_flight, acked.in_flight, now);
        self.is_pausing &= acked.in_flight > acked.window;
        if !acked.is_queueing {
            self.most_in_flight = acked.in_flight;
            let more = if acked.is_app_limited { acked.bytes / 8 } else { 0 };
            self.held = self.held.map(|held| held + more);
        }
    }

    /// Bytes were lost while a queue stood; whether it was a pause that made them too many for the path, rather than
    /// congestion. A flow that kept to its window has no pause to blame.
    pub fn handle_lost(&mut self, bytes: u64, window: u64) -> bool {
        let is_beyond = self.most_in_flight > window;
        let is_by_pause =
            bytes > 0 && self.is_pausing && is_beyond && self.queue * 2.0 < self.most_in_flight as f64;
        if is_by_pause {
            let held = self.held.unwrap_or(u64::MAX).min(self.most_in_flight);
            self.held = Some(held.saturating_sub(bytes));
        }
        is_by_pause
    }

    /// The window was reduced to so many bytes.
    pub fn handle_congestion(&mut self, window: u64) {
        self.held = Some(self.held.unwrap_or(u64::MAX).min(window));
    }

    fn take_span(&mut self, now: Instant) {
        let lasted = now.saturating_duration_since(self.span.began);
        if lasted < SPAN {
            return;
        }
        if !self.span.is_limited {
            let seconds = lasted.as_secs_f64();
            let remembered = self.rate * (1.0 - (seconds / FORGETTING).min(1.0));
            self.rate = remembered.max(self.span.bytes as f64 / seconds);
        }
        self.span = Span { began: now, bytes: 0, is_limited: false };
    }

    fn count_spare(&mut self, now: Instant) {
        let seconds = now.saturating_duration_since(self.counted_at).as_secs_f64();
        self.counted_at = now;
        self.spare = (self.spare + self.rate * CATCHING_UP * seconds).min(self.rate * SPARE);
    }
}

#[cfg(test)]
mod tests;
