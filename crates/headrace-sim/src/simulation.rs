//! Both sides, the path between them, and the clock.
//!
//! In: what tests do between two times. Out: the records of answers, and a log of every datagram. Nothing runs
//! by itself: [`Simulation::run_until`] takes the next event (an arrival, a timer, a token that is due), moves the
//! clock to it, and lets both sides act until they are quiet.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use bytes::Bytes;
use headrace_core::recovery::echo::queue::Queue;
use quinn_proto::{ClientConfig, Connection, ConnectionStats, Dir};

use crate::answer::{Answer, Shape};
use crate::answers::Answers;
use crate::link::{Link, ideal};
use crate::setup::{CLIENT_ADDRESS, SERVER_ADDRESS, Setup};
use crate::side::{Datagram, Role, Side};

/// No scenario needs so many events at one instant; a loop does.
const MOST_ROUNDS: usize = 10_000;

/// A datagram as the path saw it.
#[derive(Clone, Debug)]
pub struct Sent {
    pub at: Duration,
    pub from: Role,
    /// Its index on the link of its direction.
    pub index: u64,
    /// The client's address outside, as the server sees it: where from, or where to.
    pub client_address: SocketAddr,
    pub datagram: Datagram,
    /// Sent again by the repeater.
    pub is_copy: bool,
    /// `None`: lost.
    pub arrives: Option<Duration>,
}

/// What a repeater sees of a datagram that leaves. It returns what is sent beside it, each after a time: the same
/// again, as a rule; a receiver drops what it has already (RFC 9000 §12.3).
pub struct Departure<'a> {
    pub at: Duration,
    pub datagram: &'a Datagram,
    pub stats: Option<ConnectionStats>,
}

pub type Repeater = Box<dyn FnMut(&Departure<'_>) -> Vec<(Duration, Datagram)>>;

/// What a simulation holds at one moment, to see that it stays within bounds.
#[derive(Clone, Copy, Debug, Default)]
pub struct Held {
    /// Both sides' connections.
    pub connections: usize,
    /// Streams that send or are open, both sides', control streams among them.
    pub streams: usize,
    /// Copies that wait for their time.
    pub copies: usize,
    /// Networks that the server's echo remembers.
    pub networks: usize,
    /// Addresses of handshakes that the server's echo counts.
    pub addresses: usize,
    /// Datagrams on their way, and tokens that are due.
    pub events: usize,
}

impl Held {
    /// The most of each.
    #[must_use]
    pub fn max(&self, other: &Self) -> Self {
        Self {
            connections: self.connections.max(other.connections),
            streams: self.streams.max(other.streams),
            copies: self.copies.max(other.copies),
            networks: self.networks.max(other.networks),
            addresses: self.addresses.max(other.addresses),
            events: self.events.max(other.events),
        }
    }
}

enum What {
    Arrives { at: Role, from: SocketAddr, to: SocketAddr, datagram: Datagram },
    Again { from: Role, datagram: Datagram },
    Due { answer: usize },
}

pub struct Simulation {
    client: Side,
    server: Side,
    pub answers: Answers,
    /// Kept when [`Setup::keeps_log`] says so.
    pub log: Vec<Sent>,
    connect: ClientConfig,
    probe_bytes: Option<usize>,
    move_bytes: usize,
    keeps_log: bool,
    to_server: Link,
    to_client: Link,
    repeaters: BTreeMap<Role, Repeater>,
    /// Copies that the product's echo sends.
    echoes: [Queue<Datagram>; 2],
    /// The client's addresses outside; it sends from the last, and hears at all of them.
    addresses: Vec<SocketAddr>,
    began: Instant,
    now: Duration,
    heap: BinaryHeap<Reverse<(Duration, u64)>>,
    events: BTreeMap<u64, What>,
    sequence: u64,
}

impl Simulation {
    pub fn new(setup: Setup) -> Self {
        let to_server = Link::new(Role::Client, setup.to_server.clone(), setup.seed);
        let to_client = Link::new(Role::Server, setup.to_client.clone(), setup.seed);
        let (probe_bytes, move_bytes, keeps_log) = (setup.probe_bytes, setup.move_bytes, setup.keeps_log);
        let (client, server, connect) = setup.build();
        Self {
            client,
            server,
            answers: Answers::default(),
            log: Vec::new(),
            to_server,
            to_client,
            repeaters: BTreeMap::new(),
            echoes: Default::default(),
            addresses: vec![CLIENT_ADDRESS],
            began: Instant::now(),
            now: Duration::ZERO,
            heap: BinaryHeap::new(),
            events: BTreeMap::new(),
            sequence: 0,
            connect,
            probe_bytes,
            move_bytes,
            keeps_log,
        }
    }

    pub fn now(&self) -> Duration {
        self.now
    }

    /// Begins a connection and returns its handle at the client.
    pub fn connect(&mut self) -> Result<usize, String> {
        let config = self.connect.clone();
        let handle = self.client.connect(self.began + self.now, config, SERVER_ADDRESS)?;
        if let Some(connection) = self.client.connection_mut(handle) {
            self.answers.handle_connect(handle, connection, self.probe_bytes.is_some());
        }
        Ok(handle)
    }

    /// Begins an answer on a client's connection and returns its number.
    pub fn ask(&mut self, handle: usize, shape: Shape) -> usize {
        let Some(connection) = self.client.connection_mut(handle) else { return usize::MAX };
        self.answers.ask(self.now, handle, shape, connection)
    }

    /// Lets the client end a connection.
    pub fn close(&mut self, handle: usize) {
        let now = self.began + self.now;
        if let Some(connection) = self.client.connection_mut(handle) {
            connection.close(now, 0x100u32.into(), Bytes::new());
        }
    }

    pub fn stop(&mut self, answer: usize) {
        let handle = self.answers.get(answer).connection;
        if let Some(connection) = self.client.connection_mut(handle) {
            self.answers.stop(answer, connection);
        }
    }

    pub fn answer(&self, answer: usize) -> &Answer {
        self.answers.get(answer)
    }

    /// Returns the connection with this handle; each side counts its handles by itself, from 0.
    pub fn connection(&self, role: Role, handle: usize) -> Option<&Connection> {
        self.side(role).connection(handle)
    }

    pub fn connection_mut(&mut self, role: Role, handle: usize) -> Option<&mut Connection> {
        self.side_mut(role).connection_mut(handle)
    }

    pub fn link(&self, from: Role) -> &Link {
        match from {
            Role::Client => &self.to_server,
            Role::Server => &self.to_client,
        }
    }

    pub fn link_mut(&mut self, from: Role) -> &mut Link {
        match from {
            Role::Client => &mut self.to_server,
            Role::Server => &mut self.to_client,
        }
    }

    /// Takes another path from now on, without losses: each direction takes half of this time.
    pub fn set_round_trip(&mut self, round_trip: Duration) {
        self.to_server.set_path(self.now, ideal(round_trip / 2));
        self.to_client.set_path(self.now, ideal(round_trip / 2));
    }

    /// Lets nothing pass for so long.
    pub fn begin_outage(&mut self, lasts: Duration) {
        self.to_server.begin_outage(self.now, lasts);
        self.to_client.begin_outage(self.now, lasts);
    }

    /// Lets a side send datagrams again: see [`Departure`].
    pub fn set_repeater(&mut self, from: Role, repeater: Repeater) {
        self.repeaters.insert(from, repeater);
    }

    /// Lets a NAT forget the client: it sends from another address from now on, neither side knows it, and what is still
    /// sent to the old one is lost.
    pub fn rebind_nat(&mut self, outside: SocketAddr) {
        self.addresses = vec![outside];
    }

    /// Moves the client, which knows it and says so. `hears_old`: the old path still delivers.
    pub fn move_client(&mut self, outside: SocketAddr, hears_old: bool) {
        self.addresses.retain(|_| hears_old);
        self.addresses.push(outside);
        for handle in self.client.handles() {
            if let Some(connection) = self.client.connection_mut(handle) {
                connection.local_address_changed();
                self.answers.send_control(handle, self.move_bytes, connection);
            }
        }
    }

    pub fn held(&mut self) -> Held {
        let (networks, addresses) = self.server.held();
        let copies = self.echoes.iter().map(Queue::len).sum();
        let mut held = Held { copies, networks, addresses, events: self.events.len(), ..Held::default() };
        for side in [&mut self.client, &mut self.server] {
            for handle in side.handles() {
                held.connections += 1;
                let Some(connection) = side.connection_mut(handle) else { continue };
                let streams = connection.streams();
                held.streams += streams.send_streams() + streams.remote_open_streams(Dir::Bi) as usize;
            }
        }
        held
    }

    /// Runs until this time, events at it included.
    pub fn run_until(&mut self, end: Duration) {
        self.run_while(end, |_| true);
        self.now = self.now.max(end);
    }

    pub fn run_for(&mut self, time: Duration) {
        self.run_until(self.now + time);
    }

    /// Runs until all answers have ended, or this time has come. Returns whether they have ended.
    pub fn run_to_end(&mut self, limit: Duration) -> bool {
        self.run_while(limit, |sim| !sim.answers.are_ended());
        self.answers.are_ended()
    }

    /// Runs while `goes_on`, asked after each instant, and until this time at the latest.
    pub fn run_while(&mut self, end: Duration, mut goes_on: impl FnMut(&Self) -> bool) {
        self.run_until_quiet();
        while goes_on(self) {
            let Some(next) = self.next_time().filter(|next| *next <= end) else { return };
            self.now = self.now.max(next);
            self.fire();
            self.run_until_quiet();
        }
    }

    fn next_time(&mut self) -> Option<Duration> {
        let event = self.heap.peek().map(|Reverse((at, _))| *at);
        let timers = [self.client.poll_timeout(), self.server.poll_timeout()];
        let timer = timers.into_iter().flatten().min().map(|at| at.saturating_duration_since(self.began));
        let silence = self.answers.detector_due().map(|(at, _)| at);
        let copy = self.echoes.iter().filter_map(Queue::next_due).min();
        let copy = copy.map(|at| at.saturating_duration_since(self.began));
        [event, timer, silence, copy].into_iter().flatten().min()
    }

    fn fire(&mut self) {
        let instant = self.began + self.now;
        let mut out = Vec::new();
        while let Some(&Reverse((at, sequence))) = self.heap.peek() {
            if at > self.now {
                break;
            }
            self.heap.pop();
            match self.events.remove(&sequence) {
                Some(What::Arrives { at: Role::Server, from, datagram, .. }) => {
                    self.server.handle_datagram(instant, from, datagram.ecn, &datagram.bytes, &mut out);
                    self.send_all(Role::Server, &mut out);
                }
                Some(What::Arrives { at: Role::Client, from, to, datagram })
                    if self.addresses.contains(&to) =>
                {
                    self.client.handle_datagram(instant, from, datagram.ecn, &datagram.bytes, &mut out);
                    self.send_all(Role::Client, &mut out);
                }
                // The client is not at that address any more.
                Some(What::Arrives { .. }) | None => {}
                Some(What::Again { from, datagram }) => self.send(from, datagram, true),
                Some(What::Due { answer }) => {
                    let server = self.answers.handle_due(answer);
                    if let Some(connection) = server.and_then(|server| self.server.connection_mut(server)) {
                        self.answers.write(answer, connection);
                    }
                }
            }
        }
        for from in [Role::Client, Role::Server] {
            self.send_copies(from);
        }
        while let Some((_, handle)) = self.answers.detector_due().filter(|(at, _)| *at <= self.now) {
            self.answers.note_probe(handle);
            if let Some(connection) = self.client.connection_mut(handle) {
                let bytes = self.probe_bytes.unwrap_or_default();
                self.answers.send_control(handle, bytes, connection);
            }
        }
    }

    /// Lets both sides act until neither has anything to send or to say.
    fn run_until_quiet(&mut self) {
        for _ in 0..MOST_ROUNDS {
            let sent = self.poll_side(Role::Client) | self.poll_side(Role::Server);
            let heard = self.tell(Role::Client) | self.tell(Role::Server);
            while let Some((at, answer)) = self.answers.poll_due() {
                self.push(at, What::Due { answer });
            }
            if !sent && !heard {
                break;
            }
        }
        self.client.forget_drained();
        self.server.forget_drained();
    }

    fn poll_side(&mut self, role: Role) -> bool {
        let (instant, mut out) = (self.began + self.now, Vec::new());
        self.side_mut(role).poll_datagrams(instant, &mut out);
        let sent = !out.is_empty();
        self.send_all(role, &mut out);
        sent
    }

    /// Tells the application what happened to the connections of this side.
    fn tell(&mut self, role: Role) -> bool {
        let now = self.now;
        let side = match role {
            Role::Client => &mut self.client,
            Role::Server => &mut self.server,
        };
        let mut heard = false;
        for handle in side.handles() {
            let Some(connection) = side.connection_mut(handle) else { continue };
            while let Some(event) = connection.poll() {
                heard = true;
                self.answers.handle_event(now, role, handle, event, connection);
            }
        }
        heard
    }

    fn send_all(&mut self, from: Role, out: &mut Vec<Datagram>) {
        for datagram in out.drain(..) {
            if let Some(repeater) = self.repeaters.get_mut(&from) {
                let side = if from == Role::Client { &self.client } else { &self.server };
                let stats = datagram.connection.and_then(|handle| side.connection(handle));
                let departure =
                    Departure { at: self.now, datagram: &datagram, stats: stats.map(Connection::stats) };
                for (after, datagram) in repeater(&departure) {
                    self.push(self.now + after, What::Again { from, datagram });
                }
            }
            if !datagram.copies.is_none() {
                let (after, bytes) = (datagram.copies.after(), datagram.bytes.clone());
                self.echoes[from as usize].push(self.began + self.now, datagram.clone(), &bytes, after);
            }
            self.send(from, datagram, false);
            self.send_copies(from);
        }
    }

    /// Sends the echo's copies that are due.
    fn send_copies(&mut self, from: Role) {
        let (instant, mut due) = (self.began + self.now, Vec::new());
        while self.echoes[from as usize].poll_copy(instant, |copy| due.push(copy.how.clone())) {}
        for datagram in due {
            if self.side(from).may_copy(&datagram) {
                self.send(from, datagram, true);
            }
        }
    }

    fn send(&mut self, from: Role, datagram: Datagram, is_copy: bool) {
        let outside = self.addresses.last().copied().unwrap_or(CLIENT_ADDRESS);
        let (source, to) = match from {
            Role::Client => (outside, SERVER_ADDRESS),
            Role::Server => (SERVER_ADDRESS, datagram.destination),
        };
        let (at, length) = (self.now, datagram.bytes.len());
        let link = self.link_mut(from);
        let index = link.index();
        let arrivals = link.handle_packet(at, length);
        if self.keeps_log {
            let (datagram, arrives) = (datagram.clone(), arrivals[0]);
            let client_address = if from == Role::Client { source } else { to };
            self.log.push(Sent { at, from, index, client_address, datagram, is_copy, arrives });
        }
        for arrives in arrivals.into_iter().flatten() {
            let what = What::Arrives { at: from.other(), from: source, to, datagram: datagram.clone() };
            self.push(arrives, what);
        }
    }

    fn push(&mut self, at: Duration, what: What) {
        self.heap.push(Reverse((at, self.sequence)));
        self.events.insert(self.sequence, what);
        self.sequence += 1;
    }

    fn side(&self, role: Role) -> &Side {
        match role {
            Role::Client => &self.client,
            Role::Server => &self.server,
        }
    }

    fn side_mut(&mut self, role: Role) -> &mut Side {
        match role {
            Role::Client => &mut self.client,
            Role::Server => &mut self.server,
        }
    }
}
