//! What goes on beside the streams of a client's connection.
//!
//! In: the server's control stream, the silence of live streams, the system's routes. Out: GOAWAY is noted; a probe
//! is sent when a live stream falls silent, so that a NAT that forgot us is found soon
//! (`headrace-core/recovery/silence.rs`); the connection moves to another socket when the way to the server changed,
//! and ends when it is not used.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;

use headrace_core::http3::control::{Control, Message, Role, stream_type};
use headrace_core::http3::frame::{self, Frame};
use headrace_core::http3::{Http3Error, code, qpack, varint};
use quinn::RecvStream;
use tokio::time::{Instant, sleep};

use crate::client::activity::{Flow, Streams};
use crate::client::clock::monotonic_ns;
use crate::client::connection::{Inner, RESERVED_FRAME};
use crate::client::network;
use crate::quic::stream_code;

/// An empty frame of a reserved type, by which the client probes a silence.
const PROBE: [u8; 2] = [RESERVED_FRAME as u8, 0];

const SILENCE_CHECK: Duration = Duration::from_millis(250);
const MIN_PATIENCE: Duration = Duration::from_secs(1);

/// Begins to look after a connection, until it ends.
pub fn start(inner: &Arc<Inner>, streams: Arc<Streams>, keep_idle: Duration) {
    let (weak, quic, flow) = (Arc::downgrade(inner), inner.quic.clone(), inner.flow.clone());
    network::register(weak.clone());
    tokio::spawn(async move {
        tokio::select! {
            () = read_control(weak.clone()) => {}
            () = probe_when_silent(weak.clone(), flow) => {}
            () = notice_silence(weak, streams.clone()) => {}
            () = unused(streams, keep_idle) => quic.close(stream_code(code::NO_ERROR), b""),
            _ = quic.closed() => {}
        }
    });
}

/// Resolves when there has been no stream for so long.
async fn unused(streams: Arc<Streams>, keep_idle: Duration) {
    loop {
        let left = streams.unused().map_or(keep_idle, |unused| keep_idle.saturating_sub(unused));
        if left.is_zero() {
            return;
        }
        sleep(left).await;
    }
}

/// Notes whether the server still answers, while there are streams: it does not when it owes acknowledgements for
/// longer than several round trips.
async fn notice_silence(inner: Weak<Inner>, streams: Arc<Streams>) {
    let (mut received, mut sent, mut owed_since) = (0, 0, None::<Instant>);
    loop {
        sleep(SILENCE_CHECK).await;
        let Some(inner) = inner.upgrade() else { return };
        let stats = inner.quic.stats();
        if stats.udp_rx.datagrams != received || streams.unused().is_some() {
            owed_since = None;
        } else if stats.udp_tx.datagrams != sent {
            owed_since = owed_since.or_else(|| Some(Instant::now()));
        }
        (received, sent) = (stats.udp_rx.datagrams, stats.udp_tx.datagrams);
        let patience = MIN_PATIENCE.max(inner.quic.rtt() * 6);
        let is_silent = owed_since.is_some_and(|since| since.elapsed() >= patience);
        let was_silent = inner.is_silent.swap(is_silent, Ordering::Relaxed);
        if is_silent && !was_silent {
            // New requests take another connection from here on. For the streams of this one, another socket is
            // tried: something on the way may have turned against the old one.
            let _ = inner.migrate();
        }
    }
}

async fn probe_when_silent(inner: Weak<Inner>, flow: Arc<Flow>) {
    loop {
        if flow.live.load(Ordering::Relaxed) == 0 {
            flow.began.notified().await;
            continue;
        }
        let due = flow.probe().due_ns();
        let wait = due.map(|due| due.saturating_sub(monotonic_ns()));
        match wait {
            Some(0) => {
                let Some(inner) = inner.upgrade() else { return };
                flow.probe().note_probe();
                let mut control = inner.control.lock().await;
                // This is never given up half-way: what follows would be read as the rest of the frame.
                let _ = control.write_all(&PROBE).await;
            }
            Some(nanoseconds) => sleep(Duration::from_nanos(nanoseconds)).await,
            // Nothing has come yet, or enough probes were sent.
            None => sleep(Duration::from_millis(50)).await,
        }
    }
}

async fn read_control(inner: Weak<Inner>) {
    let Some(quic) = inner.upgrade().map(|inner| inner.quic.clone()) else { return };
    while let Ok(recv) = quic.accept_uni().await {
        let (quic, inner) = (quic.clone(), inner.clone());
        tokio::spawn(async move {
            let note = |message| {
                let Some(inner) = inner.upgrade() else { return };
                match message {
                    Message::GoAway(id) => inner.goaway.store(id.min(varint::MAX), Ordering::Relaxed),
                    Message::Settings(settings) => {
                        inner.origin.note_settings(settings.max_field_section_size)
                    }
                    _ => {}
                }
            };
            if let Err(error) = read_uni(recv, note).await {
                quic.close(stream_code(error.code), error.reason.as_bytes());
            }
        });
    }
}

async fn read_uni(mut recv: RecvStream, note: impl Fn(Message)) -> Result<(), Http3Error> {
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
            return Err(Http3Error::connection(
                code::ID_ERROR,
                "a push stream, which the client has not allowed",
            ));
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
                        note(control.handle_frame(kind, &payload)?);
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
