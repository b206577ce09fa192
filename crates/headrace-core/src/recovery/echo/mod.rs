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
    /// While loss is seen, and while nothing is known of a path.
    Auto,
    /// Always, but for a queue and the bound.
    On,
}

/// What Python decided.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    pub mode: Mode,
    /// From a datagram to its copy: against single losses.
    pub near: Duration,
    /// To the second copy: against bursts.
    pub far: Duration,
    /// What copies of one connection may add.
    pub max_extra_bytes_per_s: u64,
    /// How long a path that is new gets copies, before a loss was seen.
    pub first: Duration,
    /// How long copies go on after the last loss that was seen.
    pub hold: Duration,
}

/// What is sent again of one datagram.
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

    /// Ascending.
    pub fn after(&self) -> impl Iterator<Item = Duration> + use<> {
        [self.near, self.far, self.last].into_iter().flatten()
    }
}
