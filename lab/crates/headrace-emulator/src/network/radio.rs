//! Traces by a model: when a radio link carries 1,500 bytes, in the statistics of recorded links.
//!
//! In: how fast one direction of a link is and how it pauses, a seed, a length. Out: the milliseconds of a Mahimahi
//! trace, which [`super::queue::Trace`] plays. It must not know packets.
//!
//! * The rate changes every 100 ms. Over all steps it has the quantiles that the model names; the rank of a step (the
//!   share of steps that are slower) is that of the step before, moved by up to `wander` and reflected at both ends,
//!   which leaves all ranks equally likely.
//! * In 120 s there are as many pauses as the model says, and as long by rank: the length of the pause with rank `r` lies
//!   on a straight line between the ranks that are named, both axes logarithmic. Every trace has pauses of all ranks, so
//!   every seed shows the longest. They begin at moments that are drawn evenly, and never overlap.
//! * Steps that are pauses are the slowest of all. The other steps have the ranks above them.
//! * Both directions are drawn apart: acknowledgements stop while the other direction flows, and the reverse.

use super::Direction;
use super::chance::{Purpose, draw};

/// The time that the number of pauses is of.
const RECORDED_MS: u64 = 120_000;
const STEP_MS: f64 = 100.0;
/// Bits of one opportunity of a trace.
const OPPORTUNITY_BITS: f64 = 12_000.0;
/// Ranks of the quantiles that a model names.
const RANKS: [f64; 5] = [0.05, 0.25, 0.5, 0.75, 0.95];
/// The fastest step, beside the 95th percentile: with it the mean rates of the recordings come out.
const FASTEST: f64 = 1.5;

/// One direction of a link.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Radio {
    /// Mbit/s that 5, 25, 50, 75 and 95 % of all steps do not exceed, pauses among them.
    pub rates: [f64; 5],
    /// How far the rank of a step may be from that of the step before.
    pub wander: f64,
    /// Pauses in 120 s: rank, from 1 for the longest, and milliseconds. The last rank is the number of pauses.
    pub pauses: &'static [(f64, f64)],
}

/// Both directions, and where the numbers come from.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Model {
    pub name: &'static str,
    pub source: &'static str,
    pub up: Radio,
    pub down: Radio,
}

impl Model {
    /// The model with this name, of [`MODELS`].
    pub fn named(name: &str) -> Option<&'static Self> {
        MODELS.iter().find(|model| model.name == name)
    }

    /// The milliseconds of a trace of one direction; the same seed gives the same trace.
    pub fn trace(&self, direction: Direction, seed: u64, length_ms: u64) -> Vec<u64> {
        let radio = if direction == Direction::Up { &self.up } else { &self.down };
        radio.trace(Draws { seed, lane: direction as u64 }, length_ms.max(1))
    }
}

#[derive(Clone, Copy)]
struct Draws {
    seed: u64,
    lane: u64,
}

impl Draws {
    fn draw(self, purpose: Purpose, index: usize) -> f64 {
        draw(self.seed, self.lane, purpose, index as u64)
    }
}

impl Radio {
    fn trace(&self, draws: Draws, length_ms: u64) -> Vec<u64> {
        let pauses = self.pauses_in(draws, length_ms);
        let paused: f64 = pauses.iter().map(|(from, to)| to - from).sum::<f64>() / length_ms as f64;
        let mut rank = draws.draw(Purpose::TraceRate, 0);
        let (mut times, mut bits, mut pauses) =
            (Vec::new(), draws.draw(Purpose::TraceRate, 1) * OPPORTUNITY_BITS, &pauses[..]);
        for ms in 0..length_ms {
            if ms % STEP_MS as u64 == 0 {
                let step = 2 + (ms / STEP_MS as u64) as usize;
                rank = reflect(rank + self.wander * (2.0 * draws.draw(Purpose::TraceRate, step) - 1.0));
            }
            while pauses.first().is_some_and(|(_, to)| *to <= ms as f64) {
                pauses = &pauses[1..];
            }
            if pauses.first().is_some_and(|(from, _)| *from <= ms as f64) {
                continue;
            }
            // 10⁶ bits a second are 10³ bits a millisecond.
            bits += self.rate(paused + (1.0 - paused) * rank) * 1e3;
            while bits >= OPPORTUNITY_BITS {
                bits -= OPPORTUNITY_BITS;
                times.push(ms);
            }
        }
        // The last line's time is the length of a trace.
        times.push(length_ms);
        times
    }

    /// Mbit/s of the step with this rank.
    fn rate(&self, rank: f64) -> f64 {
        let [slowest, .., fastest] = self.rates;
        let mut before = (0.0, slowest / 2.0);
        for point in RANKS.into_iter().zip(self.rates).chain([(1.0, fastest * FASTEST)]) {
            if rank <= point.0 {
                let part = (rank - before.0) / (point.0 - before.0);
                return before.1 + (point.1 - before.1) * part;
            }
            before = point;
        }
        fastest
    }

    /// Beginnings and ends, in ascending order.
    fn pauses_in(&self, draws: Draws, length_ms: u64) -> Vec<(f64, f64)> {
        let Some(&(most, _)) = self.pauses.last() else { return Vec::new() };
        let share = length_ms as f64 / RECORDED_MS as f64;
        let count = (most * share).round() as usize;
        // Ranks are of 120 s: in a longer time each comes more often, in a shorter one some do not come.
        let chance = |index| draws.draw(Purpose::TracePauseLength, index);
        let mut lengths: Vec<f64> =
            (0..count).map(|index| self.pause((index as f64 + chance(index)) / share + 0.5)).collect();
        shuffle(&mut lengths, |index| chance(count + index));
        let free = (length_ms as f64 - lengths.iter().sum::<f64>()).max(0.0);
        let mut begins: Vec<f64> =
            (0..count).map(|index| free * draws.draw(Purpose::TracePauseStart, index)).collect();
        begins.sort_unstable_by(f64::total_cmp);
        let mut before = 0.0;
        begins
            .iter()
            .zip(lengths)
            .map(|(begin, length)| {
                let from = begin + before;
                before += length;
                (from, from + length)
            })
            .collect()
    }

    /// Milliseconds of the pause with this rank.
    fn pause(&self, rank: f64) -> f64 {
        let mut before = (1.0, self.pauses[0].1);
        for &(at, length) in self.pauses {
            if rank <= at {
                let part =
                    if at > before.0 { (rank.max(1.0) / before.0).ln() / (at / before.0).ln() } else { 0.0 };
                return before.1 * (length / before.1).powf(part);
            }
            before = (at, length);
        }
        before.1
    }
}

/// Even between 0 and 1.
fn reflect(rank: f64) -> f64 {
    let rank = if rank < 0.0 { -rank } else { rank };
    if rank > 1.0 { 2.0 - rank } else { rank }
}

/// Fisher and Yates.
fn shuffle<T>(all: &mut [T], chance: impl Fn(usize) -> f64) {
    for index in (1..all.len()).rev() {
        all.swap(index, (chance(index) * (index + 1) as f64) as usize);
    }
}

/// The links that come with the lab. What is said to be set so that the link itself shows something is no recording's own
/// statistic: nobody published those.
pub const MODELS: &[Model] = &[
    Model {
        name: "lte-driving",
        source: "Mahimahi's recording ATT-LTE-driving-2016: quantiles of the rate in steps of 100 ms, pauses over 100 ms by \
                 rank; the mean rates (4.6 and 1.9 Mbit/s) and how late the link itself makes tokens follow",
        up: Radio {
            rates: [0.0, 0.6, 1.3, 2.4, 5.9],
            wander: WANDER,
            pauses: &[(1.0, 4061.0), (2.0, 2221.0), (3.0, 1267.0), (9.0, 900.0), (85.0, 100.0)],
        },
        down: Radio {
            rates: [0.0, 1.7, 3.5, 5.6, 12.7],
            wander: WANDER,
            pauses: &[(1.0, 1123.0), (3.0, 886.0), (4.0, 669.0), (7.0, 514.0), (22.0, 200.0), (64.0, 100.0)],
        },
    },
    Model {
        name: "umts-driving",
        source: "Mahimahi's recording TMobile-UMTS-driving, in the same way",
        up: Radio {
            rates: [0.0, 0.0, 0.5, 1.2, 1.4],
            wander: WANDER,
            pauses: &[(1.0, 5830.0), (2.0, 3516.0), (3.0, 3000.0), (4.0, 2148.0), (63.0, 100.0)],
        },
        down: Radio {
            rates: [0.0, 0.0, 0.6, 2.5, 4.2],
            wander: WANDER,
            pauses: &[
                (1.0, 5753.0),
                (2.0, 4183.0),
                (3.0, 3043.0),
                (4.0, 2327.0),
                (5.0, 1961.0),
                (21.0, 200.0),
                (84.0, 100.0),
            ],
        },
    },
    Model {
        name: "lte-good",
        source: "Assumption, set so that the link itself shows what Mahimahi's TMobile-LTE-driving does: tokens up to 64 ms late \
                 (p99), 1.4 % of the time stalled",
        up: Radio { rates: [2.0, 4.0, 6.0, 9.0, 14.0], wander: WANDER, pauses: FEW },
        down: Radio { rates: [3.0, 7.0, 11.0, 16.0, 25.0], wander: WANDER, pauses: FEW },
    },
    Model {
        name: "lte-town",
        source: "Assumption, set so that the link itself shows what Mahimahi's Verizon-LTE-driving does: tokens up to 302 ms late \
                 (p99), 5.7 % of the time stalled",
        up: Radio {
            rates: [0.3, 1.5, 3.0, 5.0, 9.0],
            wander: WANDER,
            pauses: &[(1.0, 1500.0), (3.0, 700.0), (12.0, 250.0), (50.0, 100.0)],
        },
        down: Radio {
            rates: [0.5, 3.0, 6.0, 10.0, 18.0],
            wander: WANDER,
            pauses: &[(1.0, 700.0), (4.0, 420.0), (14.0, 200.0), (34.0, 100.0)],
        },
    },
    Model {
        name: "wifi-crowded",
        source: "Assumption: an access point that many share, and a client that leaves the channel to look for others",
        up: Radio {
            rates: [0.5, 3.0, 8.0, 14.0, 25.0],
            wander: 1.0,
            pauses: &[(1.0, 1200.0), (4.0, 400.0), (40.0, 100.0)],
        },
        down: Radio {
            rates: [1.0, 4.0, 10.0, 18.0, 30.0],
            wander: 1.0,
            pauses: &[(1.0, 800.0), (4.0, 300.0), (30.0, 100.0)],
        },
    },
    Model {
        name: "satellite-low",
        source: "Assumption: a dish on a roof among trees, its satellite another one every 15 s, in low orbit",
        up: Radio {
            rates: [0.5, 2.0, 4.0, 6.0, 9.0],
            wander: 0.2,
            pauses: &[(1.0, 2000.0), (3.0, 800.0), (8.0, 250.0), (24.0, 100.0)],
        },
        down: Radio {
            rates: [3.0, 8.0, 14.0, 20.0, 30.0],
            wander: 0.2,
            pauses: &[(1.0, 2000.0), (3.0, 800.0), (8.0, 250.0), (16.0, 100.0)],
        },
    },
    Model {
        name: "train",
        source: "Assumption: tunnels and cuttings, which last up to 4 s; between them a cell that many share",
        up: Radio {
            rates: [0.0, 0.4, 1.0, 2.0, 4.0],
            wander: WANDER,
            pauses: &[(1.0, 4000.0), (2.0, 2800.0), (5.0, 1200.0), (12.0, 500.0), (60.0, 100.0)],
        },
        down: Radio {
            rates: [0.0, 1.0, 2.5, 5.0, 10.0],
            wander: WANDER,
            pauses: &[(1.0, 4000.0), (2.0, 2800.0), (5.0, 1200.0), (12.0, 500.0), (50.0, 100.0)],
        },
    },
];

/// With it the link itself makes tokens as late as on the recording of `lte-driving`: 735 ms (p99).
const WANDER: f64 = 0.5;
const FEW: &[(f64, f64)] = &[(1.0, 260.0), (3.0, 170.0), (14.0, 100.0)];

#[cfg(test)]
mod tests;
