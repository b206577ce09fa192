//! Whether a queue stands on the path: the round trip now against its minimum.
//!
//! In: round trips, each with the time of its measurement. Out: how long packets wait in a queue. A single late
//! packet shows nothing, so the smallest of the last moments counts; the minimum is forgotten after a while, because
//! paths change without a word.

use std::time::{Duration, Instant};

/// A minimum is taken over the last one to two spans of this length.
const LONG: Duration = Duration::from_secs(30);
const SHORT: Duration = Duration::from_millis(150);

/// The smallest value of the last one to two spans.
#[derive(Clone, Copy, Debug)]
struct Smallest {
    span: Duration,
    began: Option<Instant>,
    before: Option<Duration>,
    current: Option<Duration>,
}

impl Smallest {
    fn new(span: Duration) -> Self {
        Self { span, began: None, before: None, current: None }
    }

    fn handle_value(&mut self, now: Instant, value: Duration) {
        let age = self.began.map(|began| now.saturating_duration_since(began));
        if age.is_none_or(|age| age >= self.span) {
            // A span without a value ends what is known.
            self.before = self.current.filter(|_| age.is_some_and(|age| age < self.span * 2));
            (self.current, self.began) = (None, Some(now));
        }
        self.current = Some(self.current.map_or(value, |current| current.min(value)));
    }

    fn get(&self) -> Option<Duration> {
        self.before.into_iter().chain(self.current).min()
    }
}

/// The round trips of one path.
#[derive(Clone, Copy, Debug)]
pub struct Delay {
    long: Smallest,
    short: Smallest,
}

impl Default for Delay {
    fn default() -> Self {
        Self { long: Smallest::new(LONG), short: Smallest::new(SHORT) }
    }
}

impl Delay {
    pub fn handle_round_trip(&mut self, now: Instant, round_trip: Duration) {
        self.long.handle_value(now, round_trip);
        self.short.handle_value(now, round_trip);
    }

    /// The round trip without a queue; `None` before the first measurement.
    pub fn base(&self) -> Option<Duration> {
        self.long.get()
    }

    /// How much longer than that a round trip takes now: the time that packets wait in a queue.
    pub fn queue(&self) -> Duration {
        let (now, base) = (self.short.get().unwrap_or_default(), self.base().unwrap_or_default());
        now.saturating_sub(base)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn one_late_packet_is_no_queue_and_a_longer_round_trip_is() {
        let (began, mut delay) = (Instant::now(), Delay::default());
        assert_eq!((delay.base(), delay.queue()), (None, Duration::ZERO));
        for at in 0..50 {
            delay.handle_round_trip(began + MS * 20 * at, MS * if at % 5 == 0 { 200 } else { 60 });
        }
        assert_eq!((delay.base(), delay.queue()), (Some(MS * 60), Duration::ZERO));
        for at in 50..80 {
            delay.handle_round_trip(began + MS * 20 * at, MS * 110);
        }
        assert_eq!(delay.queue(), MS * 50);
        delay.handle_round_trip(began + MS * 1600, MS * 61);
        assert_eq!(delay.queue(), MS);
    }

    #[test]
    fn a_longer_path_is_no_queue_for_ever() {
        let (began, mut delay) = (Instant::now(), Delay::default());
        delay.handle_round_trip(began, MS * 60);
        for at in 1..700 {
            delay.handle_round_trip(began + MS * 100 * at, MS * 150);
        }
        assert_eq!((delay.base(), delay.queue()), (Some(MS * 150), Duration::ZERO));
    }
}
