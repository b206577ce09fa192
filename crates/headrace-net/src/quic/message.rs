//! The messages of one request stream of HTTP/3, as both ends read them.
//!
//! In: the receiving half of a QUIC stream. Out: field sections, pieces of a body, and the end, in the order that
//! RFC 9114 §4.1 allows; or why the message cannot be read on.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;

use bytes::Bytes;
use headrace_core::http3::code::Scope;
use headrace_core::http3::frame::{self, Frame, FrameError};
use headrace_core::http3::{Http3Error, code, message};
use quinn::{ConnectionError, ReadError, RecvStream};

use crate::quic::stream_code;
use crate::quic::useless::Useless;

/// The most bytes that are taken from a stream at once.
const READ_BYTES: usize = 64 * 1024;

/// Most bytes of a head that are looked through for the path, when the head itself cannot be used.
const MOST_BEGUN_BYTES: usize = 8 * 1024;

/// Why a message cannot be read on.
#[derive(Clone, Debug)]
pub enum ReadFailure {
    /// The peer broke the protocol.
    Http3(Http3Error),
    /// A HEADERS frame is longer than allowed.
    HeadTooLarge,
    /// The peer reset the stream.
    Reset(u64),
    Lost(ConnectionError),
    /// The stream left in early data (0-RTT), which the server did not accept.
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

/// Ends what a breach of the protocol must end; a breach of one stream is left to its reader.
pub fn breach(connection: &quinn::Connection, error: Http3Error) {
    if error.scope == Scope::Connection {
        connection.close(stream_code(error.code), error.reason.as_bytes());
    }
}

/// One part of a message.
#[derive(Debug)]
pub enum Part {
    /// An encoded field section: a head, or trailers after a body.
    Fields(Bytes),
    /// Some bytes of the body; `is_first`: they are the first of their DATA frame.
    Data { bytes: Bytes, is_first: bool },
    /// The stream's end (FIN), between two frames.
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
    useless: Arc<Useless>,
}

impl MessageReader {
    /// `useless`: the connection's budget of frames that move nothing on.
    pub fn new(recv: RecvStream, max_head_bytes: usize, useless: Arc<Useless>) -> Self {
        Self {
            recv,
            decoder: frame::Decoder::new(frame::On::Request, max_head_bytes),
            input: Bytes::new(),
            has_head: false,
            has_trailers: false,
            is_ended: false,
            useless,
        }
    }

    /// Says that the next field section is a head again, as it is after an interim answer.
    pub fn expect_head(&mut self) {
        self.has_head = false;
    }

    /// Reads the next part. Cancel-safe.
    ///
    /// # Errors
    /// When the peer broke the protocol, reset the stream, or is gone.
    pub async fn next(&mut self) -> Result<Part, ReadFailure> {
        loop {
            if let Some(frame) = self.decoder.poll(&mut self.input)? {
                match self.order(frame)? {
                    Some(part) => return Ok(part),
                    None => self.useless.spend(1).map_err(ReadFailure::Http3)?,
                }
                continue;
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

    /// What is known of a request whose head is not whole, or too large to be read: of what has come, without waiting
    /// for more.
    pub async fn begun_request(&mut self) -> message::Begun {
        let mut section = [self.decoder.kept(), &self.input].concat();
        loop {
            let begun = message::decode_begun(&section, MOST_BEGUN_BYTES);
            if !begun.path.is_empty() || section.len() >= MOST_BEGUN_BYTES {
                return begun;
            }
            let mut read = pin!(self.recv.read_chunk(MOST_BEGUN_BYTES, true));
            let Poll::Ready(Ok(Some(chunk))) = poll_fn(|cx| Poll::Ready(read.as_mut().poll(cx))).await else {
                return begun;
            };
            section.extend_from_slice(&chunk.bytes);
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

    /// The part that a frame is; `None`: it means nothing, where it is legal.
    fn order(&mut self, frame: Frame) -> Result<Option<Part>, ReadFailure> {
        let unexpected =
            |reason| Err(ReadFailure::Http3(Http3Error::connection(code::FRAME_UNEXPECTED, reason)));
        match frame {
            Frame::Headers(_) if self.has_trailers => unexpected("HEADERS after the trailers"),
            Frame::Headers(section) => {
                self.has_trailers = self.has_head;
                self.has_head = true;
                Ok(Some(Part::Fields(section)))
            }
            Frame::Data { .. } if !self.has_head => unexpected("DATA before HEADERS"),
            Frame::Data { .. } if self.has_trailers => unexpected("DATA after the trailers"),
            Frame::Data { bytes, .. } if bytes.is_empty() => Ok(None),
            Frame::Data { bytes, is_first } => Ok(Some(Part::Data { bytes, is_first })),
            Frame::Unknown => Ok(None),
            Frame::Control { .. } => unexpected("a control frame on a request stream"),
        }
    }
}

impl Drop for MessageReader {
    /// What is not read is not wanted (RFC 9114 §4.1: a complete answer may stop the request with H3_NO_ERROR).
    fn drop(&mut self) {
        self.stop(code::NO_ERROR);
    }
}
