//! One answer over HTTP/3.
//!
//! In: a head, pieces of a body, trailers, an end. Out: frames on a QUIC stream, one DATA frame per piece. A
//! sender that is dropped before it finished resets the stream: quinn alone would send FIN, and a cut answer
//! would look complete.

use std::collections::VecDeque;
use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::{BufMut, Bytes, BytesMut};
use headrace_core::events::Piece;
use headrace_core::http3::{code, frame, message, priority, varint};
use http::{HeaderMap, StatusCode};
use quinn::{SendStream, StoppedError, VarInt, WriteError};
use tokio::sync::watch;

use crate::downstream::send_window::SendWindow;
use crate::gone::Gone;
use crate::quic::stats::{Tally, Transport};
use crate::quic::{gone, reading_time, stream_code};

/// A payload of at least this size is sent as it is, not copied behind its frame header.
const COPY_BELOW: usize = 4 * 1024;

type Stopped = Pin<Box<dyn Future<Output = Result<Option<VarInt>, StoppedError>> + Send + Sync>>;

/// Writes one answer.
pub struct Sender {
    connection: quinn::Connection,
    tally: Arc<Tally>,
    window: Arc<SendWindow>,
    suspicion: watch::Receiver<bool>,
    send: SendStream,
    /// Frames that quinn has no room for yet.
    waiting: VecDeque<Bytes>,
    /// Frames of this turn, in one piece: they go to quinn by one call.
    batch: BytesMut,
    queued: usize,
    taken: u64,
    /// Kept between polls, so that watching for STOP_SENDING costs no registration per event.
    stopped: Stopped,
    urgency: Arc<AtomicU8>,
    applied_urgency: u8,
    is_finished: bool,
}

impl Sender {
    pub fn new(
        connection: quinn::Connection,
        tally: Arc<Tally>,
        window: Arc<SendWindow>,
        suspicion: watch::Receiver<bool>,
        send: SendStream,
        urgency: Arc<AtomicU8>,
    ) -> Self {
        let stopped = Box::pin(send.stopped());
        Self {
            connection,
            tally,
            window,
            suspicion,
            send,
            waiting: VecDeque::new(),
            batch: BytesMut::new(),
            queued: 0,
            taken: 0,
            stopped,
            urgency,
            applied_urgency: priority::DEFAULT_URGENCY,
            is_finished: false,
        }
    }

    pub fn queue_head(&mut self, status: StatusCode, headers: &HeaderMap) {
        self.queue_frame(message::encode_response(status, headers));
    }

    pub fn queue_trailers(&mut self, headers: &HeaderMap) {
        self.queue_frame(message::encode_trailers(headers));
    }

    /// Queues one DATA frame.
    pub fn queue_data(&mut self, piece: &Piece<'_>) {
        let length = piece.len();
        self.batch.reserve(1 + varint::size(length as u64) + if length < COPY_BELOW { length } else { 0 });
        frame::put_header(&mut self.batch, frame::DATA, length);
        if length < COPY_BELOW {
            self.batch.put_slice(piece.held);
            self.batch.put_slice(piece.fresh);
            self.queued += length;
            // What waits does so in few pieces: each costs some hundred bytes beside its own.
            if self.batch.len() >= COPY_BELOW {
                self.close_batch();
            }
        } else {
            self.close_batch();
            self.queue_frame(Bytes::from([piece.held, piece.fresh].concat()));
        }
    }

    /// How many bytes wait for quinn to have room.
    pub fn queued(&self) -> usize {
        self.queued
    }

    /// How many bytes quinn has taken so far.
    pub fn taken(&self) -> u64 {
        self.taken
    }

    /// Hands what is queued to quinn; pending while quinn has no room for all of it.
    pub fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Gone>> {
        if self.waiting.is_empty() {
            self.close_batch();
        }
        if self.waiting.is_empty() {
            return Poll::Ready(Ok(()));
        }
        self.apply_urgency();
        while !self.waiting.is_empty() {
            let (front, _) = self.waiting.as_mut_slices();
            let written = pin!(self.send.write_chunks(front)).poll(cx);
            match written {
                Poll::Ready(Ok(written)) => {
                    self.taken += written.bytes as u64;
                    self.window.note_taken(written.bytes as u64);
                    self.waiting.drain(..written.chunks);
                    if self.waiting.is_empty() {
                        self.close_batch();
                    }
                }
                Poll::Ready(Err(WriteError::ConnectionLost(error))) => return Poll::Ready(Err(gone(&error))),
                Poll::Ready(Err(_)) => return Poll::Ready(Err(Gone::Stopped)),
                Poll::Pending if self.window.handle_blocked() => {}
                Poll::Pending => {
                    self.queued = self.waiting.iter().map(Bytes::len).sum::<usize>() + self.batch.len();
                    return Poll::Pending;
                }
            }
        }
        self.queued = 0;
        Poll::Ready(Ok(()))
    }

    /// Ready when the client stopped the stream, or its connection is gone.
    pub fn poll_gone(&mut self, cx: &mut Context<'_>) -> Poll<Gone> {
        match self.stopped.as_mut().poll(cx) {
            Poll::Ready(result) => {
                // A future may not be polled again after it is ready.
                self.stopped = Box::pin(std::future::ready(result.clone()));
                match result {
                    Err(StoppedError::ConnectionLost(error)) => Poll::Ready(gone(&error)),
                    // `None`: the client has everything. Nothing can be stopped any more.
                    Ok(None) if self.is_finished => Poll::Pending,
                    _ => Poll::Ready(Gone::Stopped),
                }
            }
            Poll::Pending => Poll::Pending,
        }
    }

    /// Whether the client is suspect, now and from now on.
    pub fn suspicion(&self) -> watch::Receiver<bool> {
        self.suspicion.clone()
    }

    /// Ends the stream (FIN). Everything must be flushed before.
    pub fn finish(&mut self) {
        self.is_finished = true;
        let _ = self.send.finish();
    }

    pub fn reset(&mut self, code: u64) {
        if !self.is_finished {
            self.is_finished = true;
            let _ = self.send.reset(stream_code(code));
        }
    }

    /// Resolves when the client has acknowledged everything, or is gone.
    pub async fn delivered(&mut self) {
        let _ = self.send.stopped().await;
    }

    /// How long the client needs to see what was flushed, with one retransmission: a reset that overtakes it
    /// would take it back.
    pub fn reading_time(&self) -> Duration {
        reading_time(&self.connection)
    }

    pub fn transport(&self) -> Transport {
        Transport::of(&self.connection, &self.tally)
    }

    fn queue_frame(&mut self, bytes: Bytes) {
        self.close_batch();
        self.queued += bytes.len();
        self.waiting.push_back(bytes);
    }

    fn close_batch(&mut self) {
        if !self.batch.is_empty() {
            // The buffer is taken whole, not split: quinn keeps the allocation until the bytes are acknowledged.
            self.waiting.push_back(std::mem::take(&mut self.batch).freeze());
        }
    }

    fn apply_urgency(&mut self) {
        let urgency = self.urgency.load(Ordering::Relaxed);
        if urgency != self.applied_urgency {
            self.applied_urgency = urgency;
            // quinn sends higher numbers first; in RFC 9218, the lowest urgency comes first.
            let _ = self.send.set_priority(i32::from(priority::DEFAULT_URGENCY) - i32::from(urgency));
        }
    }
}

impl Drop for Sender {
    fn drop(&mut self) {
        self.reset(code::INTERNAL_ERROR);
    }
}
