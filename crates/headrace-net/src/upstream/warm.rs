//! Connections to model servers that are ready before a request needs them.
//!
//! In: the beginnings and ends of requests. Out: how many connections to each model server a worker keeps: as many as
//! requests ran at one time within the window, shared out evenly among the workers, because it is chance to which of
//! them the next client comes; each has at least one. A model server that nobody uses is left alone.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::tls::key_share;
use crate::upstream::{Target, Upstreams, connect_ahead};

/// How many parts the window has. Each has its highest number, so that what is older than the window goes part by part.
const PARTS: u64 = 6;
/// The time between two looks at what is idle.
pub const LOOK: Duration = Duration::from_secs(1);

/// How much each model server is in demand.
pub struct Demand {
    start: Instant,
    window: Duration,
    workers: usize,
    all: Mutex<HashMap<Target, TargetDemand>>,
}

struct TargetDemand {
    connect_timeout: Duration,
    /// How many requests run, by worker.
    busy: Vec<usize>,
    /// The number of a part of the window, and the most that ran at one time in it.
    peaks: [(u64, usize); PARTS as usize],
}

impl TargetDemand {
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
pub struct InFlight {
    demand: Arc<Demand>,
    target: Target,
    worker: usize,
}

impl Drop for InFlight {
    fn drop(&mut self) {
        self.demand.end(&self.target, self.worker, Instant::now());
    }
}

/// What a worker should have ready.
pub struct Wanted {
    pub target: Target,
    pub connect_timeout: Duration,
    pub count: usize,
}

impl Demand {
    /// `window`: for how long a request counts; zero: nothing is kept ready.
    pub fn new(window: Duration, workers: usize, now: Instant) -> Self {
        Self { start: now, window, workers, all: Mutex::default() }
    }

    /// Counts a request that runs from now on, until what is returned is dropped.
    pub fn begin(
        self: &Arc<Self>,
        target: &Target,
        connect_timeout: Duration,
        worker: usize,
        now: Instant,
    ) -> InFlight {
        let part = self.part(now);
        let mut all = self.lock();
        let found = all.entry(target.clone()).or_insert_with(|| TargetDemand {
            connect_timeout,
            busy: vec![0; self.workers],
            peaks: [(0, 0); PARTS as usize],
        });
        found.busy[worker] += 1;
        found.note(part);
        drop(all);
        InFlight { demand: self.clone(), target: target.clone(), worker }
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
        // Numbers begin behind the first window: `peaks` begins with zeros, which no part has as its number.
        PARTS + now.duration_since(self.start).as_millis() as u64 / length
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Target, TargetDemand>> {
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Closes what was idle for too long, and opens what should be ready, until the server is closed.
pub async fn run(
    upstreams: Arc<Upstreams>,
    is_draining: impl Fn() -> bool,
    closed: impl Future<Output = ()>,
) {
    let mut opening: HashMap<Target, tokio::task::JoinHandle<()>> = HashMap::new();
    tokio::pin!(closed);
    loop {
        tokio::select! {
            () = tokio::time::sleep(LOOK) => {}
            () = &mut closed => return,
        }
        upstreams.pool.sweep();
        key_share::prepare();
        opening.retain(|_, task| !task.is_finished());
        if is_draining() {
            continue;
        }
        for Wanted { target, connect_timeout, count } in
            upstreams.demand.wanted(upstreams.worker, Instant::now())
        {
            let most = upstreams.limits.pool_idle_per_upstream;
            let missing = count.min(most).saturating_sub(upstreams.pool.lasting(&target, LOOK));
            if missing > 0 && !opening.contains_key(&target) {
                let (upstreams, to) = (upstreams.clone(), target.clone());
                let open = async move { connect_ahead(&upstreams, &to, connect_timeout, missing).await };
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

    fn counts(demand: &Demand, now: Instant) -> Vec<usize> {
        let of = |worker| demand.wanted(worker, now).iter().map(|wanted| wanted.count).sum();
        (0..demand.workers).map(of).collect()
    }

    #[test]
    fn what_ran_at_one_time_is_shared_out_and_each_worker_has_one() {
        let now = Instant::now();
        let demand = Arc::new(Demand::new(WINDOW, 2, now));
        assert_eq!(counts(&demand, now), [0, 0]);
        let one = demand.begin(&target(), WINDOW, 0, now);
        assert_eq!(counts(&demand, now), [0, 1], "the first has one, in use");
        let more: Vec<_> = (0..4).map(|_| demand.begin(&target(), WINDOW, 1, now)).collect();
        assert_eq!(counts(&demand, now), [2, 0]);
        drop((one, more));
        assert_eq!(counts(&demand, now), [3, 3]);
    }

    #[test]
    fn what_nobody_uses_any_more_is_forgotten() {
        let now = Instant::now();
        let demand = Arc::new(Demand::new(WINDOW, 1, now));
        drop(demand.begin(&target(), WINDOW, 0, now));
        assert_eq!(counts(&demand, now + WINDOW / 2), [1]);
        assert_eq!(counts(&demand, now + WINDOW * 2), [0]);
        assert!(demand.lock().is_empty());
    }

    #[test]
    fn without_a_window_nothing_is_kept_ready() {
        let now = Instant::now();
        let demand = Arc::new(Demand::new(Duration::ZERO, 1, now));
        let _in_flight = demand.begin(&target(), WINDOW, 0, now);
        assert_eq!(counts(&demand, now), [0]);
    }
}
