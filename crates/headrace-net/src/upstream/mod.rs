//! Requests to model servers.
//!
//! In: a request with its whole body. Out: the answer's head, and a body to be polled inside the relay's own
//! task: no task, channel or buffer of its own stands between the model server's socket and the client's
//! stream. Connections of HTTP/1.1 are kept by the worker that opened them; HTTP/2 ones (`upstream/http2.rs`)
//! are shared by its streams.
//!
//! Dropping an [`Answer`] or the future of [`open`] closes the request at once.

pub mod http2;
pub mod pool;
pub mod warm;

use std::cell::RefCell;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::{Buf, Bytes, BytesMut};
use headrace_core::http1;
use headrace_core::{Error, Kind};
use http::{HeaderMap, Method, StatusCode};
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout_at};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use crate::server::Worker;

/// Bytes read from a model server at once.
const READ_BYTES: usize = 64 * 1024;

thread_local! {
    /// A worker reads every upstream into the same buffer, and has handled the bytes before the next read: an
    /// open stream costs no read buffer.
    static SCRATCH: RefCell<Box<[u8]>> = RefCell::new(vec![0; READ_BYTES].into());
}

/// Which protocol a model server is spoken to in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum UpstreamProtocol {
    /// What ALPN says over TLS, HTTP/1.1 without.
    Auto,
    Http1,
    Http2,
}

/// Where a model server is; what connections are pooled by.
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
    /// From the request's last byte to the answer's head.
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

/// Sends a request; resolves with the head of its answer.
///
/// # Errors
/// Of side [`headrace_core::Side::Upstream`], before anything was answered.
pub async fn open(worker: &Worker, request: &UpstreamRequest, body: &Bytes) -> Result<Answer, Error> {
    if let Some(answer) = http2::open_pooled(worker, request, body).await {
        return answer;
    }
    while let Some(io) = worker.pool.take(&request.target) {
        match exchange_heads(worker, io, request, body, true).await {
            // The model server had closed the idle connection meanwhile: that is nobody's failure.
            Err(Failure::BeforeAnyByte) => {}
            Err(Failure::Final(error)) => return Err(error),
            Ok(answer) => return Ok(answer),
        }
    }
    let (io, is_http2) = connect_within(worker, &request.target, request.connect_timeout).await?;
    if is_http2 {
        return http2::open_new(worker, io, request, body).await;
    }
    exchange_heads(worker, io, request, body, false).await.map_err(|failure| match failure {
        Failure::BeforeAnyByte => Kind::UpstreamClosed.into(),
        Failure::Final(error) => error,
    })
}

enum Failure {
    /// The connection ended before a byte of the answer came.
    BeforeAnyByte,
    Final(Error),
}

/// Opens `count` connections to have them ready; one, where it speaks HTTP/2.
pub async fn warm(worker: &Worker, target: &Target, connect_timeout: Duration, count: usize) {
    for _ in 0..count {
        if worker.http2.is_open(target) {
            return;
        }
        match connect_within(worker, target, connect_timeout).await {
            Ok((io, true)) => _ = http2::connect(worker, io, target).await,
            Ok((io, false)) => worker.pool.put(target.clone(), io),
            // The next request will say why.
            Err(_) => return,
        }
    }
}

async fn connect_within(worker: &Worker, target: &Target, time: Duration) -> Result<(Io, bool), Error> {
    let connected = timeout_at(Instant::now() + time, connect(worker, target)).await;
    connected.unwrap_or_else(|_| Err(Kind::UpstreamConnectTimeout.into()))
}

async fn connect(worker: &Worker, target: &Target) -> Result<(Io, bool), Error> {
    let name = format!("{}:{}", target.host, target.port);
    let addresses = tokio::net::lookup_host((target.host.as_str(), target.port))
        .await
        .map_err(|error| Error::new(Kind::UpstreamResolve, format!("{name}: {error}")))?;
    let mut last = Error::new(Kind::UpstreamResolve, format!("{name}: no address"));
    for address in addresses {
        match connect_to(address).await {
            Ok(stream) if target.is_tls => return handshake(worker, stream, target).await,
            Ok(stream) => return Ok((Io::Plain(stream), target.protocol == UpstreamProtocol::Http2)),
            Err(error) => last = Error::new(Kind::UpstreamConnect, format!("{name}: {error}")),
        }
    }
    Err(last)
}

async fn connect_to(address: SocketAddr) -> io::Result<TcpStream> {
    let stream = TcpStream::connect(address).await?;
    stream.set_nodelay(true)?;
    Ok(stream)
}

async fn handshake(worker: &Worker, stream: TcpStream, target: &Target) -> Result<(Io, bool), Error> {
    let failed = |detail: String| Error::new(Kind::UpstreamTls, format!("{}: {detail}", target.host));
    let name = ServerName::try_from(target.host.clone()).map_err(|error| failed(error.to_string()))?;
    let config = match target.protocol {
        UpstreamProtocol::Auto => worker.upstream_tls.auto.clone(),
        UpstreamProtocol::Http1 => worker.upstream_tls.http1.clone(),
        UpstreamProtocol::Http2 => worker.upstream_tls.http2.clone(),
    };
    let stream =
        TlsConnector::from(config).connect(name, stream).await.map_err(|error| failed(error.to_string()))?;
    let is_http2 = stream.get_ref().1.alpn_protocol() == Some(b"h2");
    if target.protocol == UpstreamProtocol::Http2 && !is_http2 {
        return Err(failed("it does not speak HTTP/2".to_owned()));
    }
    Ok((Io::Tls(Box::new(stream)), is_http2))
}

/// Writes the request and reads the answer's head, over HTTP/1.1.
async fn exchange_heads(
    worker: &Worker,
    mut io: Io,
    request: &UpstreamRequest,
    body: &Bytes,
    is_reused: bool,
) -> Result<Answer, Failure> {
    let has_body = !body.is_empty() || request.method == Method::POST || request.method == Method::PUT;
    let head = http1::encode_request(
        &request.method,
        &request.path,
        &request.target.authority(),
        &request.headers,
        has_body.then_some(body.len() as u64),
    );
    let deadline = Instant::now() + request.head_timeout;
    let max_head_bytes = worker.config.upstream.max_head_bytes;
    let read = write_and_read_head(&mut io, &head, body, &request.method, max_head_bytes);
    let late = Err(Failure::Final(Kind::UpstreamHeadTimeout.into()));
    let (head, first, is_written) = timeout_at(deadline, read).await.unwrap_or(late)?;
    let is_reusable = head.is_reusable && is_written;
    let body = AnswerBody::Http1(Box::new(Http1Body { io, body: head.body, first, is_reusable }));
    Ok(Answer { status: head.status, headers: head.headers, body, is_reused })
}

/// Writes and reads at once: an early answer (413, say) may come while the model server reads no further.
/// Resolves with the head, what came behind it, and whether the request was written to its end.
async fn write_and_read_head(
    io: &mut Io,
    head: &Bytes,
    body: &Bytes,
    method: &Method,
    max_head_bytes: usize,
) -> Result<(http1::Head, Bytes, bool), Failure> {
    let (mut reader, mut writer) = tokio::io::split(io);
    let write = async {
        // One segment where one is enough.
        if body.len() < 16 * 1024 {
            writer.write_all(&[head.as_ref(), body.as_ref()].concat()).await?;
        } else {
            writer.write_all(head).await?;
            writer.write_all(body).await?;
        }
        writer.flush().await
    };
    tokio::pin!(write);
    let mut written = None;
    let mut buffer = BytesMut::with_capacity(4 * 1024);
    loop {
        match http1::decode_head(&buffer, method, max_head_bytes) {
            Err(error) => return Err(Failure::Final(Error::new(Kind::UpstreamProtocol, error.0))),
            Ok(Some((head, _))) if head.status == StatusCode::SWITCHING_PROTOCOLS => {
                let error = Error::new(Kind::UpstreamProtocol, "it switches protocols unasked");
                return Err(Failure::Final(error));
            }
            Ok(Some((head, length))) => {
                buffer.advance(length);
                if !head.status.is_informational() {
                    return Ok((head, buffer.freeze(), matches!(written, Some(Ok(())))));
                }
                continue;
            }
            Ok(None) => {}
        }
        let read = tokio::select! {
            biased;
            result = &mut write, if written.is_none() => {
                written = Some(result);
                continue;
            }
            read = reader.read_buf(&mut buffer) => read,
        };
        match read {
            Ok(1..) => {}
            _ if !buffer.is_empty() => return Err(Failure::Final(Kind::UpstreamClosed.into())),
            _ => return Err(Failure::BeforeAnyByte),
        }
    }
}

/// A body read over HTTP/1.1.
pub struct Http1Body {
    io: Io,
    body: http1::Body,
    /// What came with the head.
    first: Bytes,
    is_reusable: bool,
}

impl Http1Body {
    fn poll(&mut self, cx: &mut Context<'_>, mut emit: impl FnMut(&[u8])) -> Poll<Result<Progress, Error>> {
        let broken = |error: http1::ProtocolError| Error::new(Kind::UpstreamProtocol, error.0);
        if !self.first.is_empty() {
            let first = std::mem::take(&mut self.first);
            let used = self.body.handle_data(&first, &mut emit).map_err(broken)?;
            self.is_reusable &= used == first.len();
            return Poll::Ready(Ok(Progress::Data));
        }
        if self.body.is_ended() {
            return Poll::Ready(Ok(Progress::End(self.body.poll_trailers())));
        }
        SCRATCH.with_borrow_mut(|scratch| {
            let mut buffer = ReadBuf::new(scratch);
            match Pin::new(&mut self.io).poll_read(cx, &mut buffer) {
                Poll::Pending => Poll::Pending,
                Poll::Ready(Ok(())) if !buffer.filled().is_empty() => {
                    let bytes = buffer.filled();
                    let used = self.body.handle_data(bytes, emit).map_err(broken)?;
                    self.is_reusable &= used == bytes.len();
                    if self.body.is_ended() {
                        return Poll::Ready(Ok(Progress::End(self.body.poll_trailers())));
                    }
                    Poll::Ready(Ok(Progress::Data))
                }
                Poll::Ready(Ok(())) if self.body.may_end_at_close() => Poll::Ready(Ok(Progress::End(None))),
                Poll::Ready(Ok(())) => Poll::Ready(Err(Kind::UpstreamClosed.into())),
                Poll::Ready(Err(error)) => {
                    Poll::Ready(Err(Error::new(Kind::UpstreamClosed, error.to_string())))
                }
            }
        })
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
    pub fn pool(self, worker: &Worker, target: &Target) {
        if let AnswerBody::Http1(body) = self
            && body.is_reusable
            && body.body.is_ended()
        {
            worker.pool.put(target.clone(), body.io);
        }
    }
}

/// A connection to a model server.
pub enum Io {
    Plain(TcpStream),
    Tls(Box<TlsStream<TcpStream>>),
}

impl Io {
    /// Whether an idle connection can carry another request: nothing has come, and it is not closed.
    pub fn is_alive(&mut self) -> bool {
        let mut byte = [0];
        let mut context = Context::from_waker(std::task::Waker::noop());
        Pin::new(self).poll_read(&mut context, &mut ReadBuf::new(&mut byte)).is_pending()
    }
}

impl AsyncRead for Io {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Io::Plain(stream) => Pin::new(stream).poll_read(cx, buffer),
            Io::Tls(stream) => Pin::new(stream).poll_read(cx, buffer),
        }
    }
}

impl AsyncWrite for Io {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Io::Plain(stream) => Pin::new(stream).poll_write(cx, bytes),
            Io::Tls(stream) => Pin::new(stream).poll_write(cx, bytes),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Io::Plain(stream) => Pin::new(stream).poll_flush(cx),
            Io::Tls(stream) => Pin::new(stream).poll_flush(cx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Io::Plain(stream) => Pin::new(stream).poll_shutdown(cx),
            Io::Tls(stream) => Pin::new(stream).poll_shutdown(cx),
        }
    }
}
