//! One request of a client, and its answer as it comes.
//!
//! In: a request's head and body. Out: the answer's head; then chunks, one per DATA frame where they are
//! small, each with the moment at which it was read; then the end, or an error. The reader takes all chunks
//! that are there at once; what it does not take fills a bounded buffer, and then the server waits.
//!
//! Dropping a [`ResponseStream`] before its end sends STOP_SENDING (H3_REQUEST_CANCELLED); the connection
//! goes on.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use headrace_core::fields::{self, BodyLength};
use headrace_core::http3::message::{self, RequestHead, ResponseHead};
use headrace_core::http3::{Http3Error, code, frame};
use headrace_core::{Error, Kind};
use http::{HeaderMap, Method, StatusCode};
use quinn::{SendStream, VarInt, WriteError};
use tokio::sync::Notify;

use crate::client::{self, Inner};
use crate::http3_stream::{MessageReader, Part, ReadFailure, stream_code};
use crate::reply::Reply;

/// Chunks that wait for their reader; beyond this the stream is not read.
const MAX_CHUNKS: usize = 4096;
const MAX_CHUNK_BYTES: usize = 256 * 1024;
/// DATA frames of which a recorded stream keeps a note.
const MAX_RECORDS: usize = 1_000_000;

/// Some bytes of the answer's body.
#[derive(Clone, Debug)]
pub struct Chunk {
    /// When they were read: nanoseconds of the monotonic clock.
    pub at_ns: u64,
    pub bytes: Bytes,
    /// They begin a DATA frame.
    pub is_first: bool,
}

/// What is known of the answer so far.
#[derive(Default)]
struct State {
    stream: Option<u64>,
    head: Option<ResponseHead>,
    head_at_ns: u64,
    chunks: VecDeque<Chunk>,
    bytes: usize,
    /// When each DATA frame came, and how long it was, of a stream that is recorded instead of read.
    records: Option<Vec<(u64, u32)>>,
    trailers: Option<HeaderMap>,
    end: Option<Result<(), Error>>,
    waiting_for_head: Vec<Reply<()>>,
    waiting_for_more: Vec<Reply<()>>,
}

impl State {
    fn wake_if_news(&mut self) {
        if self.head.is_some() || self.end.is_some() {
            self.waiting_for_head.drain(..).for_each(|reply| reply.send(Ok(())));
        }
        if !self.chunks.is_empty() || self.end.is_some() {
            self.waiting_for_more.drain(..).for_each(|reply| reply.send(Ok(())));
        }
    }
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    /// The reader made room, or has gone.
    taken: Notify,
    stopped: Notify,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The reader's end of an answer.
pub struct ResponseStream {
    shared: Arc<Shared>,
}

impl ResponseStream {
    /// Answers when the head is there, or the stream has ended without one.
    pub fn wait_head(&self, reply: Reply<()>) {
        let mut state = self.shared.lock();
        state.waiting_for_head.push(reply);
        state.wake_if_news();
    }

    /// Answers when there are chunks to take, or the stream has ended.
    pub fn wait_more(&self, reply: Reply<()>) {
        let mut state = self.shared.lock();
        state.waiting_for_more.push(reply);
        state.wake_if_news();
    }

    /// The head and when it was read, once it is there.
    pub fn head(&self) -> Option<(ResponseHead, u64)> {
        let state = self.shared.lock();
        state.head.clone().map(|head| (head, state.head_at_ns))
    }

    /// All chunks that are there.
    pub fn take(&self) -> Vec<Chunk> {
        let mut state = self.shared.lock();
        state.bytes = 0;
        let chunks = state.chunks.drain(..).collect();
        drop(state);
        self.shared.taken.notify_one();
        chunks
    }

    /// How the stream ended; `None` while it runs, or while there are chunks to take.
    pub fn end(&self) -> Option<Result<(), Error>> {
        let state = self.shared.lock();
        state.end.clone().filter(|_| state.chunks.is_empty())
    }

    /// What was recorded: `(received at, in monotonic ns, bytes)` of each DATA frame.
    pub fn take_records(&self) -> Vec<(u64, u32)> {
        self.shared.lock().records.take().unwrap_or_default()
    }

    pub fn trailers(&self) -> Option<HeaderMap> {
        self.shared.lock().trailers.clone()
    }

    pub fn stream_id(&self) -> Option<u64> {
        self.shared.lock().stream
    }

    /// Asks the server to stop; what came so far can still be taken.
    pub fn stop(&self) {
        self.shared.stopped.notify_one();
    }
}

impl Drop for ResponseStream {
    fn drop(&mut self) {
        self.stop();
    }
}

/// Sends the request from a task of the client's runtime. `is_recorded`: of the answer's body only the times
/// and sizes of its DATA frames are kept; its reader is not woken before the end, and so cannot disturb what
/// it measures.
pub fn start(connection: Arc<Inner>, head: RequestHead, body: Bytes, is_recorded: bool) -> ResponseStream {
    let shared = Arc::new(Shared::default());
    shared.lock().records = is_recorded.then(Vec::new);
    let stream = ResponseStream { shared: shared.clone() };
    tokio::spawn(async move {
        let stopped = shared.stopped.notified();
        tokio::pin!(stopped);
        let result = tokio::select! {
            biased;
            // Dropping the run resets what was not sent, and stops what was not read.
            () = &mut stopped => Err(Kind::Stopped.into()),
            result = run(&connection, &shared, &head, body) => result,
        };
        let mut state = shared.lock();
        state.end = Some(result);
        state.wake_if_news();
    });
    stream
}

/// Resets a request that is dropped before FIN was queued; taken out once it was, for a lost FIN must be
/// repeated.
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

async fn run(connection: &Inner, shared: &Shared, head: &RequestHead, body: Bytes) -> Result<(), Error> {
    if connection.is_going_away() {
        return Err(Error::new(Kind::ConnectionLost, "the server is going away"));
    }
    let (send, recv) = connection.quic.open_bi().await.map_err(|error| client::lost(&error))?;
    let id = VarInt::from(send.id()).into_inner();
    shared.lock().stream = Some(id);
    let mut answer = AnswerGuard(MessageReader::new(recv, connection.max_head_bytes));
    let reading = read_answer(connection, shared, &mut answer.0, head);
    tokio::pin!(reading);
    let result = tokio::select! {
        biased;
        result = &mut reading => result,
        // An answer may come, and end, before the request is through.
        sent = send_request(send, head, body) => match sent {
            Ok(()) => reading.await,
            Err(error) => Err(error),
        },
    };
    result.map_err(|error| if connection.is_refused(id) { Kind::ConnectionLost.into() } else { error })
}

async fn send_request(send: SendStream, head: &RequestHead, body: Bytes) -> Result<(), Error> {
    let mut guard = RequestGuard(Some(send));
    let mut chunks = vec![message::encode_request(head)];
    if !body.is_empty() {
        let mut data = Vec::with_capacity(16);
        frame::put_header(&mut data, frame::DATA, body.len());
        chunks.extend([data.into(), body]);
    }
    let Some(send) = &mut guard.0 else { return Ok(()) };
    match send.write_all_chunks(&mut chunks).await {
        Ok(()) => {
            let _ = send.finish();
            guard.0 = None;
            Ok(())
        }
        Err(WriteError::ConnectionLost(error)) => Err(client::lost(&error)),
        // The server wants no more of the request; its answer says why.
        Err(_) => std::future::pending().await,
    }
}

async fn read_answer(
    connection: &Inner,
    shared: &Shared,
    reader: &mut MessageReader,
    request: &RequestHead,
) -> Result<(), Error> {
    let mut length = None::<BodyLength>;
    loop {
        match reader.next().await.map_err(|failure| translate(connection, failure))? {
            Part::Fields(section) if length.is_none() => {
                let head = message::decode_response(&section, connection.max_head_bytes)
                    .map_err(|error| head_error(connection, error))?;
                if head.status.is_informational() {
                    reader.expect_head();
                    continue;
                }
                let declared = fields::content_length(&head.headers)
                    .map_err(|_| Error::new(Kind::Protocol, "content-length is malformed"))?;
                // Answers without a body may still say how long one would be (RFC 9110 §8.6).
                let has_body = request.method != Method::HEAD
                    && head.status != StatusCode::NO_CONTENT
                    && head.status != StatusCode::NOT_MODIFIED;
                length = Some(BodyLength::new(declared.filter(|_| has_body)));
                let mut state = shared.lock();
                state.head = Some(head);
                state.head_at_ns = monotonic_ns();
                state.wake_if_news();
            }
            Part::Fields(section) => {
                let trailers = message::decode_trailers(&section, connection.max_head_bytes)
                    .map_err(|error| head_error(connection, error))?;
                shared.lock().trailers = Some(trailers);
            }
            Part::Data { bytes, is_first } => {
                if !length.as_mut().is_some_and(|length| length.handle_data(bytes.len())) {
                    return Err(Error::new(Kind::Protocol, "the body is longer than its content-length"));
                }
                push(shared, Chunk { at_ns: monotonic_ns(), bytes, is_first }).await;
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

async fn push(shared: &Shared, chunk: Chunk) {
    let is_full = {
        let mut state = shared.lock();
        if let Some(records) = &mut state.records {
            let size = chunk.bytes.len() as u32;
            if chunk.is_first && records.len() < MAX_RECORDS {
                records.push((chunk.at_ns, size));
            } else if let Some((_, last)) = records.last_mut().filter(|_| !chunk.is_first) {
                *last += size;
            }
            return;
        }
        state.bytes += chunk.bytes.len();
        state.chunks.push_back(chunk);
        state.wake_if_news();
        |state: &State| state.bytes >= MAX_CHUNK_BYTES || state.chunks.len() >= MAX_CHUNKS
    };
    loop {
        let taken = shared.taken.notified();
        if !is_full(&shared.lock()) {
            return;
        }
        taken.await;
    }
}

fn head_error(connection: &Inner, error: message::HeadError) -> Error {
    match error {
        message::HeadError::Http3(error) => translate(connection, ReadFailure::Http3(error)),
        message::HeadError::TooLarge => Error::new(Kind::Protocol, "the answer's head is too large"),
        message::HeadError::Connect => Kind::Protocol.into(),
    }
}

fn translate(connection: &Inner, failure: ReadFailure) -> Error {
    match failure {
        ReadFailure::Http3(error) => {
            breach(connection, error);
            Error::new(Kind::Protocol, error.to_string())
        }
        ReadFailure::HeadTooLarge => Error::new(Kind::Protocol, "the answer's head is too large"),
        ReadFailure::Reset(reset) => {
            Error::new(Kind::StreamReset, format!("{} ({reset:#x})", code::name(reset)))
        }
        ReadFailure::Lost(error) => client::lost(&error),
        ReadFailure::Rejected => Kind::ConnectionLost.into(),
    }
}

fn breach(connection: &Inner, error: Http3Error) {
    if error.scope == code::Scope::Connection {
        connection.quic.close(stream_code(error.code), error.reason.as_bytes());
    }
}

/// The clock that Python's `time.monotonic_ns()` reads.
pub fn monotonic_ns() -> u64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `now` is valid for the call, which only writes to it.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut now) };
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}
