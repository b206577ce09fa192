//! Telling a recorded answer to one client.
//!
//! In: a record that may still grow (`replay/`); the client's stream. Out: the answer from its first byte, each
//! piece one DATA frame as when it came first; and a [`RelayReport`]. A client that reads slowly paces itself
//! alone; when the record forgets what it has not read yet, its answer is reset. How it ends is decided by the table
//! in `headrace-core/relay/readers.rs`.

use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::Poll;
use std::time::{Duration, Instant};

use headrace_core::events::Piece;
use headrace_core::relay::ends::{self, Seen};
use headrace_core::relay::{State, readers};
use headrace_core::replay::{Break, End as RecordEnd, Place, Record};
use headrace_core::{Error, Kind};
use tokio::time::{sleep, timeout};

use crate::downstream::{Downstream, Suspicion};
use crate::gone::Gone;
use crate::relay::report::{End, RelayReport};
use crate::relay::{ClientSide, displaced};
use crate::replay::{Buffer, Reader};
use crate::shares::ExchangeShare;
use crate::worker::Phase;

/// Tells the record to the client, to its end.
pub async fn run(client: ClientSide<'_>, mut reader: Reader) -> RelayReport {
    let started = Instant::now();
    let mut playback = Playback {
        client,
        cursor: 0,
        state: State::Waiting,
        is_last_event_sent: false,
        broken: None,
        started,
        last: None,
        report: RelayReport::begin(),
    };
    let lost = displaced(playback.client.share.clone());
    let suspicion = playback.client.down.suspicion();
    let buffer = reader.buffer.clone();
    let seen = if reader.is_late {
        Seen::Failed(Kind::Closed)
    } else {
        tokio::select! {
            biased;
            seen = playback.tell(&buffer) => seen,
            () = lost => Seen::Displaced,
            () = watch(suspicion, &mut reader) => Seen::Gone(Gone::Lost),
        }
    };
    match seen {
        Seen::Gone(gone) => reader.how = gone,
        // It may come back for the rest when there is room.
        Seen::Displaced => reader.how = Gone::Lost,
        _ => {}
    }
    playback.end(seen).await;
    playback.report.duration = started.elapsed();
    playback.report
}

/// Tells the record's writer whether this client may be gone. Never resolves: what becomes of the answer is the
/// writer's to decide, and a client that comes back reads on.
async fn watch(mut suspicion: Suspicion, reader: &mut Reader) {
    loop {
        suspicion.becomes(true).await;
        reader.set_silent(true);
        suspicion.becomes(false).await;
        reader.set_silent(false);
    }
}

/// What a look into the record came to.
enum Look {
    /// Everything that is there was taken.
    Open,
    /// There is more than the client has room for now.
    Behind,
    /// There is no more to tell.
    Over(Seen),
}

/// One client that is being told a record.
struct Playback<'a> {
    client: ClientSide<'a>,
    /// The number of the next entry of the record.
    cursor: u64,
    /// Waiting until the head was told, streaming from then on.
    state: State,
    /// The last event that was told is the answer's own last.
    is_last_event_sent: bool,
    /// How the record broke off.
    broken: Option<Break>,
    started: Instant,
    /// When the client was last told an event.
    last: Option<Instant>,
    report: RelayReport,
}

impl Playback<'_> {
    async fn tell(&mut self, buffer: &Buffer) -> Seen {
        loop {
            // This is asked for before the look, so that nothing that changes from here on is missed.
            let changed = buffer.changed();
            let (began, before) = (Instant::now(), self.report.events);
            let look = buffer.read(|record| {
                let look = self.take(record);
                record.note_read(self.cursor);
                look
            });
            self.client.progress.events.store(self.report.events, Ordering::Relaxed);
            self.client.progress.bytes.store(self.report.bytes, Ordering::Relaxed);
            if matches!(look, Look::Over(Seen::End)) {
                self.client.down.queue_end();
            }
            let stalled = self.client.worker.config.timeouts.stalled_reader_s;
            let flushed = tokio::select! {
                flushed = flush(self.client.down, self.client.share.as_ref(), stalled) => flushed,
                () = &mut self.client.abandoned => return Seen::Abandoned,
            };
            if let Err(seen) = flushed {
                return seen;
            }
            self.client.note_reading();
            self.note_told(before, began);
            match look {
                Look::Open => {}
                Look::Behind => continue,
                Look::Over(seen) => return seen,
            }
            tokio::select! {
                () = changed => {}
                gone = self.client.down.gone() => return Seen::Gone(gone),
                () = &mut self.client.abandoned => return Seen::Abandoned,
            }
        }
    }

    /// Queues what is there, up to the stream's budget.
    fn take(&mut self, record: &Record) -> Look {
        let ClientSide { down, worker, share, kept_body, is_head_request, .. } = &mut self.client;
        if self.state == State::Waiting {
            let Some((status, headers)) = record.head() else {
                let is_over = record.end().is_some();
                return if is_over { Look::Over(Seen::Failed(Kind::Closed)) } else { Look::Open };
            };
            down.queue_head(status, headers);
            **kept_body = None;
            if let Some(share) = share {
                share.note_served();
            }
            self.report.status = Some(status);
            self.report.head = Some(self.started.elapsed());
            self.state = State::Streaming;
        }
        while down.queued() < worker.config.limits.stream_budget_bytes {
            match record.at(self.cursor) {
                Place::Entry(entry) => {
                    let piece =
                        Piece { is_last: entry.is_last, ..Piece::whole(&entry.bytes, entry.is_event) };
                    if !*is_head_request {
                        down.queue_data(&piece);
                    }
                    if piece.is_event {
                        self.is_last_event_sent = piece.is_last;
                    }
                    self.report.bytes += piece.len() as u64;
                    self.report.note_piece(&piece);
                    self.cursor += 1;
                }
                Place::Open => return Look::Open,
                Place::Forgotten => {
                    // The client reads so slowly that `idempotency.answer_bytes` were too few.
                    let detail =
                        "the record no longer has what it would read next; raise idempotency.answer_bytes";
                    self.report.error = Some(Error::new(Kind::ClientStalled, detail));
                    return Look::Over(Seen::Stalled);
                }
                Place::End(RecordEnd::Finished(trailers)) => {
                    if let Some(trailers) = trailers {
                        down.queue_trailers(trailers);
                    }
                    return Look::Over(Seen::End);
                }
                Place::End(RecordEnd::Broken(broken)) => {
                    self.broken = Some(broken.clone());
                    return Look::Over(Seen::Failed(Kind::Closed));
                }
            }
        }
        Look::Behind
    }

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

    /// Ends the client's stream as the table says.
    async fn end(&mut self, seen: Seen) {
        let is_server_closed = self.client.worker.phase() == Phase::Closed;
        let progress = ends::Progress { is_last_event_sent: self.is_last_event_sent, is_server_closed };
        let input = ends::input(seen, self.state, progress);
        let (action, cause) = readers::end(self.state, input);
        let report = &mut self.report;
        if let Some(kind) = ends::error(input, None) {
            report.error.get_or_insert_with(|| kind.into());
        }
        let mut code = ends::reset_kind(input, report.error.as_ref().map(|error| error.kind)).h3_code();
        match (cause, self.broken.take()) {
            (Some(cause), _) => report.cause = cause,
            (None, Some(broken)) => {
                (report.cause, report.error, code) = (broken.cause, broken.error, broken.code);
            }
            (None, None) => {}
        }
        report.end = match action {
            readers::Action::Finish => End::Finished,
            readers::Action::LeaveUntouched => End::Untouched,
            readers::Action::Reset | readers::Action::ResetAfterReading => End::Reset,
        };
        let down = &mut *self.client.down;
        match action {
            readers::Action::Finish => down.finish(),
            readers::Action::LeaveUntouched => {}
            readers::Action::Reset => down.reset(code),
            readers::Action::ResetAfterReading => {
                // The reset must not overtake the last error event.
                tokio::select! {
                    () = sleep(down.reading_time()) => {}
                    _ = down.gone() => {}
                }
                down.reset(code);
            }
        }
    }
}

/// Waits until everything that is queued is with the transport, as long as the client takes something within every
/// `stalled`.
async fn flush(
    down: &mut Downstream,
    share: Option<&Arc<ExchangeShare>>,
    stalled: Duration,
) -> Result<(), Seen> {
    loop {
        let taken = down.taken();
        let flushed = poll_fn(|cx| {
            let flushed = down.poll_flush(cx);
            if let (Poll::Pending, Some(share)) = (&flushed, share) {
                share.wait();
            }
            flushed
        });
        match timeout(stalled, flushed).await {
            Ok(flushed) => return flushed.map_err(Seen::Gone),
            Err(_) if down.taken() > taken => {}
            Err(_) => return Err(Seen::Stalled),
        }
    }
}
