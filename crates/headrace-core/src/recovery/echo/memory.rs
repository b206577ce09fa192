//! Which networks lose packets: what one connection saw helps the next one from there.
//!
//! In: an address, and what was seen. Out: what is expected of an address. A network is a /24 of IPv4 or a /48 of
//! IPv6; [`MOST`] are remembered, and those that were not seen for the longest time are forgotten first.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::{Duration, Instant};

/// How many networks are remembered; so many take some 300 kB.
const MOST: usize = 4096;
/// Networks change; what was seen long ago says nothing.
const FORGOTTEN_AFTER: Duration = Duration::from_secs(3600);

/// What is known of a network.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Known {
    pub loses: bool,
    /// Several packets in a row were lost, or many.
    pub in_bursts: bool,
}

#[derive(Debug, Default)]
pub struct Memory {
    networks: HashMap<IpAddr, (Instant, Known)>,
}

impl Memory {
    /// What is known of the network of this address; `None`: nothing.
    pub fn recall(&self, now: Instant, address: IpAddr) -> Option<Known> {
        let (at, known) = self.networks.get(&network(address))?;
        (now.saturating_duration_since(*at) < FORGOTTEN_AFTER).then_some(*known)
    }

    pub fn note(&mut self, now: Instant, address: IpAddr, known: Known) {
        let network = network(address);
        if self.networks.len() >= MOST && !self.networks.contains_key(&network) {
            self.forget_older_half();
        }
        self.networks.insert(network, (now, known));
    }

    pub fn len(&self) -> usize {
        self.networks.len()
    }

    pub fn is_empty(&self) -> bool {
        self.networks.is_empty()
    }

    /// Half of them at once, and seldom: to find the oldest costs a look at all.
    fn forget_older_half(&mut self) {
        let mut times: Vec<Instant> = self.networks.values().map(|(at, _)| *at).collect();
        let (_, middle, _) = times.select_nth_unstable(MOST / 2);
        let middle = *middle;
        self.networks.retain(|_, (at, _)| *at > middle);
    }
}

fn network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V4(address) => Ipv4Addr::from_bits(address.to_bits() & !0xff).into(),
        IpAddr::V6(address) => Ipv6Addr::from_bits(address.to_bits() & (!0 << 80)).into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOSES: Known = Known { loses: true, in_bursts: false };

    fn address(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn neighbours_are_one_network_for_an_hour() {
        let (now, mut memory) = (Instant::now(), Memory::default());
        memory.note(now, address("192.0.2.7"), LOSES);
        memory.note(now, address("2001:db8:1:2::3"), LOSES);
        for near in ["192.0.2.200", "::ffff:192.0.2.9", "2001:db8:1:ffff::1"] {
            assert_eq!(memory.recall(now, address(near)), Some(LOSES), "{near}");
            assert_eq!(memory.recall(now + FORGOTTEN_AFTER, address(near)), None, "{near}");
        }
        for elsewhere in ["192.0.3.7", "2001:db8:2::1"] {
            assert_eq!(memory.recall(now, address(elsewhere)), None, "{elsewhere}");
        }
    }

    #[test]
    fn who_was_seen_last_is_remembered() {
        let (now, mut memory) = (Instant::now(), Memory::default());
        let nth = |number: u32| IpAddr::from(Ipv4Addr::from_bits(number << 8));
        for number in 0..20_000 {
            memory.note(now + Duration::from_micros(number.into()), nth(number), LOSES);
            assert!(memory.networks.len() <= MOST);
        }
        assert_eq!(memory.recall(now, nth(0)), None);
        assert!((19_000..20_000).all(|number| memory.recall(now, nth(number)) == Some(LOSES)));
    }
}
