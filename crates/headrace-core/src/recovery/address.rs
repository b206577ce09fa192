//! Where a client is, as far as it has shown.
//!
//! In: the address that its packets come from now. Out: the last address that it has proved to be at. A client
//! may move at any time (RFC 9000 §9), and anybody can write another's address on a packet: the transport sends
//! a challenge to a new address, and goes back to the one before when no answer comes in time. So an address
//! that stayed for longer than that is real; until then, logs and limits use the one before.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

/// This is longer than a challenge may go unanswered: three probe timeouts (RFC 9000 §8.2.4) of a path of which
/// nothing is known yet (RFC 9002 §6.2.2).
const PROVED_AFTER: Duration = Duration::from_secs(4);

#[derive(Debug)]
pub struct ClientAddress {
    proved: SocketAddr,
    /// Where it seems to be, and since when.
    claimed: Option<(SocketAddr, Instant)>,
}

impl ClientAddress {
    /// `at`: where the handshake began; its completion proves it. A request in early data comes before that.
    pub fn new(at: SocketAddr) -> Self {
        Self { proved: at, claimed: None }
    }

    /// Notes where its packets come from `now`; returns where it is for certain.
    pub fn note(&mut self, from: SocketAddr, now: Instant) -> SocketAddr {
        match self.claimed {
            _ if from == self.proved => self.claimed = None,
            Some((claimed, since)) if claimed == from => {
                if now.duration_since(since) >= PROVED_AFTER {
                    (self.proved, self.claimed) = (from, None);
                }
            }
            _ => self.claimed = Some((from, now)),
        }
        self.proved
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(port: u16) -> SocketAddr {
        ([192, 0, 2, 1], port).into()
    }

    #[test]
    fn an_address_counts_once_it_stayed() {
        let start = Instant::now();
        let mut address = ClientAddress::new(at(1));
        assert_eq!(address.note(at(2), start), at(1));
        assert_eq!(address.note(at(2), start + Duration::from_secs(1)), at(1));
        assert_eq!(address.note(at(2), start + PROVED_AFTER), at(2));
    }

    #[test]
    fn a_challenge_without_an_answer_changes_nothing() {
        let start = Instant::now();
        let mut address = ClientAddress::new(at(1));
        address.note(at(2), start);
        assert_eq!(address.note(at(1), start + Duration::from_secs(3)), at(1));
        // The same claim again begins anew.
        assert_eq!(address.note(at(2), start + Duration::from_secs(5)), at(1));
        assert_eq!(address.note(at(2), start + Duration::from_secs(6)), at(1));
    }
}
