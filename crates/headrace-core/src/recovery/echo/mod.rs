//! Echo: a datagram is sent a second time, a few milliseconds later, so that a loss is repaired before anybody
//! sees it. The copy is the same ciphertext; a receiver drops what it has already (RFC 9000 §12.3).
//!
//! In: what one path's packets do (sent, acknowledged, lost), each with its time. Out: which datagrams are copied,
//! and when. It must not know sockets, keys or streams.
//!
//! * [`path`]: whether copies help on one path, and after what time: the rules
//! * [`queue`]: copies that wait for their time
//! * [`amplification`]: what may be sent to an address that may be somebody else's
//! * [`memory`]: which networks lose packets, beyond the life of a connection

pub mod amplification;
pub mod memory;
pub mod path;
pub mod queue;

use std::time::Duration;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Datagrams are copied while loss is seen, and while nothing is known of a path.
    Auto,
    /// Datagrams are always copied, except while a queue stands or the bound is reached.
    On,
}

/// What Python decided.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    pub mode: Mode,
    /// The time from a datagram to its copy, against single losses.
    pub near: Duration,
    /// The time from a datagram to its second copy, against bursts.
    pub far: Duration,
    /// What the copies of one connection may add.
    pub max_extra_bytes_per_s: u64,
    /// How long a new path gets copies before a loss was seen.
    pub first: Duration,
    /// How long copies go on after the last loss that was seen.
    pub hold: Duration,
}

/// When one datagram is sent again: up to three times.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Copies {
    pub near: Option<Duration>,
    pub far: Option<Duration>,
    pub last: Option<Duration>,
    /// The peer's address has not been shown to be its own: only a handshake may be copied, never the first
    /// datagrams after a change of path (RFC 9000 §8.1, §9.3.1).
    pub is_unvalidated: bool,
}

impl Copies {
    pub fn is_none(&self) -> bool {
        self.after().next().is_none()
    }

    /// The times after which copies leave, ascending.
    pub fn after(&self) -> impl Iterator<Item = Duration> + use<> {
        [self.near, self.far, self.last].into_iter().flatten()
    }
}
