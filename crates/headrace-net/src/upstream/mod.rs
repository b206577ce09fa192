//! Requests to model servers.
//!
//! In: a request with its whole body. Out: the answer's head, and a body to be polled inside the relay's own
//! task: no task, channel or buffer of its own stands between the model server's socket and the client's
//! stream. Connections of HTTP/1.1 (`http1.rs`) are kept by the worker that opened them (`pool.rs`); HTTP/2 ones
//! (`http2.rs`) are shared by its streams.
//!
//! Dropping an [`Answer`] or the future of [`open`] closes the request at once.

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
use headrace_core::{Error, Kind};
use http::{HeaderMap, Method, StatusCode};

use crate::config::UpstreamConfig;
pub use connect::Tls;
pub use fetch::{Fetched, fetch};
use http1::{Failure, Http1Body};
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
    Http2(http2::Body),
}

/// What one poll of a body came to.
#[derive(Debug)]
pub enum Progress {
    /// Some bytes were handed over.
    Data,
    /// The body ended as its framing says; its trailers, if any.
    End(Option<HeaderMap>),
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

/// Sends a request; resolves with the head of its answer.
///
/// # Errors
/// Errors of [`headrace_core::Side::Upstream`]; nothing was answered then.
pub async fn open(upstreams: &Upstreams, request: &UpstreamRequest, body: &Bytes) -> Result<Answer, Error> {
    if let Some(answer) = http2::open_pooled(upstreams, request, body).await {
        return answer;
    }
    let limits = &upstreams.limits;
    while let Some(io) = upstreams.pool.take(&request.target) {
        match http1::exchange_heads(limits, io, request, body, true).await {
            // The model server had closed the idle connection meanwhile, which is not a failure.
            Err(Failure::BeforeAnyByte) => {}
            Err(Failure::Final(error)) => return Err(error),
            Ok(answer) => return Ok(answer),
        }
    }
    let (io, is_http2) =
        connect::connect_within(&upstreams.tls, &request.target, request.connect_timeout).await?;
    if is_http2 {
        return http2::open_new(upstreams, io, request, body).await;
    }
    http1::exchange_heads(limits, io, request, body, false).await.map_err(|failure| match failure {
        Failure::BeforeAnyByte => Kind::UpstreamClosed.into(),
        Failure::Final(error) => error,
    })
}

/// Opens `count` connections to have them ready, or one, where the model server speaks HTTP/2.
pub async fn connect_ahead(upstreams: &Upstreams, target: &Target, connect_timeout: Duration, count: usize) {
    for _ in 0..count {
        if upstreams.http2.is_open(target) {
            return;
        }
        match connect::connect_within(&upstreams.tls, target, connect_timeout).await {
            Ok((io, true)) => _ = http2::connect(upstreams, io, target).await,
            Ok((io, false)) => upstreams.pool.put(target.clone(), io),
            // The next request will say why.
            Err(_) => return,
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
