//! The connection's end of an exchange.
//!
//! In: the commands of its handler, one at a time (`exchange/mod.rs`). Out: the answer, by whatever protocol the
//! client speaks; and, to those that wait for it, that the client is gone.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::Poll;
use std::time::Duration;

use bytes::Bytes;
use headrace_core::events::Piece;
use headrace_core::relay::{Cause, ends};
use headrace_core::{Error, Kind};
use http::{HeaderMap, Method, StatusCode};
use tokio::sync::mpsc;

use crate::downstream::Downstream;
use crate::exchange::commands::{self, Inbox};
use crate::exchange::request_body::RequestBody;
use crate::exchange::{Command, Exchange, Phase, Progress, Request};
use crate::gone::Gone;
use crate::relay::report::{End, RelayReport};
use crate::relay::{self, ClientSide, RelayRequest, playback};
use crate::replay::Reader;
use crate::shares::KeptBody;
use crate::worker::{self, Active, Worker};

/// How long an answer may wait for the client's last acknowledgement before its slot is given back.
const DELIVERY_TIMEOUT: Duration = Duration::from_secs(10);

/// An answer of a handler's own with fewer bytes is read at once, or never.
const SHORT_ANSWER: u64 = 4096;

/// The connection's end of an exchange: does what the handler commands.
pub struct Driver {
    down: Downstream,
    body: RequestBody,
    inbox: Inbox,
    worker: Arc<Worker>,
    progress: Arc<Progress>,
    is_head_request: bool,
    gone: Option<Gone>,
    /// The body, once it was read, for a relay to send on; let go when an answer to it has begun.
    kept_body: Option<KeptBody>,
    /// Why the body could not be read.
    body_error: Option<Error>,
    /// The server went away before the answer was complete.
    is_cut: bool,
    /// Counts this exchange among those that run, and holds its share of what is scarce.
    active: Active,
}

/// Makes an exchange and the driver of its connection.
pub fn pair(
    request: Request,
    down: Downstream,
    mut body: RequestBody,
    worker: Arc<Worker>,
    active: Active,
) -> (Exchange, Driver) {
    let (kept_body, body_error) = match body.read_now(&worker) {
        Some(Ok(kept)) => (Some(kept), None),
        Some(Err(error)) => (None, Some(error)),
        None => (None, None),
    };
    let (sender, commands) = mpsc::channel(commands::COMMAND_QUEUE);
    let progress = Arc::new(Progress::default());
    let is_head_request = request.head.method == Method::HEAD;
    let ready_body = kept_body.as_ref().map(|kept| kept.bytes.clone());
    let exchange = Exchange::new(&active, request, progress.clone(), ready_body, sender, worker.clone());
    let driver = Driver {
        down,
        body,
        inbox: Inbox::new(commands),
        worker,
        progress,
        is_head_request,
        gone: None,
        kept_body,
        body_error,
        is_cut: false,
        active,
    };
    (exchange, driver)
}

impl Driver {
    /// Runs until the answer is finished or reset, or the handler's end is dropped. Says whether, and how,
    /// the client was gone before that.
    pub async fn run(mut self) -> Option<Gone> {
        let expired = self.worker.reached(worker::Phase::Expired);
        let share = self.active.share.clone();
        let mut has_time = true;
        tokio::pin!(expired);
        while !matches!(self.progress.phase(), Phase::Finished | Phase::Reset) {
            tokio::select! {
                biased;
                command = self.inbox.next() => match command {
                    Some(command) => self.execute(command).await,
                    None => self.reset(Kind::Internal.h3_code()),
                },
                gone = wait_gone(&mut self.down, &mut self.body), if self.gone.is_none() => {
                    self.set_gone(gone);
                }
                () = &mut expired, if has_time => {
                    has_time = false;
                    // A handler that has not begun to answer can still say why it does not.
                    if self.progress.phase() == Phase::Answering {
                        self.is_cut = true;
                        self.reset(Kind::GatewayDraining.h3_code());
                    }
                }
                // As above.
                () = share.lost(), if self.progress.phase() == Phase::Answering => {
                    self.reset(Kind::Overloaded.h3_code());
                }
            }
        }
        if self.progress.phase() == Phase::Finished {
            // The slot, and a drain that waits for it, belong to this answer until the client has it.
            share.wait();
            tokio::select! {
                _ = tokio::time::timeout(DELIVERY_TIMEOUT, self.down.delivered()) => {}
                () = share.lost() => {}
            }
        }
        self.gone
    }

    async fn execute(&mut self, command: Command) {
        match command {
            Command::Body(reply) => {
                let result = self.read_body().await;
                reply.send(result);
            }
            Command::Respond { status, headers, reply } => {
                let result = self.respond(status, headers).await;
                reply.send(result);
            }
            Command::Send { data, reply } => {
                let result = self.send(data).await;
                reply.send(result);
            }
            Command::Finish { trailers, reply } => {
                let result = self.finish(trailers).await;
                reply.send(result);
            }
            Command::Answer { status, headers, body, reply } => {
                let result = self.answer(status, headers, body).await;
                reply.send(result);
            }
            Command::Reset { code } => self.reset(code),
            Command::Relay { request, reply } => {
                let result = self.relay(*request).await;
                reply.send(result);
            }
            Command::Replay { reader, reply } => {
                let result = self.replay(reader).await;
                reply.send(result);
            }
            Command::Gone(reply) => match self.gone {
                Some(gone) => reply.send(Ok(gone)),
                None => self.inbox.keep_waiter(reply),
            },
        }
    }

    async fn read_body(&mut self) -> Result<Bytes, Error> {
        if let Some(body) = &self.kept_body {
            return Ok(body.bytes.clone());
        }
        if let Some(error) = &self.body_error {
            return Err(error.clone());
        }
        let timeout = self.worker.config.timeouts.request_s;
        let read = tokio::time::timeout(timeout, self.body.read_all(&self.worker));
        let share = self.active.share.clone();
        share.wait();
        let body = tokio::select! {
            body = read => body.unwrap_or_else(|_| Err(Kind::RequestTimeout.into()))?,
            () = share.lost() => return Err(displaced()),
            gone = self.down.gone() => return Err(self.set_gone(gone)),
            () = self.inbox.abandoned() => return Err(self.abandon()),
            () = self.worker.reached(worker::Phase::Expired) => {
                self.is_cut = true;
                return Err(Kind::GatewayDraining.into());
            }
        };
        share.go_on();
        Ok(self.kept_body.insert(body).bytes.clone())
    }

    async fn respond(&mut self, status: StatusCode, headers: HeaderMap) -> Result<(), Error> {
        self.queue_head(status, headers)?;
        self.flush(self.worker.config.limits.stream_budget_bytes).await
    }

    fn queue_head(&mut self, status: StatusCode, mut headers: HeaderMap) -> Result<(), Error> {
        self.expect(Phase::Open)?;
        self.worker.finish_headers(&mut headers);
        self.down.queue_head(status, &headers);
        self.progress.set_phase(Phase::Answering);
        self.active.share.note_served();
        Ok(())
    }

    async fn send(&mut self, data: Bytes) -> Result<(), Error> {
        self.expect(Phase::Answering)?;
        if !data.is_empty() && !self.is_head_request {
            self.progress.bytes.fetch_add(data.len() as u64, Ordering::Relaxed);
            self.down.queue_data(&Piece::whole(&data, false));
        }
        self.flush(self.worker.config.limits.stream_budget_bytes).await
    }

    async fn finish(&mut self, trailers: Option<HeaderMap>) -> Result<(), Error> {
        self.expect(Phase::Answering)?;
        if let Some(trailers) = trailers.filter(|_| !self.is_head_request) {
            self.down.queue_trailers(&trailers);
        }
        self.down.queue_end();
        self.flush(0).await?;
        self.down.finish();
        self.progress.set_phase(Phase::Finished);
        Ok(())
    }

    async fn answer(&mut self, status: StatusCode, mut headers: HeaderMap, body: Bytes) -> Result<(), Error> {
        headers.insert(http::header::CONTENT_LENGTH, body.len().into());
        self.queue_head(status, headers)?;
        self.send(body).await?;
        self.finish(None).await
    }

    fn reset(&mut self, code: u64) {
        self.down.reset(code);
        self.body.stop(code);
        self.progress.set_phase(Phase::Reset);
    }

    async fn relay(&mut self, request: RelayRequest) -> Result<Box<RelayReport>, Error> {
        self.expect(Phase::Open)?;
        if let Some(gone) = self.gone {
            self.reset(Error::from(gone).kind.h3_code());
            return Ok(Box::new(RelayReport::gone(gone)));
        }
        if request.body.is_none() {
            self.read_body().await?;
        }
        self.progress.set_phase(Phase::Relaying);
        let report = relay::run(self.client_side(), request).await;
        Ok(Box::new(self.handle_report(report)))
    }

    async fn replay(&mut self, mut reader: Reader) -> Result<Box<RelayReport>, Error> {
        self.expect(Phase::Open)?;
        if let Some(gone) = self.gone {
            reader.how = gone;
            self.reset(Error::from(gone).kind.h3_code());
            return Ok(Box::new(RelayReport::gone(gone)));
        }
        self.progress.set_phase(Phase::Relaying);
        let report = playback::run(self.client_side(), reader).await;
        Ok(Box::new(self.handle_report(report)))
    }

    fn client_side(&mut self) -> ClientSide<'_> {
        ClientSide {
            down: &mut self.down,
            abandoned: Box::pin(self.inbox.abandoned()),
            worker: &self.worker,
            share: Some(self.active.share.clone()),
            progress: &self.progress,
            kept_body: &mut self.kept_body,
            is_head_request: self.is_head_request,
        }
    }

    /// Notes how a relay ended.
    fn handle_report(&mut self, mut report: RelayReport) -> RelayReport {
        report.transport = self.down.transport();
        if let Some(gone) = report.cause.gone() {
            self.set_gone(gone);
        }
        self.is_cut |= report.cause == Cause::Cut;
        self.progress.set_phase(match report.end {
            End::Finished => Phase::Finished,
            End::Reset => Phase::Reset,
            End::Untouched => Phase::Open,
        });
        report
    }

    /// Waits until at most `rest` bytes are queued.
    async fn flush(&mut self, rest: usize) -> Result<(), Error> {
        let timeouts = &self.worker.config.timeouts;
        let is_short = self.progress.bytes.load(Ordering::Relaxed) < SHORT_ANSWER;
        let stalled = if is_short { timeouts.short_answer_s } else { timeouts.stalled_reader_s };
        let share = self.active.share.clone();
        let mut suspicion = self.down.suspicion();
        let down = &mut self.down;
        let flushed = std::future::poll_fn(|cx| match down.poll_flush(cx) {
            Poll::Pending if down.queued() <= rest && rest > 0 => Poll::Ready(Ok(())),
            Poll::Pending => {
                share.wait();
                Poll::Pending
            }
            flushed => flushed,
        });
        let result = tokio::select! {
            biased;
            result = tokio::time::timeout(stalled, flushed) => result,
            () = self.inbox.abandoned() => return Err(self.abandon()),
            () = suspicion.becomes(true) => {
                let error = self.set_gone(Gone::Lost);
                self.reset(Kind::Lost.h3_code());
                return Err(error);
            }
            () = share.lost() => {
                self.reset(Kind::Overloaded.h3_code());
                return Err(displaced());
            }
        };
        match result {
            Ok(Ok(())) => {
                share.go_on();
                Ok(())
            }
            Ok(Err(gone)) => Err(self.set_gone(gone)),
            Err(_) => {
                self.reset(Kind::ClientStalled.h3_code());
                Err(Kind::ClientStalled.into())
            }
        }
    }

    fn set_gone(&mut self, gone: Gone) -> Error {
        let gone = *self.gone.get_or_insert(gone);
        self.inbox.answer_waiters(gone);
        gone.into()
    }

    fn abandon(&mut self) -> Error {
        self.reset(Kind::Internal.h3_code());
        Kind::Closed.into()
    }

    fn expect(&self, phase: Phase) -> Result<(), Error> {
        match self.progress.phase() {
            now if now == phase => Ok(()),
            Phase::Finished | Phase::Reset => Err(Kind::Closed.into()),
            now => Err(Error::new(
                Kind::Misuse,
                format!("the exchange is {now:?}, and the call needs it to be {phase:?}"),
            )),
        }
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        let is_complete = self.progress.phase() == Phase::Finished && !self.is_cut;
        let is_time_over = self.worker.phase() >= worker::Phase::Expired;
        if ends::is_cut_short(is_time_over, is_complete, self.gone) {
            self.worker.shared.counters.cut.fetch_add(1, Ordering::Relaxed);
        }
    }
}

fn displaced() -> Error {
    Error::new(Kind::Overloaded, "its place was needed for somebody who waits less")
}

/// Resolves when the client is gone: it stopped the answer, or reset the request, or is suspect.
async fn wait_gone(down: &mut Downstream, body: &mut RequestBody) -> Gone {
    let mut suspicion = down.suspicion();
    tokio::select! {
        gone = down.gone() => gone,
        gone = body.reset() => gone,
        () = suspicion.becomes(true) => Gone::Lost,
    }
}
