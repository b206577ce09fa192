//! The client's side: HTTP/3 connections to a server.
//!
//! In: where to, whom to trust, requests. Out: answers (`client/stream.rs`). A connection is there at once,
//! and reached in the background (`client/connect.rs`); requests made meanwhile wait for it. All clients of a
//! process share one runtime on one thread, started when the first of them connects.

pub mod connect;
mod monitor;
pub mod network;
mod request;
pub mod sessions;
mod socket;
pub mod stream;

use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use headrace_core::http3::control::stream_type;
use headrace_core::http3::message::RequestHead;
use headrace_core::http3::{code, settings};
use headrace_core::recovery::echo::Settings;
use headrace_core::{Error, Kind};
use quinn::{ConnectionError, Endpoint, RecvStream, SendStream};
use tokio::sync::{Mutex, watch};
use tokio::task::JoinHandle;

use crate::client::connect::is_alert;
use crate::client::monitor::{Flow, Streams};
use crate::client::sessions::{Origin, Origins};
use crate::client::stream::{Options, RequestBody, ResponseStream};
use crate::downstream::http3::stream_code;
use crate::quic::echo::controller::Desk;
use crate::reply::Reply;

/// How a client behaves; every value is Python's choice.
#[derive(Clone)]
pub struct ClientConfig {
    pub origins: Arc<Origins>,
    pub handshake_timeout: Duration,
    pub idle_timeout: Duration,
    /// A connection without streams for so long is closed.
    pub keep_idle: Duration,
    pub max_head_bytes: usize,
    /// What a stream may have unread before its server must wait.
    pub stream_window: u32,
    pub connection_window: u32,
    /// `None`: nothing is sent again.
    pub echo: Option<Settings>,
}

/// Where to: an alternative service's host and port may differ from the name that its certificate must have.
#[derive(Clone, Debug)]
pub struct Target {
    pub host: String,
    pub port: u16,
    pub name: String,
}

/// How far a connection is.
#[derive(Clone)]
pub enum Progress {
    Connecting,
    /// What does no harm when it comes twice can be sent (0-RTT); nothing has come from the server.
    Early(Arc<Inner>),
    Reached(Arc<Inner>),
    Failed(Error),
}

impl Progress {
    /// The first connection on which early data can be sent; others are not announced.
    pub fn announce(sender: &watch::Sender<Self>, inner: &Arc<Inner>) {
        sender.send_if_modified(|progress| {
            let is_first = matches!(progress, Progress::Connecting);
            if is_first {
                *progress = Progress::Early(inner.clone());
            }
            is_first
        });
    }
}

/// One connection; dropping the last clone closes it.
#[derive(Clone)]
pub struct ClientConnection {
    shared: Arc<Shared>,
}

struct Shared {
    progress: watch::Receiver<Progress>,
    /// Streams asked for that have not ended, those without credit among them.
    streams: Arc<Streams>,
    /// Streams that have no credit (MAX_STREAMS) yet.
    waiting: Arc<AtomicUsize>,
    /// Whose it is: a child that was forked from that process cannot use it.
    process: u32,
    connecting: tokio::task::AbortHandle,
}

impl Drop for Shared {
    fn drop(&mut self) {
        self.connecting.abort();
    }
}

pub struct Inner {
    pub quic: quinn::Connection,
    pub origin: Arc<Origin>,
    pub max_head_bytes: usize,
    /// Held while a stream waits for credit.
    opening: Mutex<()>,
    /// Requests with this stream id and above were not handled; `u64::MAX` until the server says GOAWAY.
    pub goaway: AtomicU64,
    /// Kept open: ending the control stream is an error (RFC 9114 §6.2.1).
    pub control: Mutex<SendStream>,
    /// It owes us acknowledgements for longer than a path does that works.
    pub is_silent: AtomicBool,
    /// What its live streams receive.
    pub flow: Arc<Flow>,
    /// How often it has moved to another socket.
    pub path_changes: AtomicU64,
    /// Where the system's routes let it leave, when it last looked.
    source: std::sync::Mutex<Option<IpAddr>>,
    pub endpoint: Endpoint,
    pub desk: Option<Arc<Desk>>,
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.quic.close(stream_code(code::NO_ERROR), b"");
    }
}

/// Counts a stream that waits for credit.
struct Waiting(Arc<AtomicUsize>);

impl Waiting {
    fn new(counter: &Arc<AtomicUsize>) -> Self {
        counter.fetch_add(1, Ordering::Relaxed);
        Self(counter.clone())
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

struct Runtime {
    process: u32,
    handle: tokio::runtime::Handle,
}

/// The runtime that all clients of this process share. Threads do not survive a fork: a child gets its own, and
/// cannot use what its parent has connected.
///
/// # Errors
/// When the thread cannot be started.
pub fn runtime() -> Result<&'static tokio::runtime::Handle, Error> {
    // No lock: a fork may happen while another thread holds it. What a fork or a race leaves behind leaks.
    static CURRENT: AtomicPtr<Runtime> = AtomicPtr::new(std::ptr::null_mut());
    let process = std::process::id();
    loop {
        let found = CURRENT.load(Ordering::Acquire);
        // SAFETY: it is null, or was leaked below, and is never changed.
        if let Some(runtime) = unsafe { found.as_ref() }.filter(|runtime| runtime.process == process) {
            return Ok(&runtime.handle);
        }
        let build = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = build.map_err(|error| Error::new(Kind::Internal, error.to_string()))?;
        let made = Box::into_raw(Box::new(Runtime { process, handle: runtime.handle().clone() }));
        if CURRENT.compare_exchange(found, made, Ordering::AcqRel, Ordering::Acquire).is_ok() {
            std::thread::Builder::new()
                .name("headrace-client".to_owned())
                .spawn(move || runtime.block_on(std::future::pending::<()>()))
                .map_err(|error| Error::new(Kind::Internal, error.to_string()))?;
        }
    }
}

impl ClientConnection {
    /// Begins to connect.
    ///
    /// # Errors
    /// As [`runtime`].
    pub fn open(config: ClientConfig, target: Target) -> Result<Self, Error> {
        let (sender, progress) = watch::channel(Progress::Connecting);
        let sender = Arc::new(sender);
        let streams = Arc::<Streams>::default();
        let counted = streams.clone();
        let task = runtime()?.spawn(async move {
            sender.send_replace(match connect::connect(&config, &target, &sender).await {
                Ok(inner) => {
                    monitor::watch_over(&inner, counted, config.keep_idle);
                    Progress::Reached(inner)
                }
                Err(error) => Progress::Failed(error),
            });
        });
        let (waiting, process, connecting) = (Arc::default(), std::process::id(), task.abort_handle());
        Ok(Self { shared: Arc::new(Shared { progress, streams, waiting, process, connecting }) })
    }

    /// The connection, when it is reached.
    ///
    /// # Errors
    /// [`Kind::Connect`], [`Kind::ConnectTimeout`], [`Kind::Tls`].
    pub async fn reached(&self) -> Result<Arc<Inner>, Error> {
        let mut progress = self.shared.progress.clone();
        let is_over = |progress: &Progress| matches!(progress, Progress::Reached(_) | Progress::Failed(_));
        let found = progress.wait_for(is_over).await.map(|found| found.clone());
        match found {
            Ok(Progress::Reached(inner)) => Ok(inner),
            Ok(Progress::Failed(error)) => Err(error),
            _ => Err(closed()),
        }
    }

    /// The connection while only early data can be sent on it; `None` when it is beyond that, or failed.
    pub async fn early(&self) -> Option<Arc<Inner>> {
        let mut progress = self.shared.progress.clone();
        let found = progress.wait_for(|progress| !matches!(progress, Progress::Connecting)).await;
        match &*found.ok()? {
            Progress::Early(inner) => Some(inner.clone()),
            _ => None,
        }
    }

    fn check_process(&self) -> Result<(), Error> {
        if self.shared.process == std::process::id() {
            return Ok(());
        }
        let detail =
            "the process was forked after its first connection; the child must make a client of its own";
        Err(Error::new(Kind::Misuse, detail))
    }

    /// Answers when the connection is reached, or cannot be.
    ///
    /// # Errors
    /// As [`runtime`].
    pub fn wait_reached(&self, reply: Reply<()>) -> Result<(), Error> {
        self.check_process()?;
        let connection = self.clone();
        runtime()?.spawn(async move { reply.send(connection.reached().await.map(|_| ())) });
        Ok(())
    }

    /// Sends a request; the stream is there at once, its head comes later.
    ///
    /// # Errors
    /// As [`runtime`].
    pub fn request(
        &self,
        head: RequestHead,
        body: RequestBody,
        options: Options,
    ) -> Result<ResponseStream, Error> {
        self.check_process()?;
        let counted = self.shared.streams.begin();
        Ok(stream::start(runtime()?, self.clone(), counted, head, body, options))
    }

    /// A stream with its credit (MAX_STREAMS); who comes first is served first.
    ///
    /// # Errors
    /// [`Kind::Refused`] when the server is going away, [`Kind::ConnectionLost`].
    pub async fn open_stream(&self, inner: &Inner) -> Result<(SendStream, RecvStream), Error> {
        let _counted = Waiting::new(&self.shared.waiting);
        let _turn = inner.opening.lock().await;
        if inner.is_going_away() {
            return Err(Error::new(Kind::Refused, "the server is going away"));
        }
        inner.quic.open_bi().await.map_err(|error| lost(&error))
    }

    pub fn close(&self) {
        self.shared.connecting.abort();
        if let Some(inner) = self.inner() {
            inner.quic.close(stream_code(code::NO_ERROR), b"");
        }
    }

    /// `None` while it is being reached, and when it could not be.
    pub fn inner(&self) -> Option<Arc<Inner>> {
        match &*self.shared.progress.borrow() {
            Progress::Reached(inner) => Some(inner.clone()),
            _ => None,
        }
    }

    /// Whether it takes new requests, now or once it is reached. Not one that has not answered for a while: it
    /// may come back, but a new one is the better bet.
    pub fn is_usable(&self) -> bool {
        match &*self.shared.progress.borrow() {
            Progress::Connecting | Progress::Early(_) => !self.shared.connecting.is_finished(),
            Progress::Reached(inner) => {
                let is_silent = inner.is_silent.load(Ordering::Relaxed);
                !is_silent && !inner.is_going_away() && inner.quic.close_reason().is_none()
            }
            Progress::Failed(_) => false,
        }
    }

    /// Streams that have not ended, those that wait for credit among them.
    pub fn streams(&self) -> usize {
        self.shared.streams.count()
    }

    /// Streams that have no credit (MAX_STREAMS) yet.
    pub fn waiting(&self) -> usize {
        self.shared.waiting.load(Ordering::Relaxed)
    }
}

impl Inner {
    pub async fn begin(
        config: &ClientConfig,
        origin: Arc<Origin>,
        quic: quinn::Connection,
        endpoint: Endpoint,
        desk: Option<Arc<Desk>>,
    ) -> Result<Arc<Self>, Error> {
        let control = open_control(&quic, config).await?;
        Ok(Arc::new(Self {
            quic,
            origin,
            max_head_bytes: config.max_head_bytes,
            opening: Mutex::default(),
            goaway: AtomicU64::new(u64::MAX),
            control: Mutex::new(control),
            is_silent: AtomicBool::new(false),
            flow: Arc::default(),
            path_changes: AtomicU64::new(0),
            source: std::sync::Mutex::default(),
            endpoint,
            desk,
        }))
    }

    /// From which address of ours the server is reached: `found` meanwhile, or looked up now.
    pub async fn note_source(&self, server: SocketAddr, found: JoinHandle<Option<IpAddr>>) {
        let is_found = found.is_finished();
        let source = if is_found { found.await.ok().flatten() } else { monitor::source_towards(server) };
        *self.source() = source;
    }

    /// Whether a request with this stream id was refused by a GOAWAY, and may be sent again elsewhere.
    pub fn is_refused(&self, stream: u64) -> bool {
        stream >= self.goaway.load(Ordering::Relaxed)
    }

    pub fn is_going_away(&self) -> bool {
        self.goaway.load(Ordering::Relaxed) != u64::MAX
    }

    /// Moves to a new socket, and so to whatever path the system prefers now: a new connection ID, and the
    /// server validates the path (RFC 9000 §9). Streams go on. Must run on [`runtime`].
    ///
    /// # Errors
    /// [`Kind::Connect`] when no socket can be had.
    pub fn migrate(self: &Arc<Self>) -> Result<(), Error> {
        let server = self.quic.remote_address();
        connect::socket(server, self.desk.as_ref())
            .and_then(|socket| self.endpoint.rebind_abstract(socket))
            .map_err(|error| Error::new(Kind::Connect, format!("no new socket: {error}")))?;
        *self.source() = monitor::source_towards(server);
        self.path_changes.fetch_add(1, Ordering::Relaxed);
        tokio::spawn(monitor::earn_credit(self.clone()));
        Ok(())
    }

    pub fn source(&self) -> std::sync::MutexGuard<'_, Option<IpAddr>> {
        self.source.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Says our SETTINGS.
///
/// # Errors
/// [`Kind::Connect`].
pub async fn open_control(quic: &quinn::Connection, config: &ClientConfig) -> Result<SendStream, Error> {
    let failed = |error: &dyn std::fmt::Display| Error::new(Kind::Connect, error.to_string());
    let mut control = quic.open_uni().await.map_err(|error| failed(&error))?;
    let mut first = vec![stream_type::CONTROL as u8];
    first.extend_from_slice(&settings::encode(config.max_head_bytes as u64));
    control.write_all(&first).await.map_err(|error| failed(&error))?;
    Ok(control)
}

/// Somebody here closed it.
fn closed() -> Error {
    Error::new(Kind::ConnectionLost, "the client closed it")
}

/// The end of a connection, as the error of a stream on it.
pub fn lost(error: &ConnectionError) -> Error {
    // A server says that it does not accept the client's certificate when the client is through already.
    let kind = if is_alert(error) { Kind::Tls } else { Kind::ConnectionLost };
    Error::new(kind, error.to_string())
}
