//! One direction of the path between the two sides, in virtual time. It is `headrace_emulator::network` that decides, as in
//! the lab's emulator.
//!
//! In: a datagram's length, the time. Out: when it arrives: once, twice, or never. What is lost is chosen by the
//! packet's index and the seed, never by time.

use std::time::Duration;

use headrace_emulator::network::{Direction, Lane, Plan, Verdict};

use crate::side::Role;

/// IPv4 and UDP headers: a plan counts whole IP packets.
const HEADERS: usize = 28;

/// A path without losses that takes so long, one way.
pub fn ideal(delay: Duration) -> Plan {
    Plan { delay_ns: delay.as_nanos() as u64, queue_bytes: u64::MAX, ..Plan::default() }
}

/// A direction and what has passed.
#[derive(Debug)]
pub struct Link {
    lane: Lane,
    seed: u64,
    /// Packets of paths before this one.
    before: u64,
    pub lost: u64,
    pub passed_bytes: u64,
}

impl Link {
    /// `from`: who sends.
    pub fn new(from: Role, plan: Plan, seed: u64) -> Self {
        let direction = if from == Role::Client { Direction::Up } else { Direction::Down };
        Self { lane: Lane::new(direction, plan, seed, 0), seed, before: 0, lost: 0, passed_bytes: 0 }
    }

    /// The next packet's index, since the link was made.
    pub fn index(&self) -> u64 {
        self.before + self.lane.next_index()
    }

    /// How packets fare from now on.
    pub fn plan_mut(&mut self) -> &mut Plan {
        &mut self.lane.plan
    }

    /// Another path from now on: it does not wait for what is still on its way on the old one.
    pub fn set_path(&mut self, now: Duration, plan: Plan) {
        self.before = self.index();
        let now_ns = now.as_nanos() as u64;
        self.lane = Lane::new(self.lane.direction, plan, self.seed ^ self.before, now_ns);
    }

    /// The packet with this index will be lost, whatever chance says.
    pub fn drop_packet(&mut self, index: u64) {
        let drops = &mut self.lane.plan.drops;
        drops.push(index.saturating_sub(self.before));
        drops.sort_unstable();
    }

    pub fn begin_outage(&mut self, now: Duration, lasts: Duration) {
        self.lane.begin_outage(now.as_nanos() as u64, lasts.as_nanos() as u64, false);
    }

    /// When this datagram arrives; the second time is that of its duplicate.
    pub fn handle_packet(&mut self, now: Duration, bytes: usize) -> [Option<Duration>; 2] {
        let at = |due_ns| Some(Duration::from_nanos(due_ns));
        let arrivals = match self.lane.decide(now.as_nanos() as u64, (bytes + HEADERS) as u32, true) {
            Verdict::Deliver { due_ns } => [at(due_ns), None],
            Verdict::Duplicate { due_ns } => [at(due_ns), at(due_ns)],
            Verdict::Drop(_) => [None, None],
        };
        match arrivals[0] {
            Some(_) => self.passed_bytes += bytes as u64,
            None => self.lost += 1,
        }
        arrivals
    }
}
