//! Tokens over a link that pauses.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use headrace_emulator::network::radio::{MODELS, Model};
use headrace_net::config::Congestion;
use headrace_net::quic::congestion::factory;
use headrace_sim::radio::{Ride, ride};
use headrace_sim::{Rate, Setup, Shape, Simulation, Tls};
use quinn_proto::congestion::{Controller, ControllerFactory};

const MS: Duration = Duration::from_millis(1);

/// Mahimahi's recording of AT&T's LTE, from which the model is made, makes tokens of eight streams up to 735 ms late.
#[test]
fn the_link_itself_makes_tokens_as_late_as_the_recording_does() {
    let model = Model::named("lte-driving").unwrap();
    let ridden = ride(&Ride::by_model(model, 1).unwrap(), 1).unwrap();
    let late = ridden.link_itself.late(0.99);
    assert!((MS * 500..MS * 1000).contains(&late), "{late:?}");
}

/// Packets that carry several tokens are a little smaller together than the tokens of the calculation.
#[test]
fn no_sender_is_much_earlier_than_the_link_allows() {
    for name in ["lte-driving", "train"] {
        let ridden = ride(&Ride::by_model(Model::named(name).unwrap(), 1).unwrap(), 1).unwrap();
        let (late, allowed) = (ridden.tokens.late(0.99), ridden.link_itself.late(0.99));
        assert!(late * 10 >= allowed * 9, "{name}: {late:?} of {allowed:?}");
    }
}

#[test]
fn the_default_controller_holds_through_pauses() {
    for model in MODELS {
        let ridden = ride(&Ride::by_model(model, 1).unwrap(), 1).unwrap();
        let (late, allowed) = (ridden.tokens.late(0.99), ridden.link_itself.late(0.99));
        assert!(late * 10 <= allowed * 13, "{}: {late:?} of {allowed:?}", model.name);
    }
}

/// The first connection is the default's, the second CUBIC's.
struct DefaultThenCubic(AtomicBool);

impl ControllerFactory for DefaultThenCubic {
    fn build(self: Arc<Self>, now: Instant, mtu: u16) -> Box<dyn Controller> {
        let is_second = self.0.swap(true, Ordering::Relaxed);
        factory(if is_second { Congestion::Cubic } else { Congestion::Steady }).build(now, mtu)
    }
}

/// Sixteen streams offer half as much again as the link carries, beside a transfer that takes what it can get.
#[test]
fn tokens_leave_cubic_its_half_of_a_full_link() {
    let mut setup = Setup::new(1, MS * 60, &Tls::new(false, 1).unwrap()).unwrap();
    (setup.to_client.rate, setup.to_client.queue_bytes) = (Rate::Bits(1_000_000), 32_000);
    setup.set_controller(Arc::new(DefaultThenCubic(AtomicBool::new(false))));
    let mut simulation = Simulation::new(setup);
    let tokens = simulation.connect().unwrap();
    for _ in 0..16 {
        simulation.ask(tokens, Shape { tokens: 2000, ..Shape::default() });
    }
    let bulk = simulation.connect().unwrap();
    simulation.ask(bulk, Shape { tokens: 400_000, every: Duration::ZERO, ..Shape::default() });
    simulation.run_to_end(MS * 40_000);
    let late = |at: &&Duration| **at > MS * 11_000 && **at < MS * 40_000;
    let counts: Vec<_> =
        simulation.answers.all().iter().map(|answer| answer.arrived_at.iter().filter(late).count()).collect();
    let (bulk, tokens) = counts.split_last().unwrap();
    let tokens: usize = tokens.iter().sum();
    assert!(*bulk > tokens, "{bulk} of CUBIC, {tokens} tokens");
    assert!(tokens * 4 > *bulk, "{tokens} tokens, {bulk} of CUBIC");
}
