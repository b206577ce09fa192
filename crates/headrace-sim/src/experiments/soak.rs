//! Connections through one random network after the other, with an echo, for as long as you like.
//!
//! In: a seed, how long. Out: counts, or the promise that was broken: every token of every answer arrives once, in order
//! and unchanged; what both sides hold stays within bounds, and is gone when all is quiet.
//!
//! A network lasts some seconds: random losses and bursts, jitter, packets that overtake each other or come twice, a
//! bottleneck with its queue; and in some an outage, or another address. Some networks later the client begins another
//! connection.

use std::time::Duration;

use headrace_core::recovery::echo::Mode;
use headrace_emulator::network::{Loss, Plan, Rate};

use crate::answer::{Answer, Shape};
use crate::chance::Chance;
use crate::experiments::lossy::product_echo;
use crate::experiments::measures::elsewhere;
use crate::link::ideal;
use crate::setup::{Setup, Tls};
use crate::side::Role;
use crate::simulation::{Held, Simulation};

/// The most answers that a connection has at a time.
const MOST_STREAMS: usize = 16;
/// The server holds a stream until its end is acknowledged, while the client asks for others already: twice as many, on
/// both sides.
const MOST_HELD_STREAMS: usize = 4 * MOST_STREAMS;
const NETWORKS_OF_A_CONNECTION: u64 = 6;
/// It is shorter than the idle timeout (30 s), so that some probes are left when it ends.
const LONGEST_OUTAGE_MS: u64 = 5_000;
/// After this time what was lost last has been sent again, and a closed connection is forgotten.
const QUIET: Duration = Duration::from_secs(35);
/// The time for answers that still run when a connection's last network is over.
const LIMIT: Duration = Duration::from_secs(300);
/// How often what is held is looked at; it is not in step with tokens.
const LOOK: Duration = Duration::from_millis(101);
/// The most datagrams and tokens on their way: those of 16 streams that a bottleneck held up, and their copies.
const MOST_EVENTS: usize = 20_000;
/// What `headrace_core::recovery::echo::queue` keeps for a socket; two sides.
const MOST_COPIES: usize = 2 * 1024;
/// What `headrace_core::recovery::echo::amplification` keeps.
const MOST_ADDRESSES: usize = 1024;

#[derive(Clone, Copy, Debug, Default)]
pub struct Soak {
    /// Virtual.
    pub lasted: Duration,
    pub connections: usize,
    pub networks: usize,
    pub outages: usize,
    pub moves: usize,
    pub tokens: usize,
    pub datagrams: u64,
    pub lost: u64,
    /// The most of each.
    pub held: Held,
}

impl Soak {
    /// Returns the sums of both, one after the other.
    #[must_use]
    pub fn and(&self, other: &Self) -> Self {
        Self {
            lasted: self.lasted + other.lasted,
            connections: self.connections + other.connections,
            networks: self.networks + other.networks,
            outages: self.outages + other.outages,
            moves: self.moves + other.moves,
            tokens: self.tokens + other.tokens,
            datagrams: self.datagrams + other.datagrams,
            lost: self.lost + other.lost,
            held: self.held.max(&other.held),
        }
    }
}

/// # Errors
/// The first promise that was broken.
pub fn soak(seed: u64, lasts: Duration, tls: &Tls) -> Result<Soak, String> {
    let mut chance = Chance::new(seed ^ 0x10e2);
    let mut setup = Setup::new(seed, Duration::from_millis(60), tls)?;
    let mut echo = product_echo()?;
    // It is always on, except while a queue stands; or it is as the product decides.
    echo.mode = if chance.below(2) == 0 { Mode::On } else { Mode::Auto };
    setup.echo = Some(echo);
    let mut run = Run { sim: Simulation::new(setup), chance, seen: Soak::default() };
    while run.sim.now() < lasts {
        run.connection().map_err(|broken| format!("seed {seed}: {broken}"))?;
    }
    Ok(run.finish())
}

struct Run {
    sim: Simulation,
    chance: Chance,
    seen: Soak,
}

impl Run {
    /// One connection's life.
    fn connection(&mut self) -> Result<(), String> {
        let connection = self.sim.connect()?;
        self.seen.connections += 1;
        let first = self.sim.answers.all().len();
        let shape = self.shape();
        self.sim.ask(connection, shape);
        // An address that changes before the handshake is confirmed ends it (RFC 9000 §9).
        let end = self.sim.now() + QUIET;
        self.sim.run_while(end, |sim| sim.answer(first).heard_at.is_none());
        for _ in 0..1 + self.chance.below(NETWORKS_OF_A_CONNECTION) {
            self.network(connection)?;
        }
        self.rest();
        let end = self.sim.now() + LIMIT;
        self.sim.run_to_end(end);
        if let Some(broken) = self.sim.answers.all()[first..].iter().find(|answer| !answer.is_whole()) {
            return Err(format!("a broken answer: {broken:?}"));
        }
        self.sim.run_for(QUIET);
        let held = self.note_held()?;
        // The control streams stay.
        if held.streams > 2 || held.copies > 0 {
            return Err(format!("left when all was quiet: {held:?}"));
        }
        self.sim.close(connection);
        self.sim.run_for(QUIET);
        let held = self.note_held()?;
        if held.connections + held.streams + held.copies + held.events > 0 {
            return Err(format!("left of a connection that is over: {held:?}"));
        }
        Ok(())
    }

    /// Enters another network, and asks what people ask while they are in it.
    fn network(&mut self, connection: usize) -> Result<(), String> {
        self.seen.networks += 1;
        let delay = Duration::from_micros(2_000 + self.chance.below(120_000));
        for from in [Role::Client, Role::Server] {
            let (now, plan) = (self.sim.now(), self.plan(delay));
            self.sim.link_mut(from).set_path(now, plan);
        }
        self.disturb();
        for _ in 0..1 + self.chance.below(5) {
            let is_open = |answer: &&Answer| answer.ended_at.is_none();
            if self.sim.answers.all().iter().filter(is_open).count() < MOST_STREAMS {
                let shape = self.shape();
                self.sim.ask(connection, shape);
            }
            for _ in 0..self.chance.below(40) {
                self.sim.run_for(LOOK);
                self.note_held()?;
            }
        }
        Ok(())
    }

    fn disturb(&mut self) {
        let mut outside = elsewhere(self.chance.below(2) == 0);
        outside.set_port(1_024 + self.chance.below(60_000) as u16);
        let what = self.chance.below(8);
        self.seen.moves += usize::from((1..4).contains(&what));
        match what {
            0 => {
                self.seen.outages += 1;
                self.sim.begin_outage(Duration::from_millis(self.chance.below(LONGEST_OUTAGE_MS)));
            }
            1 => self.sim.rebind_nat(outside),
            2 => self.sim.move_client(outside, true),
            3 => self.sim.move_client(outside, false),
            _ => {}
        }
    }

    /// Lets nothing be lost any more.
    fn rest(&mut self) {
        let now = self.sim.now();
        for from in [Role::Client, Role::Server] {
            self.sim.link_mut(from).set_path(now, ideal(Duration::from_millis(30)));
        }
    }

    fn shape(&mut self) -> Shape {
        Shape {
            tokens: 1 + self.chance.below(400) as usize,
            token_bytes: 20 + self.chance.below(380) as usize,
            every: Duration::from_millis(5 + self.chance.below(60)),
            thinks: Duration::from_millis(self.chance.below(500)),
            ..Shape::default()
        }
    }

    fn plan(&mut self, delay: Duration) -> Plan {
        let chance = &mut self.chance;
        let (share, run) = (chance.share() * 0.08, 1.0 + chance.share() * 3.0);
        let loss = match chance.below(4) {
            0 => Loss::default(),
            1 => Loss::new(share / 2.0, run).unwrap_or_default(),
            _ => Loss::new(share, 1.0).unwrap_or_default(),
        };
        let (rate, queue_bytes) = match chance.below(2) {
            0 => (Rate::default(), u64::MAX),
            _ => (Rate::Bits(300_000 + chance.below(10_000_000)), 8_000 + chance.below(120_000)),
        };
        let half_ns = delay.as_nanos() as f64 / 2.0;
        Plan {
            loss,
            rate,
            queue_bytes,
            jitter_ns: (half_ns * chance.share()) as u64,
            reorder: if chance.below(2) == 0 { chance.share() * 0.2 } else { 0.0 },
            reorder_ns: (half_ns * chance.share()) as u64,
            duplicate: chance.share() * 0.05,
            ..ideal(delay)
        }
    }

    fn note_held(&mut self) -> Result<Held, String> {
        let held = self.sim.held();
        self.seen.held = self.seen.held.max(&held);
        let is_bounded = held.connections <= 2
            && held.streams <= MOST_HELD_STREAMS
            && held.copies <= MOST_COPIES
            && held.networks <= 2
            && held.addresses <= MOST_ADDRESSES
            && held.events <= MOST_EVENTS;
        if is_bounded { Ok(held) } else { Err(format!("too much is held: {held:?}")) }
    }

    fn finish(self) -> Soak {
        let (up, down) = (self.sim.link(Role::Client), self.sim.link(Role::Server));
        Soak {
            lasted: self.sim.now(),
            tokens: self.sim.answers.all().iter().map(|answer| answer.arrived_at.len()).sum(),
            datagrams: up.index() + down.index(),
            lost: up.lost + down.lost,
            ..self.seen
        }
    }
}
