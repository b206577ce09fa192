//! The QUIC endpoint of one worker.
//!
//! In: a UDP socket. Out: accepted connections, each in a task of its own (`http3/connection.rs`). What a
//! handshake may cost before the client's address is known to be real is bounded here: how many, how many
//! bytes, and from which number on a client must first show that it receives what we send (Retry, RFC 9000
//! §8.1).

use std::net::UdpSocket;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use headrace_core::http3::code;
use quinn::{
    Connecting, Endpoint, EndpointConfig, Incoming, ServerConfig, TokioRuntime, TransportConfig, VarInt,
};
use quinn_proto::crypto::rustls::QuicServerConfig;
use ring::hmac;
use tokio::sync::watch;
use tokio::time::{Instant, timeout_at};

use crate::config::ServerConfig as Config;
use crate::exchange::Handler;
use crate::http3::connection;
use crate::quic::congestion;
use crate::quic::echo;
use crate::quic::echo::CopyHandoff;
use crate::quic::steering::WorkerCids;
use crate::quic::stream_code;
use crate::quic::worker_socket::{Mailboxes, WorkerSocket};
use crate::tls::ServerTls;
use crate::worker::{Phase, Slot, Worker};

/// The control stream, QPACK's encoder and decoder streams, and a few reserved ones.
const MAX_UNI_STREAMS: u32 = 8;
/// The time for a closing frame to leave, and to be repeated once.
const CLOSE_TIME: Duration = Duration::from_millis(500);

/// Keys that all workers share, so that any of them can answer for a connection of another.
#[derive(Clone)]
pub struct Keys {
    reset: [u8; 32],
    token: [u8; 32],
}

impl Keys {
    /// Derives the keys from the certificate's: a server that was started again, or another one with the same key,
    /// can tell the clients of the one before at once that their connections are gone (RFC 9000 §10.3).
    pub fn derive(key_pem: &str) -> Self {
        let secret = hmac::Key::new(hmac::HMAC_SHA256, key_pem.as_bytes());
        let of = |what: &[u8]| hmac::sign(&secret, what);
        let mut keys = Self { reset: [0; 32], token: [0; 32] };
        keys.reset.copy_from_slice(of(b"headrace stateless reset").as_ref());
        keys.token.copy_from_slice(of(b"headrace address token").as_ref());
        keys
    }
}

/// Accepts connections until the server closes.
pub async fn serve(
    worker: Arc<Worker>,
    handler: Handler,
    socket: UdpSocket,
    mailboxes: Mailboxes,
    mut tls: watch::Receiver<ServerTls>,
    keys: Keys,
) {
    let first = tls.borrow_and_update().quic.clone();
    let handoff = worker
        .config
        .echo
        .settings()
        .map(|settings| Arc::new(CopyHandoff::new(settings, true, worker.shared.counters.echo.clone())));
    let server = |tls| server_config(&worker, tls, &keys, handoff.as_ref());
    let endpoint = match endpoint(&worker, socket, mailboxes, server(first), &keys, handoff.as_ref()) {
        Ok(endpoint) => endpoint,
        // The socket is bound already; only a runtime that cannot watch it is left to fail.
        Err(_) => return,
    };
    let mut phase = worker.shared.phase.clone();
    loop {
        tokio::select! {
            incoming = endpoint.accept() => match incoming {
                Some(incoming) => admit(&worker, &handler, incoming),
                None => break,
            },
            Ok(()) = tls.changed() => {
                let next = tls.borrow_and_update().quic.clone();
                endpoint.set_server_config(Some(server(next)));
            }
            _ = phase.wait_for(|phase| *phase == Phase::Closed) => break,
        }
    }
    endpoint.close(stream_code(code::NO_ERROR), b"the server is closed");
    let _ = tokio::time::timeout(CLOSE_TIME, endpoint.wait_idle()).await;
}

/// Decides whether a handshake may begin.
fn admit(worker: &Arc<Worker>, handler: &Handler, incoming: Incoming) {
    let limits = &worker.config.limits;
    let counters = &worker.shared.counters;
    let handshakes = counters.handshakes.load(Ordering::Relaxed);
    if worker.is_draining() {
        return incoming.refuse();
    }
    if handshakes >= limits.retry_above_handshakes
        && !incoming.remote_address_validated()
        && incoming.may_retry()
    {
        let _ = incoming.retry();
        return;
    }
    let Some(handshake) = worker.slot(|counters| &counters.handshakes, limits.max_handshakes) else {
        // No answer at all: one would only help a client that sends too many.
        return incoming.ignore();
    };
    let Some(connection_slot) = worker.slot(|counters| &counters.connections, limits.max_connections) else {
        return incoming.refuse();
    };
    let Ok(connecting) = incoming.accept() else { return };
    tokio::spawn(shake_hands(worker.clone(), handler.clone(), connecting, handshake, connection_slot));
}

/// Begins to serve a connection as soon as it can be used, before its handshake is complete: requests may come in
/// early data, and our SETTINGS leave with the first flight.
async fn shake_hands(
    worker: Arc<Worker>,
    handler: Handler,
    mut connecting: Connecting,
    handshake: Slot,
    connection_slot: Slot,
) {
    let deadline = Instant::now() + worker.config.timeouts.handshake_s;
    // The whole ClientHello must be there: before it, nobody knows what streams the client allows.
    let Ok(Ok(_)) = timeout_at(deadline, connecting.handshake_data()).await else { return };
    let Ok((connection, complete)) = connecting.into_0rtt() else { return };
    let (completed, handshake_done) = watch::channel(false);
    let (for_handshake, quic) = (worker.clone(), connection.clone());
    tokio::spawn(async move {
        let in_time = timeout_at(deadline, complete).await;
        drop(handshake);
        if in_time.is_err() {
            quic.close(stream_code(code::NO_ERROR), b"the handshake took too long");
        } else if quic.close_reason().is_none() {
            for_handshake.shared.counters.connections_total.fetch_add(1, Ordering::Relaxed);
            let _ = completed.send(true);
        }
    });
    connection::serve(worker, handler, connection, handshake_done).await;
    drop(connection_slot);
}

fn endpoint(
    worker: &Worker,
    socket: UdpSocket,
    mailboxes: Mailboxes,
    server: ServerConfig,
    keys: &Keys,
    handoff: Option<&Arc<CopyHandoff>>,
) -> std::io::Result<Endpoint> {
    let mut config = EndpointConfig::new(Arc::new(hmac::Key::new(hmac::HMAC_SHA256, &keys.reset)));
    let (number, workers) = (worker.number, worker.config.workers);
    config.cid_generator(move || Box::new(WorkerCids { worker: number, workers }));
    let socket = echo::socket::wrap(Arc::new(WorkerSocket::new(socket, number, mailboxes)?), handoff);
    Endpoint::new_with_abstract_socket(config, Some(server), socket, Arc::new(TokioRuntime))
}

fn server_config(
    worker: &Worker,
    tls: Arc<QuicServerConfig>,
    keys: &Keys,
    handoff: Option<&Arc<CopyHandoff>>,
) -> ServerConfig {
    let limits = &worker.config.limits;
    let token_key = ring::hkdf::Salt::new(ring::hkdf::HKDF_SHA256, &[]).extract(&keys.token);
    let mut transport = transport(&worker.config);
    if let Some(handoff) = handoff {
        let controllers = echo::controller::factory(handoff, congestion::factory(worker.config.congestion));
        transport.congestion_controller_factory(controllers);
    }
    let mut server = ServerConfig::new(tls, Arc::new(token_key));
    server
        .transport_config(Arc::new(transport))
        .max_incoming(limits.max_handshakes)
        .incoming_buffer_size(limits.handshake_buffer_bytes)
        .incoming_buffer_size_total(limits.handshake_buffer_bytes * limits.max_handshakes as u64)
        .migration(true);
    server
}

/// How a server's connections behave.
pub fn transport(config: &Config) -> TransportConfig {
    let (limits, idle) = (&config.limits, config.timeouts.idle_s);
    let mut transport = TransportConfig::default();
    transport
        .congestion_controller_factory(congestion::factory(config.congestion))
        .max_concurrent_bidi_streams(limits.max_streams_per_connection.into())
        .max_concurrent_uni_streams(MAX_UNI_STREAMS.into())
        .stream_receive_window(limits.stream_receive_window_bytes.into())
        .receive_window(limits.connection_receive_window_bytes.into())
        .send_window(limits.connection_send_window_bytes)
        .send_fairness(true)
        // A model may think for minutes: the connection must not look dead meanwhile. One without an open stream is
        // closed by `http3/connection.rs` after `timeouts.unused_s`.
        .keep_alive_interval(Some(idle / 3))
        .max_idle_timeout(VarInt::from_u64(idle.as_millis() as u64).ok().map(Into::into))
        .datagram_receive_buffer_size(None);
    if config.echo.settings().is_some() {
        transport.packet_threshold(echo::controller::PACKET_THRESHOLD);
    }
    transport
}
