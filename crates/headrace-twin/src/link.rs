//! One direction of the path between the two sides.
//!
//! In: a datagram's length, the time. Out: when it arrives: once, twice, or never. What is lost is chosen by the
//! packet's index and the seed, never by time: two transports that send different packets at different times
//! meet the same verdicts for their first, second, third packet.

use std::collections::BTreeSet;
use std::ops::Range;
use std::time::Duration;

/// IPv4 and UDP headers: they count for rates.
const HEADERS: usize = 28;

/// Which packets are lost.
#[derive(Clone, Debug, Default)]
pub enum Loss {
    #[default]
    None,
    /// Each with this probability.
    Random(f64),
    /// Gilbert-Elliott: this share of all, in runs of this mean length. In the bad state everything is lost.
    Bursts { share: f64, mean: f64 },
}

/// A bottleneck: what does not fit into its queue is dropped.
#[derive(Clone, Copy, Debug)]
pub struct Rate {
    pub bits_per_s: u64,
    pub queue_bytes: usize,
}

/// How a direction behaves. The default: an ideal path without delay.
#[derive(Clone, Debug, Default)]
pub struct Path {
    pub delay: Duration,
    /// Up to so much is added, uniformly, to each packet by itself: packets overtake each other.
    pub jitter: Duration,
    pub loss: Loss,
    /// Lost whatever `loss` says: indices of packets, counted from 0 since the link was made.
    pub drops: BTreeSet<u64>,
    /// The share of packets that arrive twice.
    pub duplicated: f64,
    /// While it lasts, nothing passes.
    pub outages: Vec<Range<Duration>>,
    pub rate: Option<Rate>,
    /// Larger UDP payloads vanish; `None`: everything fits.
    pub largest: Option<usize>,
}

impl Path {
    pub fn new(delay: Duration) -> Self {
        Self { delay, ..Self::default() }
    }
}

/// Chance from a seed: SplitMix64 (Steele, Lea, Flood 2014).
#[derive(Clone, Debug)]
pub struct Chance(u64);

impl Chance {
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// In [0, 1).
    pub fn share(&mut self) -> f64 {
        (self.next_u64() >> 11) as f64 / (1u64 << 53) as f64
    }

    pub fn below(&mut self, bound: u64) -> u64 {
        (self.share() * bound as f64) as u64
    }

    pub fn bytes<const N: usize>(&mut self) -> [u8; N] {
        std::array::from_fn(|_| self.next_u64() as u8)
    }
}

/// A direction and what has passed.
#[derive(Debug)]
pub struct Link {
    path: Path,
    chance: Chance,
    index: u64,
    is_bad: bool,
    /// When the bottleneck has sent all it holds.
    free_at: Duration,
    pub lost: u64,
    pub passed_bytes: u64,
}

impl Link {
    pub fn new(path: Path, seed: u64) -> Self {
        let chance = Chance::new(seed);
        Self { path, chance, index: 0, is_bad: false, free_at: Duration::ZERO, lost: 0, passed_bytes: 0 }
    }

    /// From now on; indices go on.
    pub fn set_path(&mut self, path: Path) {
        self.path = path;
    }

    pub fn path_mut(&mut self) -> &mut Path {
        &mut self.path
    }

    /// The next packet's index.
    pub fn index(&self) -> u64 {
        self.index
    }

    /// When this datagram arrives; the second time is that of its duplicate.
    pub fn handle_packet(&mut self, now: Duration, bytes: usize) -> [Option<Duration>; 2] {
        let index = self.index;
        self.index += 1;
        // Always drawn, so that one verdict does not move the others.
        let (loss, turn, late, twice) =
            (self.chance.share(), self.chance.share(), self.chance.share(), self.chance.share());
        let is_lost = self.draw_loss(loss, turn)
            || self.path.drops.contains(&index)
            || self.path.outages.iter().any(|outage| outage.contains(&now))
            || self.path.largest.is_some_and(|largest| bytes > largest);
        let queued = if is_lost { None } else { self.queue(now, bytes) };
        let Some(sent) = queued else {
            self.lost += 1;
            return [None, None];
        };
        self.passed_bytes += bytes as u64;
        let arrives = sent + self.path.delay + self.path.jitter.mul_f64(late);
        [Some(arrives), (twice < self.path.duplicated).then_some(arrives)]
    }

    fn draw_loss(&mut self, loss: f64, turn: f64) -> bool {
        match self.path.loss {
            Loss::None => false,
            Loss::Random(share) => loss < share,
            Loss::Bursts { share, mean } => {
                let ends = 1.0 / mean.max(1.0);
                // The share of time in the bad state is begins / (begins + ends).
                let begins = share * ends / (1.0 - share);
                self.is_bad = if self.is_bad { turn >= ends } else { turn < begins };
                self.is_bad
            }
        }
    }

    /// When the bottleneck has sent it; `None` when its queue is full.
    fn queue(&mut self, now: Duration, bytes: usize) -> Option<Duration> {
        let Some(rate) = self.path.rate else { return Some(now) };
        let takes = |bytes: usize| {
            Duration::from_nanos((bytes as u64 * 8).saturating_mul(1_000_000_000) / rate.bits_per_s.max(1))
        };
        let waits = self.free_at.saturating_sub(now);
        if waits > takes(rate.queue_bytes) {
            return None;
        }
        self.free_at = now + waits + takes(bytes + HEADERS);
        Some(self.free_at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lost(path: Path, packets: u64) -> Vec<bool> {
        let mut link = Link::new(path, 7);
        (0..packets).map(|_| link.handle_packet(Duration::ZERO, 200)[0].is_none()).collect()
    }

    #[test]
    fn loss_has_its_share_and_its_runs() {
        let random = lost(Path { loss: Loss::Random(0.03), ..Path::default() }, 100_000);
        let share = random.iter().filter(|lost| **lost).count();
        assert!((2_800..3_200).contains(&share), "{share}");
        let bursts = lost(Path { loss: Loss::Bursts { share: 0.03, mean: 3.0 }, ..Path::default() }, 100_000);
        let share = bursts.iter().filter(|lost| **lost).count();
        let runs = bursts.windows(2).filter(|pair| !pair[0] && pair[1]).count();
        assert!((2_600..3_400).contains(&share), "{share}");
        assert!((2.7..3.3).contains(&(share as f64 / runs as f64)), "{share} in {runs} runs");
    }

    #[test]
    fn single_drops_are_exact_and_move_no_other_verdict() {
        let path = || Path { loss: Loss::Random(0.1), ..Path::default() };
        let plain = lost(path(), 100);
        let dropped = lost(Path { drops: [5, 50].into(), ..path() }, 100);
        let changed: Vec<_> = (0..100).filter(|&index| plain[index] != dropped[index]).collect();
        assert!(changed.iter().all(|index| [5, 50].contains(index)));
        assert!(dropped[5] && dropped[50]);
    }

    #[test]
    fn a_bottleneck_queues_and_then_drops() {
        let rate = Rate { bits_per_s: 8_000_000, queue_bytes: 3_000 };
        let mut link = Link::new(Path { rate: Some(rate), ..Path::default() }, 1);
        let times: Vec<_> = (0..6).map(|_| link.handle_packet(Duration::ZERO, 972)[0]).collect();
        let millis = |number| Some(Duration::from_millis(number));
        assert_eq!(times, [millis(1), millis(2), millis(3), millis(4), None, None]);
    }
}
