//! Counting misbehaviour.
//!
//! In: moments at which a client did something that costs us more than it costs the client (a cancelled
//! request, an empty frame). Out: whether it did so too often. A leaky bucket: `burst` at once, then
//! `per_second`.

use std::time::{Duration, Instant};

/// A leaky bucket; time is an argument.
#[derive(Clone, Debug)]
pub struct Budget {
    burst: f64,
    per_second: f64,
    level: f64,
    last: Instant,
}

impl Budget {
    pub fn new(burst: u32, per_second: u32, now: Instant) -> Self {
        Self { burst: f64::from(burst), per_second: f64::from(per_second), level: 0.0, last: now }
    }

    /// Spends one; false when the budget is overdrawn.
    #[must_use]
    pub fn spend(&mut self, now: Instant) -> bool {
        self.spend_many(1, now)
    }

    /// Spends one if that does not overdraw the budget.
    #[must_use]
    pub fn try_spend(&mut self, now: Instant) -> bool {
        let mut after = self.clone();
        let is_allowed = after.spend(now);
        if is_allowed {
            *self = after;
        }
        is_allowed
    }

    /// Something was done that such things may follow: so many are allowed beside the others, at most ten times the
    /// burst ahead.
    pub fn earn(&mut self, count: f64) {
        self.level = (self.level - count).max(-10.0 * self.burst);
    }

    /// Spends so many; false when the budget is overdrawn.
    #[must_use]
    pub fn spend_many(&mut self, count: u64, now: Instant) -> bool {
        let elapsed = now.checked_duration_since(self.last).unwrap_or(Duration::ZERO);
        self.last = now;
        self.level =
            (self.level - elapsed.as_secs_f64() * self.per_second).max(self.level.min(0.0)) + count as f64;
        self.level <= self.burst
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_is_allowed_and_then_only_the_rate() {
        let start = Instant::now();
        let mut budget = Budget::new(3, 10, start);
        assert!((0..3).all(|_| budget.spend(start)));
        assert!(!budget.spend(start));
        assert!(budget.spend(start + Duration::from_millis(200)));
        assert!(!budget.spend(start + Duration::from_millis(200)));
        let later = start + Duration::from_secs(60);
        assert!((0..3).all(|_| budget.spend(later)));
    }

    #[test]
    fn what_is_not_allowed_does_not_count_where_it_is_not_done() {
        let start = Instant::now();
        let mut budget = Budget::new(1, 1, start);
        assert!(budget.try_spend(start));
        assert!((0..100).all(|_| !budget.try_spend(start + Duration::from_millis(900))));
        assert!(budget.try_spend(start + Duration::from_millis(1000)));
    }

    #[test]
    fn what_was_earned_is_allowed_beside_the_burst() {
        let start = Instant::now();
        let mut budget = Budget::new(3, 0, start);
        budget.earn(2.5);
        assert!(budget.spend_many(5, start) && !budget.spend(start));
        budget.earn(1e9);
        assert!(budget.spend_many(33, start) && !budget.spend(start + Duration::from_secs(1)));
    }
}
