//! One request of a client, and its answer as it comes.
//!
//! In: a request's head, its body at once or piece by piece. Out: the answer's head; then chunks, one per DATA
//! frame where they are small, each with the moment at which it was read; then the end, or an error. The
//! reader takes all chunks that are there at once; what it does not take fills a bounded buffer, and then the
//! server waits. What happens on the wire is in `client/request.rs`.
//!
//! Dropping a [`ResponseStream`] before its end sends STOP_SENDING (H3_REQUEST_CANCELLED); the connection
//! goes on.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use headrace_core::http3::message::ResponseHead;
use headrace_core::{Error, Kind};
use http::HeaderMap;
use tokio::runtime::Handle;
use tokio::sync::{Notify, mpsc};

use crate::reply::Reply;

/// How many chunks may wait for their reader; beyond this, the stream is not read.
const MAX_CHUNKS: usize = 4096;
const MAX_CHUNK_BYTES: usize = 256 * 1024;
/// Of how many DATA frames a stream keeps a note; a recorded stream keeps more, because it keeps nothing else.
const MAX_ARRIVALS: usize = 64 * 1024;
const MAX_RECORDS: usize = 1_000_000;

/// What is done with an answer.
#[derive(Clone, Copy, Default)]
pub struct Options {
    /// Only the times and sizes of the DATA frames are kept, not the body. The reader is not woken before the end,
    /// and so cannot disturb what it measures.
    pub is_recorded: bool,
    /// An answer for which nobody waits, and from which nobody has taken anything for so long, is stopped: its reader
    /// has gone, and forgot to say so.
    pub abandon_after: Option<Duration>,
    /// The request may be sent in early data (0-RTT): it does no harm when it comes twice.
    pub may_be_early: bool,
}

/// The body of a request.
pub enum RequestBody {
    Whole(Bytes),
    /// It comes by [`ResponseStream::send`].
    Pieces,
}

/// Some bytes of the answer's body.
#[derive(Clone, Debug)]
pub struct Chunk {
    /// When they were read, in nanoseconds of the monotonic clock.
    pub at_ns: u64,
    pub bytes: Bytes,
    /// They begin a DATA frame.
    pub is_first: bool,
}

/// What is known of the answer so far.
#[derive(Default)]
pub struct State {
    pub stream: Option<u64>,
    /// It was sent in early data.
    pub is_early_data: bool,
    pub head: Option<ResponseHead>,
    pub head_at_ns: u64,
    chunks: VecDeque<Chunk>,
    bytes: usize,
    /// When each DATA frame came, and how long it was.
    arrivals: Vec<(u64, u32)>,
    /// The frame that is coming now is among them.
    is_noted: bool,
    /// The stream is recorded instead of read.
    is_recorded: bool,
    pub trailers: Option<HeaderMap>,
    end: Option<Result<(), Error>>,
    /// When the reader last took chunks, or was told that there are some.
    read_at: Option<Instant>,
    waiting_for_stream: Vec<Reply<()>>,
    waiting_for_head: Vec<Reply<()>>,
    waiting_for_more: Vec<Reply<()>>,
}

impl State {
    fn note(&mut self, chunk: &Chunk) {
        let size = chunk.bytes.len() as u32;
        let most = if self.is_recorded { MAX_RECORDS } else { MAX_ARRIVALS };
        if chunk.is_first {
            self.is_noted = self.arrivals.len() < most;
            if self.is_noted {
                self.arrivals.push((chunk.at_ns, size));
            }
        } else if let Some((_, last)) = self.arrivals.last_mut().filter(|_| self.is_noted) {
            *last = last.saturating_add(size);
        }
    }

    fn wake_waiters(&mut self) {
        if self.stream.is_some() || self.end.is_some() {
            self.waiting_for_stream.drain(..).for_each(|reply| reply.send(Ok(())));
        }
        if self.head.is_some() || self.end.is_some() {
            if !self.waiting_for_head.is_empty() {
                self.read_at = Some(Instant::now());
            }
            self.waiting_for_head.drain(..).for_each(|reply| reply.send(Ok(())));
        }
        if !self.chunks.is_empty() || self.end.is_some() {
            if !self.waiting_for_more.is_empty() {
                self.read_at = Some(Instant::now());
            }
            self.waiting_for_more.drain(..).for_each(|reply| reply.send(Ok(())));
        }
    }
}

/// An answer, between the stream's task and its reader.
#[derive(Default)]
pub struct Answer {
    state: Mutex<State>,
    /// The reader made room, or has gone.
    taken: Notify,
    stopped: Notify,
}

impl Answer {
    /// Changes what is known, and wakes those that waited for it.
    pub fn update(&self, change: impl FnOnce(&mut State)) {
        let mut state = self.lock();
        change(&mut state);
        state.wake_waiters();
    }

    /// Forgets a stream whose answer has not begun; false when it has.
    pub fn begin_again(&self) -> bool {
        let mut state = self.lock();
        let is_untouched = state.head.is_none();
        if is_untouched {
            (state.stream, state.is_early_data) = (None, false);
        }
        is_untouched
    }

    /// Gives a chunk to the reader; waits while it has too many.
    pub async fn push(&self, chunk: Chunk) {
        let is_full = |state: &State| state.bytes >= MAX_CHUNK_BYTES || state.chunks.len() >= MAX_CHUNKS;
        self.update(|state| {
            state.note(&chunk);
            if !state.is_recorded {
                state.bytes += chunk.bytes.len();
                state.chunks.push_back(chunk);
            }
        });
        loop {
            let taken = self.taken.notified();
            if !is_full(&self.lock()) {
                return;
            }
            taken.await;
        }
    }

    /// Resolves once nobody has waited for the answer, or taken from it, for so long.
    pub async fn abandoned(&self, after: Option<Duration>) -> Error {
        let Some(after) = after else { return std::future::pending().await };
        loop {
            let idle = {
                let state = self.lock();
                let is_awaited = !state.waiting_for_head.is_empty() || !state.waiting_for_more.is_empty();
                state.read_at.filter(|_| !is_awaited).map_or(Duration::ZERO, |at| at.elapsed())
            };
            if idle >= after {
                let seconds = after.as_secs_f64();
                return Error::new(Kind::Stopped, format!("nobody has read the answer for {seconds} s"));
            }
            tokio::time::sleep((after - idle).max(after / 8)).await;
        }
    }
}

impl Answer {
    /// `is_recorded`: as in [`Options`].
    pub fn new(is_recorded: bool) -> Self {
        let answer = Self::default();
        answer.lock().is_recorded = is_recorded;
        answer
    }

    /// Resolves when the reader wants no more.
    pub async fn stopped(&self) {
        self.stopped.notified().await;
    }

    /// Says how the stream has ended.
    pub fn set_end(&self, end: Result<(), Error>) {
        self.update(|state| state.end = Some(end));
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The reader's end of an answer.
pub struct ResponseStream {
    answer: Arc<Answer>,
    runtime: Handle,
    body: Mutex<Option<mpsc::Sender<Bytes>>>,
}

impl ResponseStream {
    /// `body`: takes the pieces of the request's body, where it comes by [`ResponseStream::send`].
    pub fn new(answer: Arc<Answer>, runtime: &Handle, body: Option<mpsc::Sender<Bytes>>) -> Self {
        Self { answer, runtime: runtime.clone(), body: Mutex::new(body) }
    }

    /// Answers when the stream has its credit (MAX_STREAMS) and is open, or has ended.
    pub fn wait_stream(&self, reply: Reply<()>) {
        let mut state = self.answer.lock();
        state.waiting_for_stream.push(reply);
        state.wake_waiters();
    }

    /// Sends a piece of the request's body; answers when there is room for the next one.
    ///
    /// The reply is [`Kind::Closed`] when the server wants no more of it, or the stream has ended.
    pub fn send(&self, bytes: Bytes, reply: Reply<()>) {
        let sender = self.body().clone();
        let Some(sender) = sender else {
            return reply.send(Err(Error::new(
                Kind::Misuse,
                "the request's body has been sent already; send pieces before finish()",
            )));
        };
        self.runtime.spawn(async move {
            reply.send(sender.send(bytes).await.map_err(|_| Kind::Closed.into()));
        });
    }

    /// Says that the request's body is whole.
    pub fn finish(&self) {
        self.body().take();
    }

    fn body(&self) -> MutexGuard<'_, Option<mpsc::Sender<Bytes>>> {
        self.body.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Answers when the head is there, or the stream has ended without one.
    pub fn wait_head(&self, reply: Reply<()>) {
        let mut state = self.answer.lock();
        state.waiting_for_head.push(reply);
        state.wake_waiters();
    }

    /// Answers when there are chunks to take, or the stream has ended.
    pub fn wait_more(&self, reply: Reply<()>) {
        let mut state = self.answer.lock();
        state.waiting_for_more.push(reply);
        state.wake_waiters();
    }

    /// The head and when it was read, once it is there.
    pub fn head(&self) -> Option<(ResponseHead, u64)> {
        let state = self.answer.lock();
        state.head.clone().map(|head| (head, state.head_at_ns))
    }

    /// Takes all chunks that are there.
    pub fn take(&self) -> Vec<Chunk> {
        let mut state = self.answer.lock();
        state.bytes = 0;
        state.read_at = Some(Instant::now());
        let chunks = state.chunks.drain(..).collect();
        drop(state);
        self.answer.taken.notify_one();
        chunks
    }

    /// How the stream ended; `None` while it runs, or while there are chunks to take.
    pub fn end(&self) -> Option<Result<(), Error>> {
        let state = self.answer.lock();
        state.end.clone().filter(|_| state.chunks.is_empty())
    }

    /// `(received at, in monotonic ns, bytes)` of each DATA frame so far, or of the first ones, where there are very
    /// many.
    pub fn arrivals(&self) -> Vec<(u64, u32)> {
        self.answer.lock().arrivals.clone()
    }

    pub fn trailers(&self) -> Option<HeaderMap> {
        self.answer.lock().trailers.clone()
    }

    pub fn is_early_data(&self) -> bool {
        self.answer.lock().is_early_data
    }

    pub fn stream_id(&self) -> Option<u64> {
        self.answer.lock().stream
    }

    /// Asks the server to stop; what came so far can still be taken.
    pub fn stop(&self) {
        self.answer.stopped.notify_one();
    }
}

impl Drop for ResponseStream {
    fn drop(&mut self) {
        self.stop();
    }
}
