//! What a simulation is made of: the product's transport, a test certificate, paths, a seed.
//!
//! In: a seed. Out: both endpoints. Everything that quinn draws comes from the seed: connection IDs, packet
//! numbers that are skipped, path challenges. Two things do not, because neither can be given a seed: the keys
//! of TLS (whose lengths never differ, so that nothing else does) and the phase in which quinn's BBR probes for
//! bandwidth.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use headrace_core::recovery::echo::Settings as Echo;
use headrace_emulator::network::Plan;
use headrace_net::client::ClientConfig as ProductClient;
use headrace_net::client::sessions::Origins;
use headrace_net::config::{Congestion, ServerConfig as ProductServer};
use headrace_net::quic::congestion::{Factory, factory};
use headrace_net::quic::echo;
use headrace_net::quic::echo::CopyHandoff;
use headrace_net::tls::tickets::Tickets;
use headrace_net::tls::{self, Trust};
use quinn_proto::crypto::rustls::{QuicClientConfig, QuicServerConfig};
use quinn_proto::{
    ClientConfig, ConnectionId, ConnectionIdGenerator, Endpoint, EndpointConfig, ServerConfig,
    TransportConfig,
};
use ring::{hkdf, hmac};
use serde::Deserialize;

use crate::chance::Chance;
use crate::link::ideal;
use crate::side::Side;

pub const SERVER_ADDRESS: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1)), 443);
/// The client's address outside, before it moves.
pub const CLIENT_ADDRESS: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::new(198, 51, 100, 1)), 40_001);

/// Both sides' defaults, as Python states them; a test holds the two equal.
const DEFAULTS: &str = include_str!("defaults.json");
/// It is of Ed25519, because its signatures are all of one length. It certifies nothing.
const CERTIFICATE: &str = include_str!("test-certificate.pem");
const KEY: &str = include_str!("test-key.pem");

pub(crate) const CID_LENGTH: usize = 8;

#[derive(Deserialize)]
struct Defaults {
    server: ProductServer,
    client: ClientDefaults,
}

#[derive(Deserialize)]
struct ClientDefaults {
    idle_timeout_s: f64,
    stream_window: u32,
    connection_window: u32,
}

/// The echo of the product's defaults.
pub(crate) fn product_echo() -> Result<Option<Echo>, String> {
    let defaults: Defaults = serde_json::from_str(DEFAULTS).map_err(|error| error.to_string())?;
    Ok(defaults.server.echo.settings())
}

/// TLS of both sides. Clones share the client's tickets and the server's memory of them: give the same to two
/// simulations, or connect twice, to resume.
#[derive(Clone)]
pub struct Tls {
    client: Arc<QuicClientConfig>,
    server: Arc<QuicServerConfig>,
}

impl Tls {
    /// `early`: 0-RTT. `certificates`: how often the certificate is in the chain, to make it long.
    ///
    /// # Errors
    /// What the product says.
    pub fn new(early: bool, certificates: usize) -> Result<Self, String> {
        let mut client =
            tls::client(&Trust::Anybody, None, &[b"h3"]).map_err(|error| format!("client: {error}"))?;
        client.enable_early_data = early;
        let tickets = early.then(|| Arc::new(Tickets::new(1000, Duration::from_secs(3600))));
        let server = tls::server(&CERTIFICATE.repeat(certificates), KEY, tickets)
            .map_err(|error| format!("server: {error}"))?;
        let client = QuicClientConfig::try_from(client).map_err(|error| error.to_string())?;
        Ok(Self { client: Arc::new(client), server: server.quic })
    }

    /// The keys of a connection's Initial packets, which anybody can derive (RFC 9001 §5.2), as the server.
    pub fn server(&self) -> &Arc<QuicServerConfig> {
        &self.server
    }
}

/// All that a scenario may choose. [`Setup::new`] is the product on an ideal path.
pub struct Setup {
    pub seed: u64,
    pub to_server: Plan,
    pub to_client: Plan,
    pub tls: Tls,
    pub server_transport: TransportConfig,
    pub client_transport: TransportConfig,
    /// Both sides send datagrams again, as the product does.
    pub echo: Option<Echo>,
    /// The controller of the server, which is the side that sends answers.
    controller: Factory,
    /// Whether clients must show first that their address is their own (Retry).
    pub asks_retry: bool,
    /// How many bytes the client sends as a probe when a live stream falls silent (`headrace_core::recovery::silence`);
    /// `None`: it does not probe. The product sends a frame of a reserved type with 400 bytes.
    pub probe_bytes: Option<usize>,
    /// How many bytes the client sends at once when it moves, beside a PING. The product sends four frames of a reserved
    /// type.
    pub move_bytes: usize,
    /// Whether every datagram is kept in [`crate::Simulation::log`].
    pub keeps_log: bool,
}

impl Setup {
    /// # Errors
    /// When the defaults cannot be read, which a test excludes.
    pub fn new(seed: u64, round_trip: Duration, tls: &Tls) -> Result<Self, String> {
        let defaults: Defaults = serde_json::from_str(DEFAULTS).map_err(|error| error.to_string())?;
        let template = tls::client(&Trust::Anybody, None, &[b"h3"]).map_err(|error| error.to_string())?;
        let client = ProductClient {
            origins: Arc::new(Origins::new(template)),
            handshake_timeout: Duration::MAX,
            idle_timeout: Duration::from_secs_f64(defaults.client.idle_timeout_s),
            keep_idle: Duration::MAX,
            suspect: Duration::MAX,
            max_head_bytes: 0,
            stream_window: defaults.client.stream_window,
            connection_window: defaults.client.connection_window,
            useless_burst: 0,
            useless_per_second: 0,
            echo: None,
        };
        Ok(Self {
            seed,
            to_server: ideal(round_trip / 2),
            to_client: ideal(round_trip / 2),
            tls: tls.clone(),
            server_transport: headrace_net::server_transport(&defaults.server),
            client_transport: headrace_net::client_transport(&client),
            echo: None,
            controller: factory(defaults.server.congestion),
            asks_retry: false,
            probe_bytes: Some(403),
            move_bytes: 4 * 1153,
            keeps_log: false,
        })
    }

    /// Another congestion controller for the server.
    pub fn set_controller(&mut self, factory: Factory) -> &mut Self {
        self.controller = factory;
        self
    }

    /// Both endpoints, and what the client connects with.
    pub(crate) fn build(mut self) -> (Side, Side, ClientConfig) {
        let handoff =
            |is_server| self.echo.map(|echo| Arc::new(CopyHandoff::new(echo, is_server, Arc::default())));
        let (client_handoff, server_handoff) = (handoff(false), handoff(true));
        let watched = |handoff: &Option<Arc<CopyHandoff>>, controller| match handoff {
            Some(handoff) => echo::controller::factory(handoff, controller),
            None => controller,
        };
        let client_controller = watched(&client_handoff, factory(Congestion::Bbr));
        self.client_transport.congestion_controller_factory(client_controller);
        self.server_transport.congestion_controller_factory(watched(&server_handoff, self.controller));
        let mut chance = Chance::new(self.seed);
        let mut connect = ClientConfig::new(self.tls.client.clone());
        let ids = Mutex::new(Cids(Chance::new(chance.next_u64())));
        let next = move || ids.lock().unwrap_or_else(PoisonError::into_inner).generate_cid();
        connect.initial_dst_cid_provider(Arc::new(next)).transport_config(Arc::new(self.client_transport));
        let token_key = hkdf::Salt::new(hkdf::HKDF_SHA256, &[]).extract(b"simulation");
        let mut accept = ServerConfig::new(self.tls.server.clone(), Arc::new(token_key));
        accept.transport_config(Arc::new(self.server_transport)).migration(true);
        let client = Side::new(endpoint(&mut chance, None), client_handoff);
        let mut server = Side::new(endpoint(&mut chance, Some(accept)), server_handoff);
        server.asks_retry = self.asks_retry;
        (client, server, connect)
    }
}

fn endpoint(chance: &mut Chance, server: Option<ServerConfig>) -> Endpoint {
    let mut config = EndpointConfig::new(Arc::new(hmac::Key::new(hmac::HMAC_SHA256, b"simulation")));
    let ids = Chance::new(chance.next_u64());
    config.rng_seed(Some(chance.bytes())).cid_generator(move || Box::new(Cids(ids.clone())));
    // Sockets of the product forbid fragments, so the path's MTU is probed.
    Endpoint::new(Arc::new(config), server.map(Arc::new), true, None)
}

/// Connection IDs from a seed.
struct Cids(Chance);

impl ConnectionIdGenerator for Cids {
    fn generate_cid(&mut self) -> ConnectionId {
        ConnectionId::new(&self.0.bytes::<CID_LENGTH>())
    }

    fn cid_len(&self) -> usize {
        CID_LENGTH
    }

    fn cid_lifetime(&self) -> Option<Duration> {
        None
    }
}
