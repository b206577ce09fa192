//! The clocks of one relay, and an alarm that rings for what is rare.
//!
//! In: moments at which events came and left. Out: the times in the report, and the end of a stream that was
//! silent, or not read, for too long.

use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};

use headrace_core::relay::ends::Seen;
use headrace_core::{Error, Kind};
use tokio::time::{Sleep, sleep, sleep_until};

use crate::relay::report::RelayReport;

/// A waker that tells the task why it was woken.
pub struct Alarm {
    is_rung: AtomicBool,
    task: Mutex<Option<Waker>>,
}

impl Alarm {
    /// Whether it rang since the last look; at the first look, it has. It wakes the task that looks.
    pub fn is_rung(&self, cx: &Context<'_>) -> bool {
        if !self.is_rung.swap(false, Ordering::Acquire) {
            return false;
        }
        *self.task.lock().unwrap_or_else(PoisonError::into_inner) = Some(cx.waker().clone());
        true
    }
}

impl Wake for Alarm {
    fn wake(self: Arc<Self>) {
        self.is_rung.store(true, Ordering::Release);
        if let Some(task) = &*self.task.lock().unwrap_or_else(PoisonError::into_inner) {
            task.wake_by_ref();
        }
    }
}

/// The times of one stream. There is one timer, which is set again only when it fires: an event costs two looks at the
/// clock, and no more.
pub struct Watchdog {
    idle: Duration,
    stalled: Duration,
    /// When the upstream last showed a sign of life.
    last_read: Instant,
    /// Since when the client has taken no more than so many bytes.
    blocked: Option<(Instant, u64)>,
    /// When the last event arrived.
    last_event: Option<Instant>,
    /// When the first event arrived that is not with the transport yet.
    waiting_since: Option<Instant>,
    timer: Pin<Box<Sleep>>,
    pub alarm: Arc<Alarm>,
}

impl Watchdog {
    pub fn new(idle: Duration, stalled: Duration) -> Self {
        let now = Instant::now();
        Self {
            idle,
            stalled,
            last_read: now,
            blocked: None,
            last_event: None,
            waiting_since: None,
            timer: Box::pin(sleep(idle.min(stalled))),
            alarm: Arc::new(Alarm { is_rung: AtomicBool::new(true), task: Mutex::new(None) }),
        }
    }

    pub fn handle_arrival(&mut self, now: Instant, events: u64, report: &mut RelayReport) {
        self.last_read = now;
        if events == 0 {
            return;
        }
        if let Some(last) = self.last_event.replace(now) {
            report.gaps.record(now - last);
        }
        // Events that came in one read came at once.
        for _ in 1..events {
            report.gaps.record(Duration::ZERO);
        }
        self.waiting_since.get_or_insert(now);
    }

    pub fn handle_flushed(&mut self, started: Instant, report: &mut RelayReport) {
        self.blocked = None;
        if let Some(since) = self.waiting_since.take() {
            let now = Instant::now();
            report.holds.record(now - since);
            report.first_event.get_or_insert(now - started);
        }
    }

    /// `taken`: all bytes that the transport has taken so far.
    pub fn handle_blocked(&mut self, taken: u64) {
        if self.blocked.is_none_or(|(_, before)| before != taken) {
            self.blocked = Some((Instant::now(), taken));
        }
    }

    pub fn poll_timeout(&mut self, cx: &mut Context<'_>, is_paused: bool) -> Poll<Result<Seen, Error>> {
        while self.timer.as_mut().poll(cx).is_ready() {
            let now = Instant::now();
            if is_paused {
                // Nothing was read because nothing may be read: that is not the upstream's silence.
                self.last_read = now;
            }
            let stall_end = self.blocked.map(|(since, _)| since + self.stalled);
            if stall_end.is_some_and(|end| end <= now) {
                return Poll::Ready(Ok(Seen::Stalled));
            }
            let idle_end = self.last_read + self.idle;
            if idle_end <= now {
                return Poll::Ready(Err(Kind::UpstreamIdleTimeout.into()));
            }
            let next = stall_end.unwrap_or(now + self.stalled).min(idle_end);
            self.timer = Box::pin(sleep_until(next.into()));
        }
        Poll::Pending
    }
}
