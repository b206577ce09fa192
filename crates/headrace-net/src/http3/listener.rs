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
    ZeroRttAccepted,
};
use quinn_proto::crypto::rustls::QuicServerConfig;
use ring::hmac;
use tokio::sync::watch;
use tokio::time::{sleep, timeout};

use crate::config::ServerConfig as Config;
use crate::exchange::Handler;
use crate::http3::connection::{self, Beginning};
use crate::http3::monitor::{self, Connections};
use crate::quic::congestion;
use crate::quic::echo;
use crate::quic::echo::CopyHandoff;
use crate::quic::guard::{self, ConnectionPaths, Guard};
use crate::quic::session::{Peer, ServerCrypto};
use crate::quic::steering::WorkerCids;
use crate::quic::stream_code;
use crate::quic::worker_socket::{Mailboxes, WorkerSocket};
use crate::shares::{ConnectionShare, Place, silence};
use crate::tls::ServerTls;
use crate::worker::{Phase, Worker};

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
    let handoff = worker
        .config
        .echo
        .settings()
        .map(|settings| Arc::new(CopyHandoff::new(settings, true, worker.shared.counters.echo.clone())));
    let first = tls.borrow_and_update().quic.clone();
    let (connections, guard) = (Arc::default(), Arc::default());
    let mut door = Door { worker, handler, connections, handoff, guard, tls: first, keys };
    let endpoint = match endpoint(&door, socket, mailboxes) {
        Ok(endpoint) => endpoint,
        // The socket is bound already; only a runtime that cannot watch it is left to fail.
        Err(_) => return,
    };
    let mut phase = door.worker.shared.phase.clone();
    let connections = door.connections.clone();
    let monitor = monitor::run(&connections);
    tokio::pin!(monitor);
    loop {
        tokio::select! {
            incoming = endpoint.accept() => match incoming {
                Some(incoming) => door.admit(incoming),
                None => break,
            },
            Ok(()) = tls.changed() => {
                door.tls = tls.borrow_and_update().quic.clone();
                endpoint.set_server_config(Some(door.server_config(&door.paths(false))));
            }
            () = &mut monitor => break,
            _ = phase.wait_for(|phase| *phase == Phase::Closed) => break,
        }
    }
    endpoint.close(stream_code(code::NO_ERROR), b"the server is closed");
    let _ = tokio::time::timeout(CLOSE_TIME, endpoint.wait_idle()).await;
}

/// Where handshakes are let in.
struct Door {
    worker: Arc<Worker>,
    handler: Handler,
    connections: Arc<Connections>,
    handoff: Option<Arc<CopyHandoff>>,
    guard: Arc<Guard>,
    /// Of new connections.
    tls: Arc<QuicServerConfig>,
    keys: Keys,
}

impl Door {
    /// Decides whether a handshake may begin.
    fn admit(&self, incoming: Incoming) {
        let (worker, tables) = (&self.worker, &self.worker.shared.tables);
        if worker.is_draining() {
            return incoming.refuse();
        }
        if tables.quic_handshakes.held() >= worker.config.limits.retry_above_handshakes
            && !incoming.remote_address_validated()
            && incoming.may_retry()
        {
            let _ = incoming.retry();
            return;
        }
        let owner = tables.block(incoming.remote_address().ip());
        let Ok(place) = tables.quic_handshakes.take_waiting(owner.clone()) else {
            worker.count_refused();
            // Silence: an answer would only help whoever sends too many.
            return incoming.ignore();
        };
        let share = ConnectionShare::new(tables.clone(), owner);
        let (peer, paths) = (Arc::<Peer>::default(), self.paths(incoming.remote_address_validated()));
        let mut config = self.server_config(&paths);
        config.crypto = Arc::new(ServerCrypto::new(config.crypto.clone(), peer.clone()));
        let Ok(connecting) = incoming.accept_with(Arc::new(config)) else { return };
        let (worker, handler, all) = (worker.clone(), self.handler.clone(), self.connections.clone());
        tokio::spawn(async move {
            let shaken = shake_hands(&worker, connecting, place, share, (peer, paths)).await;
            let Some(beginning) = shaken else { return };
            let _counted = worker.slot(|counters| &counters.connections);
            connection::serve(worker, handler, beginning, &all).await;
        });
    }

    fn paths(&self, is_first_valid: bool) -> Arc<ConnectionPaths> {
        let limits = &self.worker.config.limits;
        let (burst, per_second) = (limits.path_changes_burst, limits.path_changes_per_second);
        Arc::new(ConnectionPaths::new(is_first_valid, burst, per_second))
    }

    /// Of one connection.
    fn server_config(&self, paths: &Arc<ConnectionPaths>) -> ServerConfig {
        let limits = &self.worker.config.limits;
        let token_key = ring::hkdf::Salt::new(ring::hkdf::HKDF_SHA256, &[]).extract(&self.keys.token);
        let mut transport = transport(&self.worker.config);
        let mut controllers = congestion::factory(self.worker.config.congestion);
        if let Some(handoff) = &self.handoff {
            controllers = echo::controller::factory(handoff, controllers);
        }
        let controllers = guard::controller::factory(&self.guard, paths.clone(), controllers);
        transport.congestion_controller_factory(controllers);
        let mut server = ServerConfig::new(self.tls.clone(), Arc::new(token_key));
        server
            .transport_config(Arc::new(transport))
            .max_incoming(limits.max_handshakes)
            .incoming_buffer_size(limits.handshake_buffer_bytes)
            .incoming_buffer_size_total(limits.handshake_buffer_bytes * limits.max_handshakes as u64)
            .migration(true);
        server
    }
}

/// A connection as soon as it can be used: before its handshake is complete, for requests may come in early data, and
/// our SETTINGS leave with the first flight. `None` when it cannot be.
async fn shake_hands(
    worker: &Arc<Worker>,
    mut connecting: Connecting,
    place: Place,
    share: Arc<ConnectionShare>,
    (peer, paths): (Arc<Peer>, Arc<ConnectionPaths>),
) -> Option<Beginning> {
    let counted = worker.slot(|counters| &counters.handshakes);
    // The client's whole ClientHello: before it, nobody knows what streams the client allows.
    let hello = timeout(worker.config.timeouts.silent_handshake_s, connecting.handshake_data());
    tokio::select! {
        hello = hello => hello.ok()?.ok()?,
        () = place.loss.lost() => return None,
    };
    let (quic, complete) = connecting.into_0rtt().ok()?;
    let (completed, handshake) = watch::channel(false);
    let beginning = Beginning { quic: quic.clone(), handshake, share: share.clone(), peer };
    let worker = worker.clone();
    tokio::spawn(async move {
        let _held = counted;
        if let Err(reason) = complete_handshake(&worker, &quic, complete, &place).await {
            return quic.close(stream_code(code::NO_ERROR), reason.as_bytes());
        }
        if quic.close_reason().is_none() {
            paths.validate_first();
            if share.place().is_err() {
                worker.count_refused();
                return quic.close(stream_code(code::EXCESSIVE_LOAD), b"limits.max_connections is reached");
            }
            worker.shared.counters.connections_total.fetch_add(1, Ordering::Relaxed);
            let _ = completed.send(true);
        }
    });
    Some(beginning)
}

/// Waits for the end of a handshake; or says why it is given up.
async fn complete_handshake(
    worker: &Worker,
    quic: &quinn::Connection,
    complete: ZeroRttAccepted,
    place: &Place,
) -> Result<(), &'static str> {
    let timeouts = &worker.config.timeouts;
    tokio::select! {
        _ = complete => Ok(()),
        () = silence(|| quic.stats().udp_rx.datagrams, timeouts.silent_handshake_s) => {
            Err("the client fell silent in its handshake")
        }
        () = sleep(timeouts.handshake_s) => Err("the handshake took too long"),
        () = place.loss.lost() => Err("too many shake hands, and this took longest"),
    }
}

fn endpoint(door: &Door, socket: UdpSocket, mailboxes: Mailboxes) -> std::io::Result<Endpoint> {
    let mut config = EndpointConfig::new(Arc::new(hmac::Key::new(hmac::HMAC_SHA256, &door.keys.reset)));
    let (number, workers) = (door.worker.number, door.worker.config.workers);
    config.cid_generator(move || Box::new(WorkerCids { worker: number, workers }));
    let socket = guard::socket::wrap(Arc::new(WorkerSocket::new(socket, number, mailboxes)?), &door.guard);
    let socket = echo::socket::wrap(socket, door.handoff.as_ref());
    let server = door.server_config(&door.paths(false));
    Endpoint::new_with_abstract_socket(config, Some(server), socket, Arc::new(TokioRuntime))
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
