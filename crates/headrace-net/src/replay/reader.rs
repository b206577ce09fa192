//! Telling a recorded answer to one client.
//!
//! In: a record that may still grow (`replay/record.rs`); the client's stream. Out: the answer from its first byte,
//! each unit one DATA frame as when it came first; and a [`RelayReport`]. A client that reads slowly paces itself
//! alone; when the record forgets what it has not read yet, its answer is reset.

use std::future::poll_fn;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use headrace_core::events::Unit;
use headrace_core::relay::Cause;
use headrace_core::replay::{Break, End as Ended, Journal, Place};
use headrace_core::{Error, Kind};
use tokio::time::{sleep, timeout};

use crate::downstream::{Downstream, Gone};
use crate::relay::Sides;
use crate::relay::report::{End, RelayReport};
use crate::replay::record::{Seat, too_slow};
use crate::server::Phase;

/// Tells the record to the client, to its end.
pub async fn run(mut sides: Sides<'_>, mut seat: Seat) -> RelayReport {
    let started = Instant::now();
    let mut teller = Teller {
        next: 0,
        has_head: false,
        is_said: false,
        started,
        last: None,
        report: RelayReport::begin(),
    };
    let told = if seat.is_late { Told::Nothing } else { tell(&mut sides, &mut teller, &seat).await };
    settle(&mut sides, &mut seat, &mut teller, told).await;
    teller.report.duration = started.elapsed();
    teller.report
}

/// Why the telling ended.
enum Told {
    Whole,
    /// The record broke off.
    Broken(Break),
    /// It ended without a head, or had failed before this client came.
    Nothing,
    Gone(Gone),
    Stalled(Error),
    Abandoned,
}

/// What a look into the record came to.
enum News {
    /// Everything that is there was told.
    Open,
    /// There is more than the client has room for now.
    Behind,
    End(Told),
}

/// How far the client was told.
struct Teller {
    /// The next entry.
    next: u64,
    has_head: bool,
    /// The event that says that the answer is over was told.
    is_said: bool,
    started: Instant,
    /// When the client was last told an event.
    last: Option<Instant>,
    report: RelayReport,
}

impl Teller {
    /// Notes the times of events that were taken since `before`, in one look that began at `began`, and are with
    /// the transport now.
    fn note_told(&mut self, before: u64, began: Instant) {
        let report = &mut self.report;
        if report.events == before {
            return;
        }
        let now = Instant::now();
        if let Some(last) = self.last.replace(began) {
            report.gaps.record(began - last);
        }
        // Events that were there at once came at once.
        for _ in before + 1..report.events {
            report.gaps.record(Duration::ZERO);
        }
        report.holds.record(now - began);
        report.first_event.get_or_insert(now - self.started);
    }

    /// Queues what is there, up to the stream's budget.
    fn take(&mut self, journal: &Journal, sides: &mut Sides<'_>) -> News {
        if !self.has_head {
            let Some((status, headers)) = journal.head() else {
                return if journal.end().is_some() { News::End(Told::Nothing) } else { News::Open };
            };
            sides.down.queue_head(status, headers);
            *sides.kept_body = None;
            self.report.status = Some(status);
            self.report.head = Some(self.started.elapsed());
            self.has_head = true;
        }
        while sides.down.queued() < sides.worker.config.limits.stream_budget_bytes {
            match journal.at(self.next) {
                Place::Entry(entry) => {
                    let unit = Unit { held: &[], fresh: &entry.bytes, is_event: entry.is_event };
                    if !sides.is_head_request {
                        sides.down.queue_data(&unit);
                    }
                    self.is_said |= unit.is_done_mark();
                    self.report.bytes += unit.len() as u64;
                    self.report.events += u64::from(entry.is_event);
                    self.next += 1;
                }
                Place::Open => return News::Open,
                Place::Forgotten => return News::End(Told::Stalled(too_slow())),
                Place::End(Ended::Finished(trailers)) => {
                    if let Some(trailers) = trailers {
                        sides.down.queue_trailers(trailers);
                    }
                    return News::End(Told::Whole);
                }
                Place::End(Ended::Broken(broken)) => return News::End(Told::Broken(broken.clone())),
            }
        }
        News::Behind
    }
}

async fn tell(sides: &mut Sides<'_>, teller: &mut Teller, seat: &Seat) -> Told {
    let recording = &seat.recording;
    loop {
        // Asked for before the look: what changes from here on is not missed.
        let changed = recording.changed();
        let (began, before) = (Instant::now(), teller.report.events);
        let news = recording.read(|journal| {
            let news = teller.take(journal, sides);
            journal.note_read(teller.next);
            news
        });
        let report = &teller.report;
        sides.progress.events.store(report.events, Ordering::Relaxed);
        sides.progress.bytes.store(report.bytes, Ordering::Relaxed);
        // hyper pulls the last frames only when it is told that they are the last.
        if matches!(news, News::End(Told::Whole)) && matches!(sides.down, Downstream::Tcp(_)) {
            sides.down.finish();
        }
        let stalled = sides.worker.config.timeouts.stalled_reader_s;
        let flushed = tokio::select! {
            flushed = flush(sides.down, stalled) => flushed,
            () = sides.inbox.abandoned() => return Told::Abandoned,
        };
        if let Err(told) = flushed {
            return told;
        }
        teller.note_told(before, began);
        match news {
            News::Open => {}
            News::Behind => continue,
            News::End(end) => return end,
        }
        tokio::select! {
            () = changed => {}
            gone = sides.down.gone() => return Told::Gone(gone),
            () = sides.inbox.abandoned() => return Told::Abandoned,
        }
    }
}

/// Waits until everything queued is with the transport; not for a client that takes nothing for `stalled`.
async fn flush(down: &mut Downstream, stalled: Duration) -> Result<(), Told> {
    loop {
        let taken = down.taken();
        match timeout(stalled, poll_fn(|cx| down.poll_flush(cx))).await {
            Ok(flushed) => return flushed.map_err(Told::Gone),
            Err(_) if down.taken() > taken => {}
            Err(_) => return Err(Told::Stalled(Kind::ClientStalled.into())),
        }
    }
}

/// Ends the client's stream as the telling ended.
async fn settle(sides: &mut Sides<'_>, seat: &mut Seat, teller: &mut Teller, told: Told) {
    let report = &mut teller.report;
    report.end = End::Reset;
    let code = match told {
        Told::Whole => {
            sides.down.finish();
            (report.cause, report.end) = (Cause::Done, End::Finished);
            return;
        }
        Told::Nothing => {
            (report.cause, report.end) = (Cause::UpstreamFailed, End::Untouched);
            return;
        }
        Told::Broken(broken) => {
            (report.cause, report.error) = (broken.cause, broken.error);
            // The reset must not overtake the last error event.
            tokio::select! {
                () = sleep(sides.down.settle_time()) => {}
                _ = sides.down.gone() => {}
            }
            broken.code
        }
        Told::Gone(gone) => {
            seat.how = gone;
            report.cause = match gone {
                // Who leaves after the answer's own last event had all of it.
                _ if teller.is_said => Cause::Done,
                Gone::Stopped => Cause::Stopped,
                // The connection was closed by ourselves.
                Gone::Lost if sides.worker.phase() == Phase::Closed => {
                    report.error = Some(Kind::GatewayDraining.into());
                    Cause::Cut
                }
                Gone::Lost => Cause::Lost,
            };
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
