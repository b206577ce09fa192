//! How far an exchange is.
//!
//! In: what its driver does. Out: the same, for anyone who looks at it from another thread.

use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

/// How far an exchange is, for people who look at it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    Open,
    Answering,
    Relaying,
    Finished,
    Reset,
}

/// What an exchange shows of itself while it runs: its driver writes, and anyone reads.
#[derive(Debug, Default)]
pub struct Progress {
    phase: AtomicU8,
    pub events: AtomicU64,
    pub bytes: AtomicU64,
}

impl Progress {
    pub fn phase(&self) -> Phase {
        match self.phase.load(Ordering::Relaxed) {
            0 => Phase::Open,
            1 => Phase::Answering,
            2 => Phase::Relaying,
            3 => Phase::Finished,
            _ => Phase::Reset,
        }
    }

    pub fn set_phase(&self, phase: Phase) {
        self.phase.store(phase as u8, Ordering::Relaxed);
    }
}
