//! What one worker owns, what all of them share, and what is counted.
//!
//! In: a configuration. Out: slots for connections and exchanges, the phase of the server's life, the fields of
//! every answer, the answers of the engine itself. It must not know who takes exchanges, nor how a connection is
//! served.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::SystemTime;

use headrace_core::events::dialects::Dialect;
use headrace_core::shares::Owner;
use headrace_core::{Error, Kind};
use http::{HeaderMap, HeaderValue, StatusCode, header};
use tokio::sync::watch;

use crate::config::{Limits, ServerConfig};
use crate::quic::echo::counts;
use crate::shares::{ConnectionShare, ExchangeShare, Tables};
use crate::upstream::Upstreams;

/// Where the server is in its life; it never goes back (`server/drain.rs`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Phase {
    Running,
    /// No new connection is taken, clients are told to leave (GOAWAY), and running exchanges go on.
    Draining,
    /// Half the grace time is over: connections over TCP that were never quiet are told to leave, too.
    Forcing,
    /// The grace time is over: running exchanges are told so, and are cut.
    Expired,
    Closed,
}

/// What all workers share.
pub struct Shared {
    pub tables: Arc<Tables>,
    pub counters: Counters,
    pub phase: watch::Receiver<Phase>,
    next_exchange: AtomicU64,
}

impl Shared {
    pub fn new(limits: &Limits, phase: watch::Receiver<Phase>) -> Self {
        let (tables, counters) = (Arc::new(Tables::new(limits)), Counters::default());
        Self { tables, counters, phase, next_exchange: AtomicU64::new(1) }
    }
}

/// Gauges and counts of the whole server.
#[derive(Debug, Default)]
pub struct Counters {
    pub exchanges: AtomicUsize,
    pub connections: AtomicUsize,
    pub handshakes: AtomicUsize,
    /// Exchanges that were cut at the end of a drain.
    pub cut: AtomicUsize,
    pub exchanges_total: AtomicU64,
    pub connections_total: AtomicU64,
    /// Requests that came in early data (0-RTT), before the handshake was complete.
    pub early_requests_total: AtomicU64,
    /// Times that a request was sent to a model server.
    pub runs_total: AtomicU64,
    /// Of those, times that one was sent again, because the first had provably not been processed.
    pub repeats_total: AtomicU64,
    /// Connections and requests that were refused at a limit.
    pub refused_total: AtomicU64,
    /// Connections that were closed because the peer broke the protocol.
    pub breaches_total: AtomicU64,
    pub echo: Arc<counts::Counters>,
}

/// What one worker owns.
pub struct Worker {
    pub number: usize,
    pub config: Arc<ServerConfig>,
    pub shared: Arc<Shared>,
    pub upstreams: Arc<Upstreams>,
    pub alt_svc: HeaderValue,
}

/// One of the things that are counted, until it is dropped.
pub struct Slot {
    shared: Arc<Shared>,
    gauge: fn(&Counters) -> &AtomicUsize,
}

impl Drop for Slot {
    fn drop(&mut self) {
        (self.gauge)(&self.shared.counters).fetch_sub(1, Ordering::Relaxed);
    }
}

/// A running exchange: it is counted, and has its share of what is scarce.
pub struct Active {
    pub id: u64,
    pub share: Arc<ExchangeShare>,
    _slot: Slot,
}

impl Worker {
    /// Counts one in this gauge, until the slot is dropped.
    pub fn slot(&self, gauge: fn(&Counters) -> &AtomicUsize) -> Slot {
        gauge(&self.shared.counters).fetch_add(1, Ordering::Relaxed);
        Slot { shared: self.shared.clone(), gauge }
    }

    pub fn count_refused(&self) {
        self.shared.counters.refused_total.fetch_add(1, Ordering::Relaxed);
    }

    /// A place for an exchange that asks for this path, or the error that the client is told.
    pub fn begin_exchange(&self, connection: &Arc<ConnectionShare>, path: &str) -> Result<Active, Error> {
        if self.phase() >= Phase::Expired {
            return Err(Kind::ShuttingDown.into());
        }
        let without_query = path.split('?').next();
        let is_probe = self.config.probe_paths.iter().any(|probe| Some(probe.as_str()) == without_query);
        let owner = if is_probe { Owner::Probes } else { connection.owner() };
        let share = ExchangeShare::take(connection, owner).map_err(|_| {
            self.count_refused();
            Error::new(Kind::Overloaded, "limits.max_exchanges is reached")
        })?;
        self.shared.counters.exchanges_total.fetch_add(1, Ordering::Relaxed);
        let id = self.shared.next_exchange.fetch_add(1, Ordering::Relaxed);
        Ok(Active { id, share, _slot: self.slot(|counters| &counters.exchanges) })
    }

    /// Fields that every answer has (RFC 9110 §6.6.1).
    pub fn finish_headers(&self, headers: &mut HeaderMap) {
        if !headers.contains_key(header::DATE)
            && let Ok(date) = HeaderValue::from_str(&httpdate::fmt_http_date(SystemTime::now()))
        {
            headers.insert(header::DATE, date);
        }
    }

    /// Resolves when the server is in this phase, or in a later one.
    pub fn reached(&self, least: Phase) -> impl Future<Output = ()> + use<> {
        let mut phase = self.shared.phase.clone();
        async move {
            // The server holds the sender: without it, everything is over.
            let _ = phase.wait_for(|phase| *phase >= least).await;
        }
    }

    pub fn is_draining(&self) -> bool {
        self.phase() != Phase::Running
    }

    pub fn phase(&self) -> Phase {
        *self.shared.phase.borrow()
    }

    /// An answer of the engine itself, in the words of the API at this path.
    pub fn error_answer(&self, error: &Error, path: &str) -> (StatusCode, HeaderMap, Vec<u8>) {
        let body = (Dialect::of(path).errors.body)(&error.kind.into()) + "\n";
        let mut headers = HeaderMap::new();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
        headers.insert(header::CONTENT_LENGTH, body.len().into());
        if error.kind.status() == 503 {
            headers.insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
        }
        self.finish_headers(&mut headers);
        let status = StatusCode::from_u16(error.kind.status()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        (status, headers, body.into_bytes())
    }
}
