//! What a lossy path does to streams of tokens, with and without an echo.
//!
//! In: a path, a controller, an echo, a seed. Out: gaps between tokens, and what it cost.

use std::collections::HashMap;
use std::time::Duration;

use bytes::Bytes;
use headrace_core::recovery::echo::Settings as Echo;
use headrace_emulator::network::{Loss, Rate};
use headrace_net::quic::congestion::Factory;
use headrace_net::quic::echo::controller;

use crate::answer::Shape;
use crate::experiments::measures::EVERY;
use crate::setup::{Setup, Tls};
use crate::side::Role;
use crate::simulation::Simulation;

const LIMIT: Duration = Duration::from_secs(300);
/// A gap that a person sees.
pub const STALL: Duration = Duration::from_millis(80);

/// Streams of tokens over one connection that is new.
#[derive(Clone)]
pub struct Scenario {
    pub round_trip: Duration,
    pub streams: usize,
    pub tokens: usize,
    /// Zero: a bulk transfer.
    pub every: Duration,
    /// Tokens of the streams take turns; otherwise all are due at once and share datagrams.
    pub is_spread: bool,
    /// Both ways.
    pub loss: Loss,
    /// The rate of the bottleneck towards the client, in bits per second, and what its queue holds.
    pub bottleneck: Option<(u64, u64)>,
    pub echo: Option<Echo>,
    /// `None`: the product's.
    pub controller: Option<Factory>,
}

impl Default for Scenario {
    /// 16 streams that take turns, 60 ms, nothing is lost; the product's controller, no echo.
    fn default() -> Self {
        Self {
            round_trip: Duration::from_millis(60),
            streams: 16,
            tokens: 300,
            every: EVERY,
            is_spread: true,
            loss: Loss::default(),
            bottleneck: None,
            echo: None,
            controller: None,
        }
    }
}

/// What the product's defaults say.
///
/// # Errors
/// When they cannot be read, which a test excludes.
pub fn product_echo() -> Result<Echo, String> {
    crate::setup::product_echo()?.ok_or_else(|| "the product has none".to_owned())
}

/// Sums over seeds.
#[derive(Clone, Debug, Default)]
pub struct Tally {
    /// The gaps of all streams, in ascending order.
    pub gaps: Vec<Duration>,
    /// First tokens, from the connection's beginning.
    pub first: Vec<Duration>,
    /// The server's datagrams, and copies of them.
    pub datagrams: u64,
    pub bytes: u64,
    pub copies: u64,
    pub copied_bytes: u64,
    /// When the last copy left, since the connection began.
    pub last_copy: Duration,
    /// When the last token arrived.
    pub lasted: Duration,
    /// Datagrams of which nothing arrived, neither the datagram nor a copy.
    pub gone: u64,
    /// What the server's transport declared lost.
    pub declared: u64,
    /// What the echo itself counts: [`headrace_net::quic::echo::counts::Counts`].
    pub repaired: u64,
    pub doubtful: u64,
    /// Answers that were not whole.
    pub broken: u64,
}

impl Tally {
    /// Gaps that a person sees, of a thousand tokens.
    pub fn stalls(&self) -> f64 {
        let stalls = self.gaps.iter().filter(|gap| **gap > STALL).count();
        stalls as f64 * 1e3 / (self.gaps.len().max(1)) as f64
    }

    pub fn gap(&self, share: f64) -> Duration {
        percentile(&self.gaps, share)
    }

    pub fn first(&self, share: f64) -> Duration {
        percentile(&self.first, share)
    }

    /// Copies' bytes, of all others'.
    pub fn extra(&self) -> f64 {
        self.copied_bytes as f64 / self.bytes.max(1) as f64
    }

    /// Declared lost though it, or a copy, arrived; of all datagrams.
    pub fn spurious(&self) -> f64 {
        self.declared.saturating_sub(self.gone) as f64 / self.datagrams.max(1) as f64
    }
}

pub(crate) fn percentile(sorted: &[Duration], share: f64) -> Duration {
    let at = (sorted.len() as f64 * share) as usize;
    sorted.get(at.min(sorted.len().saturating_sub(1))).copied().unwrap_or_default()
}

/// # Errors
/// When a simulation cannot be made.
pub fn run(scenario: &Scenario, seeds: std::ops::Range<u64>) -> Result<Tally, String> {
    let tls = Tls::new(false, 1)?;
    let mut tally = Tally::default();
    for seed in seeds {
        let mut setup = Setup::new(seed, scenario.round_trip, &tls)?;
        (setup.to_client.loss, setup.to_server.loss) = (scenario.loss, scenario.loss);
        if let Some((rate, queue)) = scenario.bottleneck {
            setup.to_client.rate = Rate::Bits(rate);
            setup.to_client.queue_bytes = queue;
        }
        (setup.echo, setup.keeps_log) = (scenario.echo, true);
        if let Some(controller) = &scenario.controller {
            setup.set_controller(controller.clone());
        }
        let mut sim = Simulation::new(setup);
        let connection = sim.connect()?;
        for stream in 0..scenario.streams {
            let turn = scenario.every * stream as u32 / scenario.streams as u32;
            let thinks = if scenario.is_spread { turn } else { Duration::ZERO };
            let (tokens, every) = (scenario.tokens, scenario.every);
            sim.ask(connection, Shape { tokens, every, thinks, ..Shape::default() });
        }
        sim.run_to_end(LIMIT);
        tally.add(&sim);
    }
    tally.gaps.sort_unstable();
    tally.first.sort_unstable();
    Ok(tally)
}

impl Tally {
    fn add(&mut self, sim: &Simulation) {
        for answer in sim.answers.all() {
            self.broken += u64::from(!answer.is_whole());
            self.first.extend(answer.ttft());
            self.lasted = self.lasted.max(answer.arrived_at.last().copied().unwrap_or_default());
            self.gaps.extend(answer.arrived_at.windows(2).map(|pair| pair[1] - pair[0]));
        }
        let mut arrived: HashMap<&Bytes, bool> = HashMap::new();
        for sent in sim.log.iter().filter(|sent| sent.from == Role::Server) {
            let bytes = sent.datagram.bytes.len() as u64;
            let (count, sum) = match sent.is_copy {
                true => (&mut self.copies, &mut self.copied_bytes),
                false => (&mut self.datagrams, &mut self.bytes),
            };
            if sent.is_copy {
                self.last_copy = self.last_copy.max(sent.at);
            }
            *count += 1;
            *sum += bytes;
            *arrived.entry(&sent.datagram.bytes).or_default() |= sent.arrives.is_some();
        }
        self.gone += arrived.values().filter(|arrived| !**arrived).count() as u64;
        let server = sim.connection(Role::Server, 0);
        self.declared += server.map_or(0, |server| server.stats().path.lost_packets);
        let echo = server.and_then(|server| controller::counters(server.congestion_state().clone_box()));
        let echo = echo.map(|counters| counters.counts()).unwrap_or_default();
        (self.repaired, self.doubtful) = (self.repaired + echo.repaired, self.doubtful + echo.doubtful);
    }
}
