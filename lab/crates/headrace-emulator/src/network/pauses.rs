//! Pauses in which nothing passes, as a moving receiver has them by chance.
//!
//! In: a seed and a time since the beginning. Out: the end of the pause that is going on. Pauses depend on the
//! time, not on packets: they belong to the radio, and both directions have the same.

use super::chance::{Purpose, draw};

/// One pause in each slot of `every_ns`, at a random place in it. Lengths lie between `min_ns` and `max_ns` with
/// the given mean: `min + (max - min) · u^k`, which for k = 3 and k = 9 fits the pauses over 200 ms of two
/// recorded drives (`headrace_lab.link.profiles` names them).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Pauses {
    every_ns: u64,
    min_ns: u64,
    max_ns: u64,
    exponent: f64,
}

impl Pauses {
    /// Returns `None` unless `min <= mean <= max <= every` and the mean is possible.
    pub fn new(every_ns: u64, min_ns: u64, mean_ns: u64, max_ns: u64) -> Option<Self> {
        let is_ordered = every_ns > 0 && min_ns <= mean_ns && mean_ns <= max_ns && max_ns <= every_ns;
        if !is_ordered || (mean_ns == min_ns && max_ns > min_ns) {
            return None;
        }
        let exponent = (max_ns - min_ns) as f64 / (mean_ns - min_ns).max(1) as f64 - 1.0;
        Some(Self { every_ns, min_ns, max_ns, exponent: exponent.max(0.0) })
    }

    /// Returns the start and the end of the pause in this slot.
    pub fn in_slot(&self, seed: u64, slot: u64) -> (u64, u64) {
        let long = draw(seed, 0, Purpose::PauseLength, slot).powf(self.exponent);
        let length = self.min_ns + ((self.max_ns - self.min_ns) as f64 * long) as u64;
        let room = (self.every_ns - length) as f64;
        let start = slot * self.every_ns + (room * draw(seed, 0, Purpose::PauseStart, slot)) as u64;
        (start, start + length)
    }

    /// Returns the moment itself, or the end of the pause in which it lies.
    pub fn open_at(&self, seed: u64, time: u64) -> u64 {
        let (start, end) = self.in_slot(seed, time / self.every_ns);
        if (start..end).contains(&time) { end } else { time }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    #[test]
    fn pauses_have_their_number_bounds_and_mean() {
        let pauses = Pauses::new(5450 * MS, 200 * MS, 425 * MS, 1100 * MS).unwrap();
        let slots = 20_000;
        let mut all = 0;
        for slot in 0..slots {
            let (start, end) = pauses.in_slot(3, slot);
            assert!(start >= slot * 5450 * MS && end <= (slot + 1) * 5450 * MS);
            assert!((200 * MS..=1100 * MS).contains(&(end - start)));
            all += end - start;
        }
        let mean = all / slots / MS;
        assert!((418..432).contains(&mean), "{mean}");
    }

    #[test]
    fn what_falls_into_a_pause_leaves_at_its_end() {
        let pauses = Pauses::new(1000 * MS, 100 * MS, 100 * MS, 100 * MS).unwrap();
        let (start, end) = pauses.in_slot(9, 4);
        assert_eq!(end - start, 100 * MS);
        let at = |time| pauses.open_at(9, time);
        assert_eq!([at(start - 1), at(start), at(end - 1), at(end)], [start - 1, end, end, end]);
    }

    #[test]
    fn impossible_pauses_are_refused() {
        for (every, min, mean, max) in [(0, 0, 0, 0), (10, 5, 4, 6), (10, 5, 5, 6), (10, 5, 7, 11)] {
            assert_eq!(Pauses::new(every, min, mean, max), None);
        }
    }
}
