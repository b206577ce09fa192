//! One HTTP/3 connection of a client.
//!
//! In: a QUIC connection, whose handshake may still go on. Out: a task per request stream; the control stream read and
//! written; GOAWAY in two steps (RFC 9114 §5.2); and the connection closed when the peer breaks the protocol,
//! cancels too often, or has not used it for long.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use headrace_core::budget::Budget;
use headrace_core::http3::control::{Control, Message, Role, stream_type};
use headrace_core::http3::frame::{self, Frame, FrameError};
use headrace_core::http3::{Http3Error, code, priority, qpack, settings, varint};
use headrace_core::recovery::address::ClientAddress;
use quinn::{RecvStream, SendStream, VarInt};
use tokio::sync::watch;

use crate::downstream::send_window::SendWindow;
use crate::exchange::Handler;
use crate::http3::monitor::{Connections, Monitor};
use crate::http3::request;
use crate::quic::message;
use crate::quic::session::Peer;
use crate::quic::stats::Tally;
use crate::quic::useless::Useless;
use crate::quic::{reading_time, stream_code};
use crate::shares::ConnectionShare;
use crate::worker::{Phase, Worker};

/// The first GOAWAY promises nothing yet: any request that is on its way is still taken.
const GOAWAY_ANY: u64 = varint::MAX - 3;

/// What the tasks of one connection share.
pub struct Connection {
    pub quic: quinn::Connection,
    /// Becomes true when the handshake is complete; until then, what comes may be a replay (RFC 8446 §8).
    pub handshake: watch::Receiver<bool>,
    /// Counts what the connection's echo did.
    pub tally: Arc<Tally>,
    /// Takes the exchanges.
    pub handler: Handler,
    pub share: Arc<ConnectionShare>,
    pub window: Arc<SendWindow>,
    pub useless: Arc<Useless>,
    pub monitor: Monitor,
    state: Mutex<State>,
    /// How many request streams are being served.
    pub open: AtomicU64,
}

struct State {
    /// The urgencies of open streams, and of streams that a PRIORITY_UPDATE announced.
    urgencies: HashMap<u64, Arc<AtomicU8>>,
    cancels: Budget,
    /// The first request stream that has not been seen yet.
    next_stream: u64,
    /// Requests from here on are refused: the id of the final GOAWAY.
    goaway: Option<u64>,
    last_used: Instant,
    address: ClientAddress,
    /// Which of the stream types that may exist once were seen: control, QPACK encoder, QPACK decoder.
    critical: [bool; 4],
}

impl Connection {
    fn new(worker: &Worker, handler: Handler, beginning: Beginning) -> Self {
        let Beginning { quic, handshake, share, peer } = beginning;
        let limits = &worker.config.limits;
        let now = Instant::now();
        let state = State {
            urgencies: HashMap::new(),
            cancels: Budget::new(limits.cancel_burst, limits.cancels_per_second, now),
            next_stream: 0,
            goaway: None,
            last_used: now,
            address: ClientAddress::new(quic.remote_address()),
            critical: [false; 4],
        };
        Self {
            window: Arc::new(SendWindow::new(quic.clone(), share.clone(), limits)),
            useless: Arc::new(Useless::new(limits.useless_burst, limits.useless_per_second)),
            monitor: Monitor::new(peer, &worker.config),
            tally: Arc::default(),
            state: Mutex::new(state),
            open: AtomicU64::new(0),
            quic,
            handshake,
            handler,
            share,
        }
    }

    /// Announces the credit of a stream that has ended (MAX_STREAMS), when the client may need it: quinn keeps
    /// it back until an eighth of the limit is due, and a client at the limit would wait for that. Setting the
    /// limit is what makes quinn look.
    fn announce_streams(&self, open: u64, limit: u32) {
        if open >= u64::from(limit - limit / 8) {
            self.quic.set_max_concurrent_bi_streams(0u32.into());
            self.quic.set_max_concurrent_bi_streams(limit.into());
        }
    }

    /// Ends what a breach of the protocol must end; a breach of one stream is left to its reader.
    pub fn breach(&self, error: Http3Error) {
        message::breach(&self.quic, error);
    }

    /// Counts a request that was cancelled before its answer was complete.
    pub fn count_cancel(&self) {
        if !self.lock().cancels.spend(Instant::now()) {
            self.breach(Http3Error::connection(code::EXCESSIVE_LOAD, "too many requests are cancelled"));
        }
    }

    /// The address at which the client has shown to be.
    pub fn client_address(&self) -> SocketAddr {
        self.lock().address.note(self.quic.remote_address(), Instant::now())
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The urgency of a stream, shared between the control stream's reader and the sender.
    fn urgency(&self, stream: u64) -> Arc<AtomicU8> {
        let mut state = self.lock();
        let default = || Arc::new(AtomicU8::new(priority::DEFAULT_URGENCY));
        state.urgencies.entry(stream).or_insert_with(default).clone()
    }

    fn set_urgency(&self, worker: &Worker, stream: u64, urgency: u8) -> Result<(), Http3Error> {
        let mut state = self.lock();
        let limit = u64::from(worker.config.limits.max_streams_per_connection);
        if stream / 4 >= state.next_stream / 4 + limit {
            return Err(Http3Error::connection(
                code::ID_ERROR,
                "PRIORITY_UPDATE of a stream beyond the limit",
            ));
        }
        match state.urgencies.get(&stream) {
            Some(shared) => shared.store(urgency, Ordering::Relaxed),
            // Announced ahead of its request. One that has ended meanwhile is forgotten.
            None if stream >= state.next_stream => {
                state.urgencies.insert(stream, Arc::new(AtomicU8::new(urgency)));
            }
            None => {}
        }
        Ok(())
    }
}

/// What a connection begins with.
pub struct Beginning {
    pub quic: quinn::Connection,
    pub handshake: watch::Receiver<bool>,
    pub share: Arc<ConnectionShare>,
    pub peer: Arc<Peer>,
}

/// Serves a connection until it ends.
pub async fn serve(worker: Arc<Worker>, handler: Handler, beginning: Beginning, all: &Connections) {
    let limits = &worker.config.limits;
    let connection = Arc::new(Connection::new(&worker, handler, beginning));
    all.add(&connection);
    let Ok(control) = open_control(&connection, limits.max_head_bytes as u64).await else { return };
    let mut phase = worker.shared.phase.clone();
    let goaway = say_goaway(worker.clone(), connection.clone(), control);
    tokio::pin!(goaway);
    loop {
        tokio::select! {
            biased;
            stream = connection.quic.accept_bi() => match stream {
                Ok((send, recv)) => accept_request(&worker, &connection, send, recv),
                Err(_) => break,
            },
            stream = connection.quic.accept_uni() => match stream {
                Ok(recv) => {
                    tokio::spawn(read_uni(worker.clone(), connection.clone(), recv));
                }
                Err(_) => break,
            },
            () = &mut goaway => break,
            () = connection.share.loss.lost() => {
                // RFC 9114 §5.2 would have it told before; but it does nothing, and somebody else waits.
                connection.quic.close(stream_code(code::NO_ERROR), b"its place was needed");
                break;
            }
            _ = phase.wait_for(|phase| *phase == Phase::Closed) => break,
        }
    }
    let is_complete = *connection.handshake.borrow();
    let is_ours = matches!(connection.quic.close_reason(), Some(quinn::ConnectionError::LocallyClosed));
    if is_complete && is_ours && !connection.share.loss.is_lost() {
        worker.shared.counters.breaches_total.fetch_add(1, Ordering::Relaxed);
    }
    connection.quic.close(stream_code(code::NO_ERROR), b"");
}

async fn open_control(connection: &Connection, max_head_bytes: u64) -> Result<SendStream, quinn::WriteError> {
    let mut control = connection.quic.open_uni().await?;
    let mut first = vec![stream_type::CONTROL as u8];
    first.extend_from_slice(&settings::encode(max_head_bytes));
    control.write_all(&first).await?;
    Ok(control)
}

fn accept_request(
    worker: &Arc<Worker>,
    connection: &Arc<Connection>,
    mut send: SendStream,
    mut recv: RecvStream,
) {
    let id = VarInt::from(send.id()).into_inner();
    let is_refused = {
        let mut state = connection.lock();
        state.next_stream = state.next_stream.max(id + 4);
        state.last_used = Instant::now();
        state.goaway.is_some_and(|limit| id >= limit)
    };
    if is_refused {
        // RFC 9114 §5.2: the client may send it again, elsewhere.
        let _ = send.reset(stream_code(code::REQUEST_REJECTED));
        let _ = recv.stop(stream_code(code::REQUEST_REJECTED));
        return;
    }
    connection.open.fetch_add(1, Ordering::Relaxed);
    let (worker, connection) = (worker.clone(), connection.clone());
    let limit = worker.config.limits.max_streams_per_connection;
    tokio::spawn(async move {
        let urgency = connection.urgency(id);
        request::serve(worker, connection.clone(), send, recv, urgency).await;
        let mut state = connection.lock();
        state.urgencies.remove(&id);
        state.last_used = Instant::now();
        drop(state);
        let open = connection.open.fetch_sub(1, Ordering::Relaxed);
        connection.announce_streams(open, limit);
        if open == 1 {
            connection.window.shrink();
        }
    });
}

/// Waits for a reason to end the connection, and ends it as RFC 9114 §5.2 asks: a GOAWAY that promises
/// nothing, a round trip later one that is exact, and then the last streams run out.
async fn say_goaway(worker: Arc<Worker>, connection: Arc<Connection>, mut control: SendStream) {
    let mut phase = worker.shared.phase.clone();
    tokio::select! {
        _ = phase.wait_for(|phase| *phase != Phase::Running) => {}
        () = unused(&connection, worker.config.timeouts.unused_s) => {}
    }
    let mut id = Vec::new();
    varint::encode(&mut id, GOAWAY_ANY);
    let _ = control.write_all(&frame::encode(frame::GOAWAY, &id)).await;
    tokio::time::sleep(connection.quic.rtt() + Duration::from_millis(5)).await;
    let limit = {
        let mut state = connection.lock();
        let next = state.next_stream;
        *state.goaway.insert(next)
    };
    id.clear();
    varint::encode(&mut id, limit);
    let _ = control.write_all(&frame::encode(frame::GOAWAY, &id)).await;
    while connection.open.load(Ordering::Relaxed) > 0 {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    // The control stream must outlive what it says, even when that is lost once: a client that has not heard which
    // requests were refused takes them for lost.
    tokio::time::sleep(reading_time(&connection.quic)).await;
}

/// Resolves when no request was open for `limit`.
async fn unused(connection: &Connection, limit: Duration) {
    loop {
        let used = connection.lock().last_used;
        let is_open = connection.open.load(Ordering::Relaxed) > 0;
        let idle = if is_open { Duration::ZERO } else { used.elapsed() };
        if idle >= limit {
            return;
        }
        tokio::time::sleep(limit - idle).await;
    }
}

async fn read_uni(worker: Arc<Worker>, connection: Arc<Connection>, recv: RecvStream) {
    if let Err(error) = handle_uni(&worker, &connection, recv).await {
        connection.breach(error);
    }
}

async fn handle_uni(
    worker: &Worker,
    connection: &Connection,
    mut recv: RecvStream,
) -> Result<(), Http3Error> {
    let Some(kind) = read_type(&mut recv).await else { return Ok(()) };
    match kind {
        stream_type::CONTROL | stream_type::QPACK_ENCODER | stream_type::QPACK_DECODER => {
            if std::mem::replace(&mut connection.lock().critical[kind as usize], true) {
                let error = "a second stream of a type of which there is one";
                return Err(Http3Error::connection(code::STREAM_CREATION_ERROR, error));
            }
        }
        stream_type::PUSH => {
            return Err(Http3Error::connection(code::STREAM_CREATION_ERROR, "a push stream from a client"));
        }
        _ => {
            // Reserved and unknown types are not read (RFC 9114 §6.2).
            let _ = recv.stop(stream_code(code::STREAM_CREATION_ERROR));
            return connection.useless.spend(1);
        }
    }
    let mut control = Control::new(Role::Server);
    let mut frames = frame::Decoder::new(frame::On::Control, 0);
    let mut instructions = qpack::DecoderInstructions::default();
    while let Ok(Some(chunk)) = recv.read_chunk(4096, true).await {
        if kind != stream_type::CONTROL {
            connection.useless.spend(1 + chunk.bytes.len() as u64 / 4)?;
        }
        match kind {
            stream_type::QPACK_ENCODER => qpack::handle_encoder_instructions(&chunk.bytes)?,
            stream_type::QPACK_DECODER => instructions.handle_data(&chunk.bytes)?,
            _ => handle_control(worker, connection, &mut control, &mut frames, chunk.bytes)?,
        }
    }
    match connection.quic.close_reason() {
        Some(_) => Ok(()),
        None => Err(Http3Error::connection(code::CLOSED_CRITICAL_STREAM, "a critical stream ended")),
    }
}

fn handle_control(
    worker: &Worker,
    connection: &Connection,
    control: &mut Control,
    frames: &mut frame::Decoder,
    mut bytes: Bytes,
) -> Result<(), Http3Error> {
    loop {
        let frame = frames.poll(&mut bytes);
        if let Ok(Some(_)) = frame {
            connection.useless.spend(1)?;
        }
        match frame {
            Ok(Some(Frame::Control { kind, payload })) => {
                if let Message::Priority { stream, urgency } = control.handle_frame(kind, &payload)? {
                    connection.set_urgency(worker, stream, urgency)?;
                }
            }
            Ok(Some(_)) => {}
            Ok(None) => return Ok(()),
            Err(FrameError::Http3(error)) => return Err(error),
            Err(FrameError::HeadTooLarge) => {
                return Err(Http3Error::connection(code::FRAME_UNEXPECTED, "HEADERS on the control stream"));
            }
        }
    }
}

/// The type at the front of a unidirectional stream; `None` when the stream ends before it is known.
async fn read_type(recv: &mut RecvStream) -> Option<u64> {
    let mut bytes = Vec::with_capacity(8);
    loop {
        let mut byte = [0];
        recv.read_exact(&mut byte).await.ok()?;
        bytes.push(byte[0]);
        if let Some((kind, _)) = varint::decode(&bytes) {
            return Some(kind);
        }
    }
}
