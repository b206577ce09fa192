//! What anybody on the path can read of a datagram (RFC 8999, RFC 9000 §17).
//!
//! In: a datagram. Out: its packets' types, connection IDs and lengths, and the number of an Initial packet,
//! whose keys follow from the client's first connection ID (RFC 9001 §5.2).

use quinn_proto::ConnectionId;
use quinn_proto::crypto::ServerConfig;

use crate::setup::{CID_LENGTH, Tls};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Initial,
    ZeroRtt,
    Handshake,
    Retry,
    VersionNegotiation,
    /// 1-RTT.
    Short,
}

/// One packet of a datagram.
#[derive(Clone, Debug)]
pub struct Packet<'a> {
    pub kind: Kind,
    pub destination: &'a [u8],
    /// Empty in a short header.
    pub source: &'a [u8],
    /// The token of an Initial packet.
    pub token: &'a [u8],
    /// From its first byte to its last.
    pub bytes: &'a [u8],
    /// Where its protected packet number begins.
    number_at: usize,
}

/// The packets of a datagram; ends at what is none, padding for one.
pub fn packets(datagram: &[u8]) -> Vec<Packet<'_>> {
    let mut rest = datagram;
    let mut found = Vec::new();
    while let Some((packet, length)) = packet(rest) {
        found.push(packet);
        rest = &rest[length..];
    }
    found
}

fn packet(bytes: &[u8]) -> Option<(Packet<'_>, usize)> {
    let first = *bytes.first()?;
    if first & 0x80 == 0 {
        // The next bit says nothing: it is greased (RFC 9287).
        let destination = bytes.get(1..1 + CID_LENGTH)?;
        let (source, number_at) = (&[][..], 1 + CID_LENGTH);
        return Some((
            Packet { kind: Kind::Short, destination, source, token: &[], bytes, number_at },
            bytes.len(),
        ));
    }
    let mut at = 5;
    let destination = take(bytes, &mut at)?;
    let source = take(bytes, &mut at)?;
    let kind = match (bytes.get(1..5)?, (first >> 4) & 3) {
        ([0, 0, 0, 0], _) => Kind::VersionNegotiation,
        (_, 0) => Kind::Initial,
        (_, 1) => Kind::ZeroRtt,
        (_, 2) => Kind::Handshake,
        (_, _) => Kind::Retry,
    };
    let mut token = &[][..];
    let mut length = bytes.len();
    if matches!(kind, Kind::Initial | Kind::ZeroRtt | Kind::Handshake) {
        if kind == Kind::Initial {
            let size = varint(bytes, &mut at)?;
            token = bytes.get(at..at + size)?;
            at += size;
        }
        let size = varint(bytes, &mut at)?;
        length = at + size;
    }
    let bytes = bytes.get(..length)?;
    Some((Packet { kind, destination, source, token, bytes, number_at: at }, length))
}

/// A length of one byte, and so many bytes.
fn take<'a>(bytes: &'a [u8], at: &mut usize) -> Option<&'a [u8]> {
    let length = usize::from(*bytes.get(*at)?);
    let taken = bytes.get(*at + 1..*at + 1 + length)?;
    *at += 1 + length;
    Some(taken)
}

/// RFC 9000 §16.
fn varint(bytes: &[u8], at: &mut usize) -> Option<usize> {
    let first = *bytes.get(*at)?;
    let length = 1 << (first >> 6);
    let taken = bytes.get(*at..*at + length)?;
    *at += length;
    Some(taken[1..].iter().fold(usize::from(first & 0x3f), |value, &byte| value << 8 | usize::from(byte)))
}

/// The packet number of a client's Initial packet: its last byte, which is all of it so early. `first`: the
/// destination connection ID from which the keys follow.
pub fn initial_number(tls: &Tls, first: &[u8], packet: &Packet<'_>) -> Option<u8> {
    let keys = tls.server().initial_keys(1, &ConnectionId::new(first)).ok()?;
    let mut bytes = packet.bytes.to_vec();
    keys.header.remote.decrypt(packet.number_at, &mut bytes);
    let length = usize::from(bytes[0] & 3) + 1;
    bytes.get(packet.number_at + length - 1).copied()
}
