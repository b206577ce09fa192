//! A congestion window for token streams: it yields to queues, not to chance.
//!
//! In: acknowledgements, losses, round trips. Out: how many bytes may be on their way. It must not know packets.
//!
//! | what is seen | the window |
//! |---|---|
//! | a queue and a loss, or ECN-CE (RFC 9002 §7.1) | × 0.7, at most once a round trip |
//! | a queue and a loss, and more was on its way than the window, because the path paused | stays; [`pace`](super::pace) yields |
//! | a loss without a queue, few in all | stays: a radio lost it, and sending less would not help |
//! | losses without a queue, more than an eighth of what is sent | × 0.7, but not below the floor: a policer, or a buffer too small to show as delay |
//! | persistent congestion (RFC 9002 §7.6) | as a new connection's; from there slow start |
//! | acknowledgements, the window was used | slow start until a queue shows; then half a datagram each round trip, a quarter while a queue stands |
//! | the flow is limited by its application, and uses less than half of it (RFC 7661 §4.3) | stays |
//!
//! The floor is twice what the flow had acknowledged within a round trip, up to [`FLOOR`]: a flow of tokens needs
//! no more, and takes nobody's share with it.

use std::time::{Duration, Instant};

use crate::recovery::delay::Delay;
use crate::recovery::pace::{Acked, Pace};

/// What 16 streams of tokens send within a round trip of 200 ms (34 kB), and some more. RFC 9002 §7.2 recommends
/// 14,720, which would make their first tokens wait; a bulk transfer is paced, and yields to the first queue.
const INITIAL: u64 = 40_000;
/// What some 16 streams of tokens need at a round trip of 200 ms.
const FLOOR: u64 = 64 * 1024;
const SMALLEST_DATAGRAMS: u64 = 2;
const REDUCTION: f64 = 0.7;
/// Round trips in which the window grows by a datagram: with this reduction it takes what Reno takes, and CUBIC on
/// short paths (RFC 9438 §4.3: 3 (1 - 0.7) / (1 + 0.7) datagrams in each). While a queue stands it grows by half of
/// this: a paced sender loses less of a full queue than TCP, whose segments come in bursts, and would take more than
/// half of it.
const GROWTH_TRIPS: f64 = 1.7 / 0.9;
/// The share of lost bytes, of all that are acknowledged or lost, from which on losses alone reduce the window.
const TOO_MANY_LOST: f64 = 0.125;
/// The shortest queue that tells congestion from chance.
const QUEUE: Duration = Duration::from_millis(5);

#[derive(Clone, Debug)]
pub struct Window {
    bytes: u64,
    slow_start_ends: u64,
    datagram: u64,
    delay: Delay,
    /// Packets sent before it do not reduce the window again.
    recovery: Option<Instant>,
    /// Bytes acknowledged since the window last grew by a datagram.
    growth: u64,
    /// The newest packet of the acknowledgement that is being read.
    newest: Option<Instant>,
    round: Round,
    /// Share of bytes lost, smoothed over rounds.
    lost: f64,
    /// Bytes of the acknowledgement that is being read.
    acked: u64,
    pace: Pace,
}

/// What happened within about a round trip.
#[derive(Clone, Copy, Debug)]
struct Round {
    began: Instant,
    acked: u64,
    lost: u64,
    /// The most that was acknowledged in one of the last rounds.
    most: u64,
}

impl Window {
    pub fn new(now: Instant, datagram: u16) -> Self {
        Self {
            bytes: INITIAL,
            slow_start_ends: u64::MAX,
            datagram: datagram.into(),
            delay: Delay::default(),
            recovery: None,
            growth: 0,
            newest: None,
            round: Round { began: now, acked: 0, lost: 0, most: 0 },
            lost: 0.0,
            acked: 0,
            pace: Pace::new(now),
        }
    }

    /// How many bytes may be in flight.
    pub fn bytes(&self) -> u64 {
        self.bytes.max(self.smallest()).max(self.pace.allows())
    }

    pub fn initial() -> u64 {
        INITIAL
    }

    /// The window, in bytes, at which slow start ended; `None`: it has not ended yet.
    pub fn slow_start_ends(&self) -> Option<u64> {
        (self.slow_start_ends != u64::MAX).then_some(self.slow_start_ends)
    }

    pub fn handle_datagram_size(&mut self, datagram: u16) {
        self.datagram = datagram.into();
    }

    /// So many bytes leave.
    pub fn handle_sent(&mut self, now: Instant, bytes: u64) {
        let is_full = self.pace.in_flight() + bytes + 2 * self.datagram > self.bytes();
        self.pace.handle_sent(now, bytes, is_full);
    }

    pub fn handle_acked(&mut self, sent: Instant, bytes: u64, is_app_limited: bool) {
        self.newest = self.newest.max(Some(sent));
        (self.round.acked, self.acked) = (self.round.acked + bytes, self.acked + bytes);
        let pipe = self.round.most.max(self.round.acked);
        let is_used = !is_app_limited || pipe * 2 >= self.bytes;
        if !is_used || self.recovery.is_some_and(|recovery| sent <= recovery) {
            return;
        }
        if self.bytes < self.slow_start_ends {
            if self.is_queueing() {
                self.slow_start_ends = self.bytes;
            } else {
                self.bytes += bytes;
            }
            return;
        }
        self.growth += bytes;
        let trips = if self.is_queueing() { GROWTH_TRIPS * 2.0 } else { GROWTH_TRIPS };
        let needed = (self.bytes as f64 * trips) as u64;
        if self.growth >= needed {
            self.growth -= needed;
            self.bytes += self.datagram;
        }
    }

    /// All packets of an acknowledgement were told; so many bytes are in flight after it.
    pub fn handle_acks_end(&mut self, now: Instant, in_flight: u64, is_app_limited: bool) {
        let (bytes, is_queueing) = (std::mem::take(&mut self.acked), self.is_queueing());
        self.pace
            .handle_acked(now, Acked { bytes, in_flight, window: self.bytes, is_app_limited, is_queueing });
        if let Some(newest) = self.newest.take() {
            self.delay.handle_round_trip(now, now.saturating_duration_since(newest));
        }
        let trip = self.delay.base().unwrap_or_default();
        if now.saturating_duration_since(self.round.began) < trip {
            return;
        }
        let all = self.round.acked + self.round.lost;
        if all > 0 {
            self.lost += (self.round.lost as f64 / all as f64 - self.lost) / 4.0;
        }
        // The most of the last rounds, forgotten slowly.
        let most = self.round.acked.max(self.round.most - self.round.most / 16);
        self.round = Round { began: now, acked: 0, lost: 0, most };
    }

    /// Packets are lost, the newest of which was sent at `sent`. When `bytes` is zero, a router has marked a packet
    /// (ECN-CE) instead.
    pub fn handle_congestion(&mut self, now: Instant, sent: Instant, is_persistent: bool, bytes: u64) {
        self.round.lost += bytes;
        if self.recovery.is_some_and(|recovery| sent <= recovery) && !is_persistent {
            return;
        }
        let is_congested = bytes == 0 || self.is_queueing();
        if !is_congested && !is_persistent && self.lost < TOO_MANY_LOST {
            return;
        }
        let floor = if is_congested { self.smallest() } else { self.floor() };
        self.recovery = Some(now);
        if is_congested && !is_persistent && self.pace.handle_lost(bytes, self.bytes) {
            return;
        }
        self.growth = 0;
        self.bytes = ((self.bytes as f64 * REDUCTION) as u64).max(floor);
        self.slow_start_ends = self.bytes;
        if is_persistent {
            self.bytes = self.bytes.min(if is_congested { self.smallest() } else { INITIAL });
        }
        if is_congested {
            self.pace.handle_congestion(self.bytes);
        }
    }

    /// Whether a queue stands at a bottleneck, rather than a radio's jitter.
    pub fn is_queueing(&self) -> bool {
        let base = self.delay.base().unwrap_or_default();
        self.delay.queue() > QUEUE.max(base / 8)
    }

    fn floor(&self) -> u64 {
        (self.round.most.max(self.round.acked) * 2).clamp(INITIAL, FLOOR)
    }

    fn smallest(&self) -> u64 {
        self.datagram * SMALLEST_DATAGRAMS
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    /// A flow of which one datagram is acknowledged every millisecond.
    struct Flow {
        window: Window,
        now: Instant,
        trip: Duration,
    }

    impl Flow {
        fn new() -> Self {
            let now = Instant::now();
            Self { window: Window::new(now, 1200), now, trip: MS * 60 }
        }

        fn acknowledge(&mut self, datagrams: u32, is_app_limited: bool) -> u64 {
            for _ in 0..datagrams {
                self.now += MS;
                self.window.handle_acked(self.now - self.trip, 1200, is_app_limited);
                self.window.handle_acks_end(self.now, 60_000, is_app_limited);
            }
            self.window.bytes()
        }

        fn lose(&mut self, bytes: u64, is_persistent: bool) -> u64 {
            self.window.handle_congestion(self.now, self.now - self.trip, is_persistent, bytes);
            self.window.bytes()
        }
    }

    #[test]
    fn it_grows_by_what_is_acknowledged_until_a_queue_shows() {
        let mut flow = Flow::new();
        assert_eq!(flow.acknowledge(100, false), INITIAL + 120_000);
        flow.trip = MS * 80;
        let reached = flow.acknowledge(400, false);
        assert!(flow.acknowledge(100, false) <= reached + 1200, "half a datagram each window");
    }

    /// The window grows by a datagram for 1.9 windows that are acknowledged, and for 3.8 while a queue stands.
    #[test]
    fn a_queue_halves_its_growth() {
        for (queue, datagrams) in [(Duration::ZERO, 5), (MS * 20, 3)] {
            let mut flow = Flow::new();
            flow.acknowledge(1, false);
            flow.trip += queue;
            // Until no other round trip is among the last moments.
            flow.acknowledge(400, false);
            (flow.window.bytes, flow.window.slow_start_ends, flow.window.growth) = (INITIAL, 0, 0);
            assert_eq!(flow.acknowledge(400, false), INITIAL + datagrams * 1200);
        }
    }

    #[test]
    fn a_loss_by_chance_leaves_it_and_a_loss_with_a_queue_does_not() {
        let mut flow = Flow::new();
        let before = flow.acknowledge(100, false);
        assert_eq!(flow.lose(1200, false), before);
        flow.trip = MS * 80;
        let before = flow.acknowledge(400, false);
        let after = flow.lose(1200, false);
        assert_eq!(after, (before as f64 * 0.7) as u64);
        assert_eq!(flow.lose(1200, false), after, "once a round trip");
    }

    #[test]
    fn congestion_that_is_announced_counts() {
        let mut flow = Flow::new();
        let before = flow.acknowledge(100, false);
        assert_eq!(flow.lose(0, false), (before as f64 * 0.7) as u64);
    }

    #[test]
    fn many_losses_reduce_it_but_not_below_the_floor() {
        let mut flow = Flow::new();
        flow.acknowledge(100, false);
        for _ in 0..2000 {
            flow.acknowledge(4, true);
            flow.lose(1200, false);
        }
        let floor = flow.window.floor();
        assert!((INITIAL..=FLOOR).contains(&floor));
        assert_eq!(flow.window.bytes(), floor);
    }

    #[test]
    fn after_persistent_congestion_it_begins_anew() {
        let mut flow = Flow::new();
        flow.acknowledge(200, false);
        assert_eq!(flow.lose(12_000, true), INITIAL);
    }

    #[test]
    fn a_flow_that_its_application_limits_keeps_its_window() {
        let mut flow = Flow::new();
        flow.window.bytes = 500_000;
        assert_eq!(flow.acknowledge(1_000, true), 500_000);
    }
}
