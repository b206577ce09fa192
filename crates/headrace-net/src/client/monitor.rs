//! What goes on beside the streams of a client's connection.
//!
//! In: the server's control stream, the silence of live streams, the system's routes. Out: GOAWAY is noted; a probe
//! is sent when a live stream falls silent, so that a NAT that forgot us is found soon
//! (`headrace-core/recovery/silence.rs`); the connection moves to another socket when the way to the server changed; a
//! server that acknowledges nothing becomes suspect (`headrace-core/recovery/presence.rs`); and the connection ends when
//! it is not used.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;

use headrace_core::http3::control::{Control, Message, Role, stream_type};
use headrace_core::http3::frame::{self, Frame};
use headrace_core::http3::{Http3Error, code, qpack, varint};
use headrace_core::recovery::presence::Presence;
use quinn::RecvStream;
use tokio::time::{Instant, sleep};

use crate::client::activity::{Flow, Streams};
use crate::client::clock::monotonic_ns;
use crate::client::connect::ClientConfig;
use crate::client::connection::{Inner, RESERVED_FRAME};
use crate::client::network;
use crate::quic::stats::Traffic;
use crate::quic::useless::Useless;
use crate::quic::{ping, stream_code};

/// How much is in the frame of a reserved type by which the client probes a silence. If a NAT has given us another
/// address meanwhile, the server may send three times this much there (RFC 9000 §9.3.1): a challenge of 1,200 bytes.
const PROBE_BYTES: usize = 400;

const SILENCE_CHECK: Duration = Duration::from_millis(250);
const MIN_PATIENCE: Duration = Duration::from_secs(1);
/// After so much silence in the wait for an answer's head, the server is asked whether it is there.
const FIRST_QUESTION: Duration = Duration::from_secs(1);

/// Begins to look after a connection, until it ends.
pub fn start(inner: &Arc<Inner>, streams: Arc<Streams>, config: &ClientConfig) {
    let (config, keep_idle) = (config.clone(), config.keep_idle);
    let (weak, quic, flow) = (Arc::downgrade(inner), inner.quic.clone(), inner.flow.clone());
    network::register(weak.clone());
    tokio::spawn(async move {
        tokio::select! {
            () = read_control(weak.clone()) => {}
            () = probe_when_silent(weak.clone(), flow) => {}
            () = watch_presence(weak, streams.clone(), config) => {}
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

/// Notes whether the server still answers, and keeps the connection alive as the server needs it.
async fn watch_presence(inner: Weak<Inner>, streams: Arc<Streams>, config: ClientConfig) {
    let (mut early, mut presence) = (Presence::new(MIN_PATIENCE), Presence::new(config.suspect));
    let (mut last, mut moved_at, mut ask_after) = (Traffic::default(), Instant::now(), FIRST_QUESTION);
    loop {
        sleep(SILENCE_CHECK).await;
        let Some(inner) = inner.upgrade() else { return };
        let (now, round_trip, traffic) = (Instant::now(), inner.quic.rtt(), Traffic::of(&inner.quic.stats()));
        let is_silent = early.observe(now.into(), traffic.heard, traffic.elicits, round_trip);
        let is_suspect = presence.observe(now.into(), traffic.heard, traffic.elicits, round_trip);
        inner.suspicion.send_if_modified(|before| std::mem::replace(before, is_suspect) != is_suspect);
        let was_silent = inner.is_silent.swap(is_silent, Ordering::Relaxed);
        if is_silent && !was_silent && streams.count() > 0 {
            // New requests take another connection from here on. For the streams of this one, another socket is
            // tried: something on the way may have turned against the old one.
            let _ = inner.migrate();
        }
        if (traffic.heard, traffic.elicits) != (last.heard, last.elicits) {
            (last, moved_at) = (traffic, now);
        }
        // Whoever waits for the head of an answer hears nothing of a server that was killed, unless it asks: soon at
        // first, then less and less often. A body's silence has questions of its own.
        let is_waiting = streams.count() > 0 && inner.flow.live.load(Ordering::Relaxed) == 0;
        let idle = inner.peer.idle_timeout(config.idle_timeout);
        ask_after = if is_waiting { ask_after } else { FIRST_QUESTION };
        let most = if is_waiting { ask_after.min(idle / 3) } else { idle / 3 };
        let needs_it = is_waiting || idle < config.idle_timeout;
        if needs_it && now - moved_at >= most {
            ask_after *= 2;
            ping(&inner.quic, config.connection_window);
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
                let _ = control.write_all(&frame::encode(RESERVED_FRAME, &[0; PROBE_BYTES])).await;
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
        let Some(useless) = inner.upgrade().map(|inner| inner.useless.clone()) else { return };
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
            if let Err(error) = read_uni(recv, &useless, note).await {
                quic.close(stream_code(error.code), error.reason.as_bytes());
            }
        });
    }
}

async fn read_uni(mut recv: RecvStream, useless: &Useless, note: impl Fn(Message)) -> Result<(), Http3Error> {
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
            return useless.spend(1);
        }
    }
    while let Ok(Some(mut chunk)) = recv.read_chunk(4096, true).await {
        useless.spend(1 + chunk.bytes.len() as u64 / 4)?;
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
