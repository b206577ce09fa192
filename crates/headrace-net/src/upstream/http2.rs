//! Requests to model servers over HTTP/2, by h2.
//!
//! In: a request with its whole body. Out: the answer's head and a body to be polled. One connection per
//! target and worker carries all streams; dropping a body resets its stream alone.

use std::collections::HashMap;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use h2::client::{ResponseFuture, SendRequest};
use h2::{Ping, PingPong, Reason, RecvStream, SendStream};
use headrace_core::complete::Stop;
use headrace_core::fields::{self, BodyLength};
use headrace_core::http1::MAX_INTERIM;
use headrace_core::{Error, Kind};
use http::{HeaderMap, Method, Request, Response, StatusCode, Uri, header};
use tokio::sync::Notify;
use tokio::time::{Instant, interval_at, timeout, timeout_at};

use crate::config::UpstreamConfig;
use crate::upstream::connect::Io;
use crate::upstream::{Answer, AnswerBody, Failure, Progress, Stopped, Target, UpstreamRequest, has_body};

/// A connection's window must be wide: h2 counts many small unread DATA frames against it.
const CONNECTION_WINDOW: u32 = 4 * 1024 * 1024;
/// What one stream may have unread: a paused relay stops its model server after this much.
const STREAM_WINDOW: u32 = 64 * 1024;
/// How long a model server may take to answer a PING.
const PONG_TIMEOUT: Duration = Duration::from_secs(20);

/// Empty DATA frames of one answer: some servers end their answer by one, none needs more than a few.
const MAX_EMPTY_FRAMES: usize = 1000;

/// A connection that takes requests.
#[derive(Clone)]
pub struct Sender {
    requests: SendRequest<Bytes>,
    life: Arc<Life>,
}

/// Whether a connection takes requests, shared by those who use it and the task that drives it.
#[derive(Default)]
struct Life {
    is_closed: AtomicBool,
    streams: AtomicUsize,
    abuse: Notify,
}

impl Life {
    /// No more requests; those that run go on.
    fn close(&self) {
        self.is_closed.store(true, Ordering::Relaxed);
    }

    /// Ends the connection: a model server that floods one stream would go on after its reset.
    fn abort(&self) {
        self.close();
        self.abuse.notify_one();
    }
}

/// One stream of a connection, until it is dropped.
struct Running(Arc<Life>);

impl Running {
    fn begin(life: Arc<Life>) -> Self {
        life.streams.fetch_add(1, Ordering::Relaxed);
        Self(life)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.0.streams.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The HTTP/2 connections of one worker.
#[derive(Default)]
pub struct Connections(Mutex<HashMap<Target, Sender>>);

impl Connections {
    pub fn get(&self, target: &Target) -> Option<Sender> {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let found = all.get(target)?.clone();
        if found.life.is_closed.load(Ordering::Relaxed) {
            all.remove(target);
            return None;
        }
        Some(found)
    }

    /// Puts another connection into the place of the one before.
    pub fn put(&self, target: Target, sender: Sender) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(target, sender);
    }
}

/// Makes a connection of `io`.
///
/// # Errors
/// [`Kind::UpstreamProtocol`].
pub async fn connect(limits: &UpstreamConfig, io: Io) -> Result<Sender, Error> {
    let (requests, mut connection) = h2::client::Builder::new()
        .enable_push(false)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .initial_window_size(STREAM_WINDOW)
        .max_header_list_size(limits.max_head_bytes as u32)
        .handshake(io)
        .await
        .map_err(|error| Error::new(Kind::UpstreamProtocol, error.to_string()))?;
    let life = Arc::new(Life::default());
    let sender = Sender { requests, life: life.clone() };
    let pings = connection.ping_pong();
    let every = limits.pool_idle_s;
    tokio::spawn(async move {
        tokio::select! {
            // Each of its streams is told how it ended.
            _ = connection => {}
            () = keep_asking(pings, every, &life.streams) => {}
            () = life.abuse.notified() => {}
        }
        life.close();
    });
    Ok(sender)
}

/// Asks the model server (PING), while it has streams, whether it still lives; resolves when it does not say so in time.
async fn keep_asking(pings: Option<PingPong>, every: Duration, streams: &AtomicUsize) {
    let Some(mut pings) = pings else { return std::future::pending().await };
    let mut ticks = interval_at(Instant::now() + every, every);
    loop {
        ticks.tick().await;
        if streams.load(Ordering::Relaxed) > 0
            && !matches!(timeout(PONG_TIMEOUT, pings.ping(Ping::opaque())).await, Ok(Ok(_)))
        {
            return;
        }
    }
}

/// Sends a request, and reads the answer's head.
pub async fn send(
    limits: &UpstreamConfig,
    sender: Sender,
    request: &UpstreamRequest,
    body: &Bytes,
    is_reused: bool,
) -> Result<Answer, Failure> {
    let message = message(request, body).map_err(Failure::NotSent)?;
    let deadline = Instant::now() + request.head_timeout;
    let late = || Kind::UpstreamHeadTimeout.into();
    let ready = timeout_at(deadline, sender.requests.ready());
    let mut requests = match ready.await {
        Ok(Ok(requests)) => requests,
        Ok(Err(error)) => {
            // It takes no more requests: GOAWAY, or its end.
            sender.life.close();
            return Err(Failure::NotSent(Error::new(Kind::UpstreamClosed, error.to_string())));
        }
        Err(_) => return Err(Failure::NotSent(late())),
    };
    let running = Running::begin(sender.life);
    let (answer, stream) = requests
        .send_request(message, body.is_empty())
        .map_err(|error| Failure::NotSent(Error::new(Kind::UpstreamClosed, error.to_string())))?;
    let mut upload = Upload { stream, rest: body.clone(), is_over: body.is_empty() };
    let head = timeout_at(deadline, read_head(answer, &mut upload, &running.0)).await;
    let (head, incoming) = head.unwrap_or_else(|_| Err(Failure::Final(late())))?.into_parts();
    if head.headers.len() > limits.max_fields {
        return Err(Failure::Final(Error::new(
            Kind::UpstreamProtocol,
            "the answer's head has too many fields",
        )));
    }
    let length = announced(&request.method, head.status, &head.headers).map_err(Failure::Final)?;
    let body = Body { incoming, upload, length, running, empty_frames: 0, has_data_ended: false };
    let body = AnswerBody::Http2(Box::new(body));
    Ok(Answer { status: head.status, headers: head.headers, body, is_reused })
}

fn message(request: &UpstreamRequest, body: &Bytes) -> Result<Request<()>, Error> {
    let target = &request.target;
    let scheme = if target.is_tls { "https" } else { "http" };
    let uri: Uri = format!("{scheme}://{}{}", target.authority(), request.path).parse().map_err(|error| {
        Error::new(
            Kind::BadRequest,
            format!("the path cannot be sent on: {error}; it must be an absolute path (RFC 9110 §4)"),
        )
    })?;
    let mut message = Request::new(());
    *message.method_mut() = request.method.clone();
    *message.uri_mut() = uri;
    *message.headers_mut() = request.headers.clone();
    let headers = message.headers_mut();
    fields::strip_hop_by_hop(headers);
    headers.remove(header::HOST);
    headers.remove(header::CONTENT_LENGTH);
    if has_body(&request.method, body) {
        headers.insert(header::CONTENT_LENGTH, body.len().into());
    }
    Ok(message)
}

/// Reads the final head, while the request's body leaves.
async fn read_head(
    mut answer: ResponseFuture,
    upload: &mut Upload,
    life: &Life,
) -> Result<Response<RecvStream>, Failure> {
    let mut interim = 0;
    poll_fn(|cx| {
        upload.poll(cx);
        while let Poll::Ready(Some(head)) = answer.poll_informational(cx) {
            let head = head.map_err(failure)?;
            interim += 1;
            if head.status() == StatusCode::SWITCHING_PROTOCOLS || interim > MAX_INTERIM {
                life.abort();
                let why = "there are too many interim answers (1xx), or it switches protocols";
                return Poll::Ready(Err(Failure::Final(Error::new(Kind::UpstreamProtocol, why))));
            }
        }
        Pin::new(&mut answer).poll(cx).map_err(failure)
    })
    .await
}

/// What a stream's end means before the answer has a head. RFC 9113 §8.7: a stream that was refused, and those above
/// the last one that GOAWAY names, were not processed, and h2 ends no others with that frame.
fn failure(error: h2::Error) -> Failure {
    let is_refused = error.is_reset() && error.reason() == Some(Reason::REFUSED_STREAM);
    let is_unprocessed = error.is_remote() && (is_refused || error.is_go_away());
    let error = Error::new(Kind::UpstreamClosed, error.to_string());
    if is_unprocessed { Failure::Unprocessed(error) } else { Failure::Final(error) }
}

/// What the head announces of the body's length; nothing where there is to be no body.
fn announced(method: &Method, status: StatusCode, headers: &HeaderMap) -> Result<BodyLength, Error> {
    let has_none =
        method == Method::HEAD || status == StatusCode::NO_CONTENT || status == StatusCode::NOT_MODIFIED;
    let length = fields::content_length(headers)
        .map_err(|_| Error::new(Kind::UpstreamProtocol, "the answer's content-length is malformed"))?;
    Ok(BodyLength::new(length.filter(|_| !has_none)))
}

/// The request's body on its way, however early the answer comes.
struct Upload {
    stream: SendStream<Bytes>,
    rest: Bytes,
    is_over: bool,
}

impl Upload {
    /// Sends what the model server has room for. That it reads no further is told by the answer.
    fn poll(&mut self, cx: &mut Context<'_>) {
        while !self.is_over {
            self.stream.reserve_capacity(self.rest.len());
            let capacity = match self.stream.poll_capacity(cx) {
                Poll::Ready(Some(Ok(capacity))) => capacity,
                Poll::Ready(_) => {
                    self.is_over = true;
                    return;
                }
                Poll::Pending => return,
            };
            let piece = self.rest.split_to(capacity.min(self.rest.len()));
            self.is_over = self.rest.is_empty();
            if self.stream.send_data(piece, self.is_over).is_err() {
                self.is_over = true;
            }
        }
    }
}

/// A body read over HTTP/2.
pub struct Body {
    incoming: RecvStream,
    upload: Upload,
    length: BodyLength,
    running: Running,
    empty_frames: usize,
    has_data_ended: bool,
}

impl Body {
    pub fn poll(
        &mut self,
        cx: &mut Context<'_>,
        mut emit: impl FnMut(&[u8]),
    ) -> Poll<Result<Progress, Error>> {
        self.upload.poll(cx);
        if !self.has_data_ended {
            match self.incoming.poll_data(cx) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(Some(Ok(data))) => {
                    let _ = self.incoming.flow_control().release_capacity(data.len());
                    let _ = self.length.handle_data(data.len());
                    self.empty_frames += usize::from(data.is_empty());
                    if self.empty_frames > MAX_EMPTY_FRAMES {
                        self.running.0.abort();
                        let why = "there are too many empty DATA frames";
                        return Poll::Ready(Err(Error::new(Kind::UpstreamProtocol, why)));
                    }
                    emit(&data);
                    return Poll::Ready(Ok(Progress::Data));
                }
                Poll::Ready(Some(Err(error))) => return Poll::Ready(Ok(self.broken(&error))),
                Poll::Ready(None) => self.has_data_ended = true,
            }
        }
        match self.incoming.poll_trailers(cx) {
            Poll::Pending => Poll::Pending,
            Poll::Ready(Ok(trailers)) => Poll::Ready(Ok(self.ended(trailers))),
            Poll::Ready(Err(error)) => Poll::Ready(Ok(self.broken(&error))),
        }
    }

    /// By END_STREAM.
    fn ended(&self, mut trailers: Option<HeaderMap>) -> Progress {
        if let Some(trailers) = &mut trailers {
            fields::strip_trailers(trailers);
        }
        let trailers = trailers.filter(|trailers| !trailers.is_empty());
        let (stop, length) = (Stop::Framed, self.length);
        Progress::Stopped(Box::new(Stopped { stop, length, trailers, seen: String::new() }))
    }

    /// By anything else: RST_STREAM, GOAWAY, the connection's end. RST_STREAM after END_STREAM takes nothing back, and
    /// h2 does not tell it.
    fn broken(&self, error: &h2::Error) -> Progress {
        let (stop, length, seen) = (Stop::Broken, self.length, error.to_string());
        Progress::Stopped(Box::new(Stopped { stop, length, trailers: None, seen }))
    }
}
