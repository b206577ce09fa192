//! Whether the other side is still there.
//!
//! In: from time to time, how much has come from it and how much was sent that it must acknowledge. Out: whether it is
//! suspect: it owes an acknowledgement for longer than a path takes that works. A peer that is killed, or whose machine
//! is gone, says nothing; a radio that pauses says nothing either, for a second often, for some seconds now and then.
//! So the patience is the longest of three: a least one; three probe timeouts (RFC 9002 §6.2.1); and twice the longest
//! silence that this path has come back from. A suspect that is heard again is suspect no more.

use std::time::{Duration, Instant};

/// Pauses below this are what every path has.
const NOTABLE: Duration = Duration::from_millis(500);

/// What is known of one peer.
#[derive(Clone, Copy, Debug)]
pub struct Presence {
    least: Duration,
    heard: u64,
    sent: u64,
    /// When something was first sent that was not acknowledged since.
    owes_since: Option<Instant>,
    /// The longest silence that ended.
    longest: Duration,
}

impl Presence {
    /// `least`: how long a peer may owe us something at least.
    pub fn new(least: Duration) -> Self {
        Self { least, heard: 0, sent: 0, owes_since: None, longest: Duration::ZERO }
    }

    /// `heard`: frames that came. `sent`: frames that left and must be acknowledged. Whether the peer is suspect.
    pub fn observe(&mut self, now: Instant, heard: u64, sent: u64, round_trip: Duration) -> bool {
        if heard != self.heard {
            if let Some(since) = self.owes_since.take() {
                let silence = now - since;
                self.longest = self.longest.max(if silence < NOTABLE { Duration::ZERO } else { silence });
            }
        } else if sent != self.sent {
            self.owes_since.get_or_insert(now);
        }
        (self.heard, self.sent) = (heard, sent);
        self.owes_since.is_some_and(|since| now - since >= self.patience(round_trip))
    }

    /// How long the peer may owe us something.
    pub fn patience(&self, round_trip: Duration) -> Duration {
        // A probe timeout is about three round trips while nothing is known of their variance (RFC 9002 §6.2.2), and
        // acknowledgements may be held back for 25 ms.
        let probes = (round_trip * 3 + Duration::from_millis(25)) * 3;
        self.least.max(probes).max(self.longest * 2)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const R: Duration = Duration::from_millis(60);
    const LEAST: Duration = Duration::from_millis(2250);
    const STEP: Duration = Duration::from_millis(50);

    /// A stream of tokens whose acknowledgements stop at some moments for some time; when it was suspect first.
    fn first_suspicion(pauses: &[(u64, u64)], until_ms: u64, round_trip: Duration) -> Option<u64> {
        let (start, mut presence, mut heard) = (Instant::now(), Presence::new(LEAST), 0);
        (0..until_ms / 50).find_map(|step| {
            let at = step * 50;
            let is_paused = pauses.iter().any(|&(from, length)| (from..from + length).contains(&at));
            heard += u64::from(!is_paused);
            let now = start + STEP * step as u32;
            presence.observe(now, heard, step, round_trip).then_some(at)
        })
    }

    #[test]
    fn a_peer_that_vanishes_while_tokens_flow_is_suspect_within_three_seconds() {
        let at = first_suspicion(&[(1000, 60_000)], 10_000, R);
        assert!(at.is_some_and(|at| (3250..3400).contains(&at)), "{at:?}");
    }

    #[test]
    fn a_peer_that_owes_nothing_is_never_suspect() {
        let (start, mut presence) = (Instant::now(), Presence::new(LEAST));
        assert!(!presence.observe(start, 5, 9, R));
        assert!((1..600).all(|second| !presence.observe(start + Duration::from_secs(second), 5, 9, R)));
        // What it is asked then, it answers.
        assert!(!presence.observe(start + Duration::from_secs(601), 5, 10, R));
        assert!(!presence.observe(start + Duration::from_secs(602), 6, 10, R));
        assert!(!presence.observe(start + Duration::from_secs(900), 6, 10, R));
    }

    #[test]
    fn a_path_that_has_paused_is_given_twice_as_long() {
        // As of an LTE link that was recorded while driving: pauses of 1.3, 2.2 and 4.1 s.
        let pauses = [(1000, 1270), (10_000, 2220), (20_000, 4060)];
        assert_eq!(first_suspicion(&pauses, 30_000, R), None);
        // The longest comes first: it is suspect, and comes back.
        assert!(first_suspicion(&pauses[2..], 30_000, R).is_some());
        assert_eq!(first_suspicion(&[], 30_000, R), None);
    }

    #[test]
    fn a_suspect_that_is_heard_again_is_suspect_no_more() {
        let (start, mut presence) = (Instant::now(), Presence::new(LEAST));
        presence.observe(start, 1, 1, R);
        presence.observe(start + STEP, 1, 2, R);
        assert!(presence.observe(start + Duration::from_secs(3), 1, 3, R));
        assert!(!presence.observe(start + Duration::from_secs(4), 2, 3, R));
        assert!(presence.patience(R) > Duration::from_secs(7));
    }

    #[test]
    fn a_long_path_is_given_three_probe_timeouts() {
        let at = first_suspicion(&[(1000, 60_000)], 20_000, Duration::from_millis(600));
        assert!(at.is_some_and(|at| at >= 1000 + 5400), "{at:?}");
    }
}
