//! Requests to model servers.
//!
//! In: a request with its whole body. Out: the answer's head, and a body to be polled inside the relay's own
//! task: no task, channel or buffer of its own stands between the model server's socket and the client's
//! stream. Connections of HTTP/1.1 (`http1.rs`) are kept by the worker that opened them (`pool.rs`); HTTP/2 ones
//! (`http2.rs`) are shared by its streams.
//!
//! Dropping an [`Answer`] or the future of [`open`] closes the request at once.

mod addresses;
mod connect;
mod fetch;
mod http1;
mod http2;
mod pool;
pub mod warm;

use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use bytes::Bytes;
use headrace_core::complete::{self, Incomplete, Stop};
use headrace_core::fields::BodyLength;
use headrace_core::{Error, Kind};
use http::{HeaderMap, Method, StatusCode};

use crate::config::UpstreamConfig;
use connect::Io;
pub use connect::Tls;
pub use fetch::{Fetched, fetch};
use http1::Http1Body;
use pool::Pool;
use warm::{Demand, InFlight};

/// Which protocol a model server is spoken to in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum UpstreamProtocol {
    /// What ALPN says over TLS, and HTTP/1.1 without TLS.
    Auto,
    Http1,
    Http2,
}

/// Where a model server is; connections are pooled by it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Target {
    pub is_tls: bool,
    pub host: String,
    pub port: u16,
    pub protocol: UpstreamProtocol,
}

impl Target {
    /// What goes into `Host` and `:authority`.
    pub fn authority(&self) -> String {
        let host = if self.host.contains(':') { format!("[{}]", self.host) } else { self.host.clone() };
        match (self.is_tls, self.port) {
            (true, 443) | (false, 80) => host,
            (_, port) => format!("{host}:{port}"),
        }
    }
}

/// A request without its body.
#[derive(Clone, Debug)]
pub struct UpstreamRequest {
    pub target: Target,
    pub method: Method,
    /// Path and query.
    pub path: String,
    pub headers: HeaderMap,
    pub connect_timeout: Duration,
    /// The longest time from the request's last byte to the answer's head.
    pub head_timeout: Duration,
}

/// An answer that has begun.
pub struct Answer {
    pub status: StatusCode,
    pub headers: HeaderMap,
    pub body: AnswerBody,
    /// The connection was there before the request.
    pub is_reused: bool,
}

pub enum AnswerBody {
    Http1(Box<Http1Body>),
    Http2(Box<http2::Body>),
}

/// What one poll of a body came to.
#[derive(Debug)]
pub enum Progress {
    /// Some bytes were handed over.
    Data,
    /// Nothing more will come.
    Stopped(Box<Stopped>),
}

/// How a body stopped. Whether it is complete is not said here, but by [`Stopped::judge`].
#[derive(Debug)]
pub struct Stopped {
    stop: Stop,
    length: BodyLength,
    trailers: Option<HeaderMap>,
    /// What was seen, where it was not an end.
    seen: String,
}

impl Stopped {
    /// The trailers of a body that is complete. `is_inside_event`: its last event has begun and not ended.
    ///
    /// # Errors
    /// [`Kind::UpstreamClosed`] or [`Kind::UpstreamProtocol`], when it is not.
    pub fn judge(self, is_inside_event: bool) -> Result<Option<HeaderMap>, Error> {
        match complete::check(self.stop, &self.length, is_inside_event) {
            Ok(()) => Ok(self.trailers),
            Err(what @ Incomplete::WrongLength) => Err(Error::new(Kind::UpstreamProtocol, what.to_string())),
            Err(what) if self.seen.is_empty() => Err(Error::new(Kind::UpstreamClosed, what.to_string())),
            Err(what) => Err(Error::new(Kind::UpstreamClosed, format!("{what}: {}", self.seen))),
        }
    }
}

/// One worker's connections to model servers, and what it needs to make more.
pub struct Upstreams {
    worker: usize,
    limits: Arc<UpstreamConfig>,
    tls: Tls,
    pool: Pool,
    http2: http2::Connections,
    /// What all workers ask of each model server.
    demand: Arc<Demand>,
}

impl Upstreams {
    pub fn new(worker: usize, limits: Arc<UpstreamConfig>, tls: Tls, demand: Arc<Demand>) -> Self {
        let pool = Pool::new(limits.pool_idle_per_upstream, limits.pool_idle_s);
        Self { worker, limits, tls, pool, http2: http2::Connections::default(), demand }
    }

    /// Counts a request from now on, until what is returned is dropped.
    pub fn begin(&self, request: &UpstreamRequest) -> InFlight {
        self.demand.begin(&request.target, request.connect_timeout, self.worker, Instant::now())
    }

    /// How many idle connections of HTTP/1.1 there are.
    pub fn pooled(&self) -> usize {
        self.pool.len()
    }
}

/// Why an attempt brought no answer.
enum Failure {
    /// The connection took no request: nothing of it was sent.
    NotSent(Error),
    /// It was sent, and the protocol proves that the model server processed nothing of it.
    Unprocessed(Error),
    Final(Error),
}

/// A connection that can take a request.
enum Connection {
    Http1(Io),
    Http2(http2::Sender),
}

/// Sends a request; resolves with the head of its answer. `runs`: is counted up each time that it is sent.
///
/// It is sent once; a second time, on a new connection, only after a failure which proves that nothing of it was
/// processed (RFC 9110 §9.2.2, RFC 9113 §8.7). More than that is up to whoever asked.
///
/// # Errors
/// Errors of [`headrace_core::Side::Upstream`], and [`Kind::Overloaded`] where this machine lacks what a connection
/// needs; always before anything was answered.
pub async fn open(
    upstreams: &Upstreams,
    request: &UpstreamRequest,
    body: &Bytes,
    runs: &mut u32,
) -> Result<Answer, Error> {
    let mut ready = upstreams.take_ready(&request.target);
    let mut has_repeated = false;
    loop {
        let is_reused = ready.is_some();
        let connection = match ready.take() {
            Some(connection) => connection,
            None => upstreams.connect(&request.target, request.connect_timeout).await?,
        };
        *runs += 1;
        match attempt(&upstreams.limits, connection, request, body, is_reused).await {
            Ok(answer) => return Ok(answer),
            Err(Failure::NotSent(error)) => {
                *runs -= 1;
                if !is_reused {
                    return Err(error);
                }
            }
            Err(Failure::Unprocessed(_)) if !has_repeated => has_repeated = true,
            Err(Failure::Unprocessed(error) | Failure::Final(error)) => return Err(error),
        }
    }
}

async fn attempt(
    limits: &UpstreamConfig,
    connection: Connection,
    request: &UpstreamRequest,
    body: &Bytes,
    is_reused: bool,
) -> Result<Answer, Failure> {
    match connection {
        Connection::Http1(io) => http1::exchange_heads(limits, io, request, body, is_reused).await,
        Connection::Http2(sender) => http2::send(limits, sender, request, body, is_reused).await,
    }
}

/// Whether a request says how long its body is, also when it is empty (RFC 9110 §8.6).
fn has_body(method: &Method, body: &Bytes) -> bool {
    !body.is_empty() || method == Method::POST || method == Method::PUT
}

impl Upstreams {
    /// A connection that is there already.
    fn take_ready(&self, target: &Target) -> Option<Connection> {
        let http2 = self.http2.get(target).map(Connection::Http2);
        http2.or_else(|| self.pool.take(target).map(Connection::Http1))
    }

    /// A new connection; one of HTTP/2 is found by later requests, too.
    async fn connect(&self, target: &Target, time: Duration) -> Result<Connection, Error> {
        let (io, is_http2) = connect::connect_within(&self.tls, target, time).await?;
        if !is_http2 {
            return Ok(Connection::Http1(io));
        }
        let sender = http2::connect(&self.limits, io).await?;
        self.http2.put(target.clone(), sender.clone());
        Ok(Connection::Http2(sender))
    }
}

/// Opens `count` connections to have them ready, or one, where the model server speaks HTTP/2.
pub async fn connect_ahead(upstreams: &Upstreams, target: &Target, connect_timeout: Duration, count: usize) {
    for _ in 0..count {
        if upstreams.http2.get(target).is_some() {
            return;
        }
        match upstreams.connect(target, connect_timeout).await {
            Ok(Connection::Http1(io)) => upstreams.pool.put(target.clone(), io),
            // One carries many requests; and why there is none, the next request will say.
            Ok(Connection::Http2(_)) | Err(_) => return,
        }
    }
}

impl AnswerBody {
    /// Reads once; calls `emit` for each run of body bytes that came.
    pub fn poll(&mut self, cx: &mut Context<'_>, emit: impl FnMut(&[u8])) -> Poll<Result<Progress, Error>> {
        match self {
            AnswerBody::Http1(body) => body.poll(cx, emit),
            AnswerBody::Http2(body) => body.poll(cx, emit),
        }
    }

    /// Gives the connection back after a body that has ended, if its framing allows.
    pub fn pool(self, upstreams: &Upstreams, target: &Target) {
        if let AnswerBody::Http1(body) = self
            && let Some(io) = body.into_reusable()
        {
            upstreams.pool.put(target.clone(), io);
        }
    }
}
