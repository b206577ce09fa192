//! One request and its answer.
//!
//! In: a request's head and body, by any protocol. Out: the handler's end of it. Its commands go to the connection's
//! end (`exchange/driver.rs`) by one bounded channel. When the handler's end is dropped, an answer that is not
//! finished is reset; it never finishes by itself.

mod body_fields;
pub mod commands;
pub mod driver;
pub mod request_body;

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use bytes::Bytes;
use headrace_core::http3::message::RequestHead;
use headrace_core::shares::Owner;
use headrace_core::{Error, Kind};
use http::{HeaderMap, StatusCode};
use tokio::runtime::Handle;
use tokio::sync::{mpsc, watch};

use crate::gone::{Gone, Protocol};
use crate::relay::RelayRequest;
pub use crate::relay::progress::{Phase, Progress};
use crate::relay::report::RelayReport;
use crate::replay::Reader;
use crate::reply::Reply;
use crate::shares::ExchangeShare;
use crate::worker::{Active, Worker};

/// What the client asked, but for the body.
#[derive(Clone, Debug)]
pub struct Request {
    pub head: RequestHead,
    pub protocol: Protocol,
    /// The address at which the client had shown to be when the request came.
    pub client: SocketAddr,
    /// There for a request that came in early data (0-RTT): it becomes true when the handshake is complete, and the
    /// request is not a replay.
    pub early_data: Option<watch::Receiver<bool>>,
}

impl Request {
    /// Whether it came in early data.
    pub fn is_early_data(&self) -> bool {
        self.early_data.is_some()
    }

    /// Whether it may be a replay of what another connection said (RFC 8470 §2).
    pub fn may_be_replay(&self) -> bool {
        self.early_data.as_ref().is_some_and(|complete| !*complete.borrow())
    }
}

/// What a handler asks of its exchange.
pub enum Command {
    /// Reads the whole body, held to its length and to the limit.
    Body(Reply<Bytes>),
    Respond {
        status: StatusCode,
        headers: HeaderMap,
        reply: Reply<()>,
    },
    /// Answers once the bytes fit the stream's budget.
    Send {
        data: Bytes,
        reply: Reply<()>,
    },
    Finish {
        trailers: Option<HeaderMap>,
        reply: Reply<()>,
    },
    /// Sends a whole answer at once.
    Answer {
        status: StatusCode,
        headers: HeaderMap,
        body: Bytes,
        reply: Reply<()>,
    },
    Reset {
        code: u64,
    },
    Relay {
        request: Box<RelayRequest>,
        reply: Reply<Box<RelayReport>>,
    },
    /// Tells an answer that is kept.
    Replay {
        /// Made when the command is given: a generation whose only client is gone by then must end.
        reader: Reader,
        reply: Reply<Box<RelayReport>>,
    },
    /// Answers when the client is gone.
    Gone(Reply<Gone>),
}

/// The handler's end of an exchange. Dropping it resets an answer that is not finished.
pub struct Exchange {
    pub id: u64,
    pub request: Arc<Request>,
    pub progress: Arc<Progress>,
    /// The whole body, when it came with the head and nobody has taken it yet.
    ready_body: Mutex<Option<Bytes>>,
    commands: mpsc::Sender<Command>,
    worker: Arc<Worker>,
    runtime: Handle,
    /// What it holds of what is scarce, as long as its driver runs.
    share: Weak<ExchangeShare>,
}

impl Exchange {
    /// Must run on the worker's runtime.
    pub fn new(
        active: &Active,
        request: Request,
        progress: Arc<Progress>,
        ready_body: Option<Bytes>,
        commands: mpsc::Sender<Command>,
        worker: Arc<Worker>,
    ) -> Self {
        let (request, ready_body, runtime) = (Arc::new(request), Mutex::new(ready_body), Handle::current());
        let (id, share) = (active.id, Arc::downgrade(&active.share));
        Self { id, request, progress, ready_body, commands, worker, runtime, share }
    }

    /// Whoever has this API key owns it, and its connection, from now on: that is who shares what is scarce.
    pub fn own(&self, key: &str) {
        if let Some(share) = self.share.upgrade() {
            share.own(&Owner::Key(key.into()));
        }
    }

    /// The worker that serves the exchange, and the runtime of its thread.
    pub fn worker(&self) -> (&Arc<Worker>, &Handle) {
        (&self.worker, &self.runtime)
    }

    /// The whole body, if it came with the head; once. This saves asking the driver, on another thread, for what is
    /// here already.
    pub fn take_ready_body(&self) -> Option<Bytes> {
        self.ready_body.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// Answers when the handshake is complete, and so the request is not a replay. May be waited for beside a command.
    pub fn handshake(&self, reply: Reply<()>) {
        let Some(mut complete) = self.request.early_data.clone() else { return reply.send(Ok(())) };
        self.runtime.spawn(async move {
            // Without the other end, the handshake has failed.
            let completed = complete.wait_for(|complete| *complete).await.map(|_| ());
            reply.send(completed.map_err(|_| Kind::Lost.into()));
        });
    }

    /// Gives a command to the driver.
    ///
    /// # Errors
    /// [`Kind::Closed`] when the exchange is over, [`Kind::Misuse`] when too many commands wait. The
    /// command's reply says the same.
    pub fn command(&self, command: Command) -> Result<(), Error> {
        self.commands.try_send(command).map_err(|error| match error {
            mpsc::error::TrySendError::Closed(_) => Kind::Closed.into(),
            mpsc::error::TrySendError::Full(_) => {
                Error::new(Kind::Misuse, "too many calls wait on one exchange; await each before the next")
            }
        })
    }
}

/// Takes exchanges. It is called on worker threads, and must return at once.
#[derive(Clone)]
pub struct Handler(Arc<dyn Fn(Exchange) + Send + Sync>);

impl Handler {
    pub fn new(take: impl Fn(Exchange) + Send + Sync + 'static) -> Self {
        Self(Arc::new(take))
    }

    pub fn handle_exchange(&self, exchange: Exchange) {
        (self.0)(exchange);
    }
}
