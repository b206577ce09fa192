//! The server: worker threads, each with its sockets, its runtime and its connections.
//!
//! In: a configuration, and a [`Handler`] that takes exchanges. Out: a running server with one address, a
//! drain that cuts nobody, and numbers. A worker owns its connections for their whole life (`worker.rs`).

pub mod bind;
mod drain;

use std::net::SocketAddr;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use bytes::Bytes;
use headrace_core::{Error, Kind};
use http::HeaderValue;
use tokio::sync::watch;

use crate::config::{ServerConfig, Steering};
use crate::exchange::Handler;
use crate::http3::listener::Keys;
use crate::quic::steering;
use crate::quic::worker_socket::{self, Mailboxes};
use crate::reply::Reply;
use crate::tls::tickets::Tickets;
use crate::tls::{self, ServerTls};
use crate::upstream::warm::{self, Demand};
use crate::upstream::{self, Fetched, UpstreamRequest, Upstreams};
use crate::worker::{Phase, Shared, Worker};
use crate::{http3, tcp};
use bind::Sockets;

/// The workers' threads, until somebody has waited for their end.
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
    /// Tickets outlive a change of the certificate.
    tickets: Option<Arc<Tickets>>,
}

impl Server {
    /// Binds, and starts the workers.
    ///
    /// # Errors
    /// [`Kind::Config`] that names the setting to change.
    pub fn start(config: ServerConfig, handler: Handler) -> Result<Self, Error> {
        let config = Arc::new(config);
        let max_tickets = config.limits.max_tickets;
        let tickets =
            (max_tickets > 0).then(|| Arc::new(Tickets::new(max_tickets, config.timeouts.ticket_s)));
        let tls = tls::server(&config.certificate_pem, &config.key_pem, tickets.clone())?;
        let upstream_tls = upstream::Tls::new(&config.upstream.ca_pem)?;
        let (address, sockets) = bind::bind(&config.host, config.port, config.workers)?;
        let is_steered = config.workers > 1
            && config.steering == Steering::Bpf
            && sockets
                .last()
                .is_some_and(|last| steering::attach_steering(&last.udp, config.workers).is_ok());
        let (tls, tls_receiver) = watch::channel(tls);
        let (phase, phase_receiver) = watch::channel(Phase::Running);
        let shared = Arc::new(Shared::new(&config.limits, phase_receiver));
        let demand = Demand::new(config.upstream.pool_warm_s, config.workers, Instant::now());
        let (demand, upstream_limits) = (Arc::new(demand), Arc::new(config.upstream.clone()));
        let keys = Keys::derive(&config.key_pem);
        let alt_svc = format!("h3=\":{}\"; ma={}", address.port(), config.alt_svc_max_age_s);
        let alt_svc = HeaderValue::try_from(alt_svc).map_err(|_| Error::from(Kind::Internal))?;
        let (mut workers, mut threads, mut handles) = (Vec::new(), Vec::new(), Vec::new());
        let mailboxes = worker_socket::mailboxes(config.workers);
        for ((number, sockets), mailboxes) in sockets.into_iter().enumerate().zip(mailboxes) {
            let (limits, tls) = (upstream_limits.clone(), upstream_tls.clone());
            let worker = Arc::new(Worker {
                number,
                config: config.clone(),
                shared: shared.clone(),
                upstreams: Arc::new(Upstreams::new(number, limits, tls, demand.clone())),
                alt_svc: alt_svc.clone(),
            });
            let (tls, keys, handler) = (tls_receiver.clone(), keys.clone(), handler.clone());
            let serving = Serving { sockets, mailboxes, tls, keys, handler };
            let (thread, handle) = start_worker(worker.clone(), serving)?;
            handles.push(handle);
            threads.push(thread);
            workers.push(worker);
        }
        let runtime = handles.swap_remove(0);
        let threads = Arc::new(Mutex::new(threads));
        Ok(Self { address, shared, workers, phase, threads, runtime, is_steered, tls, tickets })
    }

    /// Shows another certificate from the next connection on; the connections that exist do not notice.
    ///
    /// # Errors
    /// [`Kind::Config`]; the certificate before stays.
    pub fn set_certificate(&self, certificate_pem: &str, key_pem: &str) -> Result<(), Error> {
        self.tls.send_replace(tls::server(certificate_pem, key_pem, self.tickets.clone())?);
        Ok(())
    }

    /// Whether the kernel delivers by connection ID (`quic/steering.rs`).
    pub fn is_steered(&self) -> bool {
        self.is_steered
    }

    /// Tickets that clients showed and that were not good, or no longer: their early data was not read.
    pub fn unknown_tickets(&self) -> u64 {
        self.tickets.as_ref().map_or(0, |tickets| tickets.unknown.load(Ordering::Relaxed))
    }

    /// Idle upstream connections of all workers.
    pub fn pooled(&self) -> usize {
        self.workers.iter().map(|worker| worker.upstreams.pooled()).sum()
    }

    /// Stops accepting, tells every client to go elsewhere, waits at most `grace` for running exchanges, tells those
    /// that still run, then closes. The reply says how many exchanges were cut.
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
        let upstreams = self.workers[0].upstreams.clone();
        self.runtime.spawn(async move {
            let result = upstream::fetch(&upstreams, &request, &body, max_bytes).await;
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

/// What a worker's thread serves, and with what.
struct Serving {
    sockets: Sockets,
    mailboxes: Mailboxes,
    tls: watch::Receiver<ServerTls>,
    keys: Keys,
    handler: Handler,
}

fn start_worker(
    worker: Arc<Worker>,
    serving: Serving,
) -> Result<(JoinHandle<()>, tokio::runtime::Handle), Error> {
    let failed = |error: std::io::Error| Error::new(Kind::Internal, error.to_string());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(failed)?;
    let handle = runtime.handle().clone();
    let thread = std::thread::Builder::new()
        .name(format!("headrace-{}", worker.number))
        .spawn(move || runtime.block_on(run_worker(worker, serving)))
        .map_err(failed)?;
    Ok((thread, handle))
}

async fn run_worker(worker: Arc<Worker>, serving: Serving) {
    let Serving { sockets, mailboxes, tls, keys, handler } = serving;
    let quic =
        http3::listener::serve(worker.clone(), handler.clone(), sockets.udp, mailboxes, tls.clone(), keys);
    let tcp = tcp::connection::serve(worker.clone(), handler, sockets.tcp, tls);
    let warm = warm::run(worker.upstreams.clone(), || worker.is_draining(), worker.reached(Phase::Closed));
    tokio::join!(quic, tcp, warm);
}
