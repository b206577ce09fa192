//! An answer that is relayed into a record, and told from there to any number of clients.
//!
//! In: a request for a model server. Out: one generation, however many ask for it by the same key: each follows
//! the record from its first byte; the fastest paces the model server, a slower one only itself. The generation
//! belongs to its followers: it ends when the last of them stops it, and a while after the last was lost, for a
//! client whose connection died comes back. The record itself is `headrace-core/replay.rs`.

use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use bytes::Bytes;
use headrace_core::events::Unit;
use headrace_core::relay::Cause;
use headrace_core::replay::{Break, End, Entry, Journal};
use headrace_core::{Error, Kind};
use http::{HeaderMap, StatusCode};
use tokio::sync::{Notify, mpsc};
use tokio::time::Sleep;

use crate::downstream::{Downstream, Gone};
use crate::exchange::Progress;
use crate::exchange::commands::Inbox;
use crate::exchange::request_body::KeptBody;
use crate::relay::report::RelayReport;
use crate::relay::{self, RelayRequest, Sides};
use crate::server::Worker;

/// What a record costs while it is empty.
const RECORD_COST: usize = 1024;

/// What all records of one keeper hold together. Beyond the bound, a record that grows keeps only what nobody has
/// read yet.
#[derive(Debug)]
pub struct Records {
    most_bytes: usize,
    bytes: AtomicUsize,
}

impl Records {
    pub fn new(most_bytes: usize) -> Self {
        Self { most_bytes, bytes: AtomicUsize::new(0) }
    }

    pub fn bytes(&self) -> usize {
        self.bytes.load(Ordering::Relaxed)
    }

    fn replace(&self, before: usize, now: usize) {
        self.bytes.fetch_add(now, Ordering::Relaxed);
        self.bytes.fetch_sub(before, Ordering::Relaxed);
    }
}

/// One answer, recorded.
pub struct Recording {
    state: Mutex<State>,
    /// For followers: there is more to read.
    changed: Notify,
    /// How long a generation goes on whose last follower was lost.
    grace: Duration,
    records: Arc<Records>,
}

struct State {
    journal: Journal,
    /// The request's, until the answer has begun: another upstream may have to be asked.
    body: Option<Bytes>,
    /// What is counted of this record.
    counted: usize,
    followers: usize,
    /// How and when the last follower left; `None` while there are some, and before the first.
    left: Option<(Gone, Instant)>,
    /// Of the task that records, to hear that everybody left, or that it may go on.
    recorder: Option<Waker>,
    /// It waits until somebody has read more.
    is_paused: bool,
    /// Everybody had left, and the generation ends: too late to join.
    is_given_up: bool,
}

impl Drop for Recording {
    fn drop(&mut self) {
        let counted = self.lock().counted;
        self.records.replace(counted, 0);
    }
}

impl Recording {
    /// `most_bytes`: of the answer that is kept. `grace`: how long a generation goes on whose last follower was
    /// lost. `body`: the request's.
    pub fn new(records: Arc<Records>, most_bytes: usize, grace: Duration, body: Bytes) -> Self {
        let mut state = State {
            journal: Journal::new(most_bytes),
            body: Some(body),
            counted: 0,
            followers: 0,
            left: None,
            recorder: None,
            is_paused: false,
            is_given_up: false,
        };
        state.count(&records);
        Self { state: Mutex::new(state), changed: Notify::new(), grace, records }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Looks at the record.
    pub fn look<T>(&self, look: impl FnOnce(&Journal) -> T) -> T {
        look(&self.lock().journal)
    }

    /// Reads the record on, and notes how far; a recorder that waits for readers goes on.
    pub fn read<T>(&self, read: impl FnOnce(&mut Journal) -> T) -> T {
        let mut state = self.lock();
        let before = state.journal.unread();
        let result = read(&mut state.journal);
        state.count(&self.records);
        if state.is_paused && state.journal.unread() < before {
            state.is_paused = false;
            state.wake_recorder();
        }
        result
    }

    fn change(&self, change: impl FnOnce(&mut State)) {
        let mut state = self.lock();
        change(&mut state);
        if self.records.bytes() > self.records.most_bytes {
            state.journal.forget(0);
        }
        state.count(&self.records);
        drop(state);
        self.changed.notify_waiters();
    }

    /// There will be no more of it; does nothing once it has ended.
    pub fn close(&self) {
        let kind = Kind::Internal;
        let broken = Break { code: kind.h3_code(), cause: Cause::Abandoned, error: Some(kind.into()) };
        self.change(|state| state.journal.set_end(End::Broken(broken)));
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
        let is_late = state.has_failed();
        drop(state);
        Seat { recording: self.clone(), how: Gone::Stopped, is_late }
    }

    /// It broke off, or is about to: nobody gets a whole answer from it any more.
    pub fn has_failed(&self) -> bool {
        self.lock().has_failed()
    }
}

impl State {
    fn has_failed(&self) -> bool {
        self.is_given_up || matches!(self.journal.end(), Some(End::Broken(_)))
    }

    /// Counts what is held now.
    fn count(&mut self, records: &Records) {
        let body = self.body.as_ref().map_or(0, Bytes::len);
        let now = RECORD_COST + body + self.journal.bytes();
        if now != self.counted {
            records.replace(self.counted, now);
            self.counted = now;
        }
    }

    /// Its waker stays: one that was taken out could be missed until it is there again.
    fn wake_recorder(&self) {
        if let Some(recorder) = &self.recorder {
            recorder.wake_by_ref();
        }
    }
}

/// One follower, until it is dropped.
pub struct Seat {
    pub recording: Arc<Recording>,
    /// How it will have left.
    pub how: Gone,
    /// It was taken when the record had failed.
    pub is_late: bool,
}

impl Drop for Seat {
    fn drop(&mut self) {
        let mut state = self.recording.lock();
        state.followers -= 1;
        if state.followers == 0 {
            state.left = Some((self.how, Instant::now()));
            state.wake_recorder();
        }
    }
}

/// The record in the place of a client.
pub struct Sink {
    recording: Arc<Recording>,
    trailers: Option<HeaderMap>,
    taken: u64,
    timer: Option<Pin<Box<Sleep>>>,
    /// What nobody has read may grow so long: a slow client slows its own model server, and no answer outgrows
    /// what is kept of it before the first byte was told.
    budget: usize,
    /// The code by which the answer broke off.
    broken: Option<u64>,
}

impl Sink {
    pub fn queue_head(&mut self, status: StatusCode, headers: &HeaderMap) {
        self.recording.change(|state| {
            state.body = None;
            state.journal.set_head(status, headers.clone());
        });
    }

    pub fn queue_data(&mut self, unit: &Unit<'_>) {
        let bytes = Bytes::from([unit.held, unit.fresh].concat());
        self.taken += bytes.len() as u64;
        self.recording.change(|state| state.journal.push(Entry { bytes, is_event: unit.is_event }));
    }

    pub fn queue_trailers(&mut self, headers: &HeaderMap) {
        self.trailers = Some(headers.clone());
    }

    /// What nobody has read yet.
    pub fn queued(&self) -> usize {
        let mut state = self.recording.lock();
        let unread = if state.journal.is_full() { self.budget } else { state.journal.unread() };
        state.is_paused = unread >= self.budget;
        unread
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
        let mut state = self.recording.lock();
        state.recorder = Some(cx.waker().clone());
        let gone = match state.left {
            None => {
                self.timer = None;
                return Poll::Pending;
            }
            Some((Gone::Stopped, _)) => Gone::Stopped,
            Some((Gone::Lost, since)) => {
                let until = since + self.recording.grace;
                let timer =
                    self.timer.get_or_insert_with(|| Box::pin(tokio::time::sleep_until(until.into())));
                timer.as_mut().reset(until.into());
                if timer.as_mut().poll(cx).is_pending() {
                    return Poll::Pending;
                }
                Gone::Lost
            }
        };
        state.is_given_up = true;
        Poll::Ready(gone)
    }

    pub fn finish(&mut self) {
        let trailers = self.trailers.take();
        self.recording.change(|state| state.journal.set_end(End::Finished(trailers)));
    }

    /// What its followers are told of it, they are told when the reason is known.
    pub fn reset(&mut self, code: u64) {
        self.broken = Some(code);
    }
}

/// Relays an answer into the record. When nothing of it could be had (`untouched`), another upstream may be tried:
/// the record stays open.
pub async fn record(worker: Arc<Worker>, request: RelayRequest, recording: Arc<Recording>) -> RelayReport {
    // Nobody commands it: what ends it is its followers' leaving.
    let (_kept, commands) = mpsc::channel(1);
    let body = recording.lock().body.clone();
    let budget = worker.config.limits.stream_budget_bytes;
    let recorded = recording.clone();
    let mut down =
        Downstream::Record(Sink { recording, trailers: None, taken: 0, timer: None, budget, broken: None });
    let sides = Sides {
        down: &mut down,
        inbox: &mut Inbox::new(commands),
        worker: &worker,
        progress: &Progress::default(),
        kept_body: &mut body.map(KeptBody::uncharged),
        is_head_request: false,
    };
    let report = relay::run(sides, request).await;
    // It would keep this task's memory as long as the record.
    recorded.lock().recorder = None;
    if let Downstream::Record(Sink { broken: Some(code), .. }) = down {
        let (cause, error) = (report.cause, report.error.clone());
        let end = match cause {
            // Everybody left when the answer had said its last word: it is whole.
            Cause::Done => End::Finished(None),
            _ => End::Broken(Break { code, cause, error }),
        };
        recorded.change(|state| {
            state.is_given_up &= matches!(end, End::Broken(_));
            state.journal.set_end(end);
        });
    }
    report
}

/// What a follower may not do: `idempotency.answer_bytes` were too few for how slowly it reads.
pub fn too_slow() -> Error {
    Error::new(Kind::ClientStalled, "the record of the answer has gone on without it")
}
