//! What an echo did, in numbers: of one connection, and of all.
//!
//! In: what controllers and sockets count. Out: sums.

use std::sync::atomic::{AtomicU64, Ordering};

/// What is counted while it goes on, by all that share it.
#[derive(Debug, Default)]
pub struct Counters {
    copies: AtomicU64,
    copied_bytes: AtomicU64,
    repaired: AtomicU64,
    doubtful: AtomicU64,
}

/// The counts at one time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Copies that were sent; a batch counts as one.
    pub copies: u64,
    pub copied_bytes: u64,
    /// Lost packets of which a copy arrived, as far as acknowledgements show.
    pub repaired: u64,
    /// Copied packets that were declared lost while an acknowledgement of a copy could still come: at most so many were
    /// sent again in vain.
    pub doubtful: u64,
}

impl Counters {
    pub fn count_copy(&self, bytes: usize) {
        self.copies.fetch_add(1, Ordering::Relaxed);
        self.copied_bytes.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    pub fn count_repaired(&self, packets: u64) {
        self.repaired.fetch_add(packets, Ordering::Relaxed);
    }

    pub fn count_doubtful(&self, packets: u64) {
        self.doubtful.fetch_add(packets, Ordering::Relaxed);
    }

    pub fn counts(&self) -> Counts {
        Counts {
            copies: self.copies.load(Ordering::Relaxed),
            copied_bytes: self.copied_bytes.load(Ordering::Relaxed),
            repaired: self.repaired.load(Ordering::Relaxed),
            doubtful: self.doubtful.load(Ordering::Relaxed),
        }
    }
}

impl std::ops::Add for Counts {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            copies: self.copies + other.copies,
            copied_bytes: self.copied_bytes + other.copied_bytes,
            repaired: self.repaired + other.repaired,
            doubtful: self.doubtful + other.doubtful,
        }
    }
}
