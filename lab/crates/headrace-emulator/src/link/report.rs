//! What the emulator says about itself: counts, and whether it was on time.
//!
//! In: what happened to each packet. Out: JSON for `headrace_lab.link`.

use std::collections::BTreeMap;

use crate::network::Reason;
use serde::Serialize;

/// Counts of one direction since the beginning; `in` and `out` are as the emulator sees them.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Counts {
    #[serde(rename = "in")]
    pub entered: u64,
    pub in_bytes: u64,
    /// How many of them were copies.
    pub out: u64,
    pub out_bytes: u64,
    pub copies: u64,
    /// Drops by reason; every reason is listed.
    pub dropped: BTreeMap<&'static str, u64>,
    /// Packets that the device or socket at the far end did not take.
    pub refused: u64,
}

impl Counts {
    pub fn new() -> Self {
        Self { dropped: Reason::NAMES.iter().map(|&name| (name, 0)).collect(), ..Self::default() }
    }

    pub fn note_drop(&mut self, reason: Reason) {
        *self.dropped.entry(reason.name()).or_default() += 1;
    }
}

/// How long after it was due each packet was out, in milliseconds.
#[derive(Clone, Debug, Serialize)]
pub struct Late {
    pub p50: f64,
    pub p99: f64,
    pub max: f64,
    pub packets: u64,
}

#[derive(Clone, Debug, Serialize)]
pub struct Report {
    pub up: Counts,
    pub down: Counts,
    pub lateness_ms: Late,
    /// Packets that the emulator's own sockets had no room for.
    pub socket_drops: u64,
    /// Packets that are on their way now.
    pub held: u64,
    /// The indices of the next packets.
    pub next_up: u64,
    pub next_down: u64,
    pub logged: u64,
    /// Packets for which the log had no room or no time.
    pub unlogged: u64,
    /// The number of each step of the script that was carried out, and when.
    pub steps: Vec<(usize, u64)>,
    /// What the kernel refused of priority and locked memory.
    pub not_granted: Vec<String>,
    /// Whether the machine's processors were kept from sleeping.
    pub awake: bool,
    pub log_error: Option<String>,
}

/// The answer to a command.
#[derive(Clone, Debug, Serialize)]
pub struct Answer {
    /// When the command took effect (CLOCK_MONOTONIC).
    pub at_ns: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub report: Option<Box<Report>>,
}
