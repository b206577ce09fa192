//! Which datagrams a socket copies: what controllers decide, handed to the sockets.
//!
//! In: for a datagram that is about to leave, the copies that its path's controller asks for. Out: the same, to the
//! socket that sends it. quinn calls the controller and then the socket, in one turn of one thread, so one place is
//! enough, no datagram needs a look-up, and a path that changes takes its state with it.

use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use headrace_core::recovery::echo::amplification::Amplification;
use headrace_core::recovery::echo::memory::{Known, Memory};
use headrace_core::recovery::echo::{Copies, Settings};

use crate::quic::echo::counts::Counters;

/// The first bit of a long header, which packets of a handshake have (RFC 9000 §17.2).
const LONG: u8 = 0x80;

/// The bits that tell an Initial packet from the others with a long header.
const LONG_KIND: u8 = 0x30;

/// What the congestion controllers of one thread hand to its sockets.
pub struct CopyHandoff {
    pub(super) settings: Settings,
    is_server: bool,
    has_pending: AtomicBool,
    pending: Mutex<Option<PendingCopies>>,
    memory: Mutex<Memory>,
    amplification: Mutex<Amplification>,
    /// What is counted of all connections.
    pub counters: Arc<Counters>,
}

/// The copies of the datagram that is about to leave.
pub(super) struct PendingCopies {
    pub now: Instant,
    pub bytes: u64,
    pub copies: Copies,
    pub network: Arc<Network>,
    pub counters: Arc<Counters>,
}

/// How a datagram is sent.
#[derive(Clone, Debug)]
pub enum SendDecision {
    SendOnce,
    /// It is sent now, and copies of it later; they are counted with the connection's counters, too.
    SendWithCopies(Instant, Copies, Arc<Counters>),
    /// It is not sent: copies have used what may be sent to an address that may be somebody else's.
    Withhold,
}

/// Where a path leads, which the socket knows, and what is remembered of that network.
#[derive(Default)]
pub(super) struct Network {
    pub address: OnceLock<IpAddr>,
    pub known: OnceLock<Option<Known>>,
}

impl CopyHandoff {
    pub fn new(settings: Settings, is_server: bool, counters: Arc<Counters>) -> Self {
        Self {
            settings,
            is_server,
            has_pending: AtomicBool::new(false),
            pending: Mutex::default(),
            memory: Mutex::default(),
            amplification: Mutex::default(),
            counters,
        }
    }

    /// A datagram (or a batch) leaves now; the result says how.
    pub fn take(&self, to: SocketAddr, contents: &[u8]) -> SendDecision {
        if !self.has_pending.swap(false, Ordering::Relaxed) {
            return SendDecision::SendOnce;
        }
        let Some(PendingCopies { now, bytes, mut copies, network, counters }) = lock(&self.pending).take()
        else {
            return SendDecision::SendOnce;
        };
        if bytes != contents.len() as u64 {
            return SendDecision::SendOnce;
        }
        if network.address.set(to.ip()).is_ok() {
            let _ = network.known.set(lock(&self.memory).recall(now, to.ip()));
        }
        let is_long = is_long(contents);
        if copies.is_unvalidated {
            match lock(&self.amplification).spend(to, bytes) {
                Some(false) => return SendDecision::Withhold,
                Some(true) if is_long => {}
                // The first datagrams after a change of path are not copied: nothing is known of the address.
                _ => return SendDecision::SendOnce,
            }
        } else if is_long && self.is_server {
            lock(&self.amplification).forget(to);
        }
        if is_long && !self.is_server {
            // What follows a client's handshake is lost on a server that has not completed it: quinn's drops the
            // packet, and takes its copy for a duplicate (RFC 9001 §5.7 would let it wait).
            copies.near = copies.near.map(|_| Duration::ZERO);
        }
        if copies.is_none() {
            SendDecision::SendOnce
        } else {
            SendDecision::SendWithCopies(now, copies, counters)
        }
    }

    pub fn is_client(&self) -> bool {
        !self.is_server
    }

    /// Notes that a datagram came. Only those of a server's handshakes are counted.
    pub fn handle_received(&self, from: SocketAddr, contents: &[u8]) {
        if self.is_server && is_long(contents) {
            lock(&self.amplification).handle_received(from, contents.len() as u64);
        }
    }

    /// Whether a copy may be sent whose original left before its address was validated.
    pub fn may_copy(&self, to: SocketAddr, bytes: usize) -> bool {
        lock(&self.amplification).spend_copy(to, bytes as u64)
    }

    /// Remembers what a path has shown of its network, for the next connection to it.
    pub(super) fn remember(&self, now: Instant, address: IpAddr, known: Known) {
        lock(&self.memory).note(now, address, known);
    }

    /// How many networks are remembered, and how many addresses of handshakes.
    pub fn held(&self) -> (usize, usize) {
        (lock(&self.memory).len(), lock(&self.amplification).len())
    }

    pub(super) fn put(&self, pending: PendingCopies) {
        *lock(&self.pending) = Some(pending);
        self.has_pending.store(true, Ordering::Relaxed);
    }
}

fn is_long(contents: &[u8]) -> bool {
    contents.first().is_some_and(|first| first & LONG != 0)
}

/// Whether a datagram begins with an Initial packet (RFC 9000 §17.2.2).
pub fn is_initial(contents: &[u8]) -> bool {
    contents.first().is_some_and(|first| first & (LONG | LONG_KIND) == LONG)
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
