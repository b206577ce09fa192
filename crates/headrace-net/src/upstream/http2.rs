//! Requests to model servers over HTTP/2, by hyper.
//!
//! In: a request with its whole body. Out: the answer's head and a body to be polled. One connection per
//! target and worker carries all streams; dropping a body resets its stream alone.

use std::collections::HashMap;
use std::pin::Pin;
use std::sync::{Mutex, PoisonError};
use std::task::{Context, Poll};

use bytes::Bytes;
use headrace_core::fields;
use headrace_core::{Error, Kind};
use http::{HeaderMap, Request, Uri};
use http_body::Body as _;
use hyper::body::Incoming;
use hyper::client::conn::http2::{self, SendRequest};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tokio::time::{Instant, timeout_at};

use crate::upstream::connect::Io;
use crate::upstream::{Answer, AnswerBody, Progress, Target, UpstreamRequest, Upstreams};

/// A connection's window must be wide: h2 counts many small unread DATA frames against it.
const CONNECTION_WINDOW: u32 = 4 * 1024 * 1024;
/// What one stream may have unread: a paused relay stops its model server after this much.
const STREAM_WINDOW: u32 = 64 * 1024;

/// The HTTP/2 connections of one worker.
#[derive(Default)]
pub struct Connections(Mutex<HashMap<Target, SendRequest<RequestBody>>>);

impl Connections {
    fn get(&self, target: &Target) -> Option<SendRequest<RequestBody>> {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let found = all.get(target)?.clone();
        if found.is_closed() {
            all.remove(target);
            return None;
        }
        Some(found)
    }

    pub fn is_open(&self, target: &Target) -> bool {
        self.get(target).is_some()
    }

    fn put(&self, target: Target, sender: SendRequest<RequestBody>) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(target, sender);
    }
}

/// Sends the request on an open connection; `None` when there is none.
pub async fn open_pooled(
    upstreams: &Upstreams,
    request: &UpstreamRequest,
    body: &Bytes,
) -> Option<Result<Answer, Error>> {
    let sender = upstreams.http2.get(&request.target)?;
    match send(sender, request, body, true).await {
        // The connection ended before the request was taken: a new one may do.
        Err(error) if error.kind == Kind::UpstreamConnect => None,
        result => Some(result),
    }
}

/// Makes a connection of `io`, and sends the request on it.
///
/// # Errors
/// Errors of [`headrace_core::Side::Upstream`].
pub async fn open_new(
    upstreams: &Upstreams,
    io: Io,
    request: &UpstreamRequest,
    body: &Bytes,
) -> Result<Answer, Error> {
    let sender = connect(upstreams, io, &request.target).await?;
    send(sender, request, body, false).await
}

/// Makes a connection of `io` that later requests find.
///
/// # Errors
/// [`Kind::UpstreamProtocol`].
pub async fn connect(
    upstreams: &Upstreams,
    io: Io,
    target: &Target,
) -> Result<SendRequest<RequestBody>, Error> {
    let (sender, connection) = http2::Builder::new(TokioExecutor::new())
        .timer(TokioTimer::new())
        .initial_connection_window_size(CONNECTION_WINDOW)
        .initial_stream_window_size(STREAM_WINDOW)
        .max_header_list_size(upstreams.limits.max_head_bytes as u32)
        .keep_alive_interval(upstreams.limits.pool_idle_s)
        .handshake(TokioIo::new(io))
        .await
        .map_err(|error| Error::new(Kind::UpstreamProtocol, error.to_string()))?;
    tokio::spawn(async move {
        // Each of its streams is told how it ended.
        let _ = connection.await;
    });
    upstreams.http2.put(target.clone(), sender.clone());
    Ok(sender)
}

async fn send(
    mut sender: SendRequest<RequestBody>,
    request: &UpstreamRequest,
    body: &Bytes,
    is_reused: bool,
) -> Result<Answer, Error> {
    let target = &request.target;
    let scheme = if target.is_tls { "https" } else { "http" };
    let uri: Uri = format!("{scheme}://{}{}", target.authority(), request.path).parse().map_err(|error| {
        Error::new(
            Kind::BadRequest,
            format!("the path cannot be sent on: {error}; it must be an absolute path (RFC 9110 §4)"),
        )
    })?;
    let mut message = Request::new(RequestBody(Some(body.clone()).filter(|body| !body.is_empty())));
    *message.method_mut() = request.method.clone();
    *message.uri_mut() = uri;
    *message.headers_mut() = request.headers.clone();
    fields::strip_hop_by_hop(message.headers_mut());
    message.headers_mut().remove(http::header::HOST);
    message.headers_mut().remove(http::header::CONTENT_LENGTH);
    let deadline = Instant::now() + request.head_timeout;
    let exchange = async {
        sender.ready().await.map_err(|error| Error::new(Kind::UpstreamConnect, error.to_string()))?;
        let answer = sender.send_request(message).await;
        answer.map_err(|error| Error::new(Kind::UpstreamClosed, error.to_string()))
    };
    let answer =
        timeout_at(deadline, exchange).await.unwrap_or_else(|_| Err(Kind::UpstreamHeadTimeout.into()))?;
    let (head, body) = answer.into_parts();
    let body = AnswerBody::Http2(Body { incoming: body, trailers: None });
    Ok(Answer { status: head.status, headers: head.headers, body, is_reused })
}

/// A body read over HTTP/2.
pub struct Body {
    incoming: Incoming,
    trailers: Option<HeaderMap>,
}

impl Body {
    pub fn poll(
        &mut self,
        cx: &mut Context<'_>,
        mut emit: impl FnMut(&[u8]),
    ) -> Poll<Result<Progress, Error>> {
        match Pin::new(&mut self.incoming).poll_frame(cx) {
            Poll::Pending => Poll::Pending,
            Poll::Ready(None) => Poll::Ready(Ok(Progress::End(self.trailers.take()))),
            Poll::Ready(Some(Ok(frame))) => {
                match frame.into_data() {
                    Ok(data) => emit(&data),
                    Err(frame) => self.trailers = frame.into_trailers().ok(),
                }
                Poll::Ready(Ok(Progress::Data))
            }
            Poll::Ready(Some(Err(error))) => {
                Poll::Ready(Err(Error::new(Kind::UpstreamClosed, error.to_string())))
            }
        }
    }
}

/// A request's body in one piece.
pub struct RequestBody(Option<Bytes>);

impl http_body::Body for RequestBody {
    type Data = Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<http_body::Frame<Bytes>, Self::Error>>> {
        Poll::Ready(self.0.take().map(|bytes| Ok(http_body::Frame::data(bytes))))
    }

    fn is_end_stream(&self) -> bool {
        self.0.is_none()
    }

    fn size_hint(&self) -> http_body::SizeHint {
        http_body::SizeHint::with_exact(self.0.as_ref().map_or(0, |bytes| bytes.len() as u64))
    }
}
