//! What may be sent to an address that nobody has shown to be its own: three times what came from there (RFC 9000 §8,
//! §9.3.1), whatever it is: handshakes, challenges, answers to challenges, copies.
//!
//! In: datagrams that come from an address and leave for it; paths of connections that begin there, are validated, and
//! end. Out: whether one more datagram may leave. The transport keeps such a count for each path, but lets a whole
//! datagram leave where a part of it would be too much, pads challenges always, and does not know of copies.
//!
//! One exception: a path to another port of an address at which its connection has been validated is most likely a NAT
//! that forgot it. Its peer may have nothing to send but acknowledgements of what it does not receive: one datagram,
//! with a challenge in it, may leave at once.

use std::collections::HashMap;
use std::net::SocketAddr;

/// Addresses without a path that are remembered: at most so many, and at least the last half of them.
const MOST_STRANGERS: usize = 1024;
const FACTOR: u64 = 3;
/// The datagram of the exception: a challenge is padded to this (RFC 9000 §8.2.1), or to what the path takes.
const DATAGRAM: u64 = 1500;

#[derive(Clone, Copy, Debug, Default)]
struct Bytes {
    received: u64,
    sent: u64,
}

impl Bytes {
    fn spend(&mut self, bytes: u64) -> bool {
        let is_allowed = self.sent + bytes <= self.received * FACTOR;
        self.sent += if is_allowed { bytes } else { 0 };
        is_allowed
    }
}

/// An address to which connections have paths.
#[derive(Debug, Default)]
struct Place {
    paths: u32,
    valid: u32,
    bytes: Bytes,
}

/// All addresses of one socket.
#[derive(Debug, Default)]
pub struct Addresses {
    places: HashMap<SocketAddr, Place>,
    recent: HashMap<SocketAddr, Bytes>,
    /// They are forgotten when `recent` is full.
    older: HashMap<SocketAddr, Bytes>,
}

impl Addresses {
    pub fn handle_received(&mut self, from: SocketAddr, bytes: u64) {
        match self.places.get_mut(&from) {
            Some(place) if place.valid > 0 => {}
            Some(place) => place.bytes.received += bytes,
            None => self.stranger(from).received += bytes,
        }
    }

    /// Whether a datagram may leave, which then is counted. `is_rebound`: it is of a path to another port of a
    /// validated address.
    pub fn may_send(&mut self, to: SocketAddr, bytes: u64, is_rebound: bool) -> bool {
        match self.places.get_mut(&to) {
            Some(place) if place.valid > 0 => true,
            Some(place) if is_rebound && place.bytes.sent == 0 && bytes <= DATAGRAM => {
                place.bytes.sent = bytes;
                true
            }
            Some(place) => place.bytes.spend(bytes),
            None => self.stranger(to).spend(bytes),
        }
    }

    pub fn is_valid(&self, address: SocketAddr) -> bool {
        self.places.get(&address).is_some_and(|place| place.valid > 0)
    }

    /// A connection has a path there.
    pub fn begin_path(&mut self, to: SocketAddr) {
        let bytes = self.recent.remove(&to).or_else(|| self.older.remove(&to)).unwrap_or_default();
        let place = self.places.entry(to).or_insert(Place { bytes, ..Place::default() });
        place.paths += 1;
    }

    /// The path's peer has shown that it is there.
    pub fn validate_path(&mut self, to: SocketAddr) {
        if let Some(place) = self.places.get_mut(&to) {
            place.valid += 1;
        }
    }

    pub fn end_path(&mut self, to: SocketAddr, was_valid: bool) {
        let Some(place) = self.places.get_mut(&to) else { return };
        place.paths -= 1;
        place.valid -= u32::from(was_valid);
        if place.paths == 0 {
            self.places.remove(&to);
        }
    }

    fn stranger(&mut self, address: SocketAddr) -> &mut Bytes {
        if let Some(bytes) = self.older.remove(&address) {
            self.recent.insert(address, bytes);
        } else if self.recent.len() >= MOST_STRANGERS / 2 && !self.recent.contains_key(&address) {
            self.older = std::mem::take(&mut self.recent);
        }
        self.recent.entry(address).or_default()
    }

    /// Addresses that are remembered.
    pub fn len(&self) -> usize {
        self.places.len() + self.recent.len() + self.older.len()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(port: u16) -> SocketAddr {
        ([192, 0, 2, 1], port).into()
    }

    #[test]
    fn three_times_what_came_and_no_more() {
        let mut addresses = Addresses::default();
        assert!(!addresses.may_send(at(1), 1, false), "nothing came");
        addresses.handle_received(at(1), 1200);
        assert!((0..3).all(|_| addresses.may_send(at(1), 1200, false)));
        assert!(!addresses.may_send(at(1), 1, false));
        addresses.handle_received(at(1), 100);
        assert!(addresses.may_send(at(1), 300, false) && !addresses.may_send(at(1), 1, false));
    }

    #[test]
    fn a_path_takes_over_what_is_known_of_its_address() {
        let mut addresses = Addresses::default();
        addresses.handle_received(at(1), 100);
        assert!(addresses.may_send(at(1), 200, false));
        addresses.begin_path(at(1));
        assert!(addresses.may_send(at(1), 100, false) && !addresses.may_send(at(1), 1, false));
        addresses.validate_path(at(1));
        assert!(addresses.is_valid(at(1)) && addresses.may_send(at(1), 1 << 40, false));
        addresses.end_path(at(1), true);
        assert!(!addresses.is_valid(at(1)) && !addresses.may_send(at(1), 1, false));
    }

    #[test]
    fn an_address_is_valid_as_long_as_one_of_its_paths_is() {
        let mut addresses = Addresses::default();
        for _ in 0..2 {
            addresses.begin_path(at(1));
            addresses.validate_path(at(1));
        }
        addresses.begin_path(at(1));
        addresses.end_path(at(1), true);
        addresses.end_path(at(1), false);
        assert!(addresses.is_valid(at(1)));
        addresses.end_path(at(1), true);
        assert_eq!((addresses.is_valid(at(1)), addresses.places.len()), (false, 0));
    }

    #[test]
    fn a_nat_that_forgot_is_challenged_once_whatever_came() {
        let mut addresses = Addresses::default();
        addresses.handle_received(at(2), 33);
        addresses.begin_path(at(2));
        assert!(addresses.may_send(at(2), 1200, true));
        assert!(!addresses.may_send(at(2), 1200, true));
        assert!(!addresses.may_send(at(2), 40, true));
        addresses.handle_received(at(2), 400);
        assert!(addresses.may_send(at(2), 99, true));
    }

    #[test]
    fn a_flood_of_addresses_is_forgotten_and_paths_are_not() {
        let mut addresses = Addresses::default();
        addresses.handle_received(at(0), 1200);
        addresses.begin_path(at(0));
        for port in 1..u16::MAX {
            addresses.handle_received(at(port), 1200);
            assert!(addresses.len() <= MOST_STRANGERS + 1);
        }
        assert!(addresses.may_send(at(0), 3600, false));
        assert!(addresses.may_send(at(u16::MAX - 300), 3600, false));
        assert!(!addresses.may_send(at(7), 1, false), "nothing is known of it");
    }
}
