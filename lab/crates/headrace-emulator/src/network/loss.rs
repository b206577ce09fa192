//! Which packets are lost: one by one, or in bursts.
//!
//! In: a packet's draw, and whether the one before it was lost. Out: whether it is lost.

/// How packets are lost by chance.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Loss {
    /// The share of all packets, from 0 to 1.
    share: f64,
    /// The mean length of a run of losses; `None`: each packet is drawn by itself (Bernoulli).
    burst: Option<f64>,
}

impl Loss {
    /// With a `burst` of at most 1 each packet is drawn by itself; with more, by the two-state chain of Gilbert (1960)
    /// that has this mean length of a run and this share of losses. Returns `None` where no chain has both.
    pub fn new(share: f64, burst: f64) -> Option<Self> {
        if !(0.0..=1.0).contains(&share) || !burst.is_finite() {
            return None;
        }
        if burst <= 1.0 {
            return Some(Self { share, burst: None });
        }
        // From the good state to the bad one must be a probability.
        (share <= burst / (burst + 1.0)).then_some(Self { share, burst: Some(burst) })
    }

    /// Whether a packet is lost. `was_lost`: the packet before was. `draw`: this packet's number in `[0, 1)`.
    pub fn is_lost(&self, was_lost: bool, draw: f64) -> bool {
        let chance = match self.burst {
            None => self.share,
            Some(burst) if was_lost => 1.0 - 1.0 / burst,
            // In the long run as many runs of losses begin as end.
            Some(burst) => self.share / (burst * (1.0 - self.share)),
        };
        draw < chance
    }
}

#[cfg(test)]
mod tests {
    use super::super::chance::{Purpose, draw};
    use super::*;

    /// `(share, mean run)` over a million packets.
    fn measure(loss: Loss) -> (f64, f64) {
        let (mut lost, mut runs, mut was_lost) = (0u32, 0u32, false);
        for index in 0..1_000_000 {
            let is_lost = loss.is_lost(was_lost, draw(1, 0, Purpose::Loss, index));
            lost += u32::from(is_lost);
            runs += u32::from(is_lost && !was_lost);
            was_lost = is_lost;
        }
        (f64::from(lost) / 1e6, f64::from(lost) / f64::from(runs.max(1)))
    }

    #[test]
    fn single_losses_come_at_their_rate() {
        let (share, run) = measure(Loss::new(0.03, 1.0).unwrap());
        assert!((share - 0.03).abs() < 0.001, "{share}");
        assert!((run - 1.0 / 0.97).abs() < 0.01, "{run}");
        assert_eq!(measure(Loss::default()).0, 0.0);
        assert_eq!(measure(Loss::new(1.0, 1.0).unwrap()).0, 1.0);
    }

    #[test]
    fn bursts_have_their_length_and_the_share_of_all() {
        for (share, burst) in [(0.03, 3.0), (0.01, 6.0), (0.3, 2.0)] {
            let (got, run) = measure(Loss::new(share, burst).unwrap());
            assert!((got / share - 1.0).abs() < 0.05, "{share} {burst}: {got}");
            assert!((run / burst - 1.0).abs() < 0.05, "{share} {burst}: {run}");
        }
    }

    #[test]
    fn what_no_chain_can_do_is_refused() {
        assert_eq!(Loss::new(0.9, 2.0), None);
        assert_eq!(Loss::new(-0.1, 1.0), None);
        assert_eq!(Loss::new(0.1, f64::NAN), None);
    }
}
