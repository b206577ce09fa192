//! The server: worker threads, each with its sockets, its runtime and its connections.
//!
//! In: a configuration, and a [`Handler`] that takes exchanges. Out: a running server with one address, a
//! drain that cuts nobody, and numbers. A worker owns its connections for their whole life; what workers
//! share is counted here.

pub mod bind;
pub mod drain;
pub mod memory;

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime};

use bytes::Bytes;
use headrace_core::{Error, Kind};
use http::{HeaderMap, HeaderValue, header};
use tokio::sync::watch;

use crate::config::{ServerConfig, Steering};
use crate::exchange::Exchange;
use crate::http3::listener;
use crate::quic::echo::counts;
use crate::quic::worker_socket::{self, Doors};
use crate::reply::Reply;
use crate::server::bind::Sockets;
use crate::server::memory::Memory;
use crate::tcp::connection;
use crate::tls::tickets::Tickets;
use crate::tls::{self, ServerTls, Trust};
use crate::upstream::http2;
use crate::upstream::pool::Pool;
use crate::upstream::warm::{self, Uses};
use crate::upstream::{self, UpstreamRequest};

/// Takes exchanges. Called on worker threads: it must return at once.
pub trait Handler: Send + Sync + 'static {
    fn handle_exchange(&self, exchange: Exchange);
}

/// Where the server is in its life; it only goes on (`server/drain.rs`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Phase {
    Running,
    /// No new connections; GOAWAY; running exchanges go on.
    Draining,
    /// Half the grace time is over: connections over TCP that were never quiet are told, too.
    Insisting,
    /// The grace time is over: running exchanges are told so, and cut.
    Expired,
    Closed,
}

/// What all workers share.
pub struct Shared {
    pub handler: Box<dyn Handler>,
    pub memory: Memory,
    pub counters: Counters,
    pub phase: watch::Receiver<Phase>,
    pub uses: Arc<Uses>,
    next_exchange: AtomicU64,
}

/// Gauges and counts of the whole server.
#[derive(Debug, Default)]
pub struct Counters {
    pub exchanges: AtomicUsize,
    pub connections: AtomicUsize,
    pub handshakes: AtomicUsize,
    /// Exchanges that the end of a drain cut.
    pub cut: AtomicUsize,
    pub exchanges_total: AtomicU64,
    pub connections_total: AtomicU64,
    /// Requests that came in early data (0-RTT), before the handshake was complete.
    pub early_requests_total: AtomicU64,
    /// Connections refused, requests refused, at a limit.
    pub refused_total: AtomicU64,
    /// Connections closed because the peer broke the protocol.
    pub breaches_total: AtomicU64,
    pub echo: Arc<counts::Counters>,
}

/// What one worker owns.
pub struct Worker {
    pub number: usize,
    pub config: Arc<ServerConfig>,
    pub shared: Arc<Shared>,
    pub pool: Pool,
    pub http2: http2::Connections,
    pub upstream_tls: UpstreamTls,
    pub alt_svc: HeaderValue,
}

/// TLS configurations towards model servers, by the protocol asked for.
#[derive(Clone)]
pub struct UpstreamTls {
    pub auto: Arc<rustls::ClientConfig>,
    pub http1: Arc<rustls::ClientConfig>,
    pub http2: Arc<rustls::ClientConfig>,
}

/// One of the things that are counted; given back when dropped.
pub struct Slot {
    shared: Arc<Shared>,
    gauge: fn(&Counters) -> &AtomicUsize,
}

impl Drop for Slot {
    fn drop(&mut self) {
        (self.gauge)(&self.shared.counters).fetch_sub(1, Ordering::Relaxed);
    }
}

/// A running exchange's slot.
pub struct Active {
    id: u64,
    _slot: Slot,
}

impl Active {
    pub fn id(&self) -> u64 {
        self.id
    }
}

impl Worker {
    /// A slot of `gauge`, unless `limit` are taken.
    pub fn slot(&self, gauge: fn(&Counters) -> &AtomicUsize, limit: usize) -> Option<Slot> {
        let taken = gauge(&self.shared.counters).fetch_add(1, Ordering::Relaxed);
        let slot = Slot { shared: self.shared.clone(), gauge };
        if taken >= limit {
            self.shared.counters.refused_total.fetch_add(1, Ordering::Relaxed);
            return None;
        }
        Some(slot)
    }

    /// A slot for an exchange, or the error the client is to be told.
    pub fn begin_exchange(&self) -> Result<Active, Error> {
        if self.phase() >= Phase::Expired {
            return Err(Kind::ShuttingDown.into());
        }
        let slot = self
            .slot(|counters| &counters.exchanges, self.config.limits.max_exchanges)
            .ok_or_else(|| Error::new(Kind::Overloaded, "limits.max_exchanges is reached"))?;
        self.shared.counters.exchanges_total.fetch_add(1, Ordering::Relaxed);
        Ok(Active { id: self.shared.next_exchange.fetch_add(1, Ordering::Relaxed), _slot: slot })
    }

    /// Fields that every answer has (RFC 9110 §6.6.1).
    pub fn finish_headers(&self, headers: &mut HeaderMap) {
        if !headers.contains_key(header::DATE)
            && let Ok(date) = HeaderValue::from_str(&httpdate::fmt_http_date(SystemTime::now()))
        {
            headers.insert(header::DATE, date);
        }
    }

    pub fn is_draining(&self) -> bool {
        self.phase() != Phase::Running
    }

    pub fn phase(&self) -> Phase {
        *self.shared.phase.borrow()
    }
}

/// The workers' threads, until somebody waited for their end.
type Threads = Arc<Mutex<Vec<JoinHandle<()>>>>;

fn join(threads: &Threads) {
    for thread in threads.lock().unwrap_or_else(PoisonError::into_inner).drain(..) {
        let _ = thread.join();
    }
}

/// A running server. Dropping it closes every connection.
pub struct Server {
    pub address: SocketAddr,
    pub shared: Arc<Shared>,
    workers: Vec<Arc<Worker>>,
    phase: watch::Sender<Phase>,
    threads: Threads,
    runtime: tokio::runtime::Handle,
    is_steered: bool,
    tls: watch::Sender<ServerTls>,
    /// They outlive a change of the certificate.
    tickets: Option<Arc<Tickets>>,
}

impl Server {
    /// Binds, and starts the workers.
    ///
    /// # Errors
    /// [`Kind::Config`] that names the setting to change.
    pub fn start(config: ServerConfig, handler: Box<dyn Handler>) -> Result<Self, Error> {
        let config = Arc::new(config);
        let max_tickets = config.limits.max_tickets;
        let tickets =
            (max_tickets > 0).then(|| Arc::new(Tickets::new(max_tickets, config.timeouts.ticket_s)));
        let tls = tls::server(&config.certificate_pem, &config.key_pem, tickets.clone())?;
        let upstream_tls = upstream_tls(&config)?;
        let (address, sockets) = bind::bind(&config.host, config.port, config.workers)?;
        let is_steered = config.workers > 1
            && config.steering == Steering::Bpf
            && sockets.last().is_some_and(|last| bind::attach_steering(&last.udp, config.workers).is_ok());
        let (tls, tls_receiver) = watch::channel(tls);
        let (phase, phase_receiver) = watch::channel(Phase::Running);
        let shared = Arc::new(Shared {
            handler,
            memory: Memory::new(config.limits.max_buffered_bytes),
            counters: Counters::default(),
            phase: phase_receiver,
            uses: Arc::new(Uses::new(config.upstream.pool_warm_s, config.workers, Instant::now())),
            next_exchange: AtomicU64::new(1),
        });
        let keys = listener::Keys::derive(&config.key_pem);
        let alt_svc = format!("h3=\":{}\"; ma={}", address.port(), config.alt_svc_max_age_s);
        let alt_svc = HeaderValue::try_from(alt_svc).map_err(|_| Error::from(Kind::Internal))?;
        let (mut workers, mut threads, mut handles) = (Vec::new(), Vec::new(), Vec::new());
        for ((number, sockets), doors) in
            sockets.into_iter().enumerate().zip(worker_socket::doors(config.workers))
        {
            let worker = Arc::new(Worker {
                number,
                config: config.clone(),
                shared: shared.clone(),
                pool: Pool::new(config.upstream.pool_idle_per_upstream, config.upstream.pool_idle_s),
                http2: http2::Connections::default(),
                upstream_tls: upstream_tls.clone(),
                alt_svc: alt_svc.clone(),
            });
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .map_err(|error| Error::new(Kind::Internal, error.to_string()))?;
            handles.push(runtime.handle().clone());
            let parts = Parts { sockets, doors, tls: tls_receiver.clone(), keys: keys.clone() };
            let for_thread = worker.clone();
            let thread = std::thread::Builder::new()
                .name(format!("headrace-{number}"))
                .spawn(move || runtime.block_on(run_worker(for_thread, parts)))
                .map_err(|error| Error::new(Kind::Internal, error.to_string()))?;
            threads.push(thread);
            workers.push(worker);
        }
        let runtime = handles.swap_remove(0);
        let threads = Arc::new(Mutex::new(threads));
        Ok(Self { address, shared, workers, phase, threads, runtime, is_steered, tls, tickets })
    }

    /// Shows another certificate from the next connection on; those that are there do not notice.
    ///
    /// # Errors
    /// [`Kind::Config`]; the one before stays.
    pub fn set_certificate(&self, certificate_pem: &str, key_pem: &str) -> Result<(), Error> {
        self.tls.send_replace(tls::server(certificate_pem, key_pem, self.tickets.clone())?);
        Ok(())
    }

    /// Whether the kernel delivers by connection ID (see `server/bind.rs`).
    pub fn is_steered(&self) -> bool {
        self.is_steered
    }

    /// Tickets that clients showed and that were not, or no more, good: their early data was not read.
    pub fn unknown_tickets(&self) -> u64 {
        self.tickets.as_ref().map_or(0, |tickets| tickets.unknown.load(Ordering::Relaxed))
    }

    /// Idle upstream connections of all workers.
    pub fn pooled(&self) -> usize {
        self.workers.iter().map(|worker| worker.pool.len()).sum()
    }

    /// Stops accepting, tells every client to go elsewhere, waits for running exchanges at most `grace`, tells
    /// those that still run, then closes. The reply says how many exchanges were cut.
    pub fn drain(&self, grace: Duration, reply: Reply<usize>) {
        let (shared, phase, threads) = (self.shared.clone(), self.phase.clone(), self.threads.clone());
        // A thread of its own: it outlives the workers.
        std::thread::spawn(move || {
            drain::run(&shared, &phase, grace);
            join(&threads);
            let cut = shared.counters.cut.load(Ordering::Relaxed);
            reply.send(Ok(cut));
        });
    }

    /// Asks an upstream on the gateway's own behalf, by the connections of the first worker. The answer is
    /// whole, and at most `max_bytes` long.
    pub fn fetch(&self, request: UpstreamRequest, body: Bytes, max_bytes: usize, reply: Reply<Fetched>) {
        let worker = self.workers[0].clone();
        self.runtime.spawn(async move {
            let result = fetch(&worker, &request, &body, max_bytes).await;
            reply.send(result);
        });
    }

    /// Closes at once, and waits for the threads.
    pub fn close(&self) {
        self.phase.send_replace(Phase::Closed);
        join(&self.threads);
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.close();
    }
}

fn upstream_tls(config: &ServerConfig) -> Result<UpstreamTls, Error> {
    let trust = Trust::System { ca_pem: config.upstream.ca_pem.clone() };
    let of = |alpn: &[&[u8]]| match tls::client(&trust, None, alpn) {
        Ok(config) => Ok(Arc::new(config)),
        Err(error) => Err(Error::new(error.kind, format!("pool.{}", error.detail))),
    };
    Ok(UpstreamTls { auto: of(&[b"h2", b"http/1.1"])?, http1: of(&[b"http/1.1"])?, http2: of(&[b"h2"])? })
}

/// An answer to the gateway itself.
#[derive(Debug)]
pub struct Fetched {
    pub status: http::StatusCode,
    pub headers: HeaderMap,
    pub body: Vec<u8>,
}

async fn fetch(
    worker: &Worker,
    request: &UpstreamRequest,
    body: &Bytes,
    max_bytes: usize,
) -> Result<Fetched, Error> {
    let mut answer = upstream::open(worker, request, body).await?;
    let mut whole = Vec::new();
    let read = async {
        loop {
            let poll =
                |cx: &mut std::task::Context<'_>| answer.body.poll(cx, |data| whole.extend_from_slice(data));
            match std::future::poll_fn(poll).await? {
                upstream::Progress::End(_) => return Ok(()),
                upstream::Progress::Data if whole.len() > max_bytes => {
                    return Err(Error::new(Kind::UpstreamProtocol, "the answer is too large"));
                }
                upstream::Progress::Data => {}
            }
        }
    };
    tokio::time::timeout(request.head_timeout, read)
        .await
        .unwrap_or_else(|_| Err(Kind::UpstreamIdleTimeout.into()))?;
    answer.body.pool(worker, &request.target);
    Ok(Fetched { status: answer.status, headers: answer.headers, body: whole })
}

struct Parts {
    sockets: Sockets,
    doors: Doors,
    tls: watch::Receiver<ServerTls>,
    keys: listener::Keys,
}

async fn run_worker(worker: Arc<Worker>, parts: Parts) {
    let Parts { sockets, doors, tls, keys } = parts;
    let quic = listener::serve(worker.clone(), sockets.udp, doors, tls.clone(), keys);
    let tcp = connection::serve(worker.clone(), sockets.tcp, tls);
    tokio::join!(quic, tcp, warm::run(worker));
}
