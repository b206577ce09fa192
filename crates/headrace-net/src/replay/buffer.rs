//! The record of one answer, between the relay that writes it and the clients that read it.
//!
//! In: an answer, written once. Out: the same answer, to any number of readers. The fastest reader paces the model
//! server, a slower one only itself. The generation belongs to its readers: it ends when the last of them stops it,
//! and a while after the last was lost, for a client whose connection died comes back. The record itself is
//! `headrace-core/replay.rs`.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Waker;
use std::time::{Duration, Instant};

use bytes::Bytes;
use headrace_core::Kind;
use headrace_core::relay::Cause;
use headrace_core::replay::{Break, End, Record};
use tokio::sync::Notify;

use crate::gone::Gone;

/// What a record costs while it is empty.
const RECORD_COST: usize = 1024;

/// What all records of one gateway may hold together. Beyond the bound, a record that grows keeps only what nobody has
/// read yet.
#[derive(Debug)]
pub struct Budget {
    most_bytes: usize,
    bytes: AtomicUsize,
}

impl Budget {
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

/// One answer, recorded: a [`Record`] between its writer and its readers.
pub struct Buffer {
    state: Mutex<State>,
    /// Tells readers that there is more to read.
    changed: Notify,
    pub(super) most_unread: usize,
    /// How long a generation goes on whose last reader was lost.
    pub(super) grace: Duration,
    budget: Arc<Budget>,
}

pub(super) struct State {
    pub record: Record,
    /// The request's body, until the answer has begun: another upstream may have to be asked.
    pub body: Option<Bytes>,
    /// What the budget counts of this record.
    counted: usize,
    pub readers: usize,
    /// How many of them have a client that is suspect: nobody knows whether it is still there.
    pub silent: usize,
    /// How and when the last reader left, or fell silent; `None` while there are others, and before the first.
    pub left: Option<(Gone, Instant)>,
    /// Wakes the task that writes, when everybody has left, or when it may go on.
    pub writer: Option<Waker>,
    /// The writer waits until somebody has read more.
    pub is_paused: bool,
    /// All readers had left, and the generation ends: it is too late to join.
    pub is_given_up: bool,
}

impl Drop for Buffer {
    fn drop(&mut self) {
        let counted = self.lock().counted;
        self.budget.replace(counted, 0);
    }
}

impl Buffer {
    /// `most_bytes`: how much of the answer is kept. `most_unread`: how much of it may be unread before the model server
    /// must wait. `grace`: how long a generation goes on whose last reader was lost. `body`: the request's.
    pub fn new(
        budget: Arc<Budget>,
        most_bytes: usize,
        most_unread: usize,
        grace: Duration,
        body: Bytes,
    ) -> Self {
        let mut state = State {
            record: Record::new(most_bytes),
            body: Some(body),
            counted: 0,
            readers: 0,
            silent: 0,
            left: None,
            writer: None,
            is_paused: false,
            is_given_up: false,
        };
        state.count(&budget);
        Self { state: Mutex::new(state), changed: Notify::new(), most_unread, grace, budget }
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Looks at the record.
    pub fn look<T>(&self, look: impl FnOnce(&Record) -> T) -> T {
        look(&self.lock().record)
    }

    /// Reads on in the record; a writer that waits for its readers goes on.
    pub fn read<T>(&self, read: impl FnOnce(&mut Record) -> T) -> T {
        let mut state = self.lock();
        let before = state.record.unread();
        let result = read(&mut state.record);
        state.count(&self.budget);
        if state.is_paused && state.record.unread() < before {
            state.is_paused = false;
            state.wake_writer();
        }
        result
    }

    pub(super) fn change(&self, change: impl FnOnce(&mut State)) {
        let mut state = self.lock();
        change(&mut state);
        if self.budget.bytes() > self.budget.most_bytes {
            state.record.forget(0);
        }
        state.count(&self.budget);
        drop(state);
        self.changed.notify_waiters();
    }

    /// Ends a record that will have no more; does nothing once it has ended.
    pub fn close(&self) {
        let kind = Kind::Internal;
        let broken = Break { code: kind.h3_code(), cause: Cause::Abandoned, error: Some(kind.into()) };
        self.change(|state| state.record.set_end(End::Broken(broken)));
    }

    pub fn readers(&self) -> usize {
        self.lock().readers
    }

    /// Resolves when the record has changed since the call.
    pub fn changed(&self) -> impl Future<Output = ()> + '_ {
        self.changed.notified()
    }

    /// The request's body, until the answer has begun.
    pub fn request_body(&self) -> Option<Bytes> {
        self.lock().body.clone()
    }

    /// Whether it broke off, or is about to: nobody gets a whole answer from it any more.
    pub fn has_failed(&self) -> bool {
        self.lock().has_failed()
    }
}

impl State {
    pub fn has_failed(&self) -> bool {
        self.is_given_up || matches!(self.record.end(), Some(End::Broken(_)))
    }

    /// Counts what is held now.
    fn count(&mut self, budget: &Budget) {
        let body = self.body.as_ref().map_or(0, Bytes::len);
        let now = RECORD_COST + body + self.record.bytes();
        if now != self.counted {
            budget.replace(self.counted, now);
            self.counted = now;
        }
    }

    /// Notes that a reader has left, or fell silent. `how`: that is how everybody left, if everybody has.
    pub fn note_absence(&mut self, how: Gone) {
        if self.readers == self.silent {
            // Whoever was lost before has had a part of the grace time already.
            let since = self.left.filter(|(before, _)| (*before, how) == (Gone::Lost, Gone::Lost));
            self.left = since.or(Some((how, Instant::now())));
            self.wake_writer();
        }
    }

    /// The waker stays where it is: one that was taken out could be missed until it is back.
    pub fn wake_writer(&self) {
        if let Some(writer) = &self.writer {
            writer.wake_by_ref();
        }
    }
}
