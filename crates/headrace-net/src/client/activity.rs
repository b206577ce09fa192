//! What the streams of a client's connection do: how many there are, and what the live ones receive.
//!
//! In: streams that begin and end, pieces of answers that arrive. Out: since when nobody uses the connection, and
//! when its silence is worth a probe. It must not know the connection.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use headrace_core::recovery::silence::SilenceProbe;
use tokio::sync::Notify;

use crate::client::clock::monotonic_ns;

/// How many streams a connection has, and since when it has none.
pub struct Streams {
    count: AtomicUsize,
    /// Since when there is none, in monotonic nanoseconds.
    unused_since: AtomicU64,
}

impl Default for Streams {
    fn default() -> Self {
        Self { count: AtomicUsize::new(0), unused_since: AtomicU64::new(monotonic_ns()) }
    }
}

impl Streams {
    /// Counts a stream, until what is returned is dropped.
    pub fn begin(self: &Arc<Self>) -> Stream {
        self.count.fetch_add(1, Ordering::Relaxed);
        Stream(self.clone())
    }

    pub fn count(&self) -> usize {
        self.count.load(Ordering::Relaxed)
    }

    /// For how long there has been no stream; `None` while there are some.
    pub fn unused(&self) -> Option<Duration> {
        let since = self.unused_since.load(Ordering::Relaxed);
        (self.count() == 0).then(|| Duration::from_nanos(monotonic_ns().saturating_sub(since)))
    }
}

/// One stream, until it is dropped.
pub struct Stream(Arc<Streams>);

impl Drop for Stream {
    fn drop(&mut self) {
        self.0.unused_since.store(monotonic_ns(), Ordering::Relaxed);
        self.0.count.fetch_sub(1, Ordering::Relaxed);
    }
}

/// What the live streams of a connection receive.
#[derive(Default)]
pub struct Flow {
    probe: Mutex<SilenceProbe>,
    /// How many answers have a body that has begun and not ended.
    pub live: AtomicUsize,
    pub began: Notify,
}

/// An answer whose body has begun, until it is dropped.
pub struct Live(Arc<Flow>);

impl Drop for Live {
    fn drop(&mut self) {
        self.0.live.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Flow {
    pub fn begin(self: &Arc<Self>) -> Live {
        if self.live.fetch_add(1, Ordering::Relaxed) == 0 {
            *self.probe() = SilenceProbe::default();
            self.began.notify_one();
        }
        Live(self.clone())
    }

    pub fn note_arrival(&self, at_ns: u64) {
        self.probe().note_arrival(at_ns);
    }

    pub fn probe(&self) -> MutexGuard<'_, SilenceProbe> {
        self.probe.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
