//! What one connection over HTTP/3 may have sent and not seen acknowledged.
//!
//! In: what its streams hand to quinn, and that there is no room for more. Out: a larger window, for a client that takes
//! what it is sent: a fixed one would hold either too much for clients that read nothing, or too little for long paths.
//! All growth comes from one pool, in which owners have shares; a connection gives it back when it has no request.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use headrace_core::shares::Owner;

use crate::config::Limits;
use crate::shares::ConnectionShare;

/// The window of one connection.
pub struct SendWindow {
    quic: quinn::Connection,
    share: Arc<ConnectionShare>,
    first: u64,
    most: u64,
    /// All bytes that quinn has taken.
    taken: AtomicU64,
    state: Mutex<State>,
}

struct State {
    bytes: u64,
    /// What had been taken when it grew last.
    grown_at: u64,
    /// Whose share of the pool the growth is in.
    owner: Option<Owner>,
}

impl SendWindow {
    pub fn new(quic: quinn::Connection, share: Arc<ConnectionShare>, limits: &Limits) -> Self {
        let (first, most) = (limits.connection_send_window_bytes, limits.max_connection_send_window_bytes);
        let state = Mutex::new(State { bytes: first, grown_at: 0, owner: None });
        Self { quic, share, first, most, taken: AtomicU64::new(0), state }
    }

    /// quinn took so many bytes.
    pub fn note_taken(&self, bytes: u64) {
        self.taken.fetch_add(bytes, Ordering::Relaxed);
    }

    /// quinn has no room. Whether there is more of it now.
    pub fn handle_blocked(&self) -> bool {
        let taken = self.taken.load(Ordering::Relaxed);
        let mut state = self.lock();
        let next = (state.bytes * 2).min(self.most);
        // A window that was taken whole since it grew last was acknowledged, or nearly. What the path cannot carry
        // (its congestion window) would only wait here.
        if next == state.bytes
            || taken - state.grown_at < state.bytes
            || self.quic.stats().path.cwnd * 2 < next
        {
            return false;
        }
        let owner = state.owner.get_or_insert_with(|| self.share.owner()).clone();
        if !self.share.take_growth(&owner, (next - state.bytes) as usize) {
            return false;
        }
        (state.bytes, state.grown_at) = (next, taken);
        self.quic.set_send_window(next);
        true
    }

    /// The connection has no request: the next one begins small.
    pub fn shrink(&self) {
        let mut state = self.lock();
        if let Some(owner) = state.owner.take() {
            self.share.give_growth_back(&owner, (state.bytes - self.first) as usize);
            state.bytes = self.first;
            self.quic.set_send_window(self.first);
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for SendWindow {
    fn drop(&mut self) {
        self.shrink();
    }
}
