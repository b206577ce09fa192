//! The body of a request, by any protocol.
//!
//! In: DATA frames of HTTP/3, or hyper's body. Out: the whole body, never longer than its limit, and exactly
//! as long as its `content-length` at every kind of end: that is what closes request smuggling (RFC 9114
//! §4.1.2).

use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use headrace_core::complete::{self, Stop};
use headrace_core::fields::{self, BodyLength};
use headrace_core::http2::SMALL_DATA;
use headrace_core::http3::{code, message};
use headrace_core::{Error, Kind};
use http::HeaderMap;
use http_body::Body as _;

use crate::gone::Gone;
use crate::quic::gone;
use crate::quic::message::{MessageReader, Part, ReadFailure, breach};
use crate::quic::useless::Useless;
use crate::shares::{ExchangeShare, KeptBody};
use crate::worker::Worker;

pub enum Source {
    Http3 {
        reader: MessageReader,
        quic: quinn::Connection,
        useless: Arc<Useless>,
    },
    /// `is_http2`: hyper ends a body of HTTP/2 also where the client reset its stream with NO_ERROR.
    Hyper {
        body: hyper::body::Incoming,
        is_http2: bool,
    },
}

/// The next of a body.
enum Next {
    Data(Bytes),
    Stopped(Stop),
}

/// The body of one request.
pub struct RequestBody {
    source: Source,
    declared: Result<Option<u64>, fields::BadLength>,
    /// What has come so far: a read that was given up goes on from here.
    collected: Vec<u8>,
    share: Arc<ExchangeShare>,
    is_read: bool,
}

impl RequestBody {
    pub fn new(source: Source, headers: &HeaderMap, share: Arc<ExchangeShare>) -> Self {
        let declared = fields::content_length(headers);
        Self { source, declared, collected: Vec::new(), share, is_read: false }
    }

    /// Reads the whole body. Cancel-safe.
    ///
    /// # Errors
    /// When the body is too large, incomplete, malformed, or the client is gone.
    pub async fn read_all(&mut self, worker: &Worker) -> Result<KeptBody, Error> {
        let limit = worker.config.limits.max_body_bytes;
        let declared = self.declared.map_err(|_| {
            Error::new(Kind::BadRequest, "content-length is malformed; it must be one decimal number")
        })?;
        if declared.is_some_and(|length| length > limit as u64) {
            return Err(Kind::BodyTooLarge.into());
        }
        let mut length = BodyLength::new(declared);
        let _ = length.handle_data(self.collected.len());
        let stop = loop {
            let data = match next(&mut self.source, worker.config.limits.max_head_bytes).await? {
                Next::Data(data) => data,
                Next::Stopped(stop) => break stop,
            };
            if !length.handle_data(data.len()) {
                return Err(Kind::BodyIncomplete.into());
            }
            if self.collected.len() + data.len() > limit {
                return Err(Kind::BodyTooLarge.into());
            }
            self.make_room(data.len(), declared)?;
            self.collected.extend_from_slice(&data);
        };
        self.is_read = true;
        complete::check(stop, &length, false)
            .map_err(|what| Error::new(Kind::BodyIncomplete, what.to_string()))?;
        let bytes = Bytes::from(std::mem::take(&mut self.collected));
        Ok(KeptBody::new(bytes, self.share.clone()))
    }

    /// What is allocated counts, not what is filled: twice as much each time, and no more than was declared.
    fn make_room(&mut self, more: usize, declared: Option<u64>) -> Result<(), Error> {
        let (room, needed) = (self.collected.capacity(), self.collected.len() + more);
        if needed > room {
            let most = declared.and_then(|length| usize::try_from(length).ok()).unwrap_or(usize::MAX);
            let next = needed.max((room * 2).min(most));
            self.share.grow_body(next - room)?;
            self.collected.reserve_exact(next - self.collected.len());
        }
        Ok(())
    }

    /// The result of [`RequestBody::read_all`], when there is one without waiting: most bodies are small, and come with
    /// their head.
    pub fn read_now(&mut self, worker: &Worker) -> Option<Result<KeptBody, Error>> {
        let mut context = Context::from_waker(Waker::noop());
        match pin!(self.read_all(worker)).poll(&mut context) {
            Poll::Ready(result) => Some(result),
            Poll::Pending => None,
        }
    }

    /// Resolves when the client resets the request before its end.
    pub async fn reset(&mut self) -> Gone {
        match &mut self.source {
            Source::Http3 { reader, .. } if !self.is_read => match reader.reset().await {
                ReadFailure::Lost(error) => gone(&error),
                _ => Gone::Stopped,
            },
            // hyper drops the answer's body, too, which `Downstream::gone` sees.
            _ => std::future::pending().await,
        }
    }

    /// Asks the client to send no more.
    pub fn stop(&mut self, code: u64) {
        if let Source::Http3 { reader, .. } = &mut self.source {
            reader.stop(code);
        }
    }
}

async fn next(source: &mut Source, max_trailer_bytes: usize) -> Result<Next, Error> {
    match source {
        Source::Http3 { reader, quic, useless } => match reader.next().await {
            Ok(Part::Data { bytes, is_first }) => {
                // A body in crumbs costs more to read than it brings.
                if is_first
                    && bytes.len() < SMALL_DATA
                    && let Err(error) = useless.spend(1)
                {
                    return Err(translate(quic, ReadFailure::Http3(error)));
                }
                Ok(Next::Data(bytes))
            }
            Ok(Part::End) => Ok(Next::Stopped(Stop::Framed)),
            // Trailers are checked, and end here: our own framing upstream has no place for them.
            Ok(Part::Fields(section)) => match message::decode_trailers(&section, max_trailer_bytes) {
                Ok(_) => match reader.next().await {
                    Ok(Part::End) => Ok(Next::Stopped(Stop::Framed)),
                    Ok(_) => Err(Error::new(Kind::BadRequest, "something follows the trailers")),
                    Err(failure) => Err(translate(quic, failure)),
                },
                Err(message::HeadError::TooLarge) => Err(Kind::HeadTooLarge.into()),
                Err(message::HeadError::Http3(error)) => Err(translate(quic, ReadFailure::Http3(error))),
                Err(message::HeadError::MethodRefused) => Err(Kind::BadRequest.into()),
            },
            Err(failure) => Err(translate(quic, failure)),
        },
        Source::Hyper { body, is_http2 } => loop {
            match std::future::poll_fn(|cx| Pin::new(&mut *body).poll_frame(cx)).await {
                None if *is_http2 && !body.is_end_stream() => return Ok(Next::Stopped(Stop::Broken)),
                None => return Ok(Next::Stopped(Stop::Framed)),
                Some(Ok(frame)) => match frame.into_data() {
                    Ok(data) => return Ok(Next::Data(data)),
                    Err(_trailers) => {}
                },
                Some(Err(error)) => return Err(from_hyper(&error)),
            }
        },
    }
}

/// A failure to read a request over HTTP/3, as an error of ours. A breach of the protocol ends what it must.
fn translate(quic: &quinn::Connection, failure: ReadFailure) -> Error {
    match failure {
        ReadFailure::Http3(error) => {
            breach(quic, error);
            Error::new(Kind::BadRequest, error.to_string())
        }
        ReadFailure::HeadTooLarge => Kind::HeadTooLarge.into(),
        ReadFailure::Reset(reset) => Error::new(Kind::Stopped, code::name(reset)),
        ReadFailure::Lost(error) => Error::new(Kind::Lost, error.to_string()),
        ReadFailure::Rejected => Kind::Lost.into(),
    }
}

fn from_hyper(error: &hyper::Error) -> Error {
    let kind = match error {
        error if error.is_parse() => Kind::BadRequest,
        error if error.is_incomplete_message() || error.is_body_write_aborted() => Kind::BodyIncomplete,
        _ => Kind::Lost,
    };
    Error::new(kind, error.to_string())
}
