//! The loop: read, decide, hold, emit. One thread, no lock, and nothing that waits but `ppoll`.
//!
//! In: packets, orders. Out: packets when they are due; records; a report. Bounded: packets on their way, the
//! log, orders.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::os::fd::AsRawFd;
use std::sync::mpsc::SyncSender;

use crate::Error;
use crate::network::lateness::Lateness;
use crate::network::packet::UDP;
use crate::network::{Direction, Lane, Reason, Verdict};

use super::clock::monotonic_ns;
use super::config::{self, Command, LinkConfig, Step, When};
use super::log::{Log, Record};
use super::report::{Answer, Counts, Late, Report};
use super::wire::{Emitted, Packet, PollSet, Rebinding, Wire, pollfd};
use super::{Inbox, Order, realtime};

/// How many packets are read from one end before those that are due get their turn.
const TURN: usize = 16;
/// The longest sleep.
const IDLE_NS: u64 = 1_000_000_000;
/// The most steps of the script that the report lists.
const MAX_STEPS: usize = 10_000;

/// A packet on its way, ordered by when it is due, and then by when it came.
struct Held {
    key: Reverse<(u64, u64)>,
    packet: Packet,
    record: Record,
}

pub struct Emulator {
    wire: Box<dyn Wire>,
    lanes: [Lane; 2],
    held: BinaryHeap<Held>,
    max_held: usize,
    /// The number of the next packet that is held.
    number: u64,
    /// How many restarts there have been.
    round: u16,
    began_ns: u64,
    script: Vec<Step>,
    /// Which steps of the script were carried out since the last restart.
    done: Vec<bool>,
    /// Steps that were carried out, and when, over all restarts; at most [`MAX_STEPS`].
    steps: Vec<(usize, u64)>,
    counts: [Counts; 2],
    lateness: Lateness,
    log: Log,
    not_granted: Vec<String>,
    awake: Option<realtime::Awake>,
}

impl Emulator {
    pub fn new(config: LinkConfig, wire: Box<dyn Wire>, log: Log) -> Result<Self, Error> {
        let now = monotonic_ns();
        let lanes = [
            Lane::new(Direction::Up, config.up.plan()?, config.seed, now),
            Lane::new(Direction::Down, config.down.plan()?, config.seed, now),
        ];
        for step in &config.script {
            check(&step.command)?;
        }
        Ok(Self {
            wire,
            lanes,
            held: BinaryHeap::new(),
            max_held: config.max_held_packets,
            number: 0,
            round: 0,
            began_ns: now,
            done: vec![false; config.script.len()],
            script: config.script,
            steps: Vec::new(),
            counts: [Counts::new(), Counts::new()],
            lateness: Lateness::default(),
            log,
            not_granted: Vec::new(),
            awake: None,
        })
    }

    pub fn run(mut self, inbox: &Inbox) -> Answer {
        self.not_granted = realtime::enter();
        self.awake = realtime::Awake::keep();
        self.restart(monotonic_ns());
        let mut set: PollSet = vec![pollfd(inbox.bell.as_raw_fd())];
        loop {
            self.follow_script(monotonic_ns());
            self.emit_due();
            self.wire.watch(&mut set);
            self.wait(&mut set);
            if set[0].revents != 0 {
                for order in inbox.take() {
                    match order {
                        Order::Do(command, answer) => self.obey(&command, answer),
                        Order::Stop => return self.finish(),
                    }
                }
            }
            for direction in Direction::BOTH {
                for _ in 0..TURN {
                    let Some(packet) = self.wire.read(direction, &set) else { break };
                    self.take(direction, packet);
                }
            }
        }
    }

    /// Waits until a packet comes, one is due, the script goes on, or an order is there.
    fn wait(&self, set: &mut PollSet) {
        let now = monotonic_ns();
        let due = self.held.peek().map_or(u64::MAX, |held| held.key.0.0).min(self.next_step());
        let wait = due.saturating_sub(now).min(IDLE_NS);
        let timeout = libc::timespec {
            tv_sec: (wait / 1_000_000_000) as libc::time_t,
            tv_nsec: (wait % 1_000_000_000) as libc::c_long,
        };
        set.iter_mut().for_each(|each| each.revents = 0);
        // SAFETY: `set` and `timeout` are valid for the call. An interrupted wait is just shorter.
        unsafe {
            libc::ppoll(set.as_mut_ptr(), set.len() as libc::nfds_t, &raw const timeout, std::ptr::null());
        }
    }

    /// Takes a packet that has come.
    fn take(&mut self, direction: Direction, mut packet: Packet) {
        let now = monotonic_ns();
        let index = self.lanes[direction as usize].next_index();
        self.follow_script_before(direction, index, now);
        let lane = &mut self.lanes[direction as usize];
        let verdict = lane.decide(now, packet.length, packet.protocol == UDP);
        let counts = &mut self.counts[direction as usize];
        counts.entered += 1;
        counts.in_bytes += u64::from(packet.length);
        let has_way = direction == Direction::Down || self.wire.pass_outward(&mut packet);
        let mut record = Record {
            in_ns: now,
            due_ns: 0,
            out_ns: 0,
            index: index as u32,
            round: self.round,
            length: packet.length.min(u32::from(u16::MAX)) as u16,
            source_port: packet.source_port,
            destination_port: packet.destination_port,
            direction,
            protocol: packet.protocol,
            dropped: None,
            is_copy: false,
        };
        let due_ns = match verdict {
            Verdict::Drop(reason) => return self.drop(record, reason),
            Verdict::Deliver { due_ns } | Verdict::Duplicate { due_ns } => due_ns,
        };
        if !has_way {
            return self.drop(record, Reason::Nat);
        }
        record.due_ns = due_ns;
        if matches!(verdict, Verdict::Duplicate { .. }) {
            let copy = Packet { data: packet.data.clone(), ..packet };
            self.hold(packet, record);
            self.counts[direction as usize].copies += 1;
            self.hold(copy, Record { is_copy: true, ..record });
        } else {
            self.hold(packet, record);
        }
    }

    fn hold(&mut self, packet: Packet, record: Record) {
        if self.held.len() >= self.max_held {
            return self.drop(record, Reason::Overflow);
        }
        self.number += 1;
        self.held.push(Held { key: Reverse((record.due_ns, self.number)), packet, record });
    }

    fn drop(&mut self, record: Record, reason: Reason) {
        self.counts[record.direction as usize].note_drop(reason);
        self.log.record(&Record { dropped: Some(reason), ..record });
    }

    fn emit_due(&mut self) {
        let mut now = monotonic_ns();
        while self.held.peek().is_some_and(|held| held.key.0.0 <= now) {
            let Some(Held { mut packet, mut record, .. }) = self.held.pop() else { return };
            let emitted = self.wire.emit(record.direction, &mut packet);
            now = monotonic_ns();
            if emitted == Emitted::NoMapping {
                self.drop(record, Reason::Nat);
                continue;
            }
            record.out_ns = now;
            self.lateness.record(now - record.due_ns);
            let counts = &mut self.counts[record.direction as usize];
            if emitted == Emitted::Sent {
                counts.out += 1;
                counts.out_bytes += u64::from(packet.length);
            } else {
                counts.refused += 1;
            }
            self.log.record(&record);
        }
    }

    /// Returns when the script goes on by the clock.
    fn next_step(&self) -> u64 {
        let waiting = self.script.iter().zip(&self.done).filter(|(_, done)| !**done);
        let times = waiting.filter_map(|(step, _)| match step.when {
            When::AfterNs(after) => Some(self.began_ns.saturating_add(after)),
            When::Up(_) | When::Down(_) => None,
        });
        times.min().unwrap_or(u64::MAX)
    }

    fn follow_script(&mut self, now: u64) {
        self.carry_out_steps(now, |when, began| match when {
            When::AfterNs(after) => began.saturating_add(after) <= now,
            When::Up(_) | When::Down(_) => false,
        });
    }

    fn follow_script_before(&mut self, direction: Direction, index: u64, now: u64) {
        self.carry_out_steps(now, |when, _| match when {
            When::Up(at) => direction == Direction::Up && index == at,
            When::Down(at) => direction == Direction::Down && index == at,
            When::AfterNs(_) => false,
        });
    }

    fn carry_out_steps(&mut self, now: u64, is_due: impl Fn(When, u64) -> bool) {
        for number in 0..self.script.len() {
            if !self.done[number] && is_due(self.script[number].when, self.began_ns) {
                self.done[number] = true;
                if self.steps.len() < MAX_STEPS {
                    self.steps.push((number, now));
                }
                let command = self.script[number].command.clone();
                // The command was checked at the beginning.
                let _ = self.carry_out(&command, now);
            }
        }
    }

    fn obey(&mut self, command: &Command, answer: SyncSender<Result<Answer, Error>>) {
        let now = monotonic_ns();
        if matches!(command, Command::Status {}) {
            let report = Some(Box::new(self.report()));
            let done = Box::new(move || _ = answer.send(Ok(Answer { at_ns: now, report })));
            return self.log.flush(done);
        }
        let result = self.carry_out(command, now).map(|()| Answer { at_ns: now, report: None });
        let _ = answer.send(result);
    }

    fn carry_out(&mut self, command: &Command, now: u64) -> Result<(), Error> {
        match command {
            Command::Plan { up, down } => {
                let plans = [up.plan()?, down.plan()?];
                for (lane, plan) in self.lanes.iter_mut().zip(plans) {
                    lane.set_plan(plan, now);
                }
            }
            Command::Loss { loss, burst, direction } => {
                let loss = config::loss(*loss, *burst)?;
                self.lanes(*direction).for_each(|lane| lane.plan.loss = loss);
            }
            Command::Outage { length_ns, held, direction } => {
                self.lanes(*direction).for_each(|lane| lane.begin_outage(now, *length_ns, *held));
            }
            Command::Drop { count, direction } => {
                self.lanes(*direction).for_each(|lane| lane.drop_next(*count));
            }
            Command::Mtu { mtu, direction } => {
                self.lanes(*direction).for_each(|lane| lane.plan.mtu = (*mtu > 0).then_some(*mtu));
            }
            Command::BlockUdp { blocked } => {
                self.lanes.iter_mut().for_each(|lane| lane.plan.is_udp_blocked = *blocked);
            }
            Command::RebindPort {} => self.wire.rebind(Rebinding::Port),
            Command::RebindAddress {} => self.wire.rebind(Rebinding::Address),
            Command::Restart {} => {
                self.round = self.round.wrapping_add(1);
                self.restart(now);
            }
            Command::Status {} => {}
        }
        Ok(())
    }

    fn lanes(&mut self, side: config::Side) -> impl Iterator<Item = &mut Lane> {
        self.lanes.iter_mut().filter(move |lane| side.has(lane.direction))
    }

    fn restart(&mut self, now: u64) {
        self.began_ns = now;
        self.done.fill(false);
        self.lanes.iter_mut().for_each(|lane| lane.restart(now));
    }

    fn report(&self) -> Report {
        let (logged, unlogged) = self.log.counts();
        let ms = |ns: u64| ns as f64 / 1e6;
        Report {
            up: self.counts[0].clone(),
            down: self.counts[1].clone(),
            lateness_ms: Late {
                p50: ms(self.lateness.quantile_ns(0.5)),
                p99: ms(self.lateness.quantile_ns(0.99)),
                max: ms(self.lateness.max_ns()),
                packets: self.lateness.total(),
            },
            socket_drops: self.wire.dropped(),
            held: self.held.len() as u64,
            next_up: self.lanes[0].next_index(),
            next_down: self.lanes[1].next_index(),
            logged,
            unlogged,
            steps: self.steps.clone(),
            not_granted: self.not_granted.clone(),
            awake: self.awake.is_some(),
            log_error: None,
        }
    }

    fn finish(mut self) -> Answer {
        let at_ns = monotonic_ns();
        for held in std::mem::take(&mut self.held).into_sorted_vec().into_iter().rev() {
            self.drop(held.record, Reason::Unfinished);
        }
        let mut report = self.report();
        if let Err(error) = self.log.finish() {
            report.log_error = Some(error.to_string());
        }
        Answer { at_ns, report: Some(Box::new(report)) }
    }
}

/// Says before a command has to be carried out whether it can be.
fn check(command: &Command) -> Result<(), Error> {
    match command {
        Command::Plan { up, down } => up.plan().and(down.plan()).map(|_| ()),
        Command::Loss { loss, burst, .. } => config::loss(*loss, *burst).map(|_| ()),
        _ => Ok(()),
    }
}

impl PartialEq for Held {
    fn eq(&self, other: &Self) -> bool {
        self.key == other.key
    }
}

impl Eq for Held {}

impl PartialOrd for Held {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Held {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.key.cmp(&other.key)
    }
}
