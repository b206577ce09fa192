//! Cases that QUIC implementations test each other with, in virtual time, named as the interop runner names them.

#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::net::SocketAddr;
use std::time::Duration;

use headrace_sim::measures::{elsewhere, flowing};
use headrace_sim::packets::{Kind, initial_number, packets};
use headrace_sim::{CLIENT_ADDRESS, Role, Sent, Setup, Shape, Simulation, Tls};

const TRIP: Duration = Duration::from_millis(30);
const LIMIT: Duration = Duration::from_secs(60);

fn setup(tls: &Tls) -> Setup {
    let mut setup = Setup::new(1, TRIP, tls).unwrap();
    setup.keeps_log = true;
    setup
}

/// Bytes of packets of a kind.
fn bytes_of(log: &[Sent], from: Role, kind: Kind) -> usize {
    let datagrams = log.iter().filter(|sent| sent.from == from);
    datagrams
        .flat_map(|sent| packets(&sent.datagram.bytes))
        .filter(|packet| packet.kind == kind)
        .map(|packet| packet.bytes.len())
        .sum()
}

/// What the server sent to an address, over three times what had arrived from there, at worst, before `until`.
fn over_three_times(log: &[Sent], address: SocketAddr, until: Duration) -> i64 {
    let at = |sent: &&Sent| sent.client_address == address && sent.at <= until;
    let sent = log.iter().filter(|sent| sent.from == Role::Server).filter(at);
    let mut total = 0;
    let over = sent.map(|sent| {
        total += sent.datagram.bytes.len() as i64;
        let arrived =
            log.iter().filter(|other| other.from == Role::Client && other.client_address == address);
        let arrived = arrived.filter(|other| other.arrives.is_some_and(|arrives| arrives <= sent.at));
        total - 3 * arrived.map(|other| other.datagram.bytes.len() as i64).sum::<i64>()
    });
    over.max().unwrap_or_default()
}

/// A NAT gives the client another port after a second, then every five seconds, in the middle of answers.
#[test]
fn rebind_port() {
    rebind(|turn| {
        let mut address = CLIENT_ADDRESS;
        address.set_port(50_000 + turn);
        address
    });
}

/// The same with another address.
#[test]
fn rebind_addr() {
    rebind(|turn| SocketAddr::new([203, 0, 113, turn as u8].into(), 50_000));
}

fn rebind(outside: impl Fn(u16) -> SocketAddr) {
    let (mut sim, _) = flowing(setup(&Tls::new(false, 1).unwrap()), 3, 1_000, true).unwrap();
    sim.run_for(Duration::from_secs(1));
    for turn in 1..5 {
        sim.rebind_nat(outside(turn));
        sim.run_for(Duration::from_secs(5));
    }
    assert!(sim.run_to_end(LIMIT));
    assert!(sim.answers.all().iter().all(|answer| answer.is_whole()));
    for turn in 1..5 {
        let is_first = |sent: &&Sent| sent.from == Role::Server && sent.client_address == outside(turn);
        let first = sim.log.iter().find(is_first).expect("the new address is used");
        assert!(
            first.datagram.frames.path_challenge > 0,
            "the first datagram on a new path asks whose it is"
        );
    }
    let stats = sim.connection(Role::Client, 0).unwrap().stats();
    assert!(stats.frame_rx.path_challenge >= 4);
    assert_eq!(stats.frame_rx.path_challenge, stats.frame_tx.path_response, "every challenge is answered");
}

/// The client moves by itself: an observer of both paths cannot tell by connection IDs that it is the same client.
#[test]
fn connectionmigration() {
    let (mut sim, _) = flowing(setup(&Tls::new(false, 1).unwrap()), 3, 200, true).unwrap();
    sim.run_for(Duration::from_secs(1));
    sim.move_client(elsewhere(false), true);
    assert!(sim.run_to_end(LIMIT));
    assert!(sim.answers.all().iter().all(|answer| answer.is_whole()));
    for from in [Role::Client, Role::Server] {
        let ids = |address: SocketAddr| -> Vec<Vec<u8>> {
            let sent = sim.log.iter().filter(|sent| sent.from == from && sent.client_address == address);
            sent.flat_map(|sent| packets(&sent.datagram.bytes))
                .map(|packet| packet.destination.to_vec())
                .collect()
        };
        let (old, new) = (ids(CLIENT_ADDRESS), ids(elsewhere(false)));
        assert!(!new.is_empty() && new.iter().all(|id| !old.contains(id)), "{from:?}");
    }
}

/// Forty requests with early data: most of what the client says, it says before the handshake.
#[test]
fn zerortt() {
    let mut sim = Simulation::new(setup(&Tls::new(true, 1).unwrap()));
    sim.connect().unwrap();
    sim.run_for(Duration::from_secs(5));
    sim.log.clear();
    let connection = sim.connect().unwrap();
    for _ in 0..40 {
        sim.ask(connection, Shape { tokens: 1, ..Shape::default() });
    }
    assert!(sim.run_to_end(LIMIT));
    assert!(sim.connection(Role::Client, connection).unwrap().accepted_0rtt());
    assert!(sim.answers.all().iter().all(|answer| answer.is_whole() && answer.was_early));
    let early = bytes_of(&sim.log, Role::Client, Kind::ZeroRtt);
    let late = bytes_of(&sim.log, Role::Client, Kind::Short);
    assert!(early > 40 * 300 && early > late, "{early} bytes early, {late} late");
}

/// A client that comes again is not shown the certificate again.
#[test]
fn resumption() {
    let mut sim = Simulation::new(setup(&Tls::new(true, 9).unwrap()));
    let mut shown = Vec::new();
    for _ in 0..2 {
        sim.log.clear();
        let connection = sim.connect().unwrap();
        let answer = sim.ask(connection, Shape::default());
        sim.run_for(Duration::from_secs(5));
        assert!(sim.answer(answer).is_whole());
        shown.push(bytes_of(&sim.log, Role::Server, Kind::Handshake));
    }
    assert!(shown[0] > 3_000 && shown[1] < 500, "{shown:?}");
}

/// The server first sees whether the client receives what it sends; the client's packets are counted on.
#[test]
fn retry() {
    let tls = Tls::new(false, 1).unwrap();
    let mut setup = setup(&tls);
    setup.asks_retry = true;
    let mut sim = Simulation::new(setup);
    let connection = sim.connect().unwrap();
    let answer = sim.ask(connection, Shape::default());
    assert!(sim.run_to_end(LIMIT));
    assert_eq!(sim.answer(answer).ttft(), Some(TRIP * 3));
    let of = |from, kind| {
        let sent = sim.log.iter().filter(move |sent| sent.from == from);
        sent.flat_map(|sent| packets(&sent.datagram.bytes)).filter(move |packet| packet.kind == kind)
    };
    assert_eq!(of(Role::Server, Kind::Retry).count(), 1);
    let initials: Vec<_> = of(Role::Client, Kind::Initial).collect();
    assert!(initials[0].token.is_empty());
    assert!(initials[1..].iter().all(|packet| !packet.token.is_empty()), "the token is used");
    // Keys follow from the connection ID that the client chose, then from the one in the Retry.
    let number = |packet| initial_number(&tls, initials[0].destination, packet).unwrap();
    let after = initial_number(&tls, initials[1].destination, &initials[1]).unwrap();
    assert!(after > number(&initials[0]), "packet numbers are not reset");
}

/// A long chain, and a client whose next six packets are lost: it may be somebody else's address. Three datagrams
/// are the allowance, and the chain fills all of them.
#[test]
fn amplificationlimit() {
    let over = over_the_limit(14);
    assert!(over <= 0, "{over} bytes over three times");
}

/// quinn sends a datagram whole when any of the allowance is left: what does not fill the third one goes over.
#[test]
fn amplificationlimit_when_a_little_is_left_of_it() {
    let over = over_the_limit(9);
    assert!((1..1_200).contains(&over), "{over} bytes over three times");
}

fn over_the_limit(certificates: usize) -> i64 {
    let mut setup = setup(&Tls::new(false, certificates).unwrap());
    setup.to_server.drops = (1..7).collect();
    let mut sim = Simulation::new(setup);
    let connection = sim.connect().unwrap();
    let answer = sim.ask(connection, Shape::default());
    assert!(sim.run_to_end(LIMIT));
    assert!(sim.answer(answer).is_whole());
    // A Handshake packet that arrives is the proof (RFC 9000 §8.1).
    let proof = sim.log.iter().filter(|sent| sent.from == Role::Client && sent.arrives.is_some());
    let proof = proof
        .filter(|sent| packets(&sent.datagram.bytes).iter().any(|packet| packet.kind == Kind::Handshake))
        .filter_map(|sent| sent.arrives)
        .min();
    let before = proof.unwrap() - Duration::from_nanos(1);
    let held = sim.log.iter().filter(|sent| sent.from == Role::Server && sent.at <= before).count();
    assert!(held >= 3, "the limit was reached: {held} datagrams");
    over_three_times(&sim.log, CLIENT_ADDRESS, before)
}

/// The same for an address that a client seems to have moved to. quinn goes over by two datagrams: one is sent
/// whole when any of the allowance is left, and an MTU probe is sent without asking.
#[test]
fn amplificationlimit_of_a_new_address() {
    let (mut sim, _) = flowing(setup(&Tls::new(false, 1).unwrap()), 16, 200, true).unwrap();
    sim.run_for(Duration::from_secs(1));
    // A stranger is there, gets what the server sends, and never answers.
    sim.rebind_nat(elsewhere(false));
    sim.run_for(Duration::from_millis(200));
    let address = elsewhere(false);
    let validated = sim.log.iter().filter(|sent| sent.from == Role::Client && sent.client_address == address);
    let validated = validated.filter(|sent| sent.datagram.frames.path_response > 0);
    let until = validated.filter_map(|sent| sent.arrives).min().unwrap() - Duration::from_nanos(1);
    let over = over_three_times(&sim.log, address, until);
    assert!((1..=1_200 + 1_452).contains(&over), "{over} bytes over three times");
}
