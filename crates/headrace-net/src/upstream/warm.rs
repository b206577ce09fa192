//! Connections to model servers that are ready before a request needs them.
//!
//! In: the beginnings and ends of requests. Out: how many connections to each model server a worker keeps. As
//! many as requests ran at one time within the window, shared out evenly among the workers, for which of them
//! the next client comes to is chance; each has one at least. A model server that nobody uses is left alone.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::server::{Phase, Worker};
use crate::tls::key_share;
use crate::upstream::{self, Target};

/// Parts of the window, of which each has its highest number: what is older than the window goes part by part.
const PARTS: u64 = 6;
/// Between two looks at what is idle.
pub const LOOK: Duration = Duration::from_secs(1);

/// Who uses which model server.
pub struct Uses {
    start: Instant,
    window: Duration,
    workers: usize,
    all: Mutex<HashMap<Target, Use>>,
}

struct Use {
    connect_timeout: Duration,
    /// Running requests, by worker.
    busy: Vec<usize>,
    /// Number of a part of the window, and the most that ran at one time in it.
    peaks: [(u64, usize); PARTS as usize],
}

impl Use {
    fn note(&mut self, part: u64) {
        let running = self.busy.iter().sum();
        let peak = &mut self.peaks[(part % PARTS) as usize];
        *peak = if peak.0 == part { (part, peak.1.max(running)) } else { (part, running) };
    }

    fn peak(&self, part: u64) -> usize {
        let recent = self.peaks.iter().filter(|(of, _)| of + PARTS > part).map(|(_, count)| *count);
        recent.max().unwrap_or(0).max(self.busy.iter().sum())
    }
}

/// A running request; ends when dropped.
pub struct Using {
    uses: Arc<Uses>,
    target: Target,
    worker: usize,
}

impl Drop for Using {
    fn drop(&mut self) {
        self.uses.end(&self.target, self.worker, Instant::now());
    }
}

/// What a worker should have ready.
pub struct Wanted {
    pub target: Target,
    pub connect_timeout: Duration,
    pub count: usize,
}

impl Uses {
    /// `window`: for how long a use counts; zero: nothing is kept ready.
    pub fn new(window: Duration, workers: usize, now: Instant) -> Self {
        Self { start: now, window, workers, all: Mutex::default() }
    }

    /// Of a request that runs from now on.
    pub fn using(
        self: &Arc<Self>,
        target: &Target,
        connect_timeout: Duration,
        worker: usize,
        now: Instant,
    ) -> Using {
        let part = self.part(now);
        let mut all = self.lock();
        let found = all.entry(target.clone()).or_insert_with(|| Use {
            connect_timeout,
            busy: vec![0; self.workers],
            peaks: [(0, 0); PARTS as usize],
        });
        found.busy[worker] += 1;
        found.note(part);
        drop(all);
        Using { uses: self.clone(), target: target.clone(), worker }
    }

    fn end(&self, target: &Target, worker: usize, now: Instant) {
        if let Some(found) = self.lock().get_mut(target) {
            found.note(self.part(now));
            found.busy[worker] = found.busy[worker].saturating_sub(1);
        }
    }

    /// What `worker` should have idle; forgets model servers that nobody used within the window.
    pub fn wanted(&self, worker: usize, now: Instant) -> Vec<Wanted> {
        if self.window.is_zero() {
            return Vec::new();
        }
        let part = self.part(now);
        let mut all = self.lock();
        all.retain(|_, found| found.peak(part) > 0);
        let wanted = all.iter().map(|(target, found)| Wanted {
            target: target.clone(),
            connect_timeout: found.connect_timeout,
            count: found.peak(part).div_ceil(self.workers).saturating_sub(found.busy[worker]),
        });
        wanted.collect()
    }

    fn part(&self, now: Instant) -> u64 {
        let length = (self.window.as_millis() as u64 / PARTS).max(1);
        // From one on: a part that never was is no part.
        PARTS + now.duration_since(self.start).as_millis() as u64 / length
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Target, Use>> {
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Closes what was idle for too long, and opens what should be ready, until the server is closed.
pub async fn run(worker: Arc<Worker>) {
    let mut phase = worker.shared.phase.clone();
    let mut opening: HashMap<Target, tokio::task::JoinHandle<()>> = HashMap::new();
    loop {
        tokio::select! {
            () = tokio::time::sleep(LOOK) => {}
            _ = phase.wait_for(|phase| *phase == Phase::Closed) => return,
        }
        worker.pool.sweep();
        key_share::prepare();
        opening.retain(|_, task| !task.is_finished());
        if worker.is_draining() {
            continue;
        }
        for Wanted { target, connect_timeout, count } in
            worker.shared.uses.wanted(worker.number, Instant::now())
        {
            let most = worker.config.upstream.pool_idle_per_upstream;
            let missing = count.min(most).saturating_sub(worker.pool.lasting(&target, LOOK));
            if missing > 0 && !opening.contains_key(&target) {
                let (worker, to) = (worker.clone(), target.clone());
                let open = async move { upstream::warm(&worker, &to, connect_timeout, missing).await };
                opening.insert(target, tokio::spawn(open));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::upstream::UpstreamProtocol;

    const WINDOW: Duration = Duration::from_secs(60);

    fn target() -> Target {
        let protocol = UpstreamProtocol::Auto;
        Target { is_tls: false, host: "model".to_owned(), port: 80, protocol }
    }

    fn counts(uses: &Uses, now: Instant) -> Vec<usize> {
        let of = |worker| uses.wanted(worker, now).iter().map(|wanted| wanted.count).sum();
        (0..uses.workers).map(of).collect()
    }

    #[test]
    fn what_ran_at_one_time_is_shared_out_and_each_worker_has_one() {
        let now = Instant::now();
        let uses = Arc::new(Uses::new(WINDOW, 2, now));
        assert_eq!(counts(&uses, now), [0, 0]);
        let one = uses.using(&target(), WINDOW, 0, now);
        assert_eq!(counts(&uses, now), [0, 1], "the first has one, in use");
        let more: Vec<_> = (0..4).map(|_| uses.using(&target(), WINDOW, 1, now)).collect();
        assert_eq!(counts(&uses, now), [2, 0]);
        drop((one, more));
        assert_eq!(counts(&uses, now), [3, 3]);
    }

    #[test]
    fn what_nobody_uses_any_more_is_forgotten() {
        let now = Instant::now();
        let uses = Arc::new(Uses::new(WINDOW, 1, now));
        drop(uses.using(&target(), WINDOW, 0, now));
        assert_eq!(counts(&uses, now + WINDOW / 2), [1]);
        assert_eq!(counts(&uses, now + WINDOW * 2), [0]);
        assert!(uses.lock().is_empty());
    }

    #[test]
    fn without_a_window_nothing_is_kept_ready() {
        let now = Instant::now();
        let uses = Arc::new(Uses::new(Duration::ZERO, 1, now));
        let _using = uses.using(&target(), WINDOW, 0, now);
        assert_eq!(counts(&uses, now), [0]);
    }
}
