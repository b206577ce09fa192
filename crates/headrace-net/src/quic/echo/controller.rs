//! What tells the socket which datagrams to copy.
//!
//! In: what quinn tells a path's congestion controller: packets sent, acknowledged, lost. Out: a mark on the desk
//! for a datagram that is about to leave and shall be copied. quinn calls the controller and then the socket, in one
//! turn of one thread, so one mark is enough, no datagram needs a look-up, and a path that changes takes its state
//! with it. A path that needs no copies costs a few comparisons a packet.

use std::any::Any;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use headrace_core::recovery::echo::amplification::Amplification;
use headrace_core::recovery::echo::memory::{Known, Memory};
use headrace_core::recovery::echo::path::{Counted, Path};
use headrace_core::recovery::echo::{Copies, Settings};
use quinn_proto::RttEstimator;
use quinn_proto::congestion::{Controller, ControllerFactory, ControllerMetrics};

use crate::quic::congestion::Factory;
use crate::quic::echo::counts::Counters;

/// The first bit of a long header: a handshake's packet (RFC 9000 §17.2).
const LONG: u8 = 0x80;

/// And those that tell an Initial packet from the others with a long header.
const LONG_KIND: u8 = 0x30;

/// A packet is not lost because so many after it arrived: its copy may come behind them. What counts is time
/// (RFC 9002 §6.1.2).
pub const PACKET_THRESHOLD: u32 = 32;

/// Between the controllers and the sockets of one thread.
pub struct Desk {
    settings: Settings,
    is_server: bool,
    is_marked: AtomicBool,
    mark: Mutex<Option<Mark>>,
    memory: Mutex<Memory>,
    amplification: Mutex<Amplification>,
    /// Of all connections.
    pub counters: Arc<Counters>,
}

/// The datagram that is about to leave.
struct Mark {
    now: Instant,
    bytes: u64,
    copies: Copies,
    network: Arc<Network>,
    counters: Arc<Counters>,
}

/// What becomes of a datagram.
#[derive(Clone, Debug)]
pub enum Leaving {
    Once,
    /// Copies are counted with the connection's counters, too.
    Copied(Instant, Copies, Arc<Counters>),
    /// Copies took its place: more would be too much for an address that may be somebody else's.
    Withheld,
}

/// Where a path leads: the socket knows, and the memory of networks.
#[derive(Default)]
struct Network {
    address: OnceLock<IpAddr>,
    known: OnceLock<Option<Known>>,
}

impl Desk {
    pub fn new(settings: Settings, is_server: bool, counters: Arc<Counters>) -> Self {
        Self {
            settings,
            is_server,
            is_marked: AtomicBool::new(false),
            mark: Mutex::default(),
            memory: Mutex::default(),
            amplification: Mutex::default(),
            counters,
        }
    }

    /// The same controllers, which mark what is copied.
    pub fn watch(self: &Arc<Self>, inner: Factory) -> Factory {
        Arc::new(EchoFactory { inner, desk: self.clone() })
    }

    /// A datagram (or a batch) leaves now: what becomes of it.
    pub fn take(&self, to: SocketAddr, contents: &[u8]) -> Leaving {
        if !self.is_marked.swap(false, Ordering::Relaxed) {
            return Leaving::Once;
        }
        let Some(Mark { now, bytes, mut copies, network, counters }) = lock(&self.mark).take() else {
            return Leaving::Once;
        };
        if bytes != contents.len() as u64 {
            return Leaving::Once;
        }
        if network.address.set(to.ip()).is_ok() {
            let _ = network.known.set(lock(&self.memory).recall(now, to.ip()));
        }
        let is_long = is_long(contents);
        if copies.is_unvalidated {
            match lock(&self.amplification).spend(to, bytes) {
                Some(false) => return Leaving::Withheld,
                Some(true) if is_long => {}
                // Nothing is known of the first datagrams after a change of path.
                _ => return Leaving::Once,
            }
        } else if is_long && self.is_server {
            lock(&self.amplification).forget(to);
        }
        if is_long && !self.is_server {
            // What follows a client's handshake is lost on a server that has not completed it: quinn's drops the
            // packet, and takes its copy for a duplicate (RFC 9001 §5.7 would let it wait).
            copies.near = copies.near.map(|_| Duration::ZERO);
        }
        if copies.is_none() { Leaving::Once } else { Leaving::Copied(now, copies, counters) }
    }

    pub fn is_client(&self) -> bool {
        !self.is_server
    }

    /// A datagram came. Only a server's handshakes are counted.
    pub fn handle_received(&self, from: SocketAddr, contents: &[u8]) {
        if self.is_server && is_long(contents) {
            lock(&self.amplification).handle_received(from, contents.len() as u64);
        }
    }

    /// Whether a copy may be sent whose original left before its address was validated.
    pub fn may_copy(&self, to: SocketAddr, bytes: usize) -> bool {
        lock(&self.amplification).spend_copy(to, bytes as u64)
    }

    /// Networks that are remembered, and addresses of handshakes.
    pub fn held(&self) -> (usize, usize) {
        (lock(&self.memory).len(), lock(&self.amplification).len())
    }

    fn put(&self, mark: Mark) {
        *lock(&self.mark) = Some(mark);
        self.is_marked.store(true, Ordering::Relaxed);
    }
}

struct EchoFactory {
    inner: Factory,
    desk: Arc<Desk>,
}

impl ControllerFactory for EchoFactory {
    fn build(self: Arc<Self>, now: Instant, current_mtu: u16) -> Box<dyn Controller> {
        let inner = self.inner.clone().build(now, current_mtu);
        Box::new(EchoController::new(inner, self.desk.clone(), Arc::default(), now, current_mtu))
    }
}

/// A controller, and what its path shows.
struct EchoController {
    inner: Box<dyn Controller>,
    desk: Arc<Desk>,
    path: Path,
    network: Arc<Network>,
    is_told: bool,
    /// Of this connection.
    counters: Arc<Counters>,
    /// Of the path, what is counted already.
    counted: Counted,
    /// Of acknowledged packets, smoothed.
    packet_bytes: u64,
    now: Instant,
}

impl EchoController {
    fn new(
        inner: Box<dyn Controller>,
        desk: Arc<Desk>,
        counters: Arc<Counters>,
        now: Instant,
        current_mtu: u16,
    ) -> Self {
        let path = Path::new(desk.settings, now, !desk.is_server);
        let (network, packet_bytes) = (Arc::default(), current_mtu.into());
        let counted = path.counted;
        Self { inner, desk, path, network, is_told: false, counters, counted, packet_bytes, now }
    }

    fn count(&mut self) {
        let Counted { repaired, doubtful } = self.path.counted;
        let (repaired, doubtful) = (repaired - self.counted.repaired, doubtful - self.counted.doubtful);
        if repaired + doubtful == 0 {
            return;
        }
        self.counted = self.path.counted;
        for counters in [&self.counters, &self.desk.counters] {
            counters.count_repaired(repaired);
            counters.count_doubtful(doubtful);
        }
    }
}

impl Drop for EchoController {
    fn drop(&mut self) {
        if let (Some(&address), Some(known)) = (self.network.address.get(), self.path.known()) {
            lock(&self.desk.memory).note(self.now, address, known);
        }
    }
}

impl Controller for EchoController {
    fn on_sent(&mut self, now: Instant, bytes: u64, last_packet_number: u64) {
        self.inner.on_sent(now, bytes, last_packet_number);
        self.now = now;
        if !self.is_told
            && let Some(known) = self.network.known.get()
        {
            self.is_told = true;
            if let Some(known) = known {
                self.path.handle_known(*known);
            }
        }
        let copies = self.path.handle_sent(now, bytes);
        if !copies.is_none() || copies.is_unvalidated {
            let (network, counters) = (self.network.clone(), self.counters.clone());
            self.desk.put(Mark { now, bytes, copies, network, counters });
        }
    }

    fn on_ack(&mut self, now: Instant, sent: Instant, bytes: u64, app_limited: bool, rtt: &RttEstimator) {
        self.inner.on_ack(now, sent, bytes, app_limited, rtt);
        self.packet_bytes = (self.packet_bytes * 7 + bytes).div_ceil(8);
        self.path.handle_acked(now, sent);
    }

    fn on_end_acks(&mut self, now: Instant, in_flight: u64, app_limited: bool, largest: Option<u64>) {
        self.inner.on_end_acks(now, in_flight, app_limited, largest);
        self.path.handle_acks_end(now, app_limited);
        self.count();
    }

    fn on_congestion_event(&mut self, now: Instant, sent: Instant, is_persistent: bool, lost_bytes: u64) {
        self.inner.on_congestion_event(now, sent, is_persistent, lost_bytes);
        // No bytes: a router's mark (ECN-CE), not a loss.
        let packets = lost_bytes.div_ceil(self.packet_bytes.max(1));
        self.path.handle_lost(now, sent, packets.min(u32::MAX.into()) as u32);
        self.count();
    }

    fn on_mtu_update(&mut self, new_mtu: u16) {
        self.inner.on_mtu_update(new_mtu);
    }

    fn window(&self) -> u64 {
        self.inner.window()
    }

    fn metrics(&self) -> ControllerMetrics {
        self.inner.metrics()
    }

    /// For another path, of which nothing is known yet: the peer's port changed.
    fn clone_box(&self) -> Box<dyn Controller> {
        let packet_bytes = self.packet_bytes.min(u16::MAX.into()) as u16;
        let (inner, counters) = (self.inner.clone_box(), self.counters.clone());
        Box::new(Self::new(inner, self.desk.clone(), counters, self.now, packet_bytes))
    }

    fn initial_window(&self) -> u64 {
        self.inner.initial_window()
    }

    fn into_any(self: Box<Self>) -> Box<dyn Any> {
        self
    }
}

/// What is counted of a connection whose controller this is; `None`: it has no echo.
pub fn counters(controller: Box<dyn Controller>) -> Option<Arc<Counters>> {
    let controller = controller.into_any().downcast::<EchoController>().ok()?;
    Some(controller.counters.clone())
}

fn is_long(contents: &[u8]) -> bool {
    contents.first().is_some_and(|first| first & LONG != 0)
}

/// It begins with an Initial packet (RFC 9000 §17.2.2).
pub fn is_initial(contents: &[u8]) -> bool {
    contents.first().is_some_and(|first| first & (LONG | LONG_KIND) == LONG)
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
