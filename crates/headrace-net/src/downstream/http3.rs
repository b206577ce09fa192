//! One request stream of HTTP/3: its messages read, its answer written.
//!
//! In: a QUIC stream's two halves. Out: heads, bodies, trailers; and DATA frames, one per unit queued. A
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
use headrace_core::events::Unit;
use headrace_core::http3::frame::{self, Frame, FrameError};
use headrace_core::http3::{Http3Error, code, message, priority, varint};
use http::{HeaderMap, StatusCode};
use quinn::{ConnectionError, ReadError, RecvStream, SendStream, StoppedError, VarInt, WriteError};

use crate::downstream::Gone;
use crate::quic::echo::counts::Tally;
use crate::relay::report::Transport;

/// Most bytes taken from a stream at once.
const READ_BYTES: usize = 64 * 1024;
/// A payload of at least this size is sent as it is, not copied behind its frame header.
const COPY_BELOW: usize = 4 * 1024;

pub fn stream_code(code: u64) -> VarInt {
    VarInt::from_u64(code).unwrap_or(VarInt::MAX)
}

/// How long the other side needs to see what was sent, with one retransmission.
pub fn settle_time(connection: &quinn::Connection) -> Duration {
    (connection.rtt() * 3 + Duration::from_millis(25)).min(Duration::from_secs(1))
}

/// Whose doing the end of a connection was.
pub fn gone(error: &ConnectionError) -> Gone {
    match error {
        // The other application closed on purpose; nobody comes back for this answer.
        ConnectionError::ApplicationClosed(_) => Gone::Stopped,
        _ => Gone::Lost,
    }
}

/// Why a message cannot be read on.
#[derive(Clone, Debug)]
pub enum ReadFailure {
    /// The peer broke the protocol.
    Http3(Http3Error),
    /// A HEADERS frame longer than allowed.
    HeadTooLarge,
    /// The peer reset the stream.
    Reset(u64),
    Lost(ConnectionError),
    /// A 0-RTT stream that the server did not accept.
    Rejected,
}

impl From<FrameError> for ReadFailure {
    fn from(error: FrameError) -> Self {
        match error {
            FrameError::Http3(error) => ReadFailure::Http3(error),
            FrameError::HeadTooLarge => ReadFailure::HeadTooLarge,
        }
    }
}

/// One part of a message.
#[derive(Debug)]
pub enum Part {
    /// An encoded field section: a head, or trailers after a body.
    Fields(Bytes),
    /// `is_first`: the first bytes of their DATA frame.
    Data { bytes: Bytes, is_first: bool },
    /// FIN, between two frames.
    End,
}

/// Reads the frames of a stream, in the order RFC 9114 §4.1 allows.
pub struct MessageReader {
    recv: RecvStream,
    decoder: frame::Decoder,
    input: Bytes,
    has_head: bool,
    has_trailers: bool,
    is_ended: bool,
}

impl MessageReader {
    pub fn new(recv: RecvStream, max_head_bytes: usize) -> Self {
        Self {
            recv,
            decoder: frame::Decoder::new(frame::On::Request, max_head_bytes),
            input: Bytes::new(),
            has_head: false,
            has_trailers: false,
            is_ended: false,
        }
    }

    /// The next field section is a head again, after an interim answer.
    pub fn expect_head(&mut self) {
        self.has_head = false;
    }

    /// The next part. Cancel-safe.
    ///
    /// # Errors
    /// When the peer broke the protocol, reset the stream, or is gone.
    pub async fn next(&mut self) -> Result<Part, ReadFailure> {
        loop {
            if let Some(frame) = self.decoder.poll(&mut self.input)? {
                return self.order(frame);
            }
            match self.recv.read_chunk(READ_BYTES, true).await {
                Ok(Some(chunk)) => self.input = chunk.bytes,
                Ok(None) if self.decoder.is_between_frames() => {
                    self.is_ended = true;
                    return Ok(Part::End);
                }
                Ok(None) => {
                    let cut = Http3Error::connection(code::FRAME_ERROR, "the stream ended inside a frame");
                    return Err(ReadFailure::Http3(cut));
                }
                Err(ReadError::Reset(code)) => return Err(ReadFailure::Reset(code.into_inner())),
                Err(ReadError::ConnectionLost(error)) => return Err(ReadFailure::Lost(error)),
                Err(ReadError::ZeroRttRejected) => return Err(ReadFailure::Rejected),
                Err(ReadError::ClosedStream | ReadError::IllegalOrderedRead) => {
                    return Err(ReadFailure::Reset(code::INTERNAL_ERROR));
                }
            }
        }
    }

    /// Resolves when the peer resets the stream before its end; never, once the end is known.
    pub async fn reset(&mut self) -> ReadFailure {
        if !self.is_ended {
            match self.recv.received_reset().await {
                Ok(Some(code)) => return ReadFailure::Reset(code.into_inner()),
                Err(quinn::ResetError::ConnectionLost(error)) => return ReadFailure::Lost(error),
                Ok(None) | Err(quinn::ResetError::ZeroRttRejected) => {}
            }
        }
        std::future::pending().await
    }

    /// Asks the peer to send no more; does nothing once everything has come.
    pub fn stop(&mut self, code: u64) {
        if !self.is_ended {
            let _ = self.recv.stop(stream_code(code));
        }
    }

    pub fn is_early_data(&self) -> bool {
        self.recv.is_0rtt()
    }

    fn order(&mut self, frame: Frame) -> Result<Part, ReadFailure> {
        let unexpected =
            |reason| Err(ReadFailure::Http3(Http3Error::connection(code::FRAME_UNEXPECTED, reason)));
        match frame {
            Frame::Headers(_) if self.has_trailers => unexpected("HEADERS after the trailers"),
            Frame::Headers(section) => {
                self.has_trailers = self.has_head;
                self.has_head = true;
                Ok(Part::Fields(section))
            }
            Frame::Data { .. } if !self.has_head => unexpected("DATA before HEADERS"),
            Frame::Data { .. } if self.has_trailers => unexpected("DATA after the trailers"),
            Frame::Data { bytes, is_first } => Ok(Part::Data { bytes, is_first }),
            Frame::Control { .. } => unexpected("a control frame on a request stream"),
        }
    }
}

impl Drop for MessageReader {
    /// Whatever is not read is not wanted (RFC 9114 §4.1: a complete answer may stop the request with
    /// H3_NO_ERROR).
    fn drop(&mut self) {
        self.stop(code::NO_ERROR);
    }
}

type Stopped = Pin<Box<dyn Future<Output = Result<Option<VarInt>, StoppedError>> + Send + Sync>>;

/// Writes one answer.
pub struct Sender {
    connection: quinn::Connection,
    tally: Arc<Tally>,
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
        send: SendStream,
        urgency: Arc<AtomicU8>,
    ) -> Self {
        let stopped = Box::pin(send.stopped());
        Self {
            connection,
            tally,
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

    /// One DATA frame.
    pub fn queue_data(&mut self, unit: &Unit<'_>) {
        let length = unit.len();
        self.batch.reserve(1 + varint::size(length as u64) + if length < COPY_BELOW { length } else { 0 });
        frame::put_header(&mut self.batch, frame::DATA, length);
        if length < COPY_BELOW {
            self.batch.put_slice(unit.held);
            self.batch.put_slice(unit.fresh);
            self.queued += length;
        } else {
            self.close_batch();
            self.queue_frame(Bytes::from([unit.held, unit.fresh].concat()));
        }
    }

    /// Bytes that wait for quinn to have room.
    pub fn queued(&self) -> usize {
        self.queued
    }

    /// All bytes that quinn has taken so far.
    pub fn taken(&self) -> u64 {
        self.taken
    }

    /// Hands what is queued to quinn; pending while quinn has no room for all of it.
    pub fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Gone>> {
        self.close_batch();
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
                    self.waiting.drain(..written.chunks);
                }
                Poll::Ready(Err(WriteError::ConnectionLost(error))) => return Poll::Ready(Err(gone(&error))),
                Poll::Ready(Err(_)) => return Poll::Ready(Err(Gone::Stopped)),
                Poll::Pending => {
                    self.queued = self.waiting.iter().map(Bytes::len).sum();
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

    /// FIN. Everything must be flushed before.
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
    pub fn settle_time(&self) -> Duration {
        settle_time(&self.connection)
    }

    pub fn transport(&self) -> Transport {
        let path = self.connection.stats().path;
        Transport {
            round_trip: path.rtt,
            congestion_window: path.cwnd,
            sent_packets: path.sent_packets,
            lost_packets: path.lost_packets,
            echo: self.tally.look(&self.connection),
        }
    }

    fn queue_frame(&mut self, bytes: Bytes) {
        self.close_batch();
        self.queued += bytes.len();
        self.waiting.push_back(bytes);
    }

    fn close_batch(&mut self) {
        if !self.batch.is_empty() {
            // Taken whole, not split off: quinn keeps the allocation until the bytes are acknowledged.
            self.waiting.push_back(std::mem::take(&mut self.batch).freeze());
        }
    }

    fn apply_urgency(&mut self) {
        let urgency = self.urgency.load(Ordering::Relaxed);
        if urgency != self.applied_urgency {
            self.applied_urgency = urgency;
            // quinn sends higher numbers first; RFC 9218 means the lowest urgency first.
            let _ = self.send.set_priority(i32::from(priority::DEFAULT_URGENCY) - i32::from(urgency));
        }
    }
}

impl Drop for Sender {
    fn drop(&mut self) {
        self.reset(code::INTERNAL_ERROR);
    }
}
