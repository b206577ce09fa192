//! What goes on beside the requests of a worker's connections over HTTP/3.
//!
//! In: what quinn counts of each connection, four times a second. Out: clients that owe acknowledgements for too long are
//! suspect, and whoever answers them hears of it; a connection whose client has announced a short idle timeout is kept
//! alive while an answer is under way; and one that sends frames without end is closed. One task for all connections:
//! a timer for each would cost more than the look.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};

use headrace_core::recovery::presence::Presence;
use tokio::sync::watch;

use crate::config::ServerConfig;
use crate::http3::connection::Connection;
use crate::quic::ping;
use crate::quic::session::Peer;
use crate::quic::stats::Traffic;

const INTERVAL: Duration = Duration::from_millis(250);
/// Connections without a request are looked at every so many times.
const IDLE_TURNS: u64 = 4;

/// The connections of one worker.
#[derive(Default)]
pub struct Connections(Mutex<Vec<Weak<Connection>>>);

impl Connections {
    pub fn add(&self, connection: &Arc<Connection>) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(Arc::downgrade(connection));
    }

    fn live(&self) -> Vec<Arc<Connection>> {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|each| each.strong_count() > 0);
        all.iter().filter_map(Weak::upgrade).collect()
    }
}

/// Looks at them until it is dropped.
pub async fn run(connections: &Connections) {
    for turn in 0u64.. {
        tokio::time::sleep(INTERVAL).await;
        let now = Instant::now();
        for connection in connections.live() {
            let is_used = connection.open.load(Ordering::Relaxed) > 0;
            if is_used || turn % IDLE_TURNS == 0 {
                connection.monitor.look(&connection, now, is_used);
            }
        }
    }
}

/// What is known of one connection.
pub struct Monitor {
    peer: Arc<Peer>,
    /// What we have announced.
    idle: Duration,
    receive_window: u32,
    suspicion: watch::Sender<bool>,
    state: Mutex<State>,
}

struct State {
    presence: Presence,
    last: Traffic,
    /// When something came or left that keeps the connection alive.
    moved_at: Instant,
}

impl Monitor {
    pub fn new(peer: Arc<Peer>, config: &ServerConfig) -> Self {
        let (presence, last) = (Presence::new(config.timeouts.suspect_s), Traffic::default());
        let state = Mutex::new(State { presence, last, moved_at: Instant::now() });
        let receive_window = config.limits.connection_receive_window_bytes;
        let suspicion = watch::Sender::new(false);
        Self { peer, idle: config.timeouts.idle_s, receive_window, suspicion, state }
    }

    /// Whether the client is suspect, now and from now on.
    pub fn suspicion(&self) -> watch::Receiver<bool> {
        self.suspicion.subscribe()
    }

    fn look(&self, connection: &Connection, now: Instant, is_used: bool) {
        let quic = &connection.quic;
        let traffic = Traffic::of(&quic.stats());
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let last = std::mem::replace(&mut state.last, traffic);
        let is_suspect = state.presence.observe(now, traffic.heard, traffic.elicits, quic.rtt());
        if (traffic.heard, traffic.elicits) != (last.heard, last.elicits) {
            state.moved_at = now;
        }
        let idle = self.peer.idle_timeout(self.idle);
        let is_quiet = now - state.moved_at >= idle / 3;
        drop(state);
        self.suspicion.send_if_modified(|before| std::mem::replace(before, is_suspect) != is_suspect);
        if is_used && is_quiet && idle < self.idle {
            ping(quic, self.receive_window);
        }
        connection.useless.earn(last.earned_until(&traffic));
        if let Err(error) = connection.useless.spend(last.useless_until(&traffic)) {
            connection.breach(error);
        }
    }
}
