//! The bottleneck: how fast packets leave, and how many bytes may wait.
//!
//! In: a packet's length and the moment it came. Out: when it leaves, or that the queue was full. Packets leave
//! in the order in which they came. Times are nanoseconds of any one clock.

use std::collections::VecDeque;

const SECOND: u64 = 1_000_000_000;
/// The bytes of one opportunity of a trace.
const OPPORTUNITY: u64 = 1500;

/// How fast packets leave.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum Rate {
    #[default]
    Unlimited,
    /// Bits per second, counted over whole IP packets.
    Bits(u64),
    Trace(Trace),
}

/// A recorded capacity, as Mahimahi writes it: each line is a millisecond at which 1,500 bytes may leave; the
/// last line's time is the length of the trace, which begins again then. What an opportunity does not use is
/// lost; a packet that does not fit takes the rest from the next.
#[derive(Clone, Debug, PartialEq)]
pub struct Trace {
    at_ns: Vec<u64>,
    period: u64,
}

impl Trace {
    /// Returns `None` when there is no line, the times go back, or the last one is 0.
    pub fn new(milliseconds: &[u64]) -> Option<Self> {
        let at_ns: Vec<u64> = milliseconds.iter().map(|at| at.saturating_mul(1_000_000)).collect();
        let period = *at_ns.last()?;
        (period > 0 && period < u64::MAX / 4 && at_ns.is_sorted()).then_some(Self { at_ns, period })
    }

    /// A trace as Mahimahi writes it.
    ///
    /// # Errors
    /// The first line that is not a whole number of milliseconds, or that no trace can be made of the times.
    pub fn parse(text: &str) -> Result<Self, String> {
        let number = |word: &str| word.parse().map_err(|_| format!("{word:?}: expected whole milliseconds"));
        let times = text.split_whitespace().map(number).collect::<Result<Vec<u64>, String>>()?;
        Self::new(&times).ok_or_else(|| "the times of a trace must rise, and end above 0".to_owned())
    }

    /// Returns when the opportunity with this number is, counted from 0 since the trace first began.
    fn at(&self, number: u64) -> u64 {
        let count = self.at_ns.len() as u64;
        number / count * self.period + self.at_ns[(number % count) as usize]
    }

    /// Returns the number of the first opportunity at `time` or later.
    fn first_from(&self, time: u64) -> u64 {
        // The opportunity at the very end of the cycle before also counts.
        let cycle = (time / self.period).saturating_sub(1);
        let count = self.at_ns.len() as u64;
        let within = time - cycle * self.period;
        let part = |limit: u64| self.at_ns.partition_point(|&at| at < limit) as u64;
        let found = part(within);
        if found < count { cycle * count + found } else { (cycle + 1) * count + part(within - self.period) }
    }
}

/// What waits to leave one direction. Bounded by bytes.
#[derive(Debug)]
pub struct Queue {
    /// When each packet leaves, and its length.
    waiting: VecDeque<(u64, u64)>,
    bytes: u64,
    free_at: u64,
    /// The number of the trace's opportunity that is in use, and what is left of it.
    opportunity: u64,
    left: u64,
    began: u64,
}

impl Queue {
    /// `now`: when a trace begins.
    pub fn new(now: u64) -> Self {
        Self { waiting: VecDeque::new(), bytes: 0, free_at: 0, opportunity: 0, left: OPPORTUNITY, began: now }
    }

    /// When a packet of `length` bytes that comes now has left; `None`: there was no room. `open_at` moves a
    /// moment at which nothing may leave to the next one at which something may.
    pub fn enqueue(
        &mut self,
        rate: &Rate,
        limit: u64,
        now: u64,
        length: u64,
        open_at: impl Fn(u64) -> u64,
    ) -> Option<u64> {
        while let Some(&(left_at, length)) = self.waiting.front() {
            if left_at > now {
                break;
            }
            self.bytes -= length;
            self.waiting.pop_front();
        }
        // An empty queue takes one packet of any size: the one on the wire.
        if !self.waiting.is_empty() && self.bytes + length > limit {
            return None;
        }
        let leaves = match rate {
            Rate::Unlimited => open_at(now.max(self.free_at)),
            Rate::Bits(bits) => {
                let time = u128::from(length) * 8 * u128::from(SECOND) / u128::from((*bits).max(1));
                let time = u64::try_from(time).unwrap_or(u64::MAX / 4);
                open_at(now.max(self.free_at).saturating_add(time))
            }
            Rate::Trace(trace) => open_at(self.by_trace(trace, now, length)),
        };
        self.free_at = leaves;
        if leaves > now {
            self.waiting.push_back((leaves, length));
            self.bytes += length;
        }
        Some(leaves)
    }

    fn by_trace(&mut self, trace: &Trace, now: u64, length: u64) -> u64 {
        let from = now.max(self.free_at).saturating_sub(self.began);
        if trace.at(self.opportunity) < from {
            self.opportunity = trace.first_from(from);
            self.left = OPPORTUNITY;
        }
        let mut owed = length;
        while owed > self.left {
            owed -= self.left;
            self.opportunity += 1;
            self.left = OPPORTUNITY;
        }
        self.left -= owed;
        self.began + trace.at(self.opportunity)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    fn same(at: u64) -> u64 {
        at
    }

    #[test]
    fn a_rate_spaces_packets_exactly() {
        let mut queue = Queue::new(0);
        let rate = Rate::Bits(12_000_000); // 1,500 bytes each millisecond
        let leave: Vec<_> = (0..4).map(|_| queue.enqueue(&rate, 1 << 20, 10 * MS, 1500, same)).collect();
        assert_eq!(leave, [11, 12, 13, 14].map(|ms| Some(ms * MS)));
        assert_eq!(queue.enqueue(&rate, 1 << 20, 20 * MS, 750, same), Some(20 * MS + MS / 2));
    }

    #[test]
    fn a_full_queue_drops_the_tail_and_takes_again_when_it_has_drained() {
        let mut queue = Queue::new(0);
        let rate = Rate::Bits(12_000_000);
        let taken = (0..10).filter(|_| queue.enqueue(&rate, 4500, 0, 1500, same).is_some()).count();
        assert_eq!(taken, 3);
        assert_eq!(queue.enqueue(&rate, 4500, MS - 1, 1500, same), None);
        assert_eq!(queue.enqueue(&rate, 4500, MS, 1500, same), Some(4 * MS));
        let mut small = Queue::new(0);
        assert_eq!(small.enqueue(&rate, 100, 0, 1500, same), Some(MS), "a bound below one packet");
    }

    #[test]
    fn an_unlimited_link_holds_only_what_a_pause_holds() {
        let mut queue = Queue::new(0);
        let pause = |at: u64| if at < 5 * MS { 5 * MS } else { at };
        assert_eq!(queue.enqueue(&Rate::Unlimited, 3000, MS, 1500, pause), Some(5 * MS));
        assert_eq!(queue.enqueue(&Rate::Unlimited, 3000, 2 * MS, 1500, pause), Some(5 * MS));
        assert_eq!(queue.enqueue(&Rate::Unlimited, 3000, 3 * MS, 1500, pause), None);
        assert_eq!(queue.enqueue(&Rate::Unlimited, 3000, 6 * MS, 1500, pause), Some(6 * MS));
    }

    #[test]
    fn after_a_pause_the_queue_drains_at_the_rate() {
        let mut queue = Queue::new(0);
        let rate = Rate::Bits(12_000_000);
        let pause = |at: u64| if (MS..10 * MS).contains(&at) { 10 * MS } else { at };
        let leave: Vec<_> = (0..3).map(|_| queue.enqueue(&rate, 1 << 20, 0, 1500, pause)).collect();
        assert_eq!(leave, [10, 11, 12].map(|ms| Some(ms * MS)));
    }

    #[test]
    fn a_trace_gives_its_opportunities_in_a_circle() {
        let rate = Rate::Trace(Trace::new(&[2, 2, 5]).unwrap());
        let mut queue = Queue::new(100 * MS);
        let mut next = |now: u64, length| queue.enqueue(&rate, 1 << 20, now, length, same).unwrap() / MS;
        let big: Vec<_> = (0..7).map(|_| next(100 * MS, 1500)).collect();
        assert_eq!(big, [102, 102, 105, 107, 107, 110, 112]);
    }

    #[test]
    fn what_an_opportunity_does_not_use_is_lost_and_a_packet_may_need_two() {
        let rate = Rate::Trace(Trace::new(&[2, 4, 6]).unwrap());
        let mut queue = Queue::new(0);
        let mut next = |now: u64, length| queue.enqueue(&rate, 1 << 20, now, length, same).unwrap() / MS;
        assert_eq!(next(0, 500), 2);
        assert_eq!(next(MS, 500), 2, "beside the first");
        assert_eq!(next(MS, 1000), 4, "500 bytes at 2, the rest at 4");
        assert_eq!(next(5 * MS, 1500), 6, "the rest of 4 is gone");
        assert_eq!(next(7 * MS, 1500), 8, "the second round: 6 + 2");
        assert_eq!(next(12 * MS, 1500), 12, "the last of the second round");
        assert_eq!(next(601 * MS, 1500), 602, "long idle");
    }

    #[test]
    fn a_trace_without_time_is_refused() {
        for wrong in [&[][..], &[0, 0], &[5, 2]] {
            assert_eq!(Trace::new(wrong), None);
        }
    }

    #[test]
    fn a_file_of_mahimahi_is_read_and_what_is_none_is_refused() {
        assert_eq!(Trace::parse("0\n2\n\n5\n"), Ok(Trace::new(&[0, 2, 5]).unwrap()));
        for wrong in ["", "0", "2\n1", "1.5", "-1", "a"] {
            assert!(Trace::parse(wrong).is_err(), "{wrong:?}");
        }
    }
}
