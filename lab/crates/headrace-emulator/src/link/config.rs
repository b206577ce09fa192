//! What the emulator is told, as JSON: once at the beginning, and by commands.
//!
//! In: text that Python has checked (`headrace_lab.link`). Out: plans for [`crate::network`]. Every field must
//! be there: defaults stand in Python.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;

use crate::Error;
use crate::network::{Direction, Loss, Pauses, Plan, Rate, Trace};
use serde::Deserialize;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LinkConfig {
    pub seed: u64,
    pub up: PlanConfig,
    pub down: PlanConfig,
    pub script: Vec<Step>,
    pub wire: WireConfig,
    /// The file of the packet log.
    pub log: PathBuf,
    /// The most packets that are logged; further ones are only counted.
    pub max_log_packets: u64,
    /// The most packets that are on their way at once; further ones are dropped, and the run is void.
    pub max_held_packets: usize,
}

/// What the link stands between.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "lowercase", tag = "kind")]
pub enum WireConfig {
    /// A TUN device in each of two network namespaces.
    Tun { client: TunConfig, server: TunConfig, nat_pool: Ipv4Addr },
    /// A UDP socket before a server: no namespaces, no root, and nothing but UDP.
    Udp { listen: SocketAddr, server: SocketAddr, max_flows: usize },
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TunConfig {
    pub namespace: PathBuf,
    pub device: String,
}

/// One direction.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PlanConfig {
    delay_ns: u64,
    jitter_ns: u64,
    /// 0: unlimited.
    rate_bits: u64,
    /// The milliseconds of a Mahimahi trace; empty: `rate_bits` counts.
    trace_ms: Vec<u64>,
    queue_bytes: u64,
    loss: f64,
    burst: f64,
    drops: Vec<u64>,
    duplicate: f64,
    reorder: f64,
    reorder_ns: u64,
    /// 0: the device's own bound.
    mtu: u32,
    block_udp: bool,
    pauses: Option<PausesConfig>,
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct PausesConfig {
    every_ns: u64,
    min_ns: u64,
    mean_ns: u64,
    max_ns: u64,
}

/// A command and when it is carried out: at a time since the beginning, or right before a packet.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Step {
    pub when: When,
    pub command: Command,
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "snake_case")]
pub enum When {
    AfterNs(u64),
    Up(u64),
    Down(u64),
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "snake_case", tag = "do")]
pub enum Command {
    /// Takes other plans from now on.
    Plan {
        up: Box<PlanConfig>,
        down: Box<PlanConfig>,
    },
    Loss {
        loss: f64,
        burst: f64,
        direction: Side,
    },
    Outage {
        length_ns: u64,
        held: bool,
        direction: Side,
    },
    /// Drops the next packets.
    Drop {
        count: u64,
        direction: Side,
    },
    Mtu {
        mtu: u32,
        direction: Side,
    },
    BlockUdp {
        blocked: bool,
    },
    RebindPort {},
    RebindAddress {},
    /// Begins again with indices, script, trace and pauses.
    Restart {},
    /// Asks for counts, after the log has been written as far as it goes.
    Status {},
}

#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub enum Side {
    Up,
    Down,
    Both,
}

impl Side {
    pub fn has(self, direction: Direction) -> bool {
        match self {
            Self::Both => true,
            Self::Up => direction == Direction::Up,
            Self::Down => direction == Direction::Down,
        }
    }
}

pub fn loss(share: f64, burst: f64) -> Result<Loss, Error> {
    let wrong = || format!("a loss of {share} in bursts of {burst}: no chain has both");
    Loss::new(share, burst).ok_or_else(|| Error::Config(wrong()))
}

impl PlanConfig {
    pub fn plan(&self) -> Result<Plan, Error> {
        let wrong = |what: &str| Error::Config(what.to_owned());
        let rate = match (self.trace_ms.as_slice(), self.rate_bits) {
            ([], 0) => Rate::Unlimited,
            ([], bits) => Rate::Bits(bits),
            (lines, _) => {
                let trace = Trace::new(lines);
                Rate::Trace(trace.ok_or_else(|| wrong("a trace needs times that rise and do not end at 0"))?)
            }
        };
        let pauses = self.pauses.map(|pauses| {
            let made = Pauses::new(pauses.every_ns, pauses.min_ns, pauses.mean_ns, pauses.max_ns);
            made.ok_or_else(|| {
                wrong("pauses need min <= mean <= max <= every, and a mean above min unless equal")
            })
        });
        let mut drops = self.drops.clone();
        drops.sort_unstable();
        Ok(Plan {
            delay_ns: self.delay_ns,
            jitter_ns: self.jitter_ns,
            rate,
            queue_bytes: self.queue_bytes,
            loss: loss(self.loss, self.burst)?,
            drops,
            duplicate: self.duplicate,
            reorder: self.reorder,
            reorder_ns: self.reorder_ns,
            mtu: (self.mtu > 0).then_some(self.mtu),
            is_udp_blocked: self.block_udp,
            pauses: pauses.transpose()?,
        })
    }
}
