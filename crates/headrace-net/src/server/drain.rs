//! How a server goes away.
//!
//! In: a grace time. Out: a server that is closed, and how many answers were cut. The steps are the server's phases:
//!
//! * *draining*: no new connection is taken, and clients are told to leave (GOAWAY);
//! * *forcing*: connections over TCP that were too busy until now are told, too (`tcp/connection.rs`);
//! * *expired*: the grace time is over, and each answer that still runs is told so and cut;
//! * *closed*: every connection is closed.
//!
//! A second drain with less time ends the first one early. Nothing here knows how an answer is cut: relays and
//! drivers look at the phase.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use tokio::sync::watch;

use crate::worker::{Phase, Shared};

/// The time between two looks of a drain whether it is over.
const LOOK: Duration = Duration::from_millis(5);
/// The time for last error events to leave, and for their readers to see them before the reset: three round trips,
/// at most a second (`quic/mod.rs`), and the handlers' turn.
const CUT_TIME: Duration = Duration::from_millis(1500);
/// The time for connections without an answer to end as their protocol asks; those that do not are closed.
const PART_TIME: Duration = Duration::from_secs(2);

/// Goes from phase to phase until the server is closed; blocks its thread.
pub fn run(shared: &Shared, phase: &watch::Sender<Phase>, grace: Duration) {
    go_on_to(phase, Phase::Draining);
    let begin = Instant::now();
    let exchanges = || shared.counters.exchanges.load(Ordering::Relaxed);
    let connections = || shared.counters.connections.load(Ordering::Relaxed);
    let mut quiet_since = None;
    let mut is_over = || {
        // A connection may bring one more request until it has ended.
        let is_quiet = exchanges() == 0;
        quiet_since = is_quiet.then(|| quiet_since.unwrap_or_else(Instant::now));
        let has_parted = |since: Instant| connections() == 0 || since.elapsed() >= PART_TIME;
        *phase.borrow() >= Phase::Expired || quiet_since.is_some_and(has_parted)
    };
    // Without a grace time, last error events come at once: a GOAWAY just before them would only be in their way.
    if !grace.is_zero() && !wait(begin + grace / 2, &mut is_over) {
        go_on_to(phase, Phase::Forcing);
        wait(begin + grace, &mut is_over);
    }
    if exchanges() > 0 {
        go_on_to(phase, Phase::Expired);
        wait(Instant::now() + CUT_TIME, || exchanges() == 0 || *phase.borrow() == Phase::Closed);
    }
    go_on_to(phase, Phase::Closed);
}

/// Goes on to a phase, unless the server is in a later one already.
fn go_on_to(phase: &watch::Sender<Phase>, next: Phase) {
    phase.send_if_modified(|phase| {
        let is_later = next > *phase;
        if is_later {
            *phase = next;
        }
        is_later
    });
}

/// Waits until it is over, or until the deadline; says whether it was over.
fn wait(deadline: Instant, mut is_over: impl FnMut() -> bool) -> bool {
    while !is_over() {
        if Instant::now() >= deadline {
            return false;
        }
        std::thread::sleep(LOOK);
    }
    true
}
