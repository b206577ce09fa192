//! The side of the client, whatever protocol it speaks.
//!
//! In: a head, pieces of a body, trailers, an end. Out: the same on the wire, one frame per piece; how much is
//! waiting; and whether the client stopped or was lost.

pub mod http3;
pub mod send_window;
pub mod tcp;

use std::future::poll_fn;
use std::task::{Context, Poll};
use std::time::Duration;

use headrace_core::events::Piece;
use http::{HeaderMap, StatusCode};
use tokio::sync::watch;

use crate::gone::Gone;
use crate::quic::stats::Transport;
use crate::replay::Writer;

/// Whether a client is suspect, now and from now on.
#[derive(Clone)]
pub struct Suspicion(Option<watch::Receiver<bool>>);

impl Suspicion {
    /// Resolves when the client is as suspect as this; never, where nobody suspects.
    pub async fn becomes(&mut self, is_suspect: bool) {
        if let Some(suspicion) = &mut self.0
            && suspicion.wait_for(|now| *now == is_suspect).await.is_ok()
        {
            return;
        }
        std::future::pending().await
    }
}

/// One answer being written.
pub enum Downstream {
    Http3(http3::Sender),
    Tcp(tcp::Sender),
    /// A record in the place of a client; clients are told from it.
    Record(Writer),
}

macro_rules! each {
    ($self:ident, $sender:ident => $call:expr) => {
        match $self {
            Downstream::Http3($sender) => $call,
            Downstream::Tcp($sender) => $call,
            Downstream::Record($sender) => $call,
        }
    };
}

impl Downstream {
    pub fn queue_head(&mut self, status: StatusCode, headers: &HeaderMap) {
        each!(self, sender => sender.queue_head(status, headers));
    }

    /// Queues one DATA frame (in HTTP/1.1, one chunk).
    pub fn queue_data(&mut self, piece: &Piece<'_>) {
        each!(self, sender => sender.queue_data(piece));
    }

    pub fn queue_trailers(&mut self, headers: &HeaderMap) {
        each!(self, sender => sender.queue_trailers(headers));
    }

    /// Nothing more will be queued: [`Downstream::finish`] follows once this is flushed. hyper pulls the last frames
    /// only when it is told that they are the last.
    pub fn queue_end(&mut self) {
        if let Downstream::Tcp(sender) = self {
            sender.finish();
        }
    }

    /// How many bytes the transport has no room for yet.
    pub fn queued(&self) -> usize {
        each!(self, sender => sender.queued())
    }

    /// How many bytes the transport has taken so far.
    pub fn taken(&self) -> u64 {
        each!(self, sender => sender.taken())
    }

    /// Ready when nothing is queued any more.
    pub fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Gone>> {
        each!(self, sender => sender.poll_flush(cx))
    }

    pub fn poll_gone(&mut self, cx: &mut Context<'_>) -> Poll<Gone> {
        each!(self, sender => sender.poll_gone(cx))
    }

    /// The answer is complete. Everything must be flushed before.
    pub fn finish(&mut self) {
        each!(self, sender => sender.finish());
    }

    /// The answer broke off; does nothing after `finish`.
    pub fn reset(&mut self, code: u64) {
        each!(self, sender => sender.reset(code));
    }

    /// What may wait for the transport; then the model server is not read any more. `stream`: what one stream may have.
    pub fn budget(&self, stream: usize) -> usize {
        match self {
            Downstream::Http3(_) | Downstream::Tcp(_) => stream,
            Downstream::Record(writer) => writer.budget(),
        }
    }

    /// Whether the client is suspect: it owes acknowledgements for too long. TCP has its own ways of finding out.
    pub fn suspicion(&self) -> Suspicion {
        match self {
            Downstream::Http3(sender) => Suspicion(Some(sender.suspicion())),
            Downstream::Tcp(_) | Downstream::Record(_) => Suspicion(None),
        }
    }

    pub async fn gone(&mut self) -> Gone {
        poll_fn(|cx| self.poll_gone(cx)).await
    }

    /// Waits until the client has everything, or is gone.
    pub async fn delivered(&mut self) {
        each!(self, sender => sender.delivered().await);
    }

    /// What QUIC knows of the connection; `None` over TCP.
    pub fn transport(&self) -> Option<Transport> {
        match self {
            Downstream::Http3(sender) => Some(sender.transport()),
            Downstream::Tcp(_) | Downstream::Record(_) => None,
        }
    }

    /// How long to wait between a last error event and the reset behind it.
    pub fn reading_time(&self) -> Duration {
        each!(self, sender => sender.reading_time())
    }
}
