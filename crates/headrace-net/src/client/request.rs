//! What the task of one request does: open a stream, send the request, read the answer.
//!
//! In: a connection, a head, the pieces of a body. Out: the stream's id, the answer's head, chunks and trailers, and
//! how it ended, in the state that it shares with its reader (`client/stream.rs`). What is dropped half-way is reset,
//! or stopped.

use std::sync::Arc;

use bytes::Bytes;
use headrace_core::fields::{self, BodyLength};
use headrace_core::http3::message::{self, RequestHead};
use headrace_core::http3::{code, frame};
use headrace_core::{Error, Kind};
use http::{Method, StatusCode};
use quinn::{SendStream, VarInt, WriteError};
use tokio::sync::mpsc;

use crate::client::clock::monotonic_ns;
use crate::client::connection::{self, Handle, Inner};
use crate::client::network;
use crate::client::stream::{Answer, Chunk, Options, RequestBody, ResponseStream};
use crate::quic::message::{MessageReader, Part, ReadFailure, breach};
use crate::quic::stream_code;

/// How many pieces of a request's body may wait for their turn.
const BODY_PIECES: usize = 2;

/// The body of a request, as its task has it.
enum Pieces {
    Whole(Bytes),
    Coming(mpsc::Receiver<Bytes>),
}

/// Resets a request that is dropped before its end (FIN) was queued. Once it was, the stream is taken out: a lost FIN
/// must be repeated.
struct RequestGuard(Option<SendStream>);

impl Drop for RequestGuard {
    fn drop(&mut self) {
        if let Some(send) = &mut self.0 {
            let _ = send.reset(stream_code(code::REQUEST_CANCELLED));
        }
    }
}

/// Stops an answer that is dropped before it was read to its end.
struct AnswerGuard(MessageReader);

impl Drop for AnswerGuard {
    fn drop(&mut self) {
        self.0.stop(code::REQUEST_CANCELLED);
    }
}

/// Sends the request from a task of the client's runtime.
pub fn start(
    runtime: &tokio::runtime::Handle,
    connection: Arc<Handle>,
    head: RequestHead,
    body: RequestBody,
    options: Options,
) -> ResponseStream {
    let counted = connection.begin_stream();
    let answer = Arc::new(Answer::new(options.is_recorded));
    let (pieces, sender) = match body {
        RequestBody::Whole(bytes) => (Pieces::Whole(bytes), None),
        RequestBody::Pieces => {
            let (sender, receiver) = mpsc::channel(BODY_PIECES);
            (Pieces::Coming(receiver), Some(sender))
        }
    };
    let stream = ResponseStream::new(answer.clone(), runtime, sender);
    runtime.spawn(async move {
        let _counted = counted;
        let result = tokio::select! {
            biased;
            // Dropping the run resets what was not sent, and stops what was not read.
            () = answer.stopped() => Err(Kind::Stopped.into()),
            error = answer.abandoned(options.abandon_after) => Err(error),
            result = run(&connection, &answer, &head, pieces, options.may_be_early) => result,
        };
        if network::is_leaving() {
            std::future::pending::<()>().await;
        }
        answer.set_end(result);
    });
    stream
}

/// Sends a request and reads its answer. `may_be_early`: a whole body may be sent before the handshake is complete;
/// what the server does not take of it then is sent again after the handshake.
///
/// # Errors
/// How the answer ended, when that was not FIN after a whole one.
async fn run(
    handle: &Handle,
    answer: &Answer,
    head: &RequestHead,
    body: Pieces,
    may_be_early: bool,
) -> Result<(), Error> {
    if let Pieces::Whole(bytes) = &body
        && may_be_early
        && let Some(early) = handle.early().await
    {
        match exchange(handle, &early, answer, head, Pieces::Whole(bytes.clone())).await {
            // The early data was rejected, or that way does not lead to the server.
            Err(error) if error.kind == Kind::ConnectionLost && answer.begin_again() => {}
            result => return result,
        }
    }
    exchange(handle, &*handle.reached().await?, answer, head, body).await
}

/// Resolves when the server is taken for gone. An answer that has a key is worth waiting for as long as the connection
/// lasts: its server keeps it a while for a client that comes back.
async fn given_up(connection: &Inner, head: &RequestHead) -> Error {
    let mut suspicion = connection.suspicion.subscribe();
    let is_kept = head.headers.contains_key("idempotency-key");
    if is_kept || suspicion.wait_for(|is_suspect| *is_suspect).await.is_err() {
        return std::future::pending().await;
    }
    Error::new(Kind::ConnectionLost, "the server has acknowledged nothing for seconds")
}

async fn exchange(
    handle: &Handle,
    connection: &Inner,
    answer: &Answer,
    head: &RequestHead,
    body: Pieces,
) -> Result<(), Error> {
    let limit = connection.origin.max_field_section_size();
    let size = message::request_size(head) as u64;
    if size > limit {
        let detail = format!("its header fields have {size} bytes, and the server takes {limit}");
        return Err(Error::new(Kind::BadRequest, detail));
    }
    let (send, recv) = handle.open_stream(connection).await?;
    let id = VarInt::from(send.id()).into_inner();
    answer.update(|state| (state.stream, state.is_early_data) = (Some(id), recv.is_0rtt()));
    let mut reader =
        AnswerGuard(MessageReader::new(recv, connection.max_head_bytes, connection.useless.clone()));
    let exchanging = async {
        let reading = read_answer(connection, answer, &mut reader.0, head);
        tokio::pin!(reading);
        tokio::select! {
            biased;
            result = &mut reading => result,
            // An answer may come, and end, before the request is through.
            sent = send_request(send, head, body) => match sent {
                Ok(()) => reading.await,
                Err(error) => Err(error),
            },
        }
    };
    let result = tokio::select! {
        biased;
        result = exchanging => result,
        error = given_up(connection, head) => Err(error),
    };
    result.map_err(|error| if connection.is_refused(id) { Kind::Refused.into() } else { error })
}

async fn send_request(send: SendStream, head: &RequestHead, body: Pieces) -> Result<(), Error> {
    let mut guard = RequestGuard(Some(send));
    let Some(send) = &mut guard.0 else { return Ok(()) };
    match write_request(send, head, body).await {
        Ok(()) => {
            let _ = send.finish();
            guard.0 = None;
            Ok(())
        }
        Err(WriteError::ConnectionLost(error)) => Err(connection::lost(&error)),
        // The server wants no more of the request; its answer says why.
        Err(_) => std::future::pending().await,
    }
}

async fn write_request(send: &mut SendStream, head: &RequestHead, body: Pieces) -> Result<(), WriteError> {
    let mut chunks = vec![message::encode_request(head)];
    match body {
        Pieces::Whole(bytes) => {
            put_data(&mut chunks, bytes);
            send.write_all_chunks(&mut chunks).await
        }
        Pieces::Coming(mut pieces) => {
            send.write_all_chunks(&mut chunks).await?;
            while let Some(bytes) = pieces.recv().await {
                let mut chunks = Vec::with_capacity(2);
                put_data(&mut chunks, bytes);
                send.write_all_chunks(&mut chunks).await?;
            }
            Ok(())
        }
    }
}

fn put_data(chunks: &mut Vec<Bytes>, bytes: Bytes) {
    if !bytes.is_empty() {
        let mut header = Vec::with_capacity(16);
        frame::put_header(&mut header, frame::DATA, bytes.len());
        chunks.extend([header.into(), bytes]);
    }
}

async fn read_answer(
    connection: &Inner,
    answer: &Answer,
    reader: &mut MessageReader,
    request: &RequestHead,
) -> Result<(), Error> {
    let mut length = None::<BodyLength>;
    let mut live = None;
    loop {
        match reader.next().await.map_err(|failure| translate(connection, failure))? {
            Part::Fields(section) if length.is_none() => {
                let head = message::decode_response(&section, connection.max_head_bytes)
                    .map_err(|error| head_error(connection, error))?;
                if head.status.is_informational() {
                    reader.expect_head();
                    continue;
                }
                let declared = fields::content_length(&head.headers).map_err(|_| {
                    Error::new(Kind::Protocol, "content-length is malformed; it must be one decimal number")
                })?;
                // Answers without a body may still say how long one would be (RFC 9110 §8.6).
                let has_body = request.method != Method::HEAD
                    && head.status != StatusCode::NO_CONTENT
                    && head.status != StatusCode::NOT_MODIFIED;
                length = Some(BodyLength::new(declared.filter(|_| has_body)));
                answer.update(|state| (state.head, state.head_at_ns) = (Some(head), monotonic_ns()));
            }
            Part::Fields(section) => {
                let trailers = message::decode_trailers(&section, connection.max_head_bytes)
                    .map_err(|error| head_error(connection, error))?;
                answer.update(|state| state.trailers = Some(trailers));
            }
            Part::Data { bytes, is_first } => {
                if !length.as_mut().is_some_and(|length| length.handle_data(bytes.len())) {
                    return Err(Error::new(Kind::Protocol, "the body is longer than its content-length"));
                }
                let at_ns = monotonic_ns();
                live.get_or_insert_with(|| connection.flow.begin());
                connection.flow.note_arrival(at_ns);
                answer.push(Chunk { at_ns, bytes, is_first }).await;
            }
            Part::End => {
                return match length {
                    Some(length) if length.is_complete() => Ok(()),
                    _ => Err(Kind::Truncated.into()),
                };
            }
        }
    }
}

fn head_error(connection: &Inner, error: message::HeadError) -> Error {
    match error {
        message::HeadError::Http3(error) => translate(connection, ReadFailure::Http3(error)),
        message::HeadError::TooLarge => Error::new(Kind::Protocol, "the answer's head is too large"),
        message::HeadError::MethodRefused => Kind::Protocol.into(),
    }
}

fn translate(connection: &Inner, failure: ReadFailure) -> Error {
    match failure {
        ReadFailure::Http3(error) => {
            breach(&connection.quic, error);
            Error::new(Kind::Protocol, error.to_string())
        }
        ReadFailure::HeadTooLarge => Error::new(Kind::Protocol, "the answer's head is too large"),
        // Nothing was done with the request (RFC 9114 §8.1).
        ReadFailure::Reset(code::REQUEST_REJECTED) => Kind::Refused.into(),
        ReadFailure::Reset(reset) => {
            Error::new(Kind::StreamReset, format!("{} ({reset:#x})", code::name(reset)))
        }
        ReadFailure::Lost(error) => connection::lost(&error),
        ReadFailure::Rejected => Kind::ConnectionLost.into(),
    }
}
