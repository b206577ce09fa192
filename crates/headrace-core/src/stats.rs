//! Counting times.
//!
//! In: durations. Out: a small histogram (8 buckets an octave, so a value is known within 12 %), cheap enough
//! to keep two for every stream and to update for every event.

use std::time::Duration;

const SUB: usize = 8;
const SUB_BITS: u32 = SUB.trailing_zeros();
/// All values below this share one bucket (µs).
const FLOOR_US: u64 = 8;
/// Octaves above the floor: 8 µs to about 134 s; longer ones land in the last bucket.
const OCTAVES: usize = 24;
const BUCKETS: usize = 1 + OCTAVES * SUB;

/// Counts of durations by size.
#[derive(Clone, Debug)]
pub struct Histogram {
    counts: Box<[u32; BUCKETS]>,
    max: Duration,
    total: u64,
}

impl Default for Histogram {
    fn default() -> Self {
        Self { counts: Box::new([0; BUCKETS]), max: Duration::ZERO, total: 0 }
    }
}

impl Histogram {
    pub fn record(&mut self, value: Duration) {
        let micros = u64::try_from(value.as_micros()).unwrap_or(u64::MAX);
        let count = &mut self.counts[bucket(micros)];
        *count = count.saturating_add(1);
        self.total += 1;
        self.max = self.max.max(value);
    }

    pub fn total(&self) -> u64 {
        self.total
    }

    pub fn max(&self) -> Duration {
        self.max
    }

    /// The upper edge of the bucket in which the quantile `q` (0 to 1) lies; zero when nothing was recorded.
    pub fn quantile(&self, q: f64) -> Duration {
        let rank = ((self.total as f64) * q.clamp(0.0, 1.0)).ceil().max(1.0) as u64;
        let mut seen = 0;
        for (index, &count) in self.counts.iter().enumerate() {
            seen += u64::from(count);
            if count > 0 && seen >= rank {
                return upper_edge(index).min(self.max);
            }
        }
        Duration::ZERO
    }

    /// `(upper edge, count)` of every bucket that holds something, in order.
    pub fn buckets(&self) -> impl Iterator<Item = (Duration, u32)> + '_ {
        self.counts
            .iter()
            .enumerate()
            .filter(|(_, count)| **count > 0)
            .map(|(i, count)| (upper_edge(i), *count))
    }
}

fn bucket(micros: u64) -> usize {
    if micros < FLOOR_US {
        return 0;
    }
    let octave = 63 - micros.leading_zeros() - FLOOR_US.trailing_zeros();
    let shift = octave + FLOOR_US.trailing_zeros() - SUB_BITS;
    let within = (micros >> shift) as usize & (SUB - 1);
    (1 + octave as usize * SUB + within).min(BUCKETS - 1)
}

fn upper_edge(index: usize) -> Duration {
    if index == 0 {
        return Duration::from_micros(FLOOR_US);
    }
    let (octave, within) = ((index - 1) / SUB, (index - 1) % SUB);
    let base = FLOOR_US << octave;
    Duration::from_micros(base + (base / SUB as u64) * (within as u64 + 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_value_lies_within_its_bucket() {
        for micros in (0..200_000).chain([1_000_000, 20_000_000, 130_000_000]) {
            let edge = upper_edge(bucket(micros)).as_micros() as u64;
            assert!(micros < edge || bucket(micros) == BUCKETS - 1, "{micros} {edge}");
            assert!(micros < FLOOR_US || edge as f64 <= micros as f64 * 1.13 + 1.0, "{micros} {edge}");
        }
        assert_eq!(bucket(u64::MAX), BUCKETS - 1);
    }

    #[test]
    fn quantiles_are_edges_and_never_above_the_largest_value() {
        let mut histogram = Histogram::default();
        assert_eq!(histogram.quantile(0.5), Duration::ZERO);
        for _ in 0..99 {
            histogram.record(Duration::from_millis(20));
        }
        histogram.record(Duration::from_millis(300));
        let p50 = histogram.quantile(0.5).as_secs_f64();
        assert!((0.020..0.023).contains(&p50), "{p50}");
        assert_eq!(histogram.quantile(1.0), Duration::from_millis(300));
        assert_eq!(histogram.buckets().map(|(_, count)| count).sum::<u32>(), 100);
        assert_eq!(histogram.total(), 100);
    }
}
