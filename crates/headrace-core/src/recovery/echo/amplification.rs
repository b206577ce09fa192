//! What may be sent to an address before its peer has shown that it is there: three times what came from it (RFC
//! 9000 §8.1), copies included.
//!
//! In: handshake datagrams received from an address, datagrams sent to it before its validation. Out: whether one more
//! may be sent. The transport keeps such a count too, but does not know of copies. Their allowance is what is left when
//! they are due, so that the rest of a flight comes first; what they used is withheld from later datagrams.

use std::collections::HashMap;
use std::net::SocketAddr;

/// How many addresses are remembered: those of the last handshakes, at least half of this number. An address that was
/// forgotten gets no copies.
const MOST: usize = 1024;

#[derive(Clone, Copy, Debug, Default)]
struct Bytes {
    received: u64,
    /// Copies are counted, too.
    sent: u64,
    copied: u64,
}

#[derive(Debug, Default)]
pub struct Amplification {
    recent: HashMap<SocketAddr, Bytes>,
    /// They are forgotten when `recent` is full.
    older: HashMap<SocketAddr, Bytes>,
}

impl Amplification {
    /// A handshake's datagram came.
    pub fn handle_received(&mut self, from: SocketAddr, bytes: u64) {
        let of_address = match self.find(from) {
            Some(of_address) => of_address,
            None => {
                if self.recent.len() >= MOST / 2 {
                    self.older = std::mem::take(&mut self.recent);
                }
                self.recent.entry(from).or_default()
            }
        };
        of_address.received += bytes;
    }

    fn find(&mut self, address: SocketAddr) -> Option<&mut Bytes> {
        self.recent.get_mut(&address).or_else(|| self.older.get_mut(&address))
    }

    /// Whether the transport's datagram may be sent there; it is counted then. `None`: nothing is known of the address.
    pub fn spend(&mut self, to: SocketAddr, bytes: u64) -> Option<bool> {
        let Bytes { received, sent, copied } = self.find(to)?;
        // Without copies the transport's own count is as good.
        let is_allowed = *copied == 0 || *sent + bytes <= *received * 3;
        *sent += if is_allowed { bytes } else { 0 };
        Some(is_allowed)
    }

    /// Whether a copy may be sent there, whose original left before the address was validated; it is counted then.
    pub fn spend_copy(&mut self, to: SocketAddr, bytes: u64) -> bool {
        let Some(Bytes { received, sent, copied }) = self.find(to) else { return false };
        let is_allowed = *sent + bytes <= *received * 3;
        if is_allowed {
            *sent += bytes;
            *copied += bytes;
        }
        is_allowed
    }

    /// Forgets an address that was validated.
    pub fn forget(&mut self, address: SocketAddr) {
        self.recent.remove(&address);
        self.older.remove(&address);
    }

    pub fn len(&self) -> usize {
        self.recent.len() + self.older.len()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn three_times_what_came_and_no_more() {
        let (mut amplification, client) = (Amplification::default(), SocketAddr::from(([192, 0, 2, 1], 443)));
        assert_eq!(amplification.spend(client, 1), None);
        amplification.handle_received(client, 1200);
        assert_eq!(amplification.spend(client, 1200), Some(true));
        let copies: Vec<_> = (0..3).map(|_| amplification.spend_copy(client, 1200)).collect();
        assert_eq!((copies, amplification.spend(client, 1200)), (vec![true, true, false], Some(false)));
        amplification.handle_received(client, 1200);
        assert_eq!(amplification.spend(client, 3600), Some(true));
        amplification.forget(client);
        assert_eq!((amplification.spend(client, 1), amplification.spend_copy(client, 1)), (None, false));
    }

    #[test]
    fn the_rest_of_a_flight_comes_before_copies() {
        let (mut amplification, client) = (Amplification::default(), SocketAddr::from(([192, 0, 2, 1], 443)));
        amplification.handle_received(client, 1250);
        assert!((0..4).all(|_| amplification.spend(client, 1200) == Some(true)), "as the transport counts");
        assert!(!amplification.spend_copy(client, 1200));
    }

    #[test]
    fn a_flood_of_addresses_is_forgotten() {
        let mut amplification = Amplification::default();
        for port in 0..u16::MAX {
            amplification.handle_received(([192, 0, 2, 1], port).into(), 1200);
            assert!(amplification.len() <= MOST);
        }
        let last = ([192, 0, 2, 1], u16::MAX - 300).into();
        assert!(amplification.spend(last, 1200) == Some(true) && amplification.spend_copy(last, 1200));
        assert!(!amplification.spend_copy(([192, 0, 2, 1], 7).into(), 1200), "nothing is known of it");
    }
}
