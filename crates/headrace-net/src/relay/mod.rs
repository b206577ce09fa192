//! Moving one answer from a model server to the client.
//!
//! In: a request for a model server; the client's stream. Out: the answer, event by event, each as one DATA
//! frame written when it arrives; and a [`RelayReport`]. What to do is decided by the table in
//! `headrace-core/relay/mod.rs`; this file does it, in one task, without a timer, channel or lock per event.

pub mod progress;
pub mod report;
pub mod watchdog;

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use bytes::Bytes;
use headrace_core::events::{Framing, Splitter, Unit};
use headrace_core::relay::{Action, Cause, Input, Relay};
use headrace_core::{Error, Kind, fields};
use http::{HeaderMap, StatusCode};
use tokio::time::sleep;

use crate::downstream::{Downstream, Gone};
use crate::exchange::Progress;
use crate::exchange::commands::Inbox;
use crate::exchange::request_body::KeptBody;
use crate::relay::report::{End, RelayReport};
use crate::relay::watchdog::Watch;
use crate::server::drain;
use crate::server::{Phase, Worker};
use crate::upstream::{self, Answer, AnswerBody, UpstreamRequest};

/// Reads in one turn before other streams get theirs.
const READS_PER_TURN: usize = 16;
/// Between the last event of an answer that the server cuts and its reset: many are cut at once, and their
/// clients are busy.
const CUT_SETTLE: Duration = Duration::from_millis(200);

/// What a handler asks for.
#[derive(Clone)]
pub struct RelayRequest {
    pub upstream: UpstreamRequest,
    /// `None`: the body that the client sent.
    pub body: Option<Bytes>,
    /// Longest silence between two pieces of the answer.
    pub idle_timeout: Duration,
    /// Statuses that are reported instead of relayed, so that another upstream can be tried.
    pub held_statuses: Vec<StatusCode>,
    /// Fields set in the answer's head.
    pub headers: HeaderMap,
}

/// The parts of an exchange that a relay uses.
pub struct Sides<'a> {
    pub down: &'a mut Downstream,
    pub inbox: &'a mut Inbox,
    pub worker: &'a Arc<Worker>,
    pub progress: &'a Progress,
    /// Let go when the answer begins.
    pub kept_body: &'a mut Option<KeptBody>,
    pub is_head_request: bool,
}

/// Relays one answer.
pub async fn run(sides: Sides<'_>, request: RelayRequest) -> RelayReport {
    let (to, worker) = (&request.upstream, sides.worker);
    let _using = worker.shared.uses.using(&to.target, to.connect_timeout, worker.number, Instant::now());
    let mut job = Job {
        machine: Relay::default(),
        report: RelayReport::begin(),
        started: Instant::now(),
        splitter: Splitter::new(Framing::Raw, 0),
        answer: None,
        trailers: None,
        has_length: false,
        is_said: false,
        expired: Some(Box::pin(drain::expired(sides.worker.shared.phase.clone()))),
        sides,
        request,
    };
    let mut input = job.wait().await;
    loop {
        if job.is_said && matches!(input, Input::Stopped | Input::Lost) {
            input = Input::Left;
        }
        // The connection was closed by ourselves.
        let is_closed = job.sides.worker.phase() == Phase::Closed;
        if is_closed && input == Input::Lost && job.machine.state() != headrace_core::relay::State::Failing {
            input = Input::Expired;
        }
        job.act(input).await;
        input = match job.machine.state() {
            headrace_core::relay::State::Streaming => job.stream().await,
            headrace_core::relay::State::Finishing | headrace_core::relay::State::Failing => {
                job.flush().await
            }
            headrace_core::relay::State::Waiting | headrace_core::relay::State::Ended => break,
        };
    }
    job.report.cause = job.machine.cause().unwrap_or(Cause::Abandoned);
    job.report.duration = job.started.elapsed();
    job.report
}

type Expired = Pin<Box<dyn Future<Output = ()> + Send>>;

struct Job<'a> {
    machine: Relay,
    report: RelayReport,
    started: Instant,
    splitter: Splitter,
    /// The upstream's answer while it runs; dropping it closes the upstream.
    answer: Option<Answer>,
    trailers: Option<HeaderMap>,
    /// The head announced how long the body is: nothing may be added to it.
    has_length: bool,
    /// The event that says that the answer is over was handed on.
    is_said: bool,
    /// The server's own end; `None` once it was heard.
    expired: Option<Expired>,
    sides: Sides<'a>,
    request: RelayRequest,
}

impl Job<'_> {
    /// Waits for the answer's head.
    async fn wait(&mut self) -> Input {
        let body =
            self.request.body.take().or_else(|| self.sides.kept_body.as_ref().map(|kept| kept.bytes.clone()));
        let body = body.unwrap_or_default();
        let open = upstream::open(self.sides.worker, &self.request.upstream, &body);
        let opened = tokio::select! {
            biased;
            () = heard(&mut self.expired) => return Input::Expired,
            gone = self.sides.down.gone() => return gone_input(gone),
            () = self.sides.inbox.abandoned() => return Input::Abandoned,
            opened = open => opened,
        };
        match opened {
            Ok(answer) => {
                self.report.status = Some(answer.status);
                self.report.head = Some(self.started.elapsed());
                self.report.upstream_reused = answer.is_reused;
                let is_held = self.request.held_statuses.contains(&answer.status);
                self.answer = Some(answer);
                if is_held {
                    return self.fail(Kind::UpstreamStatus.into(), Input::HeldHead);
                }
                Input::Head
            }
            Err(error) if is_timeout(&error) => self.fail(error, Input::TimedOut),
            Err(error) => self.fail(error, Input::Failed),
        }
    }

    /// Reads events and hands them on until the body ends, somebody fails, or nobody reads.
    async fn stream(&mut self) -> Input {
        let Some(mut answer) = self.answer.take() else { return Input::Failed };
        let mut watch =
            Watch::new(self.request.idle_timeout, self.sides.worker.config.timeouts.stalled_reader_s);
        let result = poll_fn(|cx| self.poll_stream(cx, &mut answer.body, &mut watch)).await;
        self.answer = Some(answer);
        match result {
            Ok(input) => input,
            Err(error) if is_timeout(&error) => self.fail(error, Input::TimedOut),
            Err(error) => self.fail(error, Input::Failed),
        }
    }

    fn poll_stream(
        &mut self,
        cx: &mut Context<'_>,
        body: &mut AnswerBody,
        watch: &mut Watch,
    ) -> Poll<Result<Input, Error>> {
        let budget = self.sides.worker.config.limits.stream_budget_bytes;
        for turn in 0.. {
            let may_read = self.sides.down.queued() < budget;
            let read = if may_read { self.poll_read(cx, body, watch) } else { Poll::Pending };
            match self.sides.down.poll_flush(cx) {
                Poll::Ready(Ok(())) => watch.handle_flushed(self.started, &mut self.report),
                Poll::Ready(Err(gone)) => return Poll::Ready(Ok(gone_input(gone))),
                Poll::Pending => watch.handle_blocked(self.sides.down.taken()),
            }
            match read {
                Poll::Ready(Ok(true)) => {}
                Poll::Ready(Ok(false)) => return Poll::Ready(Ok(Input::End)),
                Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                // A flush that made room for reading again must be followed by a read, which registers for
                // more.
                Poll::Pending if !may_read && self.sides.down.queued() < budget => {}
                Poll::Pending => break,
            }
            if turn == READS_PER_TURN {
                cx.waker().wake_by_ref();
                break;
            }
        }
        if !watch.alarm.is_rung(cx) {
            return Poll::Pending;
        }
        // What is rare is looked at only when its own waker was used: a token does not pay for it.
        let waker = Waker::from(watch.alarm.clone());
        let cx = &mut Context::from_waker(&waker);
        if let Poll::Ready(input) = self.poll_interrupt(cx) {
            return Poll::Ready(Ok(input));
        }
        watch.poll_timeout(cx, self.sides.down.queued() >= budget)
    }

    /// Reads once; false at the body's end.
    fn poll_read(
        &mut self,
        cx: &mut Context<'_>,
        body: &mut AnswerBody,
        watch: &mut Watch,
    ) -> Poll<Result<bool, Error>> {
        let Job { splitter, report, sides, is_said, .. } = self;
        let (mut events, mut bytes) = (0, 0);
        let read = body.poll(cx, |data| {
            bytes += data.len() as u64;
            splitter.handle_data(data, |unit| {
                events += u64::from(unit.is_event);
                *is_said |= unit.is_done_mark();
                sides.down.queue_data(&unit);
            });
        });
        if bytes > 0 {
            report.bytes += bytes;
            report.events += events;
            sides.progress.bytes.store(report.bytes, Ordering::Relaxed);
            sides.progress.events.store(report.events, Ordering::Relaxed);
            watch.handle_arrival(Instant::now(), events, report);
        }
        match read {
            Poll::Ready(Ok(upstream::Progress::Data)) => Poll::Ready(Ok(true)),
            Poll::Ready(Ok(upstream::Progress::End(trailers))) => {
                self.trailers = trailers;
                Poll::Ready(Ok(false))
            }
            Poll::Ready(Err(error)) => Poll::Ready(Err(error)),
            Poll::Pending => Poll::Pending,
        }
    }

    /// Waits until everything queued is with the transport.
    async fn flush(&mut self) -> Input {
        // hyper pulls the last frames only when it is told that they are the last.
        let is_finishing = self.machine.state() == headrace_core::relay::State::Finishing;
        if is_finishing && matches!(self.sides.down, Downstream::Tcp(_)) {
            self.sides.down.finish();
        }
        let stalled = self.sides.worker.config.timeouts.stalled_reader_s;
        let mut timer = Box::pin(sleep(stalled));
        poll_fn(|cx| {
            match self.sides.down.poll_flush(cx) {
                Poll::Ready(Ok(())) => return Poll::Ready(Input::Flushed),
                Poll::Ready(Err(gone)) => return Poll::Ready(gone_input(gone)),
                Poll::Pending => {}
            }
            if timer.as_mut().poll(cx).is_ready() {
                return Poll::Ready(Input::Stalled);
            }
            self.poll_interrupt(cx)
        })
        .await
    }

    /// The client is gone, or the handler gave up.
    fn poll_interrupt(&mut self, cx: &mut Context<'_>) -> Poll<Input> {
        if let Poll::Ready(gone) = self.sides.down.poll_gone(cx) {
            return Poll::Ready(gone_input(gone));
        }
        if let Poll::Ready(()) = std::pin::pin!(heard(&mut self.expired)).poll(cx) {
            return Poll::Ready(Input::Expired);
        }
        let abandoned = std::pin::pin!(self.sides.inbox.abandoned());
        abandoned.poll(cx).map(|()| Input::Abandoned)
    }

    fn fail(&mut self, error: Error, input: Input) -> Input {
        self.report.error = Some(error);
        input
    }

    /// Does what the table asks for.
    async fn act(&mut self, input: Input) {
        match input {
            Input::Stalled => self.report.error = Some(Kind::ClientStalled.into()),
            // What failed before keeps its reason.
            Input::Expired if self.machine.cause().is_none_or(|cause| cause == Cause::Done) => {
                self.report.error = Some(Kind::GatewayDraining.into());
            }
            _ => {}
        }
        for action in self.machine.handle(input) {
            match action {
                Action::SendHead => self.send_head(),
                Action::PoolUpstream => {
                    if let Some(answer) = self.answer.take() {
                        answer.body.pool(self.sides.worker, &self.request.upstream.target);
                    }
                }
                Action::CloseUpstream => self.answer = None,
                Action::QueueRest => {
                    let Job { splitter, report, sides, .. } = self;
                    splitter.handle_end(|unit| {
                        report.events += u64::from(unit.is_event);
                        sides.down.queue_data(&unit);
                    });
                    if let Some(trailers) = self.trailers.take() {
                        self.sides.down.queue_trailers(&trailers);
                    }
                }
                Action::QueueErrorEvent => self.queue_error_event(),
                Action::Finish => {
                    self.sides.down.finish();
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
            headers.remove(http::header::CONTENT_LENGTH);
        }
        for (name, value) in &self.request.headers {
            headers.insert(name, value.clone());
        }
        self.sides.worker.finish_headers(&mut headers);
        let text = |name| headers.get(name).and_then(|value| value.to_str().ok());
        let framing = Framing::of(text(http::header::CONTENT_TYPE), text(http::header::CONTENT_ENCODING));
        self.report.framing = framing;
        self.has_length = headers.contains_key(http::header::CONTENT_LENGTH);
        self.splitter = Splitter::new(framing, self.sides.worker.config.limits.max_event_bytes);
        self.sides.down.queue_head(answer.status, &headers);
        *self.sides.kept_body = None;
    }

    fn queue_error_event(&mut self) {
        let error = self.report.error.clone().unwrap_or_else(|| Kind::UpstreamClosed.into());
        let event = self.splitter.poll_error_event(error.kind);
        if let Some(event) = event.filter(|_| !self.sides.is_head_request && !self.has_length) {
            self.sides.down.queue_data(&Unit { held: &[], fresh: &event, is_event: true });
        }
    }

    async fn reset(&mut self, input: Input) {
        self.report.end = End::Reset;
        if input == Input::Flushed {
            // A reset that overtakes the error event would take it back: let the client read it first.
            let is_cut = self.machine.cause() == Some(Cause::Cut);
            let least = if is_cut { CUT_SETTLE } else { Duration::ZERO };
            let settle = sleep(self.sides.down.settle_time().max(least));
            tokio::select! {
                () = settle => {}
                _ = self.sides.down.gone() => {}
                () = self.sides.inbox.abandoned() => {}
            }
        }
        let kind = match input {
            Input::Stopped | Input::Lost | Input::Left => Kind::Stopped,
            _ => self.report.error.as_ref().map_or(Kind::Internal, |error| error.kind),
        };
        self.sides.down.reset(kind.h3_code());
    }
}

/// Resolves once, when the server's answers have had their time.
async fn heard(expired: &mut Option<Expired>) {
    match expired {
        Some(future) => future.await,
        None => std::future::pending().await,
    }
    *expired = None;
}

fn gone_input(gone: Gone) -> Input {
    match gone {
        Gone::Stopped => Input::Stopped,
        Gone::Lost => Input::Lost,
    }
}

fn is_timeout(error: &Error) -> bool {
    matches!(error.kind, Kind::UpstreamConnectTimeout | Kind::UpstreamHeadTimeout | Kind::UpstreamIdleTimeout)
}
