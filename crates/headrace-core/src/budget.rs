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
        let elapsed = now.checked_duration_since(self.last).unwrap_or(Duration::ZERO);
        self.last = now;
        self.level = (self.level - elapsed.as_secs_f64() * self.per_second).max(0.0) + 1.0;
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
}
