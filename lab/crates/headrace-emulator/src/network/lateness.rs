//! Counts how late an emulator was, exact to a microsecond where it matters.
//!
//! In: for each packet that came out, how long after its due time. Out: quantiles and the maximum.

/// Longer times share the last bucket; the maximum is kept apart.
const BUCKETS: usize = 20_000;

#[derive(Debug)]
pub struct Lateness {
    /// How often each number of microseconds occurred.
    counts: Box<[u64]>,
    total: u64,
    max_ns: u64,
}

impl Default for Lateness {
    fn default() -> Self {
        Self { counts: vec![0; BUCKETS].into_boxed_slice(), total: 0, max_ns: 0 }
    }
}

impl Lateness {
    pub fn record(&mut self, late_ns: u64) {
        let bucket = usize::try_from(late_ns / 1000).unwrap_or(BUCKETS).min(BUCKETS - 1);
        self.counts[bucket] += 1;
        self.total += 1;
        self.max_ns = self.max_ns.max(late_ns);
    }

    pub fn total(&self) -> u64 {
        self.total
    }

    pub fn max_ns(&self) -> u64 {
        self.max_ns
    }

    /// Returns the end of the microsecond in which the quantile lies; 0 where nothing was recorded.
    pub fn quantile_ns(&self, q: f64) -> u64 {
        let rank = ((self.total as f64) * q.clamp(0.0, 1.0)).ceil().max(1.0) as u64;
        let mut seen = 0;
        for (micros, count) in self.counts.iter().enumerate() {
            seen += count;
            if *count > 0 && seen >= rank {
                let is_last = micros == BUCKETS - 1;
                return if is_last { self.max_ns } else { self.max_ns.min((micros as u64 + 1) * 1000) };
            }
        }
        0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_exact_to_a_microsecond() {
        let mut lateness = Lateness::default();
        assert_eq!(lateness.quantile_ns(0.99), 0);
        (1..=1000).for_each(|micros| lateness.record(micros * 1000 - 1));
        assert_eq!(lateness.quantile_ns(0.5), 500_000);
        assert_eq!(lateness.quantile_ns(0.99), 990_000);
        assert_eq!(lateness.quantile_ns(1.0), 999_999);
        lateness.record(3_000_000_000);
        assert_eq!((lateness.max_ns(), lateness.quantile_ns(1.0)), (3_000_000_000, 3_000_000_000));
        assert_eq!(lateness.total(), 1001);
    }
}
