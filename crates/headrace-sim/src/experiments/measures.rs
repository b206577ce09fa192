//! What is counted in round trips, and the limits that physics sets for it.
//!
//! In: a round trip. Out: a duration, exact, of the product's transport in one scenario. Tests hold these to the
//! limits; `examples/round_trips.rs` prints them.

use std::net::SocketAddr;
use std::time::Duration;

use headrace_net::quic::echo::controller::PACKET_THRESHOLD;

use crate::answer::{Answer, Shape};
use crate::setup::{CLIENT_ADDRESS, Setup, Tls};
use crate::side::Role;
use crate::simulation::Simulation;

/// Between two tokens of a stream.
pub const EVERY: Duration = Duration::from_millis(20);
/// Long enough for a handshake and for everything that follows it (MTU probes, tickets, acknowledgements).
const SETTLED: Duration = Duration::from_secs(8);
/// No scenario takes longer.
const LIMIT: Duration = Duration::from_secs(120);

/// What a connection has before its first request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Start {
    /// It is open.
    Warm,
    /// Nothing.
    Cold,
    /// A ticket that allows early data (0-RTT).
    Early,
}

/// From the request to the first token, of a model that answers at once.
///
/// # Errors
/// When the answer did not come.
pub fn ttft(round_trip: Duration, start: Start) -> Result<Duration, String> {
    let mut sim = Simulation::new(Setup::new(1, round_trip, &Tls::new(true, 1)?)?);
    let mut connection = sim.connect()?;
    if start != Start::Cold {
        sim.run_until(SETTLED);
    }
    if start == Start::Early {
        connection = sim.connect()?;
    }
    let answer = sim.ask(connection, Shape::default());
    sim.run_to_end(LIMIT);
    let answer = sim.answer(answer);
    if !answer.is_whole() || answer.was_early != (start == Start::Early) {
        return Err(format!("{start:?} at {round_trip:?}: {answer:?}"));
    }
    answer.ttft().ok_or_else(|| "no token".to_owned())
}

/// Streams that are open and flow: what most scenarios begin with. `spread`: their tokens take turns, so that
/// each has a packet of its own; otherwise all are due at once and share packets.
///
/// # Errors
/// When the simulation cannot be made.
pub fn flowing(
    setup: Setup,
    streams: usize,
    tokens: usize,
    spread: bool,
) -> Result<(Simulation, usize), String> {
    let mut sim = Simulation::new(setup);
    let connection = sim.connect()?;
    sim.run_until(SETTLED);
    for stream in 0..streams {
        let turn = if spread { EVERY * stream as u32 / streams as u32 } else { Duration::ZERO };
        sim.ask(connection, Shape { tokens, thinks: turn, ..Shape::default() });
    }
    Ok((sim, connection))
}

/// From the client's stop to the server that knows.
///
/// # Errors
/// When it never knew.
pub fn stop(round_trip: Duration) -> Result<Duration, String> {
    let (mut sim, _) = flowing(Setup::new(1, round_trip, &Tls::new(false, 1)?)?, 1, 500, true)?;
    // In between two tokens.
    sim.run_for(round_trip + EVERY * 50 + EVERY / 3);
    let at = sim.now();
    sim.stop(0);
    sim.run_for(round_trip * 4);
    sim.answer(0).stopped_at.map(|stopped| stopped - at).ok_or_else(|| "it was never heard".to_owned())
}

/// What one lost packet did.
#[derive(Clone, Copy, Debug)]
pub struct Lost {
    pub index: u64,
    /// The latest token: how much later than without the loss.
    pub stall: Duration,
    /// Streams of which a token came late.
    pub streams: usize,
}

/// Drops one packet of the server's after another, `positions` of them, each in a run of its own that is
/// otherwise ideal. Packets are `EVERY / streams` apart when `spread`.
///
/// # Errors
/// When an answer was not whole in spite of it.
pub fn each_lost(
    round_trip: Duration,
    streams: usize,
    spread: bool,
    positions: u64,
) -> Result<Vec<Lost>, String> {
    let tls = Tls::new(false, 1)?;
    // Tokens that are due at once fill packets of about 1,400 bytes.
    let packets = if spread { streams } else { (streams * 200).div_ceil(1400) };
    let tokens = positions as usize / packets + 60;
    let mut all = Vec::new();
    for position in 0..positions {
        let (mut sim, _) = flowing(Setup::new(1, round_trip, &tls)?, streams, tokens, spread)?;
        // The first tokens measure the path.
        sim.run_for(round_trip * 2 + EVERY * 10);
        let index = sim.link(Role::Server).index() + position;
        sim.link_mut(Role::Server).drop_packet(index);
        if !sim.run_to_end(LIMIT) {
            return Err(format!("packet {index} lost: not every answer ended"));
        }
        let late: Vec<Duration> = (0..streams)
            .map(|stream| sim.answer(stream).lateness(round_trip / 2).into_iter().max().unwrap_or_default())
            .collect();
        if let Some(broken) = sim.answers.all().iter().find(|answer| !answer.is_whole()) {
            return Err(format!("packet {index} lost: {broken:?}"));
        }
        let streams = late.iter().filter(|late| !late.is_zero()).count();
        all.push(Lost { index, stall: late.into_iter().max().unwrap_or_default(), streams });
    }
    Ok(all)
}

/// The latest that a lost packet's tokens may come without an echo, of packets `apart`: so many packets later
/// (RFC 9002 §6.1.1), or 9/8 of a round trip later and at least one packet (§6.1.2), whichever is first.
pub fn loss_limit(round_trip: Duration, apart: Duration) -> Duration {
    (round_trip + apart * PACKET_THRESHOLD).min((round_trip * 9 / 8).max(round_trip + apart))
}

/// Another address of the client.
pub fn elsewhere(same_ip: bool) -> SocketAddr {
    let mut address = CLIENT_ADDRESS;
    address.set_port(50_002);
    if !same_ip {
        address.set_ip([203, 0, 113, 9].into());
    }
    address
}

/// How a path changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// The client moves and knows it; the old path still delivers what is on its way.
    Known,
    /// The client moves and knows it; the old path is gone, and what was on its way is lost.
    KnownGone,
    /// A NAT forgot the client: only its port is new. What is sent to the old one is lost.
    SilentPort,
    /// Its address is new as well.
    SilentAddress,
}

/// What a change of path did, counted from the client's first datagram on the new path.
#[derive(Clone, Copy, Debug)]
pub struct Gap {
    /// Before that: from the last arrival to that first datagram. Silent changes: the detector's time.
    pub found: Duration,
    /// To the first datagram with tokens that arrived on the new path.
    pub datagram: Duration,
    /// To the first token that the application got over the new path. Where packets were lost with the old path,
    /// a stream cannot go on before they are repaired.
    pub token: Duration,
    /// To the last token that was late.
    pub repaired: Duration,
}

/// Changes the path in the middle of four answers. The token of this `stream`, of the four that take turns, is due
/// just when the server can know of the change at the earliest. Of two neighbours, the one finds the client
/// owing an acknowledgement, which soon tells the server of a silent change; the other does not.
///
/// # Errors
/// When an answer was not whole.
pub fn change(mut setup: Setup, new: Duration, change: Change, stream: usize) -> Result<Gap, String> {
    setup.keeps_log = true;
    let (mut sim, _) = flowing(setup, 4, 400, true)?;
    sim.run_for(SETTLED / 2);
    let due = sim.answer(stream).due_at(250).ok_or("not heard")?;
    sim.run_until(due - new / 2);
    let at = sim.now();
    sim.set_round_trip(new);
    match change {
        Change::Known => sim.move_client(elsewhere(false), true),
        Change::KnownGone => sim.move_client(elsewhere(false), false),
        Change::SilentPort => sim.rebind_nat(elsewhere(true)),
        Change::SilentAddress => sim.rebind_nat(elsewhere(false)),
    }
    sim.run_to_end(LIMIT);
    if let Some(broken) = sim.answers.all().iter().find(|answer| !answer.is_whole()) {
        return Err(format!("{change:?}: {:?}", broken.wrong));
    }
    let on_new =
        |role| sim.log.iter().filter(move |sent| sent.from == role && sent.client_address != CLIENT_ADDRESS);
    let acted = on_new(Role::Client).map(|sent| sent.at).min().ok_or("nothing was sent")?;
    let with_tokens = on_new(Role::Server).filter(|sent| sent.datagram.frames.stream > 0);
    let datagram = with_tokens.filter_map(|sent| sent.arrives).min().ok_or("nothing came")?;
    let arrivals = || sim.answers.all().iter().flat_map(|answer| answer.arrived_at.iter().copied());
    let before = arrivals().filter(|arrived| *arrived <= at).max().ok_or("nothing came before")?;
    let token = arrivals().filter(|arrived| *arrived >= acted + new).min().ok_or("nothing came after")?;
    let late = |answer: &Answer| {
        let late = answer.lateness(new / 2).into_iter().zip(answer.arrived_at.clone());
        late.filter(|(late, arrived)| !late.is_zero() && *arrived > acted).map(|(_, arrived)| arrived).max()
    };
    let repaired = sim.answers.all().iter().filter_map(late).max().unwrap_or(acted);
    Ok(Gap {
        found: acted - before,
        datagram: datagram - acted,
        token: token - acted,
        repaired: repaired - acted,
    })
}

/// From the first request to the first token, when the first datagrams of a side are lost.
///
/// # Errors
/// When it never came.
pub fn first_flight_lost(round_trip: Duration, of: Role, datagrams: u64) -> Result<Duration, String> {
    let mut setup = Setup::new(1, round_trip, &Tls::new(false, 1)?)?;
    let path = if of == Role::Client { &mut setup.to_server } else { &mut setup.to_client };
    path.drops = (0..datagrams).collect();
    let mut sim = Simulation::new(setup);
    let connection = sim.connect()?;
    let answer = sim.ask(connection, Shape::default());
    sim.run_to_end(LIMIT);
    sim.answer(answer).ttft().ok_or_else(|| "no token".to_owned())
}

/// From the end of an outage in the middle of an answer to its next token.
///
/// # Errors
/// When the answer was not whole.
pub fn outage(round_trip: Duration, lasts: Duration) -> Result<Duration, String> {
    let (mut sim, _) = flowing(Setup::new(1, round_trip, &Tls::new(false, 1)?)?, 1, 500, true)?;
    sim.run_for(SETTLED / 2);
    sim.begin_outage(lasts);
    let ends = sim.now() + lasts;
    sim.run_to_end(LIMIT);
    let answer = sim.answer(0);
    let next = answer.arrived_at.iter().find(|arrived| **arrived >= ends);
    match next {
        Some(next) if answer.is_whole() => Ok(*next - ends),
        _ => Err(format!("after an outage of {lasts:?}: {:?}", answer.wrong)),
    }
}
