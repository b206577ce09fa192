//! Idle HTTP/1.1 connections of one worker.
//!
//! In: connections whose last answer ended by its own framing, and new ones (`upstream/warm.rs`). Out: the one that
//! was used last and is still alive. At most `per_target` are kept for each target, none longer than `max_idle`.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::upstream::Target;
use crate::upstream::connect::Io;

pub struct Pool {
    idle: Mutex<HashMap<Target, Vec<(Io, Instant)>>>,
    per_target: usize,
    max_idle: Duration,
}

impl Pool {
    pub fn new(per_target: usize, max_idle: Duration) -> Self {
        Self { idle: Mutex::default(), per_target, max_idle }
    }

    pub fn take(&self, target: &Target) -> Option<Io> {
        loop {
            let (mut io, since) = self.lock().get_mut(target)?.pop()?;
            if since.elapsed() < self.max_idle && io.is_alive() {
                return Some(io);
            }
        }
    }

    pub fn put(&self, target: Target, io: Io) {
        let mut idle = self.lock();
        let kept = idle.entry(target).or_default();
        if kept.len() < self.per_target {
            kept.push((io, Instant::now()));
        }
    }

    /// Closes what was idle for too long.
    pub fn sweep(&self) {
        let mut idle = self.lock();
        for kept in idle.values_mut() {
            kept.retain_mut(|(io, since)| since.elapsed() < self.max_idle && io.is_alive());
        }
        idle.retain(|_, kept| !kept.is_empty());
    }

    /// How many connections to the target will still be kept after `time`.
    pub fn lasting(&self, target: &Target, time: Duration) -> usize {
        let idle = self.lock();
        let lasts = |since: &Instant| since.elapsed() + time < self.max_idle;
        idle.get(target).map_or(0, |kept| kept.iter().filter(|(_, since)| lasts(since)).count())
    }

    pub fn len(&self) -> usize {
        self.lock().values().map(Vec::len).sum()
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Target, Vec<(Io, Instant)>>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
