//! A NAT before the client, which can forget.
//!
//! In: packets of both directions, and the order to forget. Out: packets with other sources and destinations.
//! At first it translates nothing: every address is the client's own. From the first rebinding on, the server sees a new
//! port (and, for an address rebinding, a new address), and what it sends to the old one is lost.

use std::collections::HashMap;
use std::net::Ipv4Addr;

use super::packet::{End, Endpoint, TCP, UDP, parse, rewrite};

/// How many mappings are kept; the packets of further flows are dropped.
const MAX_MAPPINGS: usize = 16_384;
const FIRST_PORT: u16 = 20_000;
const LAST_PORT: u16 = 59_999;

/// The mappings since the last rebinding.
#[derive(Debug)]
pub struct Nat {
    /// The first of the addresses that an address rebinding takes, one after the other.
    pool: Ipv4Addr,
    /// The address in use; `None`: the client's own.
    address: Option<Ipv4Addr>,
    has_forgotten: bool,
    next_port: u16,
    outward: HashMap<Endpoint, Endpoint>,
    inward: HashMap<Endpoint, Endpoint>,
}

impl Nat {
    pub fn new(pool: Ipv4Addr) -> Self {
        Self {
            pool,
            address: None,
            has_forgotten: false,
            next_port: FIRST_PORT,
            outward: HashMap::new(),
            inward: HashMap::new(),
        }
    }

    /// Gives every flow a new port.
    pub fn rebind_port(&mut self) {
        self.has_forgotten = true;
        self.outward.clear();
        self.inward.clear();
    }

    /// Gives every flow a new address and a new port.
    pub fn rebind_address(&mut self) {
        self.rebind_port();
        let next = self.address.map_or(u32::from(self.pool), |address| u32::from(address).wrapping_add(1));
        self.address = Some(Ipv4Addr::from(next));
    }

    /// Returns the address that the server sees, where it is not the client's own.
    pub fn address(&self) -> Option<Ipv4Addr> {
        self.address
    }

    /// Translates a packet from the client. False: the packet cannot be carried.
    pub fn pass_outward(&mut self, packet: &mut [u8]) -> bool {
        if !self.has_forgotten {
            return true;
        }
        let Some(head) = parse(packet).filter(|head| !head.is_fragment) else { return false };
        let Some(to) = self.mapping(head.source) else { return false };
        rewrite(packet, &head, End::Source, to);
        true
    }

    /// Translates a packet to the client. False: there is no such mapping, or not any more.
    pub fn pass_inward(&self, packet: &mut [u8]) -> bool {
        if !self.has_forgotten {
            return true;
        }
        let Some(head) = parse(packet).filter(|head| !head.is_fragment) else { return false };
        let Some(&to) = self.inward.get(&head.destination) else { return false };
        rewrite(packet, &head, End::Destination, to);
        true
    }

    fn mapping(&mut self, inside: Endpoint) -> Option<Endpoint> {
        if let Some(&known) = self.outward.get(&inside) {
            return Some(known);
        }
        if self.outward.len() == MAX_MAPPINGS {
            return None;
        }
        let has_port = matches!(inside.protocol, TCP | UDP);
        let port = if has_port { self.take_port() } else { inside.port };
        let outside = Endpoint { address: self.address.unwrap_or(inside.address), port, ..inside };
        self.outward.insert(inside, outside);
        self.inward.insert(outside, inside);
        Some(outside)
    }

    /// One after the other, over all rebindings: a port comes again only after all others, more than there are
    /// mappings.
    fn take_port(&mut self) -> u16 {
        let port = self.next_port;
        self.next_port = if port == LAST_PORT { FIRST_PORT } else { port + 1 };
        port
    }
}

#[cfg(test)]
mod tests {
    use super::super::packet::tests::make;
    use super::*;

    const CLIENT: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 2);
    const SERVER: Ipv4Addr = Ipv4Addr::new(10, 77, 1, 2);
    const POOL: Ipv4Addr = Ipv4Addr::new(10, 77, 2, 1);

    /// Maps a flow to what the server sees of it.
    fn seen(nat: &mut Nat, port: u16) -> Endpoint {
        let mut packet = make(UDP, (CLIENT, port), (SERVER, 443), b"up");
        assert!(nat.pass_outward(&mut packet));
        parse(&packet).unwrap().source
    }

    /// Maps what the server sees to the client that gets what the server sends there.
    fn reached(nat: &Nat, to: Endpoint) -> Option<u16> {
        let mut packet = make(UDP, (SERVER, 443), (to.address, to.port), b"down");
        nat.pass_inward(&mut packet).then(|| parse(&packet).unwrap().destination.port)
    }

    #[test]
    fn before_the_first_rebinding_nothing_changes() {
        let mut nat = Nat::new(POOL);
        let own = seen(&mut nat, 5000);
        assert_eq!((own.address, own.port), (CLIENT, 5000));
        assert_eq!(reached(&nat, own), Some(5000));
    }

    #[test]
    fn a_port_rebinding_moves_every_flow_and_the_old_ports_are_dead() {
        let mut nat = Nat::new(POOL);
        let own = seen(&mut nat, 5000);
        nat.rebind_port();
        assert_eq!(reached(&nat, own), None, "before the client has said anything");
        let (first, other) = (seen(&mut nat, 5000), seen(&mut nat, 5001));
        assert_eq!((first.address, other.address), (CLIENT, CLIENT));
        assert!(first.port != 5000 && first.port != other.port);
        assert_eq!(seen(&mut nat, 5000), first, "a mapping stays");
        assert_eq!((reached(&nat, first), reached(&nat, other)), (Some(5000), Some(5001)));
        nat.rebind_port();
        assert_ne!(seen(&mut nat, 5000), first);
        assert_eq!((reached(&nat, own), reached(&nat, first)), (None, None));
    }

    #[test]
    fn an_address_rebinding_takes_the_next_address() {
        let mut nat = Nat::new(POOL);
        nat.rebind_address();
        assert_eq!(seen(&mut nat, 5000).address, POOL);
        nat.rebind_port();
        assert_eq!(seen(&mut nat, 5000).address, POOL);
        nat.rebind_address();
        assert_eq!(seen(&mut nat, 5000).address, Ipv4Addr::new(10, 77, 2, 2));
        assert_eq!(nat.address(), Some(Ipv4Addr::new(10, 77, 2, 2)));
    }

    #[test]
    fn mappings_are_bounded() {
        let mut nat = Nat::new(POOL);
        nat.rebind_port();
        let mut carried = 0;
        for port in 1..=u16::MAX {
            carried += usize::from(nat.pass_outward(&mut make(UDP, (CLIENT, port), (SERVER, 443), b"")));
        }
        assert_eq!(carried, MAX_MAPPINGS);
    }
}
