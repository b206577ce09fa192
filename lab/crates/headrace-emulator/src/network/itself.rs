//! What a link itself allows: a sender that hands it everything when it is made, first in first out.
//!
//! In: a rate or trace, when packets of one size are made. Out: when the last byte of each has left. Nothing waits for a
//! window, nothing is lost, no queue is full: nobody can be earlier with packets of that size. A token in a packet of its
//! own is 260 bytes; who puts several in one packet can be a little earlier.

use super::queue::{Queue, Rate};

/// A token's packet: an event of 190 bytes, and what HTTP/3, QUIC, UDP and IPv4 put around it.
pub const TOKEN_BYTES: u64 = 260;

/// When each packet has left the bottleneck. `made`: when each is made, ascending; all times are nanoseconds since the
/// trace began.
pub fn leaves(rate: &Rate, made: &[u64], bytes: u64) -> Vec<u64> {
    let mut queue = Queue::new(0);
    made.iter().map(|&at| queue.enqueue(rate, u64::MAX, at, bytes, |at| at).unwrap_or(at)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::network::Trace;

    const MS: u64 = 1_000_000;

    #[test]
    fn a_token_leaves_with_the_next_opportunity_that_has_room() {
        let rate = Rate::Trace(Trace::new(&[10, 500, 501]).unwrap());
        // Five tokens of 260 bytes fit into an opportunity, the sixth takes the rest of it and the beginning of the next.
        let made: Vec<u64> = (0..6).map(|token| (20 + token) * MS).collect();
        let left: Vec<u64> = leaves(&rate, &made, TOKEN_BYTES).iter().map(|at| at / MS).collect();
        assert_eq!(left, [500, 500, 500, 500, 500, 501]);
    }

    #[test]
    fn without_a_bottleneck_nothing_waits() {
        assert_eq!(leaves(&Rate::Unlimited, &[MS, 2 * MS], TOKEN_BYTES), [MS, 2 * MS]);
    }
}
