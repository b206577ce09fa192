//! What a bad network does to each packet, decided without a network.
//!
//! In: a direction, a packet's length, protocol and moment of arrival. Out: when it comes out, once or twice, or
//! why it does not. The same seed and the same packets give the same verdicts: chance goes by a packet's index in
//! its direction, not by the clock. Times are nanoseconds of any one clock. This room must not know devices or sockets.
//!
//! A packet passes, in this order: loss → what is blocked → outage → the queue of the bottleneck → delay. A packet
//! that is lost by chance has used the bottleneck all the same, as on a radio.
//!
//! * [`chance`]: numbers by seed and index; [`loss`]: single and in bursts; [`queue`]: rate, trace, bound
//! * [`radio`]: traces by a model, in the statistics of recorded ones; [`itself`]: what a link allows whoever sends
//! * [`pauses`]: when a moving receiver hears nothing; [`nat`], [`packet`]: other addresses
//! * [`lateness`]: whether the emulator kept its own times

pub mod chance;
pub mod itself;
pub mod lateness;
pub mod loss;
pub mod nat;
pub mod packet;
pub mod pauses;
pub mod queue;
pub mod radio;

use chance::{Purpose, draw};
pub use loss::Loss;
pub use pauses::Pauses;
pub use queue::{Queue, Rate, Trace};

/// From the client to the server, or back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    Up = 0,
    Down = 1,
}

impl Direction {
    pub const BOTH: [Self; 2] = [Self::Up, Self::Down];

    pub fn name(self) -> &'static str {
        ["up", "down"][self as usize]
    }
}

/// What one direction does to packets.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Plan {
    pub delay_ns: u64,
    /// It is added to or taken from the delay, evenly; no packet overtakes another by it.
    pub jitter_ns: u64,
    pub rate: Rate,
    /// Bytes that may wait at the bottleneck.
    pub queue_bytes: u64,
    pub loss: Loss,
    /// The indices of packets that are dropped, sorted.
    pub drops: Vec<u64>,
    /// The share of packets that come twice.
    pub duplicate: f64,
    /// The share of packets that come `reorder_ns` later than their successors.
    pub reorder: f64,
    pub reorder_ns: u64,
    /// Longer packets vanish without an ICMP message (a path MTU black hole).
    pub mtu: Option<u32>,
    pub is_udp_blocked: bool,
    pub pauses: Option<Pauses>,
}

/// Why a packet does not come out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// It was lost by chance.
    Loss = 0,
    /// Its index was named.
    Named = 1,
    /// The queue of the bottleneck was full.
    Queue = 2,
    Outage = 3,
    Mtu = 4,
    UdpBlocked = 5,
    /// The NAT has no mapping for it.
    Nat = 6,
    /// The emulator itself held too many packets: the run is void.
    Overflow = 7,
    /// The emulator ended before it was due.
    Unfinished = 8,
}

impl Reason {
    pub const NAMES: [&str; 9] =
        ["loss", "named", "queue", "outage", "mtu", "udp_blocked", "nat", "overflow", "unfinished"];

    pub fn name(self) -> &'static str {
        Self::NAMES[self as usize]
    }
}

/// What becomes of one packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    Deliver {
        due_ns: u64,
    },
    /// It comes twice, the copy right after it.
    Duplicate {
        due_ns: u64,
    },
    Drop(Reason),
}

/// A time in which nothing passes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Outage {
    from_ns: u64,
    to_ns: u64,
    /// Whether packets wait for the end of the outage, as at a cellular base station, or are lost.
    is_held: bool,
}

/// One direction: its plan, and its state.
#[derive(Debug)]
pub struct Lane {
    pub direction: Direction,
    pub plan: Plan,
    seed: u64,
    began_ns: u64,
    /// The index of the next packet.
    index: u64,
    was_lost: bool,
    queue: Queue,
    last_due_ns: u64,
    outage: Option<Outage>,
    /// How many of the next packets are dropped.
    drop_next: u64,
}

impl Lane {
    pub fn new(direction: Direction, plan: Plan, seed: u64, now_ns: u64) -> Self {
        Self {
            direction,
            plan,
            seed,
            began_ns: now_ns,
            index: 0,
            was_lost: false,
            queue: Queue::new(now_ns),
            last_due_ns: 0,
            outage: None,
            drop_next: 0,
        }
    }

    /// Returns the index of the packet that comes next.
    pub fn next_index(&self) -> u64 {
        self.index
    }

    /// Begins again, for a measurement after a warm-up: with index 0, no loss before, and a trace and pauses from their
    /// beginning. Packets that wait go on waiting.
    pub fn restart(&mut self, now_ns: u64) {
        self.index = 0;
        self.was_lost = false;
        self.began_ns = now_ns;
        self.outage = None;
        self.drop_next = 0;
        self.queue = Queue::new(now_ns);
    }

    /// Takes another plan from now on. Indices go on, and nothing overtakes what is on its way.
    pub fn set_plan(&mut self, plan: Plan, now_ns: u64) {
        self.plan = plan;
        self.began_ns = now_ns;
        self.queue = Queue::new(now_ns);
    }

    pub fn begin_outage(&mut self, now_ns: u64, length_ns: u64, is_held: bool) {
        let to_ns = now_ns.saturating_add(length_ns);
        self.outage = Some(Outage { from_ns: now_ns, to_ns, is_held });
    }

    /// Drops the next packets, whatever they are.
    pub fn drop_next(&mut self, count: u64) {
        self.drop_next = count;
    }

    /// Decides about the next packet: `length` bytes of IP.
    pub fn decide(&mut self, now_ns: u64, length: u32, is_udp: bool) -> Verdict {
        let index = self.index;
        self.index += 1;
        let (seed, lane) = (self.seed, self.direction as u64);
        let chance = |purpose| draw(seed, lane, purpose, index);
        self.was_lost = self.plan.loss.is_lost(self.was_lost, chance(Purpose::Loss));
        let reason = self.refusal(now_ns, index, length, is_udp);
        if let Some(reason) = reason.filter(|_| !self.was_lost) {
            return Verdict::Drop(reason);
        }
        let (outage, pauses, began) = (self.outage, self.plan.pauses, self.began_ns);
        let open_at = |at: u64| {
            let at = match outage {
                Some(outage) if (outage.from_ns..outage.to_ns).contains(&at) => outage.to_ns,
                _ => at,
            };
            pauses.map_or(at, |pauses| began + pauses.open_at(seed, at.saturating_sub(began)))
        };
        let (rate, limit) = (&self.plan.rate, self.plan.queue_bytes);
        let left_ns = self.queue.enqueue(rate, limit, now_ns, u64::from(length), open_at);
        if self.was_lost {
            return Verdict::Drop(Reason::Loss);
        }
        let Some(left_ns) = left_ns else { return Verdict::Drop(Reason::Queue) };
        let jitter = self.plan.jitter_ns as f64 * (2.0 * chance(Purpose::Jitter) - 1.0);
        let delay_ns = self.plan.delay_ns.saturating_add_signed(jitter as i64);
        let mut due_ns = left_ns.saturating_add(delay_ns).max(self.last_due_ns);
        if chance(Purpose::Reorder) < self.plan.reorder {
            due_ns = due_ns.saturating_add(self.plan.reorder_ns);
        } else {
            self.last_due_ns = due_ns;
        }
        if chance(Purpose::Duplicate) < self.plan.duplicate {
            return Verdict::Duplicate { due_ns };
        }
        Verdict::Deliver { due_ns }
    }

    /// Returns why the packet does not even reach the bottleneck.
    fn refusal(&mut self, now_ns: u64, index: u64, length: u32, is_udp: bool) -> Option<Reason> {
        if self.drop_next > 0 {
            self.drop_next -= 1;
            return Some(Reason::Named);
        }
        if self.plan.drops.binary_search(&index).is_ok() {
            return Some(Reason::Named);
        }
        if is_udp && self.plan.is_udp_blocked {
            return Some(Reason::UdpBlocked);
        }
        if self.plan.mtu.is_some_and(|mtu| length > mtu) {
            return Some(Reason::Mtu);
        }
        let outage = self.outage.filter(|outage| !outage.is_held)?;
        (outage.from_ns..outage.to_ns).contains(&now_ns).then_some(Reason::Outage)
    }
}

#[cfg(test)]
mod tests;
