//! Nothing much is sent to addresses that nobody has shown to be their own.
//!
//! In: which path a datagram is of ([`controller`]), and where it goes ([`socket`]). Out: the datagram, or not: the rules
//! are `headrace_core::recovery::amplification`. A path is validated as quinn says it is: quinn hands acknowledgements to
//! a path's congestion controller only once its challenge was answered, and a handshake that is complete validates the
//! first. And a connection that changes its path again and again is not followed.

pub mod controller;
pub mod socket;

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Instant;

use headrace_core::budget::Budget;
use headrace_core::recovery::amplification::Addresses;

/// Of one address, datagrams that wait until something comes from there: the rest of a long flight.
const MAX_HELD: usize = 2;
/// Of all. A newcomer takes the place of the one that has waited longest: most likely it never answers.
const MAX_HELD_ADDRESSES: usize = 256;

/// Between the controllers and the socket of one worker, and the addresses that both know.
#[derive(Default)]
pub struct Guard {
    /// A datagram of so many bytes is about to leave on a validated path: nothing is to be looked up. 0: none is.
    trusted: AtomicU64,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    addresses: Addresses,
    /// A datagram that is about to leave on a path that is not validated.
    pending: Option<(u64, Arc<PathState>)>,
    held: HashMap<SocketAddr, Waiting>,
}

/// What waits for something to come from one address.
struct Waiting {
    since: Instant,
    datagrams: Vec<socket::Held>,
}

impl State {
    fn waiting_for(&mut self, address: SocketAddr) -> &mut Vec<socket::Held> {
        if self.held.len() >= MAX_HELD_ADDRESSES
            && !self.held.contains_key(&address)
            && let Some(oldest) = self.held.iter().min_by_key(|(_, waiting)| waiting.since).map(|(&at, _)| at)
        {
            self.held.remove(&oldest);
        }
        let new = || Waiting { since: Instant::now(), datagrams: Vec::new() };
        &mut self.held.entry(address).or_insert_with(new).datagrams
    }
}

/// What the paths of one connection share.
pub struct ConnectionPaths {
    /// The handshake is complete, or began with a token that shows the address (RFC 9000 §8.1.2).
    is_first_valid: AtomicBool,
    changes: Mutex<Budget>,
    /// Where it was validated last.
    valid_ip: Mutex<Option<IpAddr>>,
}

impl ConnectionPaths {
    /// `burst`, `per_second`: how often it may change to an address that it has not shown.
    pub fn new(is_first_valid: bool, burst: u32, per_second: u32) -> Self {
        let changes = Mutex::new(Budget::new(burst, per_second, Instant::now()));
        Self { is_first_valid: AtomicBool::new(is_first_valid), changes, valid_ip: Mutex::default() }
    }

    /// The handshake is complete: the client has received what was sent to its address.
    pub fn validate_first(&self) {
        self.is_first_valid.store(true, Ordering::Relaxed);
    }
}

/// One path of a connection.
struct PathState {
    connection: Arc<ConnectionPaths>,
    is_first: bool,
    /// Where it leads, once something has left on it.
    address: OnceLock<SocketAddr>,
    is_valid: AtomicBool,
    /// Its connection has changed its path too often.
    is_muted: AtomicBool,
}

impl Guard {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A datagram leaves now, or a batch of them, each `segment` bytes long: how many bytes of it may.
    fn judge(&self, to: SocketAddr, bytes: usize, segment: usize) -> usize {
        let total = bytes as u64;
        // A controller was told of it just before, in the same turn of the same thread.
        if self.trusted.swap(0, Ordering::Relaxed) == total {
            return bytes;
        }
        let state = &mut *self.lock();
        let pending = state.pending.take().filter(|(expected, _)| *expected == total);
        let is_rebound = pending.as_ref().is_some_and(|(_, path)| path.begin(&mut state.addresses, to));
        let is_valid = state.addresses.is_valid(to);
        if pending.is_some_and(|(_, path)| !is_valid && path.is_muted()) {
            return 0;
        }
        let mut allowed = 0;
        while allowed < bytes {
            let datagram = segment.min(bytes - allowed);
            if !state.addresses.may_send(to, datagram as u64, is_rebound) {
                break;
            }
            allowed += datagram;
        }
        allowed
    }
}

impl PathState {
    fn new(connection: Arc<ConnectionPaths>, is_first: bool) -> Arc<Self> {
        let (is_valid, is_muted) = (AtomicBool::new(false), AtomicBool::new(false));
        Arc::new(Self { connection, is_first, address: OnceLock::new(), is_valid, is_muted })
    }

    /// Something leaves on it, to this address. Whether that is another port of where the connection was validated.
    fn begin(&self, addresses: &mut Addresses, to: SocketAddr) -> bool {
        if self.address.set(to).is_ok() {
            addresses.begin_path(to);
            // Back to where it was is no change that anybody else would suffer from.
            self.is_muted
                .store(!self.is_first && !addresses.is_valid(to) && !self.may_change(), Ordering::Relaxed);
        }
        !self.is_first && *lock(&self.connection.valid_ip) == Some(to.ip())
    }

    fn may_change(&self) -> bool {
        lock(&self.connection.changes).try_spend(Instant::now())
    }

    /// It stays so until there is budget again.
    fn is_muted(&self) -> bool {
        if self.is_muted.load(Ordering::Relaxed) && self.may_change() {
            self.is_muted.store(false, Ordering::Relaxed);
        }
        self.is_muted.load(Ordering::Relaxed)
    }

    /// Its peer has shown that it is there.
    fn validate(&self, addresses: &mut Addresses) {
        if let Some(&address) = self.address.get()
            && !self.is_valid.swap(true, Ordering::Relaxed)
        {
            addresses.validate_path(address);
            *lock(&self.connection.valid_ip) = Some(address.ip());
        }
    }

    fn end(&self, addresses: &mut Addresses) {
        if let Some(&address) = self.address.get() {
            addresses.end_path(address, self.is_valid.load(Ordering::Relaxed));
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whoever_never_answers_makes_room_for_who_comes_later() {
        let at = |port| SocketAddr::from(([192, 0, 2, 1], port));
        let mut state = State::default();
        for port in 1..=300 {
            state.waiting_for(at(port));
            state.waiting_for(at(port));
        }
        assert_eq!(state.held.len(), MAX_HELD_ADDRESSES);
        let first = 301 - MAX_HELD_ADDRESSES as u16;
        assert!(!state.held.contains_key(&at(first - 1)));
        assert!((first..=300).all(|port| state.held.contains_key(&at(port))));
    }
}
