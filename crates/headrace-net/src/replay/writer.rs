//! The record in the place of a client.
//!
//! In: what a relay would write to a client's stream. Out: the same, in the record (`buffer.rs`); and that all its
//! readers have left.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use headrace_core::Error;
use headrace_core::events::Piece;
use headrace_core::relay::Cause;
use headrace_core::replay::{End, Entry};
use http::{HeaderMap, StatusCode};
use tokio::time::Sleep;

use crate::gone::Gone;
use crate::replay::buffer::Buffer;

/// The record in the place of a client.
pub struct Writer {
    buffer: Arc<Buffer>,
    trailers: Option<HeaderMap>,
    taken: u64,
    timer: Option<Pin<Box<Sleep>>>,
    /// The last event that was written is the answer's own last.
    is_last_event_written: bool,
    /// The code by which the answer broke off.
    broken: Option<u64>,
}

impl Writer {
    pub fn new(buffer: Arc<Buffer>) -> Self {
        Self { buffer, trailers: None, taken: 0, timer: None, is_last_event_written: false, broken: None }
    }

    /// The relay is over: an answer that was reset ends here, now that its cause is known.
    pub fn close(self, cause: Cause, error: Option<Error>) {
        // The waker would keep the relay's memory as long as the record.
        self.buffer.lock().writer = None;
        if let Some(code) = self.broken {
            let end = End::of_reset(code, cause, error);
            self.buffer.change(|state| {
                state.is_given_up &= matches!(end, End::Broken(_));
                state.record.set_end(end);
            });
        }
    }

    pub fn queue_head(&mut self, status: StatusCode, headers: &HeaderMap) {
        self.buffer.change(|state| {
            state.body = None;
            state.record.set_head(status, headers.clone());
        });
    }

    pub fn queue_data(&mut self, piece: &Piece<'_>) {
        let bytes = Bytes::from([piece.held, piece.fresh].concat());
        self.taken += bytes.len() as u64;
        if piece.is_event {
            self.is_last_event_written = piece.is_last;
        }
        let entry = Entry { bytes, is_event: piece.is_event, is_last: piece.is_last };
        self.buffer.change(|state| state.record.push(entry));
    }

    pub fn queue_trailers(&mut self, headers: &HeaderMap) {
        self.trailers = Some(headers.clone());
    }

    /// How many bytes nobody has read yet. They may be as many as the buffer says: a slow client slows its own model
    /// server, and no answer outgrows what is kept of it before its first byte was told.
    pub fn queued(&self) -> usize {
        let mut state = self.buffer.lock();
        let most = self.buffer.most_unread;
        let unread = if state.record.is_full() { most } else { state.record.unread() };
        state.is_paused = unread >= most;
        unread
    }

    /// What may be queued before the model server must wait.
    pub fn budget(&self) -> usize {
        self.buffer.most_unread
    }

    pub fn poll_flush(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Gone>> {
        Poll::Ready(Ok(()))
    }

    pub async fn delivered(&mut self) {}

    pub fn reading_time(&self) -> Duration {
        Duration::ZERO
    }

    pub fn taken(&self) -> u64 {
        self.taken
    }

    /// Ready when all readers have left: the last one on purpose, or too long ago.
    pub fn poll_gone(&mut self, cx: &mut Context<'_>) -> Poll<Gone> {
        let mut state = self.buffer.lock();
        state.writer = Some(cx.waker().clone());
        let gone = match state.left {
            None => {
                self.timer = None;
                return Poll::Pending;
            }
            // Nobody comes back for more of an answer that has said its last word: it is whole.
            Some((gone, _)) if self.is_last_event_written => gone,
            Some((Gone::Stopped, _)) => Gone::Stopped,
            Some((Gone::Lost, since)) => {
                let until = since + self.buffer.grace;
                let timer =
                    self.timer.get_or_insert_with(|| Box::pin(tokio::time::sleep_until(until.into())));
                timer.as_mut().reset(until.into());
                if timer.as_mut().poll(cx).is_pending() {
                    return Poll::Pending;
                }
                Gone::Lost
            }
        };
        // A reader that comes now still finds it whole.
        state.is_given_up = !self.is_last_event_written;
        Poll::Ready(gone)
    }

    pub fn finish(&mut self) {
        let trailers = self.trailers.take();
        self.buffer.change(|state| state.record.set_end(End::Finished(trailers)));
    }

    /// The answer broke off. Its readers are told when the cause is known ([`Writer::close`]).
    pub fn reset(&mut self, code: u64) {
        self.broken = Some(code);
    }
}
