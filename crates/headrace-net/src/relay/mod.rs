//! Moving one answer from a model server to the client.
//!
//! In: a request for a model server; the client's stream. Out: the answer, event by event, each as one DATA
//! frame that is written when the event arrives; and a [`RelayReport`]. What to do is decided by the table in
//! `headrace-core/relay`; this file does it, in one task, without a timer, channel or lock per event.

pub mod held;
pub mod playback;
pub mod progress;
pub mod record;
pub mod report;
mod watchdog;

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use bytes::Bytes;
use headrace_core::events::dialects::Dialect;
use headrace_core::events::{Piece, Splitter};
use headrace_core::relay::ends::{self, Seen};
use headrace_core::relay::{Action, Cause, Input, Relay, State};
use headrace_core::{Error, Kind, fields};
use http::{HeaderMap, StatusCode, header};
use tokio::time::sleep;

use crate::downstream::{Downstream, Suspicion};
use crate::gone::Gone;
use crate::shares::{ExchangeShare, KeptBody};
use crate::upstream::{self, Answer, AnswerBody, UpstreamRequest, Upstreams};
use crate::worker::{Phase, Worker};
use held::{HeldStatuses, is_held};
use progress::Progress;
use report::{End, RelayReport};
use watchdog::Watchdog;

/// How many reads a stream makes in one turn, before other streams get theirs.
const READS_PER_TURN: usize = 16;
/// The least time between the last event of an answer that the server cuts and its reset: many are cut at once, and
/// their clients are busy.
const CUT_READING_TIME: Duration = Duration::from_millis(200);

/// What a handler asks for.
#[derive(Clone)]
pub struct RelayRequest {
    pub upstream: UpstreamRequest,
    /// Of the API that the client speaks.
    pub dialect: &'static Dialect,
    /// The body that is sent; `None`: the one that the client sent.
    pub body: Option<Bytes>,
    /// The longest silence between two pieces of the answer.
    pub idle_timeout: Duration,
    /// Statuses that are reported instead of relayed, so that another upstream can be tried.
    pub held_statuses: HeldStatuses,
    /// Fields that are set in the answer's head.
    pub headers: HeaderMap,
}

/// Resolves when the handler gives up.
pub type Abandoned<'a> = Pin<Box<dyn Future<Output = ()> + Send + 'a>>;

/// The client's side of a relay.
pub struct ClientSide<'a> {
    pub down: &'a mut Downstream,
    pub abandoned: Abandoned<'a>,
    pub worker: &'a Arc<Worker>,
    /// `None`: there is no client, and no place that could be lost.
    pub share: Option<Arc<ExchangeShare>>,
    pub progress: &'a Progress,
    /// The request's body, which is let go when the answer begins.
    pub kept_body: &'a mut Option<KeptBody>,
    pub is_head_request: bool,
}

/// Relays one answer.
pub async fn run(client: ClientSide<'_>, request: RelayRequest) -> RelayReport {
    let _in_flight = client.worker.upstreams.begin(&request.upstream);
    let mut relaying = Relaying {
        machine: Relay::default(),
        report: RelayReport::begin(),
        started: Instant::now(),
        splitter: Splitter::new(request.dialect, None, [], 0),
        answer: None,
        trailers: None,
        length: None,
        is_last_event_sent: false,
        expired: Some(Box::pin(client.worker.reached(Phase::Expired))),
        displaced: displaced(client.share.clone()),
        suspected: suspected(client.down.suspicion()),
        client,
        request,
    };
    let mut seen = relaying.wait().await;
    loop {
        let input = ends::input(seen, relaying.machine.state(), relaying.how_far());
        relaying.act(input).await;
        seen = match relaying.machine.state() {
            State::Streaming => relaying.stream().await,
            State::Finishing | State::Failing => relaying.flush().await,
            State::Waiting | State::Ended => break,
        };
    }
    relaying.report.cause = relaying.machine.cause().unwrap_or(Cause::Abandoned);
    relaying.report.duration = relaying.started.elapsed();
    let (runs, counters) = (u64::from(relaying.report.runs), &relaying.client.worker.shared.counters);
    counters.runs_total.fetch_add(runs, Ordering::Relaxed);
    counters.repeats_total.fetch_add(runs.saturating_sub(1), Ordering::Relaxed);
    relaying.report
}

impl ClientSide<'_> {
    /// The client has room for what there is.
    fn note_reading(&self) {
        if let Some(share) = &self.share {
            share.go_on();
        }
    }

    /// The client is to read before anything goes on.
    fn note_waiting(&self) {
        if let Some(share) = &self.share {
            share.wait();
        }
    }
}

/// Resolves when the client is suspect. It is not polled again after that.
fn suspected(mut suspicion: Suspicion) -> Expired {
    Box::pin(async move { suspicion.becomes(true).await })
}

/// Resolves when the place is given to somebody else. It is not polled again after that.
fn displaced(share: Option<Arc<ExchangeShare>>) -> Expired {
    Box::pin(async move {
        match share {
            Some(share) => share.lost().await,
            None => std::future::pending().await,
        }
    })
}

type Expired = Pin<Box<dyn Future<Output = ()> + Send>>;

/// One answer that is being relayed.
struct Relaying<'a> {
    machine: Relay,
    report: RelayReport,
    started: Instant,
    splitter: Splitter,
    /// The upstream's answer while it runs; dropping it closes the upstream.
    answer: Option<Answer>,
    trailers: Option<HeaderMap>,
    /// How long the body is, where the head announced it: nothing may be added to it then.
    length: Option<u64>,
    /// The last event that was handed on is the answer's own last.
    is_last_event_sent: bool,
    /// Resolves at the server's own end; `None` once it has.
    expired: Option<Expired>,
    /// Its place is given to somebody else.
    displaced: Expired,
    /// The client is suspect: nobody can come back for an answer without a key.
    suspected: Expired,
    client: ClientSide<'a>,
    request: RelayRequest,
}

impl Relaying<'_> {
    /// Waits for the answer's head.
    async fn wait(&mut self) -> Seen {
        let body = self
            .request
            .body
            .take()
            .or_else(|| self.client.kept_body.as_ref().map(|kept| kept.bytes.clone()));
        let body = body.unwrap_or_default();
        let upstreams = &self.client.worker.upstreams;
        let open = open(upstreams, &self.request, &body, &mut self.report, self.started);
        let opened = tokio::select! {
            biased;
            () = heard(&mut self.expired) => return Seen::Expired,
            () = &mut self.displaced => return Seen::Displaced,
            () = &mut self.suspected => return Seen::Gone(Gone::Lost),
            gone = self.client.down.gone() => return Seen::Gone(gone),
            () = &mut self.client.abandoned => return Seen::Abandoned,
            opened = open => opened,
        };
        match opened {
            Ok(answer) => {
                let is_held = answer.is_none();
                self.answer = answer;
                Seen::Head { is_held }
            }
            Err(error) => self.fail(error),
        }
    }

    /// Reads events and hands them on until the body ends, somebody fails, or nobody reads.
    async fn stream(&mut self) -> Seen {
        let Some(mut answer) = self.answer.take() else { return Seen::Failed(Kind::Internal) };
        let mut watchdog =
            Watchdog::new(self.request.idle_timeout, self.client.worker.config.timeouts.stalled_reader_s);
        let result = poll_fn(|cx| self.poll_stream(cx, &mut answer.body, &mut watchdog)).await;
        self.answer = Some(answer);
        match result {
            Ok(seen) => seen,
            Err(error) => self.fail(error),
        }
    }

    fn poll_stream(
        &mut self,
        cx: &mut Context<'_>,
        body: &mut AnswerBody,
        watchdog: &mut Watchdog,
    ) -> Poll<Result<Seen, Error>> {
        let budget = self.client.down.budget(self.client.worker.config.limits.stream_budget_bytes);
        for turn in 0.. {
            let may_read = self.client.down.queued() < budget;
            let read = if may_read { self.poll_read(cx, body, watchdog) } else { Poll::Pending };
            match self.client.down.poll_flush(cx) {
                Poll::Ready(Ok(())) => {
                    watchdog.handle_flushed(self.started, &mut self.report);
                    self.client.note_reading();
                }
                Poll::Ready(Err(gone)) => return Poll::Ready(Ok(Seen::Gone(gone))),
                Poll::Pending => {
                    watchdog.handle_blocked(self.client.down.taken());
                    self.client.note_waiting();
                }
            }
            match read {
                Poll::Ready(Ok(true)) => {}
                Poll::Ready(Ok(false)) => return Poll::Ready(Ok(Seen::End)),
                Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                // A flush that made room for reading again must be followed by a read, which registers for
                // more.
                Poll::Pending if !may_read && self.client.down.queued() < budget => {}
                Poll::Pending => break,
            }
            if turn == READS_PER_TURN {
                cx.waker().wake_by_ref();
                break;
            }
        }
        if !watchdog.alarm.is_rung(cx) {
            return Poll::Pending;
        }
        // What is rare is looked at only when its own waker was used: a token does not pay for it.
        let waker = Waker::from(watchdog.alarm.clone());
        let cx = &mut Context::from_waker(&waker);
        if let Poll::Ready(seen) = self.poll_interrupt(cx) {
            return Poll::Ready(Ok(seen));
        }
        watchdog.poll_timeout(cx, self.client.down.queued() >= budget)
    }

    /// Reads once; the result is false at the body's end.
    fn poll_read(
        &mut self,
        cx: &mut Context<'_>,
        body: &mut AnswerBody,
        watchdog: &mut Watchdog,
    ) -> Poll<Result<bool, Error>> {
        let Relaying { splitter, report, client, is_last_event_sent, length, .. } = self;
        let (events_before, mut bytes) = (report.events, 0);
        let read = body.poll(cx, |data| {
            bytes += data.len() as u64;
            splitter.handle_data(data, |piece| {
                report.note_piece(&piece);
                if piece.is_event {
                    *is_last_event_sent = piece.is_last;
                }
                client.down.queue_data(&piece);
            });
        });
        if bytes > 0 {
            report.bytes += bytes;
            // Clients leave when they have that many, before the model server says that it has ended.
            *is_last_event_sent |= *length == Some(report.bytes) && splitter.held() == 0;
            client.progress.bytes.store(report.bytes, Ordering::Relaxed);
            client.progress.events.store(report.events, Ordering::Relaxed);
            watchdog.handle_arrival(Instant::now(), report.events - events_before, report);
        }
        match read {
            Poll::Ready(Ok(upstream::Progress::Data)) => Poll::Ready(Ok(true)),
            Poll::Ready(Ok(upstream::Progress::Stopped(stopped))) => {
                self.trailers = stopped.judge(self.splitter.is_inside_event())?;
                Poll::Ready(Ok(false))
            }
            Poll::Ready(Err(error)) => Poll::Ready(Err(error)),
            Poll::Pending => Poll::Pending,
        }
    }

    /// Waits until everything queued is with the transport.
    async fn flush(&mut self) -> Seen {
        let stalled = self.client.worker.config.timeouts.stalled_reader_s;
        let mut timer = Box::pin(sleep(stalled));
        poll_fn(|cx| {
            match self.client.down.poll_flush(cx) {
                Poll::Ready(Ok(())) => return Poll::Ready(Seen::Flushed),
                Poll::Ready(Err(gone)) => return Poll::Ready(Seen::Gone(gone)),
                Poll::Pending => self.client.note_waiting(),
            }
            if timer.as_mut().poll(cx).is_ready() {
                return Poll::Ready(Seen::Stalled);
            }
            self.poll_interrupt(cx)
        })
        .await
    }

    /// Ready when the client is gone, the server's time is over, or the handler gave up.
    fn poll_interrupt(&mut self, cx: &mut Context<'_>) -> Poll<Seen> {
        if let Poll::Ready(gone) = self.client.down.poll_gone(cx) {
            return Poll::Ready(Seen::Gone(gone));
        }
        if let Poll::Ready(()) = std::pin::pin!(heard(&mut self.expired)).poll(cx) {
            return Poll::Ready(Seen::Expired);
        }
        if self.displaced.as_mut().poll(cx).is_ready() {
            return Poll::Ready(Seen::Displaced);
        }
        if self.suspected.as_mut().poll(cx).is_ready() {
            return Poll::Ready(Seen::Gone(Gone::Lost));
        }
        self.client.abandoned.as_mut().poll(cx).map(|()| Seen::Abandoned)
    }

    fn fail(&mut self, error: Error) -> Seen {
        let kind = error.kind;
        self.report.error = Some(error);
        Seen::Failed(kind)
    }

    fn how_far(&self) -> ends::Progress {
        let is_server_closed = self.client.worker.phase() == Phase::Closed;
        ends::Progress { is_last_event_sent: self.is_last_event_sent, is_server_closed }
    }

    /// Does what the table asks for.
    async fn act(&mut self, input: Input) {
        if let Some(kind) = ends::error(input, self.machine.cause()) {
            self.report.error = Some(kind.into());
        }
        for action in self.machine.handle(input) {
            match action {
                Action::SendHead => self.send_head(),
                Action::PoolUpstream => {
                    if let Some(answer) = self.answer.take() {
                        answer.body.pool(&self.client.worker.upstreams, &self.request.upstream.target);
                    }
                }
                Action::CloseUpstream => self.answer = None,
                Action::QueueRest => {
                    let Relaying { splitter, report, client, .. } = self;
                    splitter.handle_end(|piece| {
                        report.note_piece(&piece);
                        client.down.queue_data(&piece);
                    });
                    if let Some(trailers) = self.trailers.take() {
                        self.client.down.queue_trailers(&trailers);
                    }
                    self.client.down.queue_end();
                }
                Action::QueueErrorEvent => self.queue_error_event(),
                Action::Finish => {
                    self.client.down.finish();
                    self.report.end = End::Finished;
                }
                Action::Reset => self.reset(input).await,
            }
        }
    }

    fn send_head(&mut self) {
        let Some(answer) = &mut self.answer else { return };
        let mut headers = std::mem::take(&mut answer.headers);
        fields::strip_hop_by_hop(&mut headers);
        if answer.status == StatusCode::NO_CONTENT {
            headers.remove(header::CONTENT_LENGTH);
        }
        for (name, value) in &self.request.headers {
            headers.insert(name, value.clone());
        }
        self.client.worker.finish_headers(&mut headers);
        let text = |name| headers.get(name).and_then(|value| value.to_str().ok());
        let encodings = headers.get_all(header::CONTENT_ENCODING).iter();
        let encodings = encodings.filter_map(|value| value.to_str().ok());
        let max_event_bytes = self.client.worker.config.limits.max_event_bytes;
        let content_type = text(header::CONTENT_TYPE);
        self.splitter = Splitter::new(self.request.dialect, content_type, encodings, max_event_bytes);
        self.report.format = self.splitter.format();
        self.length = fields::content_length(&headers).ok().flatten();
        self.client.down.queue_head(answer.status, &headers);
        *self.client.kept_body = None;
        if let Some(share) = &self.client.share {
            share.note_served();
        }
    }

    fn queue_error_event(&mut self) {
        let error = self.report.error.clone().unwrap_or_else(|| Kind::UpstreamClosed.into());
        let event = self.splitter.poll_error_event(error.kind);
        if let Some(event) = event.filter(|_| !self.client.is_head_request && self.length.is_none()) {
            self.client.down.queue_data(&Piece::whole(&event, true));
        }
    }

    async fn reset(&mut self, input: Input) {
        self.report.end = End::Reset;
        if input == Input::Flushed {
            // A reset that overtakes the error event would take it back: let the client read it first.
            let is_cut = self.machine.cause() == Some(Cause::Cut);
            let least = if is_cut { CUT_READING_TIME } else { Duration::ZERO };
            let reading = sleep(self.client.down.reading_time().max(least));
            tokio::select! {
                () = reading => {}
                _ = self.client.down.gone() => {}
                () = &mut self.client.abandoned => {}
            }
        }
        let kind = ends::reset_kind(input, self.report.error.as_ref().map(|error| error.kind));
        self.client.down.reset(kind.h3_code());
    }
}

/// Asks the model server. An answer that is held is in the report, and not here.
async fn open(
    upstreams: &Upstreams,
    request: &RelayRequest,
    body: &Bytes,
    report: &mut RelayReport,
    started: Instant,
) -> Result<Option<Answer>, Error> {
    let answer = upstream::open(upstreams, &request.upstream, body, &mut report.runs).await?;
    report.status = Some(answer.status);
    report.head = Some(started.elapsed());
    report.upstream_reused = answer.is_reused;
    if !is_held(&request.held_statuses, answer.status) {
        return Ok(Some(answer));
    }
    report.error = Some(Kind::UpstreamStatus.into());
    report.held = Some(held::read(answer, upstreams, &request.upstream.target).await);
    Ok(None)
}

/// Resolves once, when the server's answers have had their time.
async fn heard(expired: &mut Option<Expired>) {
    match expired {
        Some(future) => future.await,
        None => std::future::pending().await,
    }
    *expired = None;
}
