//! What is to be seen on a TCP connection beside what hyper and rustls make of it.
//!
//! In: the reads and writes of a connection. Out: that something came at all (below TLS); that the client's side has
//! ended, and that a client of HTTP/2 sends frames that move nothing on, or cancels requests, without end (above TLS):
//! then it is read no more, which ends the connection.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Instant;

use headrace_core::budget::Budget;
use headrace_core::http2::{Headers, Seen};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::server::TlsStream;

use crate::config::Limits;

/// A reader of small DATA frames may send two WINDOW_UPDATEs for each: so many bytes of ours allow one frame of theirs.
const BYTES_PER_FRAME: f64 = 16.0;

/// A socket, and how often something came.
pub struct Heard {
    stream: TcpStream,
    pub reads: Arc<AtomicU64>,
}

impl Heard {
    pub fn new(stream: TcpStream) -> Self {
        Self { stream, reads: Arc::default() }
    }
}

impl AsyncRead for Heard {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let result = Pin::new(&mut self.stream).poll_read(cx, buffer);
        if result.is_ready() {
            self.reads.fetch_add(1, Ordering::Relaxed);
        }
        result
    }
}

impl AsyncWrite for Heard {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

/// What a client of HTTP/2 may send beside requests.
pub struct FrameBudgets {
    headers: Headers,
    useless: Budget,
    cancels: Budget,
}

impl FrameBudgets {
    pub fn new(limits: &Limits) -> Self {
        let now = Instant::now();
        Self {
            headers: Headers::default(),
            useless: Budget::new(limits.useless_burst, limits.useless_per_second, now),
            cancels: Budget::new(limits.cancel_burst, limits.cancels_per_second, now),
        }
    }

    /// Why the connection ends, if it does.
    fn handle_read(&mut self, bytes: &[u8]) -> Option<&'static str> {
        let Seen { useless, resets } = self.headers.handle_data(bytes);
        if useless > 0 && !self.useless.spend_many(useless, Instant::now()) {
            return Some("too many frames that move nothing on");
        }
        if resets > 0 && !self.cancels.spend_many(resets, Instant::now()) {
            return Some("too many requests are cancelled");
        }
        None
    }
}

/// A TLS connection, above which HTTP begins.
pub struct ObservedStream {
    pub stream: TlsStream<Heard>,
    /// Becomes false when the client's side has ended.
    pub is_open: Arc<AtomicBool>,
    /// `None`: HTTP/1.1, which has no frames.
    pub budgets: Option<FrameBudgets>,
    /// The client has overdrawn a budget.
    pub is_overdrawn: Arc<AtomicBool>,
}

impl AsyncRead for ObservedStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let result = Pin::new(&mut self.stream).poll_read(cx, buffer);
        let Poll::Ready(read) = &result else { return result };
        let came = &buffer.filled()[before..];
        if read.is_err() || came.is_empty() {
            self.is_open.store(false, Ordering::Relaxed);
        }
        if let Some(reason) = self.budgets.as_mut().and_then(|budgets| budgets.handle_read(came)) {
            self.is_open.store(false, Ordering::Relaxed);
            self.is_overdrawn.store(true, Ordering::Relaxed);
            return Poll::Ready(Err(io::Error::other(reason)));
        }
        result
    }
}

impl AsyncWrite for ObservedStream {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let result = Pin::new(&mut self.stream).poll_write(cx, bytes);
        match (&result, &mut self.budgets) {
            (Poll::Ready(Err(_)), _) => self.is_open.store(false, Ordering::Relaxed),
            (Poll::Ready(Ok(written)), Some(budgets)) => {
                budgets.useless.earn(*written as f64 / BYTES_PER_FRAME)
            }
            _ => {}
        }
        result
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
