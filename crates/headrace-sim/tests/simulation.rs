//! The simulation itself: a seed is a run that can be repeated, and the hooks for experiments do what they say.

#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::sync::Arc;
use std::time::Duration;

use headrace_sim::measures::{EVERY, flowing};
use headrace_sim::{Loss, RandomConnection, Role, Setup, Soak, Tls, random_connection, soak};
use quinn_proto::congestion::CubicConfig;

const TRIP: Duration = Duration::from_millis(60);

fn setup(seed: u64) -> Setup {
    Setup::new(seed, TRIP, &Tls::new(false, 1).unwrap()).unwrap()
}

/// When each datagram left, its length, when it arrived.
fn run(seed: u64) -> Vec<(Duration, Role, usize, Option<Duration>)> {
    let mut setup = setup(seed);
    setup.keeps_log = true;
    setup.to_client.loss = Loss::new(0.05, 2.0).unwrap();
    setup.to_server.reorder = 0.1;
    setup.to_server.reorder_ns = 12_000_000;
    // quinn's BBR draws from the system.
    setup.set_controller(Arc::new(CubicConfig::default()));
    let (mut sim, _) = flowing(setup, 5, 100, true).unwrap();
    assert!(sim.run_to_end(Duration::from_secs(60)));
    sim.log.iter().map(|sent| (sent.at, sent.from, sent.datagram.bytes.len(), sent.arrives)).collect()
}

#[test]
fn a_seed_is_a_run_that_can_be_repeated() {
    let first = run(7);
    assert!(first.len() > 500);
    assert_eq!(first, run(7));
    assert_ne!(first, run(8));
}

#[test]
fn a_datagram_sent_again_repairs_a_loss_after_its_distance() {
    let distance = Duration::from_millis(5);
    for lost in 0..50 {
        let (mut sim, _) = flowing(setup(1), 1, 100, true).unwrap();
        sim.set_repeater(Role::Server, Box::new(move |leaving| vec![(distance, leaving.datagram.clone())]));
        sim.run_for(TRIP + EVERY * 10);
        // Originals and copies take turns: half of what is lost are copies, and nothing is missing then.
        let index = sim.link(Role::Server).index() + lost;
        sim.link_mut(Role::Server).drop_packet(index);
        assert!(sim.run_to_end(Duration::from_secs(60)));
        let answer = sim.answer(0);
        assert!(answer.is_whole());
        let latest = answer.lateness(TRIP / 2).into_iter().max().unwrap();
        assert!(latest == distance || latest.is_zero(), "packet {index}: {latest:?}");
    }
}

/// Every token arrives once, in order and unchanged; a stop is obeyed; nothing is left over. With up to 10 % loss,
/// packets that overtake each other or come twice, changes of address, and outages of seconds.
/// `SIM_SEEDS=100000` runs more.
#[test]
fn every_token_arrives_once_whatever_the_network_does() {
    let seeds = std::env::var("SIM_SEEDS").ok().and_then(|text| text.parse().ok()).unwrap_or(2_000);
    let tls = Tls::new(false, 1).unwrap();
    let seen: Vec<_> = (0..seeds).map(|seed| random_connection(seed, &tls).unwrap()).collect();
    // The networks were bad enough to mean something.
    let of = |count: fn(&RandomConnection) -> usize| seen.iter().map(count).sum::<usize>() as u64;
    assert!(of(|one| one.tokens) > seeds * 50);
    assert!(of(|one| one.lost as usize) > seeds * 10);
    assert!(of(|one| one.path_changes as usize) > seeds / 2);
    assert!(of(|one| one.stopped) > seeds / 4);
}

/// Two hours of one random network after the other, with an echo: every token once, in order; what both sides hold stays
/// within bounds, and is gone when all is quiet.
#[test]
fn hours_of_random_networks_leave_nothing_behind() {
    let tls = Tls::new(false, 1).unwrap();
    let mut sum = Soak::default();
    for seed in 0.. {
        sum = sum.and(&soak(seed, Duration::from_secs(600), &tls).unwrap());
        if sum.lasted >= Duration::from_secs(2 * 3600) {
            break;
        }
    }
    // Here, too.
    assert!(sum.tokens > 100_000 && sum.lost > 5_000 && sum.moves > 20 && sum.outages > 5, "{sum:?}");
    assert!(sum.held.copies > 0 && sum.connections > 20, "{sum:?}");
}
