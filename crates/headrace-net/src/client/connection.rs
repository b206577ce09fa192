//! One connection of a client: how far it is, and what its streams share.
//!
//! In: a QUIC connection that was reached, or can carry early data. Out: streams with their credit, the server's
//! GOAWAY, a move to another socket. It must not know how it is reached (`connect.rs`), nor what goes on beside its
//! streams (`monitor.rs`).

use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, PoisonError};

use headrace_core::http3::control::stream_type;
use headrace_core::http3::{code, frame, settings};
use headrace_core::{Error, Kind};
use quinn::{ConnectionError, Endpoint, RecvStream, SendStream};
use tokio::sync::{Mutex, watch};
use tokio::task::JoinHandle;

use crate::client::activity::{Flow, Stream, Streams};
use crate::client::connect::ClientConfig;
use crate::client::sessions::Origin;
use crate::client::socket;
use crate::quic::echo::CopyHandoff;
use crate::quic::session::Peer;
use crate::quic::stream_code;
use crate::quic::useless::Useless;

/// A frame of a reserved type (RFC 9114 §7.2.8): the server ignores it, and must acknowledge its packet.
pub const RESERVED_FRAME: u64 = 0x21;
/// How many frames are sent on a new path. To an address that has not shown yet that it receives, a server may send
/// three times what came from it (RFC 9000 §9.3.1), and each packet counts with 1,200 bytes: these are enough for
/// some ten tokens, which come within a round trip.
const PADDING_FRAMES: usize = 4;
const PADDING_FRAME_BYTES: usize = 1150;

/// How far a connection is.
#[derive(Clone)]
pub enum Progress {
    Connecting,
    /// Nothing has come from the server, but what does no harm when it comes twice can be sent (0-RTT).
    Early(Arc<Inner>),
    Reached(Arc<Inner>),
    Failed(Error),
}

impl Progress {
    /// Announces the first connection on which early data can be sent; later ones are not announced.
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

/// How far one connection is, and what its streams wait for. Dropping it gives up an attempt to connect.
pub struct Handle {
    progress: watch::Receiver<Progress>,
    /// Streams that were asked for and have not ended, also those without credit.
    streams: Arc<Streams>,
    /// How many streams have no credit (MAX_STREAMS) yet.
    waiting: Arc<AtomicUsize>,
    /// The process that made it: a child that was forked from it cannot use it.
    process: u32,
    connecting: tokio::task::AbortHandle,
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.connecting.abort();
    }
}

impl Handle {
    pub fn new(
        progress: watch::Receiver<Progress>,
        streams: Arc<Streams>,
        connecting: tokio::task::AbortHandle,
    ) -> Self {
        let (waiting, process) = (Arc::default(), std::process::id());
        Self { progress, streams, waiting, process, connecting }
    }

    /// The connection, when it is reached.
    ///
    /// # Errors
    /// [`Kind::Connect`], [`Kind::ConnectTimeout`], [`Kind::Tls`].
    pub async fn reached(&self) -> Result<Arc<Inner>, Error> {
        let mut progress = self.progress.clone();
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
        let mut progress = self.progress.clone();
        let found = progress.wait_for(|progress| !matches!(progress, Progress::Connecting)).await;
        match &*found.ok()? {
            Progress::Early(inner) => Some(inner.clone()),
            _ => None,
        }
    }

    /// Refuses a process that cannot use this connection.
    ///
    /// # Errors
    /// [`Kind::Misuse`] in a process that was forked from the one whose connection this is.
    pub fn check_process(&self) -> Result<(), Error> {
        if self.process == std::process::id() {
            return Ok(());
        }
        let detail =
            "the process was forked after its first connection; the child must make a client of its own";
        Err(Error::new(Kind::Misuse, detail))
    }

    /// Opens a stream, once it has its credit (MAX_STREAMS), in the order in which streams were asked for.
    ///
    /// # Errors
    /// [`Kind::Refused`] when the server is going away, [`Kind::ConnectionLost`].
    pub async fn open_stream(&self, inner: &Inner) -> Result<(SendStream, RecvStream), Error> {
        let _counted = Waiting::new(&self.waiting);
        let _turn = inner.opening.lock().await;
        if inner.is_going_away() {
            return Err(Error::new(Kind::Refused, "the server is going away"));
        }
        inner.quic.open_bi().await.map_err(|error| lost(&error))
    }

    pub fn close(&self) {
        self.connecting.abort();
        if let Some(inner) = self.inner() {
            inner.quic.close(stream_code(code::NO_ERROR), b"");
        }
    }

    /// The connection; `None` while it is being reached, and when it could not be.
    pub fn inner(&self) -> Option<Arc<Inner>> {
        match &*self.progress.borrow() {
            Progress::Reached(inner) => Some(inner.clone()),
            _ => None,
        }
    }

    /// Whether it takes new requests, now or once it is reached. One that has not answered for a while does not: it may
    /// come back, but a new one is the better bet.
    pub fn is_usable(&self) -> bool {
        match &*self.progress.borrow() {
            Progress::Connecting | Progress::Early(_) => !self.connecting.is_finished(),
            Progress::Reached(inner) => {
                let is_silent = inner.is_silent.load(Ordering::Relaxed);
                !is_silent && !inner.is_going_away() && inner.quic.close_reason().is_none()
            }
            Progress::Failed(_) => false,
        }
    }

    /// How many streams have not ended, also those that wait for credit.
    pub fn streams(&self) -> usize {
        self.streams.count()
    }

    /// How many streams have no credit (MAX_STREAMS) yet.
    pub fn waiting(&self) -> usize {
        self.waiting.load(Ordering::Relaxed)
    }

    /// Counts a stream, until what is returned is dropped.
    pub fn begin_stream(&self) -> Stream {
        self.streams.begin()
    }
}

pub struct Inner {
    pub quic: quinn::Connection,
    pub origin: Arc<Origin>,
    pub max_head_bytes: usize,
    /// What the server may send that moves nothing on.
    pub useless: Arc<Useless>,
    /// Held by a stream that waits for its credit.
    opening: Mutex<()>,
    /// Requests with this stream id and above were not handled; `u64::MAX` until the server says GOAWAY.
    pub goaway: AtomicU64,
    /// The control stream. It is kept open, because ending it is an error (RFC 9114 §6.2.1).
    pub control: Mutex<SendStream>,
    /// The server owes us acknowledgements for longer than it would on most paths that work.
    pub is_silent: AtomicBool,
    /// It owes them for so long that it is taken for gone.
    pub suspicion: watch::Sender<bool>,
    /// What the server has announced.
    pub peer: Arc<Peer>,
    /// What its live streams receive.
    pub flow: Arc<Flow>,
    /// How often it has moved to another socket.
    pub path_changes: AtomicU64,
    /// The address from which the system's routes let it leave, when it last looked.
    source: std::sync::Mutex<Option<IpAddr>>,
    pub endpoint: Endpoint,
    pub handoff: Option<Arc<CopyHandoff>>,
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

impl Inner {
    pub async fn begin(
        config: &ClientConfig,
        origin: Arc<Origin>,
        quic: quinn::Connection,
        peer: Arc<Peer>,
        endpoint: Endpoint,
        handoff: Option<Arc<CopyHandoff>>,
    ) -> Result<Arc<Self>, Error> {
        let max_head_bytes = config.max_head_bytes;
        let control = open_control(&quic, max_head_bytes).await?;
        Ok(Arc::new(Self {
            quic,
            origin,
            max_head_bytes,
            useless: Arc::new(Useless::new(config.useless_burst, config.useless_per_second)),
            opening: Mutex::default(),
            goaway: AtomicU64::new(u64::MAX),
            control: Mutex::new(control),
            is_silent: AtomicBool::new(false),
            suspicion: watch::Sender::new(false),
            peer,
            flow: Arc::default(),
            path_changes: AtomicU64::new(0),
            source: std::sync::Mutex::default(),
            endpoint,
            handoff,
        }))
    }

    /// Notes from which address of ours the server is reached: it was `found` meanwhile, or is looked up now.
    pub async fn note_source(&self, server: SocketAddr, found: JoinHandle<Option<IpAddr>>) {
        let is_found = found.is_finished();
        let source = if is_found { found.await.ok().flatten() } else { socket::source_towards(server) };
        *self.source() = source;
    }

    /// Whether a request with this stream id was refused by a GOAWAY, and may be sent again elsewhere.
    pub fn is_refused(&self, stream: u64) -> bool {
        stream >= self.goaway.load(Ordering::Relaxed)
    }

    pub fn is_going_away(&self) -> bool {
        self.goaway.load(Ordering::Relaxed) != u64::MAX
    }

    /// Moves to a new socket, and so to the path that the system prefers now: the connection takes a new connection ID,
    /// and the server validates the path (RFC 9000 §9). Streams go on. Must run on the client's runtime.
    ///
    /// # Errors
    /// [`Kind::Connect`] when no socket can be had.
    pub fn migrate(self: &Arc<Self>) -> Result<(), Error> {
        let server = self.quic.remote_address();
        socket::open(server, self.handoff.as_ref())
            .and_then(|socket| self.endpoint.rebind_abstract(socket))
            .map_err(|error| Error::new(Kind::Connect, format!("no new socket could be had: {error}")))?;
        *self.source() = socket::source_towards(server);
        self.path_changes.fetch_add(1, Ordering::Relaxed);
        tokio::spawn(pad_new_path(self.clone()));
        Ok(())
    }

    /// Moves the connection when the system would now reach the server from another address.
    pub fn follow_route(self: &Arc<Self>) {
        let now = socket::source_towards(self.quic.remote_address());
        // Without a way to the server there is nowhere to move to; the next change may bring one.
        if now.is_some() && now != *self.source() {
            let _ = self.migrate();
        }
    }

    pub fn source(&self) -> std::sync::MutexGuard<'_, Option<IpAddr>> {
        self.source.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Sends the server bytes after a move, so that it may send tokens before the new path is validated.
async fn pad_new_path(inner: Arc<Inner>) {
    if inner.flow.live.load(Ordering::Relaxed) == 0 {
        return;
    }
    let mut frames = Vec::with_capacity(PADDING_FRAMES * (PADDING_FRAME_BYTES + 3));
    for _ in 0..PADDING_FRAMES {
        frame::put_header(&mut frames, RESERVED_FRAME, PADDING_FRAME_BYTES);
        frames.resize(frames.len() + PADDING_FRAME_BYTES, 0);
    }
    let mut control = inner.control.lock().await;
    let _ = control.write_all(&frames).await;
}

/// Opens the control stream, and sends our SETTINGS.
///
/// # Errors
/// [`Kind::Connect`].
pub async fn open_control(quic: &quinn::Connection, max_head_bytes: usize) -> Result<SendStream, Error> {
    let failed = |error: &dyn std::fmt::Display| Error::new(Kind::Connect, error.to_string());
    let mut control = quic.open_uni().await.map_err(|error| failed(&error))?;
    let mut first = vec![stream_type::CONTROL as u8];
    first.extend_from_slice(&settings::encode(max_head_bytes as u64));
    control.write_all(&first).await.map_err(|error| failed(&error))?;
    Ok(control)
}

/// The error when somebody on this side closed the connection.
fn closed() -> Error {
    Error::new(Kind::ConnectionLost, "the client closed it")
}

/// The end of a connection, as the error of a stream on it.
pub fn lost(error: &ConnectionError) -> Error {
    // For the client, the handshake is complete before a server can say that it does not accept its certificate.
    let kind = if is_alert(error) { Kind::Tls } else { Kind::ConnectionLost };
    Error::new(kind, error.to_string())
}

/// Whether a connection ended with a TLS alert (RFC 9001 §4.8), ours or the server's.
pub fn is_alert(error: &ConnectionError) -> bool {
    let code = match error {
        ConnectionError::TransportError(error) => error.code,
        ConnectionError::ConnectionClosed(close) => close.error_code,
        _ => return false,
    };
    (0x100..0x200).contains(&u64::from(code))
}
