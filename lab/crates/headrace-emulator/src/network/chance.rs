//! Chance that does not depend on when it is asked.
//!
//! In: a seed, what the draw is for, and a packet's index. Out: always the same number. So a packet's fate is
//! settled by its place in the stream, and two protocols that are compared meet the same losses.

/// What a draw decides. Each has a sequence of its own, so that more jitter does not change the losses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    Loss = 1,
    Jitter = 2,
    Duplicate = 3,
    Reorder = 4,
    PauseStart = 5,
    PauseLength = 6,
    TraceRate = 7,
    TracePauseStart = 8,
    TracePauseLength = 9,
}

/// Returns a number in `[0, 1)`. `lane`, the direction, tells sequences of the same purpose apart.
pub fn draw(seed: u64, lane: u64, purpose: Purpose, index: u64) -> f64 {
    let key = mix(seed ^ mix(lane << 8 | purpose as u64));
    let bits = mix(key.wrapping_add(index.wrapping_mul(GAMMA)));
    (bits >> 11) as f64 / (1u64 << 53) as f64
}

/// The step and the finalizer of SplitMix64 (Steele, Lea, Flood, "Fast splittable pseudorandom number
/// generators", OOPSLA 2014).
const GAMMA: u64 = 0x9e37_79b9_7f4a_7c15;

fn mix(value: u64) -> u64 {
    let z = value.wrapping_add(GAMMA);
    let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_finalizer_is_the_published_one() {
        // The first output for seed 0 of the generator.
        assert_eq!(mix(0), 0xe220_a839_7b1d_cdaf);
    }

    #[test]
    fn draws_are_even_and_independent_of_each_other() {
        let count = 100_000u64;
        for purpose in [Purpose::Loss, Purpose::Jitter] {
            let mut buckets = [0u32; 10];
            (0..count).for_each(|index| buckets[(draw(7, 0, purpose, index) * 10.0) as usize] += 1);
            // Six standard deviations of a binomial of 100,000 draws at a tenth: 570.
            assert!(buckets.iter().all(|&held| held.abs_diff(10_000) < 570), "{buckets:?}");
        }
        let same = |a: (u64, u64, Purpose), b: (u64, u64, Purpose)| {
            let below = |(seed, lane, purpose), index| draw(seed, lane, purpose, index) < 0.5;
            (0..count).filter(|&index| below(a, index) == below(b, index)).count()
        };
        let base = (7, 0, Purpose::Loss);
        for other in [(8, 0, Purpose::Loss), (7, 1, Purpose::Loss), (7, 0, Purpose::Jitter)] {
            assert!(same(base, other).abs_diff(50_000) < 950, "{other:?}");
        }
        assert_eq!(same(base, base), 100_000);
    }
}
