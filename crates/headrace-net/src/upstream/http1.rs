//! Requests to model servers over HTTP/1.1.
//!
//! In: a connection and a request with its whole body. Out: the answer's head, and a body that is polled. What
//! the bytes mean is decided in `headrace-core/http1`.

use std::cell::RefCell;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::{Bytes, BytesMut};
use headrace_core::complete::Stop;
use headrace_core::fields::BodyLength;
use headrace_core::http1::{self, HeadLimits, HeadReader};
use headrace_core::{Error, Kind};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt, ReadBuf};
use tokio::time::{Instant, timeout_at};

use crate::config::UpstreamConfig;
use crate::upstream::connect::Io;
use crate::upstream::{Answer, AnswerBody, Failure, Progress, Stopped, UpstreamRequest, has_body};

/// How many bytes are read from a model server at once.
const READ_BYTES: usize = 64 * 1024;

thread_local! {
    /// A worker reads every upstream into the same buffer, and has handled the bytes before the next read: an
    /// open stream costs no read buffer.
    static SCRATCH: RefCell<Box<[u8]>> = RefCell::new(vec![0; READ_BYTES].into());
}

/// Writes the request and reads the answer's head, over HTTP/1.1.
pub async fn exchange_heads(
    limits: &UpstreamConfig,
    mut io: Io,
    request: &UpstreamRequest,
    body: &Bytes,
    is_reused: bool,
) -> Result<Answer, Failure> {
    let has_body = has_body(&request.method, body);
    let head = http1::encode_request(
        &request.method,
        &request.path,
        &request.target.authority(),
        &request.headers,
        has_body.then_some(body.len() as u64),
    );
    let acknowledged = if is_reused { io.acknowledged() } else { None };
    let deadline = Instant::now() + request.head_timeout;
    let head_limits = HeadLimits { bytes: limits.max_head_bytes, fields: limits.max_fields };
    let reader = HeadReader::new(request.method.clone(), head_limits);
    let read = write_and_read_head(&mut io, &head, body, reader);
    let late = Err(HeadFailure::Other(Kind::UpstreamHeadTimeout.into()));
    let (head, first, is_written) =
        timeout_at(deadline, read).await.unwrap_or(late).map_err(|failure| match failure {
            // An idle connection that the model server had closed when the request came: its system has acknowledged
            // none of it, and RFC 9110 §9.2.2 allows to send it once more.
            HeadFailure::Closed if acknowledged.is_some() && io.acknowledged() == acknowledged => {
                Failure::Unprocessed(Kind::UpstreamClosed.into())
            }
            HeadFailure::Closed => Failure::Final(Kind::UpstreamClosed.into()),
            HeadFailure::Other(error) => Failure::Final(error),
        })?;
    let is_reusable = head.is_reusable && is_written;
    let body = Http1Body { io, body: head.body, first, is_reusable };
    Ok(Answer {
        status: head.status,
        headers: head.headers,
        body: AnswerBody::Http1(Box::new(body)),
        is_reused,
    })
}

/// Why there is no head.
enum HeadFailure {
    /// The connection was closed, in order, before a byte of an answer came.
    Closed,
    Other(Error),
}

/// Writes and reads at once: an early answer (413, say) may come while the model server reads no further.
/// Resolves with the head, what came behind it, and whether the request was written to its end.
async fn write_and_read_head(
    io: &mut Io,
    head: &Bytes,
    body: &Bytes,
    mut head_reader: HeadReader,
) -> Result<(http1::Head, Bytes, bool), HeadFailure> {
    let (mut reader, mut writer) = tokio::io::split(io);
    let write = async {
        // One segment, where one is enough.
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
    let mut has_begun = false;
    loop {
        let read = tokio::select! {
            biased;
            result = &mut write, if written.is_none() => {
                written = Some(result);
                continue;
            }
            read = reader.read_buf(&mut buffer) => read,
        };
        match read {
            Ok(1..) => has_begun = true,
            _ if has_begun => return Err(HeadFailure::Other(Kind::UpstreamClosed.into())),
            Ok(0) => return Err(HeadFailure::Closed),
            // A reset that follows the other side's FIN.
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => return Err(HeadFailure::Closed),
            Err(error) => {
                return Err(HeadFailure::Other(Error::new(Kind::UpstreamClosed, error.to_string())));
            }
        }
        let found = head_reader
            .handle_data(&mut buffer)
            .map_err(|error| HeadFailure::Other(Error::new(Kind::UpstreamProtocol, error.0)))?;
        if let Some(head) = found {
            return Ok((head, buffer.freeze(), matches!(written, Some(Ok(())))));
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
    pub fn poll(
        &mut self,
        cx: &mut Context<'_>,
        mut emit: impl FnMut(&[u8]),
    ) -> Poll<Result<Progress, Error>> {
        let broken = |error: http1::ProtocolError| Error::new(Kind::UpstreamProtocol, error.0);
        if !self.first.is_empty() {
            let first = std::mem::take(&mut self.first);
            let used = self.body.handle_data(&first, &mut emit).map_err(broken)?;
            self.is_reusable &= used == first.len();
            return Poll::Ready(Ok(Progress::Data));
        }
        if self.body.is_ended() {
            return Poll::Ready(Ok(self.stopped(Stop::Framed, String::new())));
        }
        SCRATCH.with_borrow_mut(|scratch| {
            let mut buffer = ReadBuf::new(scratch);
            match Pin::new(&mut self.io).poll_read(cx, &mut buffer) {
                Poll::Pending => Poll::Pending,
                Poll::Ready(Ok(())) if !buffer.filled().is_empty() => {
                    let bytes = buffer.filled();
                    let used = self.body.handle_data(bytes, emit).map_err(broken)?;
                    self.is_reusable &= used == bytes.len();
                    match self.body.is_ended() {
                        true => Poll::Ready(Ok(self.stopped(Stop::Framed, String::new()))),
                        false => Poll::Ready(Ok(Progress::Data)),
                    }
                }
                Poll::Ready(Ok(())) => {
                    Poll::Ready(Ok(self.stopped(self.body.stop_at_close(), String::new())))
                }
                Poll::Ready(Err(error)) => Poll::Ready(Ok(self.stopped(Stop::Broken, error.to_string()))),
            }
        })
    }

    /// The reader holds the body to the length that was announced.
    fn stopped(&mut self, stop: Stop, seen: String) -> Progress {
        let (length, trailers) = (BodyLength::new(None), self.body.take_trailers());
        Progress::Stopped(Box::new(Stopped { stop, length, trailers, seen }))
    }

    /// The connection, after a body that has ended, if its framing allows another request.
    pub fn into_reusable(self) -> Option<Io> {
        (self.is_reusable && self.body.is_ended()).then_some(self.io)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use http::HeaderMap;
    use tokio::net::{TcpListener, TcpStream};

    use super::*;
    use crate::upstream::{Target, UpstreamProtocol};

    fn request() -> UpstreamRequest {
        let protocol = UpstreamProtocol::Http1;
        let target = Target { is_tls: false, host: "model".to_owned(), port: 80, protocol };
        UpstreamRequest {
            target,
            method: http::Method::POST,
            path: "/".to_owned(),
            headers: HeaderMap::new(),
            connect_timeout: Duration::from_secs(5),
            head_timeout: Duration::from_secs(5),
        }
    }

    fn limits() -> UpstreamConfig {
        UpstreamConfig {
            ca_pem: String::new(),
            max_head_bytes: 4096,
            max_fields: 20,
            pool_idle_per_upstream: 1,
            pool_idle_s: Duration::from_secs(4),
            pool_warm_s: Duration::ZERO,
        }
    }

    /// A connection, and the model server's end of it.
    async fn pair() -> (Io, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (ours, theirs) =
            tokio::join!(TcpStream::connect(listener.local_addr().unwrap()), listener.accept());
        (Io::Plain(ours.unwrap()), theirs.unwrap().0)
    }

    async fn failure(io: Io, is_reused: bool) -> Failure {
        let body = Bytes::from_static(b"{}");
        exchange_heads(&limits(), io, &request(), &body, is_reused).await.err().unwrap()
    }

    #[tokio::test]
    async fn what_came_behind_the_other_sides_end_was_not_processed() {
        for _ in 0..20 {
            let (io, theirs) = pair().await;
            drop(theirs);
            assert!(matches!(failure(io, true).await, Failure::Unprocessed(_)));
            // Of a connection that was not idle nothing is proven by that.
            let (io, theirs) = pair().await;
            drop(theirs);
            assert!(matches!(failure(io, false).await, Failure::Final(_)));
        }
    }

    /// However soon it ends, by FIN or by a reset, whether it has read the request or not: it had it.
    #[tokio::test]
    async fn what_the_other_side_had_may_have_been_processed() {
        for ends_by_reset in [false, true] {
            for reads in [false, true] {
                let (io, theirs) = pair().await;
                let ends = async {
                    theirs.readable().await.unwrap();
                    if reads {
                        let _ = theirs.try_read(&mut [0; 4096]);
                    }
                    if ends_by_reset {
                        socket2::SockRef::from(&theirs).set_linger(Some(Duration::ZERO)).unwrap();
                    }
                    drop(theirs);
                };
                let (failure, ()) = tokio::join!(failure(io, true), ends);
                assert!(matches!(failure, Failure::Final(_)), "reset {ends_by_reset}, read {reads}");
            }
        }
    }
}
