//! A random life of one connection, and what must hold whatever happens to it.
//!
//! In: a seed. Out: counts, or the promise that was broken: every token of every answer arrives once, in order
//! and unchanged; a stop is obeyed; at the end no stream is left on either side.

use std::time::Duration;

use headrace_emulator::network::{Loss, Plan};
use quinn_proto::Dir;

use crate::answer::Shape;
use crate::chance::Chance;
use crate::experiments::lossy::product_echo;
use crate::experiments::measures::elsewhere;
use crate::link::ideal;
use crate::setup::{Setup, Tls};
use crate::side::Role;
use crate::simulation::Simulation;

/// A connection does not live longer: the idle timeout (30 s) ends what is stuck.
const LIMIT: Duration = Duration::from_secs(300);
/// The most that one outage lasts, well below the idle timeout.
const LONGEST_OUTAGE_MS: u64 = 3_000;

/// Longer than any probe waits before the idle timeout.
const SILENCE: Duration = Duration::from_secs(35);

/// What happened.
#[derive(Clone, Copy, Debug, Default)]
pub struct RandomConnection {
    pub tokens: usize,
    pub datagrams: u64,
    pub lost: u64,
    pub path_changes: u32,
    pub stopped: usize,
    /// Virtual.
    pub lasted: Duration,
}

/// # Errors
/// The first promise that was broken.
pub fn random_connection(seed: u64, tls: &Tls) -> Result<RandomConnection, String> {
    let mut chance = Chance::new(seed ^ 0x3a1c);
    let round_trip = Duration::from_millis(10 + chance.below(191));
    let mut setup = Setup::new(seed, round_trip, tls)?;
    setup.to_server = plan(&mut chance, round_trip);
    setup.to_client = plan(&mut chance, round_trip);
    setup.echo = product_echo().ok().filter(|_| chance.below(2) == 0);
    setup.asks_retry = chance.below(8) == 0;
    let mut sim = Simulation::new(setup);
    let connection = sim.connect()?;
    let streams = 1 + chance.below(8) as usize;
    let mut stopped = Vec::new();
    for stream in 0..streams {
        let shape = Shape {
            tokens: 1 + chance.below(80) as usize,
            token_bytes: 1 + chance.below(400) as usize,
            thinks: Duration::from_millis(chance.below(200)),
            ..Shape::default()
        };
        sim.ask(connection, shape);
        stopped.extend((chance.below(6) == 0).then_some(stream));
    }
    // An address that changes before the handshake is confirmed ends it (RFC 9000 §9): a client begins anew.
    sim.run_while(LIMIT, |sim| sim.answer(0).heard_at.is_none() && sim.answer(0).wrong.is_none());
    let mut path_changes = 0;
    for _ in 0..chance.below(4) {
        sim.run_for(Duration::from_millis(chance.below(800)));
        path_changes += disturb(&mut sim, &mut chance);
    }
    for stream in &stopped {
        sim.stop(*stream);
    }
    finish(&mut sim, &stopped).map_err(|broken| format!("seed {seed}: {broken}"))?;
    let (up, down) = (sim.link(Role::Client), sim.link(Role::Server));
    Ok(RandomConnection {
        tokens: sim.answers.all().iter().map(|answer| answer.arrived_at.len()).sum(),
        datagrams: up.index() + down.index(),
        lost: up.lost + down.lost,
        path_changes,
        stopped: stopped.len(),
        lasted: sim.now(),
    })
}

/// Up to 10 % loss, packets that overtake each other and packets that come twice.
fn plan(chance: &mut Chance, round_trip: Duration) -> Plan {
    let share = chance.share() * 0.1;
    let loss = match chance.below(3) {
        0 => Loss::default(),
        1 => Loss::new(share, 1.0).unwrap_or_default(),
        // Longer runs can swallow all that a side says in 30 s, a dozen probes, and it is right to give up then.
        _ => Loss::new(share, 1.0 + chance.share()).unwrap_or_default(),
    };
    let quarter_ns = round_trip.as_nanos() as f64 / 4.0;
    Plan {
        loss,
        jitter_ns: (quarter_ns * chance.share()) as u64,
        reorder: chance.share() * 0.2,
        reorder_ns: (quarter_ns * chance.share()) as u64,
        duplicate: chance.share() * 0.05,
        ..ideal(round_trip / 2)
    }
}

/// Does something that networks do. Returns how many path changes it was.
fn disturb(sim: &mut Simulation, chance: &mut Chance) -> u32 {
    let mut outside = elsewhere(chance.below(2) == 0);
    outside.set_port(1_024 + chance.below(60_000) as u16);
    match chance.below(4) {
        0 => {
            sim.begin_outage(Duration::from_millis(chance.below(LONGEST_OUTAGE_MS)));
            return 0;
        }
        1 => sim.rebind_nat(outside),
        hears_old => sim.move_client(outside, hears_old == 2),
    }
    1
}

fn finish(sim: &mut Simulation, stopped: &[usize]) -> Result<(), String> {
    let is_over = |sim: &Simulation| {
        let mut all = sim.answers.all().iter().enumerate();
        all.all(|(number, answer)| {
            answer.ended_at.is_some() || answer.wrong.is_some() || stopped.contains(&number)
        })
    };
    sim.run_while(LIMIT, |sim| !is_over(sim));
    for (number, answer) in sim.answers.all().iter().enumerate() {
        match &answer.wrong {
            Some(wrong) => return Err(wrong.clone()),
            None if stopped.contains(&number) || answer.is_whole() => {}
            None => return Err(format!("answer {number} did not end within {LIMIT:?}: {answer:?}")),
        }
    }
    // What is left to say is said once nothing is lost any more; probes may be ten seconds apart by now.
    for from in [Role::Client, Role::Server] {
        sim.link_mut(from).plan_mut().loss = Loss::default();
    }
    sim.run_for(SILENCE);
    for number in stopped {
        let answer = sim.answer(*number);
        if answer.stopped_at.is_none() && !answer.is_finished() && !answer.is_withdrawn {
            return Err(format!("nobody stopped answer {number}: {answer:?}"));
        }
    }
    for role in [Role::Client, Role::Server] {
        let connection = sim.connection_mut(role, 0).ok_or(format!("{role:?}: the connection is gone"))?;
        // The control stream stays.
        let (sending, open) =
            (connection.streams().send_streams(), connection.streams().remote_open_streams(Dir::Bi));
        if sending > 1 || open > 0 {
            return Err(format!("{role:?}: {sending} streams send, {open} are open, at the end"));
        }
    }
    Ok(())
}
