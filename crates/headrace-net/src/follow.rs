//! Telling a recorded answer to one client.
//!
//! In: a record that may still grow (`recording.rs`); the client's stream. Out: the answer from its first byte,
//! each unit one DATA frame as when it came first; and a [`RelayReport`]. A client that reads slowly paces itself
//! alone; when the record forgets what it has not read yet, its answer is reset.

use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use headrace_core::events::Unit;
use headrace_core::journal::{End as Ended, Place};
use headrace_core::relay::Cause;
use headrace_core::{Error, Kind};
use tokio::time::{sleep, timeout};

use crate::downstream::{Downstream, Gone};
use crate::recording::{Recording, Seat, too_slow};
use crate::relay::Sides;
use crate::report::{End, RelayReport};

/// Tells the record to the client, to its end.
pub async fn run(mut sides: Sides<'_>, recording: Arc<Recording>) -> RelayReport {
    let mut seat = recording.join();
    let mut report = RelayReport::begin();
    let started = Instant::now();
    *sides.kept_body = None;
    let told = tell(&mut sides, &recording, &mut report, started).await;
    settle(&mut sides, &mut seat, &mut report, told).await;
    report.duration = started.elapsed();
    report
}

/// Why the telling ended.
enum Told {
    Whole,
    /// The record broke off; `None`: before it had a head.
    Broken(Option<u64>),
    Gone(Gone),
    Stalled(Error),
    Abandoned,
}

async fn tell(
    sides: &mut Sides<'_>,
    recording: &Recording,
    report: &mut RelayReport,
    started: Instant,
) -> Told {
    let budget = sides.worker.config.limits.stream_budget_bytes;
    let stalled = sides.worker.config.timeouts.stalled_reader_s;
    let (mut next, mut has_head) = (0, false);
    loop {
        // Asked for before the look: what changes from here on is not missed.
        let changed = recording.changed();
        let end = recording.look(|journal| {
            if !has_head {
                let Some((status, headers)) = journal.head() else {
                    return journal.end().map(|_| Told::Broken(None));
                };
                sides.down.queue_head(status, headers);
                report.status = Some(status);
                report.head = Some(started.elapsed());
                has_head = true;
            }
            while sides.down.queued() < budget {
                match journal.at(next) {
                    Place::Entry(entry) => {
                        let unit = Unit { held: &[], fresh: &entry.bytes, is_event: entry.is_event };
                        if !sides.is_head_request {
                            sides.down.queue_data(&unit);
                        }
                        report.bytes += unit.len() as u64;
                        report.events += u64::from(entry.is_event);
                        next += 1;
                    }
                    Place::Open => break,
                    Place::Forgotten => return Some(Told::Stalled(too_slow())),
                    Place::End(Ended::Finished(trailers)) => {
                        if let Some(trailers) = trailers {
                            sides.down.queue_trailers(trailers);
                        }
                        return Some(Told::Whole);
                    }
                    Place::End(Ended::Broken(code)) => return Some(Told::Broken(Some(*code))),
                }
            }
            None
        });
        sides.progress.events.store(report.events, Ordering::Relaxed);
        sides.progress.bytes.store(report.bytes, Ordering::Relaxed);
        // hyper pulls the last frames only when it is told that they are the last.
        if matches!(end, Some(Told::Whole)) && matches!(sides.down, Downstream::Tcp(_)) {
            sides.down.finish();
        }
        let flushed = timeout(stalled, poll_fn(|cx| sides.down.poll_flush(cx)));
        let flushed = tokio::select! {
            flushed = flushed => flushed,
            () = sides.inbox.abandoned() => return Told::Abandoned,
        };
        match flushed {
            Ok(Ok(())) => {}
            Ok(Err(gone)) => return Told::Gone(gone),
            Err(_) => return Told::Stalled(Kind::ClientStalled.into()),
        }
        if report.events > 0 {
            report.first_event.get_or_insert_with(|| started.elapsed());
        }
        if let Some(end) = end {
            return end;
        }
        tokio::select! {
            () = changed => {}
            gone = sides.down.gone() => return Told::Gone(gone),
            () = sides.inbox.abandoned() => return Told::Abandoned,
        }
    }
}

/// Ends the client's stream as the telling ended.
async fn settle(sides: &mut Sides<'_>, seat: &mut Seat, report: &mut RelayReport, told: Told) {
    report.end = End::Reset;
    let code = match told {
        Told::Whole => {
            sides.down.finish();
            (report.cause, report.end) = (Cause::Done, End::Finished);
            return;
        }
        Told::Broken(None) => {
            (report.cause, report.end) = (Cause::UpstreamFailed, End::Untouched);
            return;
        }
        Told::Broken(Some(code)) => {
            report.cause = Cause::UpstreamFailed;
            // The reset must not overtake the last error event.
            tokio::select! {
                () = sleep(sides.down.settle_time()) => {}
                _ = sides.down.gone() => {}
            }
            code
        }
        Told::Gone(gone) => {
            seat.how = gone;
            report.cause = if gone == Gone::Stopped { Cause::Stopped } else { Cause::Lost };
            Error::from(gone).kind.h3_code()
        }
        Told::Stalled(error) => {
            let code = error.kind.h3_code();
            (report.cause, report.error) = (Cause::Timeout, Some(error));
            code
        }
        Told::Abandoned => Kind::Internal.h3_code(),
    };
    sides.down.reset(code);
}
