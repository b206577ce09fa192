//! Streams of tokens over a link whose rate changes and which pauses, beside what the link itself allows.
//!
//! In: a trace of each direction, how many streams, a controller, an echo. Out: how late tokens were and how much of the
//! time was stalled, and the same of a sender that hands each token to the link when it is made
//! (`headrace_emulator::network::itself`).

use std::time::Duration;

use headrace_core::recovery::echo::Settings as Echo;
use headrace_emulator::network::itself::{self, TOKEN_BYTES};
use headrace_emulator::network::radio::Model;
use headrace_emulator::network::{Direction, Rate, Trace};
use headrace_net::quic::congestion::Factory;

use crate::answer::{Answer, Shape};
use crate::experiments::lossy::{STALL, percentile};
use crate::experiments::measures::EVERY;
use crate::setup::{Setup, Tls};
use crate::side::Role;
use crate::simulation::Simulation;

const RECORDED: Duration = Duration::from_secs(120);
/// What is still on its way when the trace begins again is waited for, but no longer.
const PATIENCE: Duration = Duration::from_secs(60);

/// One connection with streams of tokens, for as long as the trace lasts.
#[derive(Clone)]
pub struct Ride {
    pub up: Trace,
    pub down: Trace,
    pub lasts: Duration,
    pub round_trip: Duration,
    pub queue_bytes: u64,
    pub streams: usize,
    /// Tokens of the streams take turns; otherwise all are due at once and share packets.
    pub is_spread: bool,
    pub echo: Option<Echo>,
    /// `None`: the product's.
    pub controller: Option<Factory>,
}

impl Ride {
    /// Eight streams, 60 ms, a queue of 300 kB.
    pub fn new(up: Trace, down: Trace) -> Self {
        Self {
            up,
            down,
            lasts: RECORDED,
            round_trip: Duration::from_millis(60),
            queue_bytes: 300_000,
            streams: 8,
            is_spread: true,
            echo: None,
            controller: None,
        }
    }

    /// # Errors
    /// When the model makes no trace, which a test excludes.
    pub fn by_model(model: &Model, seed: u64) -> Result<Self, String> {
        let trace = |direction| {
            let times = model.trace(direction, seed, RECORDED.as_millis() as u64);
            Trace::new(&times).ok_or_else(|| format!("{} makes no trace", model.name))
        };
        Ok(Self::new(trace(Direction::Up)?, trace(Direction::Down)?))
    }
}

/// How tokens fared.
#[derive(Clone, Debug, Default)]
pub struct Fared {
    /// Beyond the moment at which it is due and half a round trip, of every token, in ascending order.
    pub late: Vec<Duration>,
    pub gaps: Vec<Duration>,
}

impl Fared {
    fn add(&mut self, due: &[Duration], arrived: &[Duration]) {
        self.late.extend(due.iter().zip(arrived).map(|(due, at)| at.saturating_sub(*due)));
        self.gaps.extend(arrived.windows(2).map(|pair| pair[1].saturating_sub(pair[0])));
    }

    fn sorted(mut self) -> Self {
        self.late.sort_unstable();
        self.gaps.sort_unstable();
        self
    }

    pub fn late(&self, share: f64) -> Duration {
        percentile(&self.late, share)
    }

    pub fn gap(&self, share: f64) -> Duration {
        percentile(&self.gaps, share)
    }

    /// Of the time, what stalls lasted beyond the interval of the tokens.
    pub fn stalled(&self) -> f64 {
        let stalls = self.gaps.iter().filter(|gap| **gap > STALL).map(|gap| *gap - EVERY);
        stalls.sum::<Duration>().as_secs_f64() / self.gaps.iter().sum::<Duration>().as_secs_f64().max(1e-9)
    }
}

/// Both, of the same tokens.
#[derive(Clone, Debug, Default)]
pub struct Ridden {
    pub tokens: Fared,
    pub link_itself: Fared,
    /// Of the server, with copies and what was sent again, UDP and IP around them.
    pub bytes_per_token: f64,
    /// What the server's transport declared lost, and what the link lost of the server's packets: its queue was full.
    pub declared: u64,
    pub lost: u64,
}

/// # Errors
/// When a simulation cannot be made, or an answer is not whole.
pub fn ride(ride: &Ride, seed: u64) -> Result<Ridden, String> {
    let mut setup = Setup::new(seed, ride.round_trip, &Tls::new(false, 1)?)?;
    for (plan, trace) in [(&mut setup.to_server, &ride.up), (&mut setup.to_client, &ride.down)] {
        (plan.rate, plan.queue_bytes) = (Rate::Trace(trace.clone()), ride.queue_bytes);
    }
    setup.echo = ride.echo;
    if let Some(controller) = &ride.controller {
        setup.set_controller(controller.clone());
    }
    let mut simulation = Simulation::new(setup);
    let connection = simulation.connect()?;
    let tokens = (ride.lasts.as_nanos() / EVERY.as_nanos()) as usize;
    for stream in 0..ride.streams {
        let turn = EVERY * stream as u32 / ride.streams as u32;
        let thinks = if ride.is_spread { turn } else { Duration::ZERO };
        simulation.ask(connection, Shape { tokens, thinks, ..Shape::default() });
    }
    simulation.run_to_end(ride.lasts + PATIENCE);
    let mut ridden = Ridden { link_itself: link_itself(ride, &simulation), ..Ridden::default() };
    for answer in simulation.answers.all() {
        if !answer.is_whole() {
            return Err(format!(
                "an answer is not whole: {:?}, {} tokens",
                answer.wrong,
                answer.arrived_at.len()
            ));
        }
        let due: Vec<_> = due(answer).map(|due| due + ride.round_trip / 2).collect();
        ridden.tokens.add(&due, &answer.arrived_at);
    }
    ridden.tokens = ridden.tokens.sorted();
    let down = simulation.link(Role::Server);
    ridden.bytes_per_token = (down.passed_bytes + down.index() * 28) as f64 / (tokens * ride.streams) as f64;
    ridden.lost = down.lost;
    ridden.declared =
        simulation.connection(Role::Server, 0).map_or(0, |server| server.stats().path.lost_packets);
    Ok(ridden)
}

fn due(answer: &Answer) -> impl Iterator<Item = Duration> + '_ {
    (0..answer.shape.tokens).filter_map(|token| answer.due_at(token))
}

/// The same tokens, each handed to the link when it is due.
fn link_itself(ride: &Ride, simulation: &Simulation) -> Fared {
    let mut made: Vec<(Duration, usize)> = Vec::new();
    for (stream, answer) in simulation.answers.all().iter().enumerate() {
        made.extend(due(answer).map(|due| (due, stream)));
    }
    made.sort_unstable();
    let at: Vec<u64> = made.iter().map(|(due, _)| due.as_nanos() as u64).collect();
    let left = itself::leaves(&Rate::Trace(ride.down.clone()), &at, TOKEN_BYTES);
    let mut fared = Fared::default();
    for stream in 0..ride.streams {
        let of_stream = made.iter().zip(&left).filter(|((_, of), _)| *of == stream);
        let (due, left): (Vec<_>, Vec<_>) =
            of_stream.map(|((due, _), left)| (*due, Duration::from_nanos(*left))).unzip();
        fared.add(&due, &left);
    }
    fared.sorted()
}
