//! What goes on beside the streams of a client's connection.
//!
//! In: the server's control stream, the silence of live streams, the system's routes. Out: GOAWAY noted; a
//! question when a live stream falls silent, so that a NAT which forgot us is found soon (`cadence.rs`); a move
//! to another socket when the way to the server changed; the end of a connection that is not used.

use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use headrace_core::cadence::Cadence;
use headrace_core::http3::control::{Control, Message, Role, stream_type};
use headrace_core::http3::frame::{self, Frame};
use headrace_core::http3::{Http3Error, code, qpack, varint};
use quinn::RecvStream;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep, timeout};

use crate::client::Inner;
use crate::client_connect::any_port;
use crate::client_stream::monotonic_ns;
use crate::http3_stream::stream_code;
use crate::network;

/// A frame of a reserved type, empty (RFC 9114 §7.2.8): the server ignores it, and must acknowledge its packet.
const QUESTION: [u8; 2] = [0x21, 0];

/// What the live streams of a connection receive.
#[derive(Default)]
pub struct Flow {
    cadence: Mutex<Cadence>,
    /// Answers whose body has begun and not ended.
    live: AtomicUsize,
    began: Notify,
}

/// An answer whose body has begun, until it is dropped.
pub struct Live(Arc<Flow>);

impl Drop for Live {
    fn drop(&mut self) {
        self.0.live.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Flow {
    pub fn begin(self: &Arc<Self>) -> Live {
        if self.live.fetch_add(1, Ordering::Relaxed) == 0 {
            *self.cadence() = Cadence::default();
            self.began.notify_one();
        }
        Live(self.clone())
    }

    pub fn note_arrival(&self, at_ns: u64) {
        self.cadence().note_arrival(at_ns);
    }

    fn cadence(&self) -> MutexGuard<'_, Cadence> {
        self.cadence.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Begins all of it; ends with the connection.
pub fn watch_over(inner: &Arc<Inner>, streams: Arc<AtomicUsize>, keep_idle: Duration) {
    let (weak, quic, flow) = (Arc::downgrade(inner), inner.quic.clone(), inner.flow.clone());
    network::watch(weak.clone());
    tokio::spawn(async move {
        tokio::select! {
            () = read_control(weak.clone()) => {}
            () = ask_when_silent(weak, flow) => {}
            () = unused(streams, keep_idle) => quic.close(stream_code(code::NO_ERROR), b""),
            _ = quic.closed() => {}
        }
    });
}

/// Resolves when there was no stream for so long.
async fn unused(streams: Arc<AtomicUsize>, keep_idle: Duration) {
    let mut idle_since = Instant::now();
    while idle_since.elapsed() < keep_idle {
        sleep(keep_idle / 4).await;
        if streams.load(Ordering::Relaxed) > 0 {
            idle_since = Instant::now();
        }
    }
}

async fn ask_when_silent(inner: Weak<Inner>, flow: Arc<Flow>) {
    loop {
        if flow.live.load(Ordering::Relaxed) == 0 {
            flow.began.notified().await;
            continue;
        }
        let due = flow.cadence().due_ns();
        let wait = due.map(|due| due.saturating_sub(monotonic_ns()));
        match wait {
            Some(0) => {
                let Some(inner) = inner.upgrade() else { return };
                flow.cadence().note_probe();
                let mut control = inner.control.lock().await;
                let _ = timeout(Duration::from_secs(1), control.write_all(&QUESTION)).await;
            }
            Some(nanoseconds) => sleep(Duration::from_nanos(nanoseconds)).await,
            // Nothing came yet, or it was asked often enough.
            None => sleep(Duration::from_millis(50)).await,
        }
    }
}

/// Moves the connection when the system would now reach the server from another address.
pub fn follow_route(inner: &Inner) {
    let now = source_towards(inner.quic.remote_address());
    // Without any way there is nowhere to move to; the next change may bring one.
    if now.is_some() && now != *inner.source() {
        let _ = inner.migrate();
    }
}

/// The address of ours from which the system would reach the server.
pub fn source_towards(server: SocketAddr) -> Option<IpAddr> {
    let socket = UdpSocket::bind(any_port(server)).ok()?;
    socket.connect(server).ok()?;
    socket.local_addr().ok().map(|address| address.ip())
}

async fn read_control(inner: Weak<Inner>) {
    let Some(quic) = inner.upgrade().map(|inner| inner.quic.clone()) else { return };
    while let Ok(recv) = quic.accept_uni().await {
        let (quic, inner) = (quic.clone(), inner.clone());
        tokio::spawn(async move {
            let note = |id| {
                if let Some(inner) = inner.upgrade() {
                    inner.goaway.store(id, Ordering::Relaxed);
                }
            };
            if let Err(error) = read_uni(recv, note).await {
                quic.close(stream_code(error.code), error.reason.as_bytes());
            }
        });
    }
}

async fn read_uni(mut recv: RecvStream, goaway: impl Fn(u64)) -> Result<(), Http3Error> {
    let mut kind = [0];
    // The types that matter are one byte long; reserved ones are not read.
    if recv.read_exact(&mut kind).await.is_err() {
        return Ok(());
    }
    let mut control = Control::new(Role::Client);
    let mut frames = frame::Decoder::new(frame::On::Control, 0);
    let mut instructions = qpack::DecoderInstructions::default();
    match u64::from(kind[0]) {
        stream_type::CONTROL | stream_type::QPACK_ENCODER | stream_type::QPACK_DECODER => {}
        stream_type::PUSH => {
            return Err(Http3Error::connection(code::ID_ERROR, "a push that nobody allowed"));
        }
        _ => {
            let _ = recv.stop(stream_code(code::STREAM_CREATION_ERROR));
            return Ok(());
        }
    }
    while let Ok(Some(mut chunk)) = recv.read_chunk(4096, true).await {
        match u64::from(kind[0]) {
            stream_type::QPACK_ENCODER => qpack::handle_encoder_instructions(&chunk.bytes)?,
            stream_type::QPACK_DECODER => instructions.handle_data(&chunk.bytes)?,
            _ => loop {
                match frames.poll(&mut chunk.bytes) {
                    Ok(Some(Frame::Control { kind, payload })) => {
                        if let Message::GoAway(id) = control.handle_frame(kind, &payload)? {
                            goaway(id.min(varint::MAX));
                        }
                    }
                    Ok(Some(_)) => {}
                    Ok(None) => break,
                    Err(frame::FrameError::Http3(error)) => return Err(error),
                    Err(frame::FrameError::HeadTooLarge) => break,
                }
            },
        }
    }
    Ok(())
}
