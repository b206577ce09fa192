//! An answer that is relayed into a record, and told from there to any number of clients.
//!
//! In: a request for a model server. Out: one generation, however many ask for it by the same key: each follows
//! the record from its first byte, and paces only itself. The generation belongs to its followers: it ends when
//! the last of them stops it, and a while after the last was lost, for a client whose connection died comes back.
//! The record itself is `headrace-core/journal.rs`.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use bytes::Bytes;
use headrace_core::events::Unit;
use headrace_core::journal::{End, Entry, Journal};
use headrace_core::{Error, Kind};
use http::{HeaderMap, StatusCode};
use tokio::sync::{Notify, mpsc};
use tokio::time::Sleep;

use crate::downstream::{Downstream, Gone};
use crate::exchange::Progress;
use crate::inbox::Inbox;
use crate::relay::{self, RelayRequest, Sides};
use crate::report::RelayReport;
use crate::server::Worker;

/// One answer, recorded.
pub struct Recording {
    state: Mutex<State>,
    /// For followers: there is more to read.
    changed: Notify,
    /// How long a generation goes on whose last follower was lost.
    grace: Duration,
}

struct State {
    journal: Journal,
    followers: usize,
    /// How and when the last follower left; `None` while there are some, and before the first.
    left: Option<(Gone, Instant)>,
    /// Of the task that records, to hear that everybody left.
    recorder: Option<Waker>,
}

impl Recording {
    /// `most_bytes`: of the body that is kept. `grace`: how long a generation goes on whose last follower was lost.
    pub fn new(most_bytes: usize, grace: Duration) -> Self {
        let state = State { journal: Journal::new(most_bytes), followers: 0, left: None, recorder: None };
        Self { state: Mutex::new(state), changed: Notify::new(), grace }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Looks at the record.
    pub fn look<T>(&self, look: impl FnOnce(&Journal) -> T) -> T {
        look(&self.lock().journal)
    }

    fn change(&self, change: impl FnOnce(&mut Journal)) {
        change(&mut self.lock().journal);
        self.changed.notify_waiters();
    }

    /// There will be no more of it; does nothing once it has ended.
    pub fn close(&self) {
        self.change(|journal| journal.set_end(End::Broken(Kind::Internal.h3_code())));
    }

    pub fn followers(&self) -> usize {
        self.lock().followers
    }

    /// Resolves when the record has changed since the call.
    pub fn changed(&self) -> impl Future<Output = ()> + '_ {
        self.changed.notified()
    }

    pub fn join(self: &Arc<Self>) -> Seat {
        let mut state = self.lock();
        state.followers += 1;
        state.left = None;
        drop(state);
        Seat { recording: self.clone(), how: Gone::Stopped }
    }
}

/// One follower, until it is dropped.
pub struct Seat {
    recording: Arc<Recording>,
    /// How it will have left.
    pub how: Gone,
}

impl Drop for Seat {
    fn drop(&mut self) {
        let mut state = self.recording.lock();
        state.followers -= 1;
        if state.followers == 0 {
            state.left = Some((self.how, Instant::now()));
            if let Some(recorder) = state.recorder.take() {
                recorder.wake();
            }
        }
    }
}

/// The record in the place of a client.
pub struct Sink {
    recording: Arc<Recording>,
    trailers: Option<HeaderMap>,
    taken: u64,
    timer: Option<Pin<Box<Sleep>>>,
}

impl Sink {
    pub fn queue_head(&mut self, status: StatusCode, headers: &HeaderMap) {
        self.recording.change(|journal| journal.set_head(status, headers.clone()));
    }

    pub fn queue_data(&mut self, unit: &Unit<'_>) {
        let bytes = Bytes::from([unit.held, unit.fresh].concat());
        self.taken += bytes.len() as u64;
        self.recording.change(|journal| journal.push(Entry { bytes, is_event: unit.is_event }));
    }

    pub fn queue_trailers(&mut self, headers: &HeaderMap) {
        self.trailers = Some(headers.clone());
    }

    /// A record is never full: it forgets.
    pub fn queued(&self) -> usize {
        0
    }

    pub fn poll_flush(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Gone>> {
        Poll::Ready(Ok(()))
    }

    pub async fn delivered(&mut self) {}

    pub fn settle_time(&self) -> Duration {
        Duration::ZERO
    }

    pub fn taken(&self) -> u64 {
        self.taken
    }

    /// Everybody left: the last one on purpose, or too long ago.
    pub fn poll_gone(&mut self, cx: &mut Context<'_>) -> Poll<Gone> {
        let left = {
            let mut state = self.recording.lock();
            state.recorder = Some(cx.waker().clone());
            state.left
        };
        let until = match left {
            None => {
                self.timer = None;
                return Poll::Pending;
            }
            Some((Gone::Stopped, _)) => return Poll::Ready(Gone::Stopped),
            Some((Gone::Lost, since)) => since + self.recording.grace,
        };
        let timer = self.timer.get_or_insert_with(|| Box::pin(tokio::time::sleep_until(until.into())));
        timer.as_mut().reset(until.into());
        timer.as_mut().poll(cx).map(|()| Gone::Lost)
    }

    pub fn finish(&mut self) {
        let trailers = self.trailers.take();
        self.recording.change(|journal| journal.set_end(End::Finished(trailers)));
    }

    pub fn reset(&mut self, code: u64) {
        self.recording.change(|journal| journal.set_end(End::Broken(code)));
    }
}

/// Relays an answer into the record. When nothing of it could be had (`untouched`), another upstream may be tried:
/// the record stays open.
pub async fn record(worker: Arc<Worker>, request: RelayRequest, recording: Arc<Recording>) -> RelayReport {
    // Nobody commands it: what ends it is its followers' leaving.
    let (_kept, commands) = mpsc::channel(1);
    let sink = Sink { recording, trailers: None, taken: 0, timer: None };
    let sides = Sides {
        down: &mut Downstream::Record(sink),
        inbox: &mut Inbox::new(commands),
        worker: &worker,
        progress: &Progress::default(),
        kept_body: &mut None,
        is_head_request: false,
    };
    relay::run(sides, request).await
}

/// What a follower may not do: `idempotency.answer_bytes` were too few for how slowly it reads.
pub fn too_slow() -> Error {
    Error::new(Kind::ClientStalled, "the record of the answer has gone on without it")
}
