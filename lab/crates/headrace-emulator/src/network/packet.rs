//! What the link reads of a packet, and what a NAT writes into it.
//!
//! In: an IPv4 packet. Out: protocol, addresses and ports; and the same packet with another source or
//! destination, its checksums mended (RFC 1624).

use std::net::Ipv4Addr;

pub const TCP: u8 = 6;
pub const UDP: u8 = 17;

/// An address and a port of one protocol; port 0 where the protocol has none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Endpoint {
    pub protocol: u8,
    pub address: Ipv4Addr,
    pub port: u16,
}

/// What is read of a packet's header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Head {
    pub source: Endpoint,
    pub destination: Endpoint,
    /// Only the first fragment holds the ports, and its checksum covers all fragments.
    pub is_fragment: bool,
    header: usize,
}

/// Which end is rewritten.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    Source,
    Destination,
}

/// Reads a packet. `None`: it is not IPv4, or it is not whole.
pub fn parse(packet: &[u8]) -> Option<Head> {
    let header = usize::from(packet.first()? & 0x0f) * 4;
    if packet[0] >> 4 != 4 || header < 20 || packet.len() < header {
        return None;
    }
    let protocol = packet[9];
    let is_fragment = u16_at(packet, 6) & 0x3fff != 0;
    let has_ports = matches!(protocol, TCP | UDP) && !is_fragment && packet.len() >= header + 4;
    let end = |address: usize, port: usize| Endpoint {
        protocol,
        address: Ipv4Addr::new(
            packet[address],
            packet[address + 1],
            packet[address + 2],
            packet[address + 3],
        ),
        port: if has_ports { u16_at(packet, header + port) } else { 0 },
    };
    Some(Head { source: end(12, 0), destination: end(16, 2), is_fragment, header })
}

/// Writes another address, and for TCP and UDP another port, at one end.
pub fn rewrite(packet: &mut [u8], head: &Head, end: End, to: Endpoint) {
    let (address_at, port_at) = match end {
        End::Source => (12, head.header),
        End::Destination => (16, head.header + 2),
    };
    let checksum_at = match head.source.protocol {
        TCP => Some(head.header + 16),
        UDP => Some(head.header + 6),
        _ => None,
    };
    // A UDP checksum of 0 says that there is none.
    let checksum_at = checksum_at
        .filter(|&at| packet.len() >= at + 2 && (head.source.protocol == TCP || u16_at(packet, at) != 0));
    let octets = to.address.octets();
    for (at, new) in [
        (address_at, u16::from_be_bytes([octets[0], octets[1]])),
        (address_at + 2, u16::from_be_bytes([octets[2], octets[3]])),
    ] {
        let old = put(packet, at, new);
        mend(packet, 10, old, new);
        // The pseudo-header holds the addresses.
        if let Some(checksum) = checksum_at {
            mend(packet, checksum, old, new);
        }
    }
    if let Some(checksum) = checksum_at {
        let old = put(packet, port_at, to.port);
        mend(packet, checksum, old, to.port);
        if head.source.protocol == UDP && u16_at(packet, checksum) == 0 {
            put(packet, checksum, 0xffff);
        }
    } else if matches!(head.source.protocol, TCP | UDP) && packet.len() >= port_at + 2 {
        put(packet, port_at, to.port);
    }
}

fn u16_at(packet: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([packet[at], packet[at + 1]])
}

fn put(packet: &mut [u8], at: usize, value: u16) -> u16 {
    let old = u16_at(packet, at);
    packet[at..at + 2].copy_from_slice(&value.to_be_bytes());
    old
}

/// RFC 1624 §3, equation 3.
fn mend(packet: &mut [u8], at: usize, old: u16, new: u16) {
    let mut sum = u32::from(!u16_at(packet, at)) + u32::from(!old) + u32::from(new);
    sum = (sum & 0xffff) + (sum >> 16);
    sum = (sum & 0xffff) + (sum >> 16);
    put(packet, at, !(sum as u16));
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// Returns the sum of RFC 1071 over `bytes`; with a right checksum among them it is 0xffff.
    fn sum(bytes: &[u8]) -> u16 {
        let mut sum: u32 =
            bytes.chunks(2).map(|pair| u32::from(pair[0]) << 8 | u32::from(*pair.get(1).unwrap_or(&0))).sum();
        while sum >> 16 > 0 {
            sum = (sum & 0xffff) + (sum >> 16);
        }
        sum as u16
    }

    fn pseudo(packet: &[u8]) -> Vec<u8> {
        let mut bytes = packet[12..20].to_vec();
        bytes.extend([0, packet[9]]);
        bytes.extend(((packet.len() - 20) as u16).to_be_bytes());
        bytes.extend(&packet[20..]);
        bytes
    }

    pub fn make(
        protocol: u8,
        source: (Ipv4Addr, u16),
        destination: (Ipv4Addr, u16),
        payload: &[u8],
    ) -> Vec<u8> {
        let transport = if protocol == TCP { 20 } else { 8 };
        let mut packet = vec![0u8; 20 + transport];
        packet[0] = 0x45;
        packet[8] = 64;
        packet[9] = protocol;
        packet[12..16].copy_from_slice(&source.0.octets());
        packet[16..20].copy_from_slice(&destination.0.octets());
        put(&mut packet, 20, source.1);
        put(&mut packet, 22, destination.1);
        packet.extend_from_slice(payload);
        let length = packet.len() as u16;
        put(&mut packet, 2, length);
        let check = !sum(&packet[..20]);
        put(&mut packet, 10, check);
        if protocol == UDP {
            put(&mut packet, 24, length - 20);
        }
        let at = if protocol == TCP { 36 } else { 26 };
        let check = !sum(&pseudo(&packet));
        put(&mut packet, at, check);
        packet
    }

    #[test]
    fn a_rewritten_packet_has_right_checksums() {
        let client = Ipv4Addr::new(10, 77, 0, 2);
        let server = Ipv4Addr::new(10, 77, 1, 2);
        for protocol in [TCP, UDP] {
            for port in 0..2000u16 {
                let mut packet = make(protocol, (client, 5000), (server, 443), &port.to_be_bytes());
                let head = parse(&packet).unwrap();
                let to = Endpoint { protocol, address: Ipv4Addr::new(10, 77, 2, 9), port };
                rewrite(&mut packet, &head, End::Source, to);
                assert_eq!((sum(&packet[..20]), sum(&pseudo(&packet))), (0xffff, 0xffff));
                assert_eq!(parse(&packet).unwrap().source, to);
                assert_eq!(parse(&packet).unwrap().destination, head.destination);
                rewrite(&mut packet, &head, End::Destination, head.source);
                assert_eq!((sum(&packet[..20]), sum(&pseudo(&packet))), (0xffff, 0xffff));
            }
        }
    }

    #[test]
    fn no_udp_checksum_stays_none() {
        let address = Ipv4Addr::new(10, 0, 0, 1);
        let mut packet = make(UDP, (address, 1), (address, 2), b"x");
        put(&mut packet, 26, 0);
        let head = parse(&packet).unwrap();
        rewrite(&mut packet, &head, End::Source, Endpoint { protocol: UDP, address, port: 9 });
        assert_eq!(u16_at(&packet, 26), 0);
        assert_eq!(parse(&packet).unwrap().source.port, 9);
    }

    #[test]
    fn what_is_no_whole_packet_is_not_read() {
        assert_eq!(parse(&[]), None);
        assert_eq!(parse(&[0x60; 40]), None);
        assert_eq!(parse(&[0x45; 19]), None);
        assert_eq!(parse(&[0x4f; 40]), None);
        let mut packet = make(UDP, (Ipv4Addr::LOCALHOST, 1), (Ipv4Addr::LOCALHOST, 2), b"");
        packet[6] = 0x20; // more fragments
        let head = parse(&packet).unwrap();
        assert!(head.is_fragment && head.source.port == 0);
        packet.truncate(21);
        assert_eq!(parse(&packet).unwrap().source.port, 0);
    }
}
