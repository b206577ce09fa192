//! The echo and the controller for tokens, on the product's transport: what they repair, and what they cost.

#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::time::Duration;

use headrace_net::config::Congestion;
use headrace_net::quic::congestion::factory;
use headrace_sim::lossy::{Scenario, Tally, product_echo, run};
use headrace_sim::measures::elsewhere;
use headrace_sim::{Loss, Role, Sent, Setup, Shape, Simulation, Tls};

const TRIP: Duration = Duration::from_millis(60);
const MS: Duration = Duration::from_millis(1);

fn lossy(streams: usize, is_spread: bool, share: f64, burst: f64) -> Scenario {
    let loss = Loss::new(share, burst).unwrap();
    Scenario { streams, is_spread, loss, echo: Some(product_echo().unwrap()), ..Scenario::default() }
}

fn tally(scenario: &Scenario) -> Tally {
    let tally = run(scenario, 0..10 * 16 / scenario.streams as u64).unwrap();
    assert_eq!(tally.broken, 0);
    tally
}

fn bare(scenario: &Scenario) -> Tally {
    tally(&Scenario { echo: None, ..scenario.clone() })
}

#[test]
fn losses_are_repaired_before_anybody_sees_them() {
    for (streams, is_spread) in [(16, true), (16, false), (1, true)] {
        for (share, stalls, gap) in [(0.01, 0.5, 30), (0.03, 1.0, 30), (0.05, 1.5, 35)] {
            let scenario = lossy(streams, is_spread, share, 1.0);
            let (echo, bare) = (tally(&scenario), bare(&scenario));
            let what = format!("{streams} streams, spread {is_spread}, {share}: {}", echo.stalls());
            assert!(echo.stalls() <= stalls && echo.gap(0.99) <= MS * gap, "{what}, {:?}", echo.gap(0.99));
            assert!(echo.stalls() * 20.0 <= bare.stalls(), "{what}, without {}", bare.stalls());
            assert!(echo.spurious() <= 0.01, "{what}, spurious {}", echo.spurious());
            assert!(echo.declared - echo.gone <= echo.doubtful, "{what}, counted {}", echo.doubtful);
        }
    }
}

#[test]
fn bursts_are_repaired_but_for_few() {
    for (streams, is_spread) in [(16, true), (16, false), (1, true)] {
        for (burst, stalls) in [(3.0, 3.0), (6.0, 8.0)] {
            let echo = tally(&lossy(streams, is_spread, 0.03, burst));
            let what = format!("{streams} streams, runs of {burst}, spread {is_spread}: {}", echo.stalls());
            assert!(echo.stalls() <= stalls && echo.gap(0.99) <= MS * 55, "{what}, {:?}", echo.gap(0.99));
        }
    }
}

#[test]
fn without_losses_nothing_is_copied_after_the_first_seconds() {
    for (streams, is_spread) in [(16, true), (16, false), (1, true)] {
        let scenario = Scenario { tokens: 1500, ..lossy(streams, is_spread, 0.0, 1.0) };
        let (echo, bare) =
            (run(&scenario, 0..2).unwrap(), run(&Scenario { echo: None, ..scenario }, 0..2).unwrap());
        assert!(echo.copies > 0 && echo.last_copy <= MS * 5_200, "{:?}", echo.last_copy);
        assert_eq!((echo.gap(0.5), echo.gap(0.99)), (bare.gap(0.5), bare.gap(0.99)));
    }
}

#[test]
fn a_first_token_does_not_wait_for_a_lost_handshake() {
    let scenario = Scenario { tokens: 1, ..lossy(1, true, 0.03, 1.0) };
    let (echo, bare) =
        (run(&scenario, 0..500).unwrap(), run(&Scenario { echo: None, ..scenario }, 0..500).unwrap());
    assert!(echo.first(0.99) <= TRIP * 5 / 2, "{:?}", echo.first(0.99));
    assert!(bare.first(0.99) >= MS * 1000, "{:?}", bare.first(0.99));
}

/// The path is offered half as much again as it carries.
#[test]
fn a_queue_ends_copies_within_a_second_and_takes_no_longer_than_cubic() {
    let bottleneck = Some((1_000_000, 32_000));
    let scenario = Scenario { bottleneck, tokens: 1000, ..lossy(16, true, 0.0, 1.0) };
    let echo = run(&scenario, 0..3).unwrap();
    let controller = Some(factory(Congestion::Cubic));
    let cubic = run(&Scenario { echo: None, controller, ..scenario }, 0..3).unwrap();
    assert!(echo.last_copy <= MS * 1000, "{:?}", echo.last_copy);
    assert!(echo.lasted <= cubic.lasted * 102 / 100, "{:?} {:?}", echo.lasted, cubic.lasted);
    assert!(echo.gap(0.99) <= cubic.gap(0.99) * 102 / 100, "{:?} {:?}", echo.gap(0.99), cubic.gap(0.99));
}

/// No packet comes after it whose acknowledgement could tell of the loss.
#[test]
fn the_last_token_before_a_pause_does_not_wait_for_a_probe_timeout() {
    for (echo, at_least, at_most) in [(product_echo().ok(), MS, MS * 5), (None, TRIP, MS * 1000)] {
        let mut setup = setup(1);
        setup.echo = echo;
        let mut sim = Simulation::new(setup);
        let connection = sim.connect().unwrap();
        let answer = sim.ask(connection, Shape { tokens: 40, ..Shape::default() });
        sim.run_while(Duration::from_secs(5), |sim| sim.answer(answer).due_at(39).is_none());
        sim.run_until(sim.answer(answer).due_at(39).unwrap() - MS);
        let index = sim.link(Role::Server).index();
        sim.link_mut(Role::Server).drop_packet(index);
        assert!(sim.run_to_end(Duration::from_secs(60)) && sim.answer(answer).is_whole());
        let late = sim.answer(answer).lateness(TRIP / 2)[39];
        assert!((at_least..=at_most).contains(&late), "{late:?}");
    }
}

fn setup(seed: u64) -> Setup {
    let mut setup = Setup::new(seed, TRIP, &Tls::new(false, 1).unwrap()).unwrap();
    (setup.echo, setup.keeps_log) = (product_echo().unwrap().into(), true);
    setup
}

/// RFC 9000 §8.1: a server sends three times what it got, until it knows that the address is the client's.
#[test]
fn an_address_that_is_not_validated_gets_no_more_than_three_times_what_it_sent() {
    for certificates in [1, 4] {
        let mut setup = setup(1);
        setup.tls = Tls::new(false, certificates).unwrap();
        // All that the client sends is its first datagram.
        setup.to_server.drops = (1..1000).collect();
        let mut sim = Simulation::new(setup);
        let connection = sim.connect().unwrap();
        sim.ask(connection, Shape::default());
        sim.run_until(Duration::from_secs(5));
        let sent = sim.log.iter().filter(|sent| sent.from == Role::Server);
        let bytes: usize = sent.map(|sent| sent.datagram.bytes.len()).sum();
        assert!((2400..=3600).contains(&bytes), "{bytes}");
    }
}

/// RFC 9000 §9.3.1. The answer to the server's challenge comes a round trip and a half after the move.
#[test]
fn an_address_that_is_new_gets_copies_once_it_is_validated() {
    let mut sim = Simulation::new(setup(1));
    let connection = sim.connect().unwrap();
    sim.ask(connection, Shape { tokens: 200, ..Shape::default() });
    sim.run_until(Duration::from_secs(1));
    let moved = sim.now();
    sim.move_client(elsewhere(false), false);
    assert!(sim.run_to_end(Duration::from_secs(60)) && sim.answer(0).is_whole());
    let there = |sent: &&Sent| sent.from == Role::Server && sent.client_address == elsewhere(false);
    let copies: Vec<_> = sim.log.iter().filter(there).filter(|sent| sent.is_copy).collect();
    assert!(copies.len() > 50 && copies[0].at >= moved + TRIP * 3 / 2, "{:?}", copies[0].at - moved);
}
