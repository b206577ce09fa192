//! What may be sent to an address that nobody has shown to be its own: three times what came from there (RFC 9000
//! §8.1), copies included.
//!
//! In: handshake datagrams received from an address, datagrams sent to it before its validation. Out: whether one more
//! may be sent. The transport keeps such a count too, but does not know of copies: what a copy used is withheld
//! from it later.

use std::collections::HashMap;
use std::net::SocketAddr;

/// Handshakes at one time of which this is known; beyond it all are forgotten, and get no copies.
const MOST: usize = 1024;

#[derive(Clone, Copy, Debug, Default)]
struct Bytes {
    received: u64,
    sent: u64,
}

#[derive(Debug, Default)]
pub struct Amplification {
    addresses: HashMap<SocketAddr, Bytes>,
}

impl Amplification {
    /// A handshake's datagram came.
    pub fn handle_received(&mut self, from: SocketAddr, bytes: u64) {
        if self.addresses.len() >= MOST && !self.addresses.contains_key(&from) {
            self.addresses.clear();
        }
        self.addresses.entry(from).or_default().received += bytes;
    }

    /// Whether so many bytes may be sent there, which are counted then. `None`: nothing is known.
    pub fn spend(&mut self, to: SocketAddr, bytes: u64) -> Option<bool> {
        let Bytes { received, sent } = self.addresses.get_mut(&to)?;
        let is_allowed = *sent + bytes <= *received * 3;
        *sent += if is_allowed { bytes } else { 0 };
        Some(is_allowed)
    }

    /// The address is its own.
    pub fn forget(&mut self, address: SocketAddr) {
        self.addresses.remove(&address);
    }

    pub fn is_empty(&self) -> bool {
        self.addresses.is_empty()
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
        let spent: Vec<_> = (0..4).map(|_| amplification.spend(client, 1200)).collect();
        assert_eq!(spent, [Some(true), Some(true), Some(true), Some(false)]);
        amplification.handle_received(client, 1200);
        assert_eq!(amplification.spend(client, 3600), Some(true));
        amplification.forget(client);
        assert_eq!(amplification.spend(client, 1), None);
    }

    #[test]
    fn a_flood_of_addresses_is_forgotten() {
        let mut amplification = Amplification::default();
        for port in 0..u16::MAX {
            amplification.handle_received(([192, 0, 2, 1], port).into(), 1200);
            assert!(amplification.addresses.len() <= MOST);
        }
    }
}
