//! Requests to model servers over HTTP/1.1.
//!
//! In: a connection and a request with its whole body. Out: the answer's head, and a body that is polled. What
//! the bytes mean is decided in `headrace-core/http1`.

use std::cell::RefCell;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::{Buf, Bytes, BytesMut};
use headrace_core::http1;
use headrace_core::{Error, Kind};
use http::{Method, StatusCode};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt, ReadBuf};
use tokio::time::{Instant, timeout_at};

use crate::config::UpstreamConfig;
use crate::upstream::connect::Io;
use crate::upstream::{Answer, AnswerBody, Progress, UpstreamRequest};

/// How many bytes are read from a model server at once.
const READ_BYTES: usize = 64 * 1024;

thread_local! {
    /// A worker reads every upstream into the same buffer, and has handled the bytes before the next read: an
    /// open stream costs no read buffer.
    static SCRATCH: RefCell<Box<[u8]>> = RefCell::new(vec![0; READ_BYTES].into());
}

/// Why there is no answer.
pub enum Failure {
    /// The connection ended before a byte of the answer came.
    BeforeAnyByte,
    Final(Error),
}

/// Writes the request and reads the answer's head, over HTTP/1.1.
pub async fn exchange_heads(
    limits: &UpstreamConfig,
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
    let max_head_bytes = limits.max_head_bytes;
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

    /// The connection, after a body that has ended, if its framing allows another request.
    pub fn into_reusable(self) -> Option<Io> {
        (self.is_reusable && self.body.is_ended()).then_some(self.io)
    }
}
