//! How a client reaches a server: each of its addresses has one attempt, and the first that answers wins.
//!
//! In: a host and port, and the name that its certificate must have. Out: a QUIC connection on a socket of its own, so
//! that one can move to another network without the others. Attempts begin 250 ms apart, IPv6 and IPv4 by
//! turns (RFC 8305): a family that is announced but broken costs that much, and not a timeout.

use std::collections::VecDeque;
use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use headrace_core::http3::code;
use headrace_core::recovery::echo::Settings;
use headrace_core::{Error, Kind};
use quinn::{ConnectionError, Endpoint, EndpointConfig, TransportConfig, VarInt};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use crate::client::connection::{Inner, Progress, is_alert, open_control};
use crate::client::sessions::{Origin, Origins, Target};
use crate::client::socket::{self, ClientRuntime};
use crate::config::Congestion;
use crate::quic::congestion;
use crate::quic::echo::CopyHandoff;
use crate::quic::echo::controller::{self, PACKET_THRESHOLD};
use crate::quic::session::{ClientCrypto, Peer};
use crate::quic::stream_code;
use crate::tls::key_share;

const ATTEMPT_DELAY: Duration = Duration::from_millis(250);
/// After this time the first flight has left, and no answer has come over a network of any length. What would delay one
/// of the two is done then.
const MEANWHILE_AFTER: Duration = Duration::from_millis(5);
const CONGESTION: Congestion = Congestion::Bbr;

/// How a client behaves; every value is Python's choice.
#[derive(Clone)]
pub struct ClientConfig {
    pub origins: Arc<Origins>,
    pub handshake_timeout: Duration,
    pub idle_timeout: Duration,
    /// A connection that has had no stream for so long is closed.
    pub keep_idle: Duration,
    /// How long a server may owe us acknowledgements at least, before it is taken for gone.
    pub suspect: Duration,
    pub max_head_bytes: usize,
    /// What a stream may have unread before its server must wait.
    pub stream_window: u32,
    pub connection_window: u32,
    /// Frames that move nothing on, of one server.
    pub useless_burst: u32,
    pub useless_per_second: u32,
    /// The echo of what the client sends; `None`: nothing is sent again.
    pub echo: Option<Settings>,
}

/// What every attempt needs.
struct AttemptContext {
    config: ClientConfig,
    transport: Arc<TransportConfig>,
    origin: Arc<Origin>,
    target: Target,
    progress: Arc<watch::Sender<Progress>>,
    handoff: Option<Arc<CopyHandoff>>,
}

/// Reaches a server. `progress` is told of a connection on which early data can be sent.
///
/// # Errors
/// [`Kind::Connect`], [`Kind::ConnectTimeout`], [`Kind::Tls`].
pub async fn connect(
    config: &ClientConfig,
    target: &Target,
    progress: &Arc<watch::Sender<Progress>>,
) -> Result<Arc<Inner>, Error> {
    let origin = config.origins.find(target)?;
    let mut transport = transport(config);
    let handoff = config.echo.map(|settings| Arc::new(CopyHandoff::new(settings, false, Arc::default())));
    if let Some(handoff) = &handoff {
        transport
            .congestion_controller_factory(controller::factory(handoff, congestion::factory(CONGESTION)));
    }
    let transport = Arc::new(transport);
    let (config, target, progress) = (config.clone(), target.clone(), progress.clone());
    let handshake_timeout = config.handshake_timeout;
    let context = Arc::new(AttemptContext { config, transport, origin, target, progress, handoff });
    timeout(handshake_timeout, reach(&context)).await.unwrap_or_else(|_| {
        let waited = handshake_timeout.as_secs_f64();
        Err(Error::new(Kind::ConnectTimeout, format!("{context}: no answer over UDP within {waited} s")))
    })
}

impl fmt::Display for AttemptContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.target.host, self.target.port)
    }
}

async fn reach(context: &Arc<AttemptContext>) -> Result<Arc<Inner>, Error> {
    let found = tokio::net::lookup_host((context.target.host.as_str(), context.target.port)).await;
    let found = found.map_err(|error| Error::new(Kind::Connect, format!("{context}: {error}")))?;
    let mut addresses = interleaved(found.collect());
    let mut attempts = JoinSet::new();
    let mut failure = Error::new(Kind::Connect, format!("{context}: the name has no address"));
    loop {
        if let Some(address) = addresses.pop_front() {
            let context = context.clone();
            attempts.spawn(async move { attempt(&context, address).await });
        }
        tokio::select! {
            ended = attempts.join_next() => match ended {
                Some(Ok(Ok(connected))) => return Ok(connected),
                Some(Ok(Err(error))) => failure = error,
                Some(Err(_)) => {}
                None => return Err(failure),
            },
            () = sleep(ATTEMPT_DELAY), if !addresses.is_empty() => {}
        }
    }
}

async fn attempt(context: &AttemptContext, address: SocketAddr) -> Result<Arc<Inner>, Error> {
    let name = context.to_string();
    let failed = |error: &dyn fmt::Display| Error::new(Kind::Connect, format!("{name}: {error}"));
    let endpoint = endpoint(address, context.handoff.as_ref()).map_err(|error| failed(&error))?;
    let peer = Arc::<Peer>::default();
    let crypto = ClientCrypto::new(context.origin.tls.clone(), peer.clone());
    let mut quic = quinn::ClientConfig::new(Arc::new(crypto));
    quic.transport_config(context.transport.clone());
    let connecting =
        endpoint.connect_with(quic, address, &context.target.name).map_err(|error| failed(&error))?;
    let meanwhile = tokio::spawn(async move {
        sleep(MEANWHILE_AFTER).await;
        socket::keep_spare(address);
        key_share::prepare();
        socket::source_towards(address)
    });
    let begin = |quic| {
        let (origin, endpoint, handoff) = (context.origin.clone(), endpoint.clone(), context.handoff.clone());
        Inner::begin(&context.config, origin, quic, peer.clone(), endpoint, handoff)
    };
    let (quic, accepted) = match connecting.into_0rtt() {
        Ok(early) => early,
        Err(connecting) => {
            let inner = begin(connecting.await.map_err(|error| connect_error(&name, &error))?).await?;
            inner.note_source(address, meanwhile).await;
            return Ok(inner);
        }
    };
    let mut pending = Pending(Some(quic.clone()));
    let announced = async {
        let begun = begin(quic.clone()).await;
        begun.inspect(|inner| Progress::announce(&context.progress, inner))
    };
    let (announced, is_accepted) = tokio::join!(announced, accepted);
    if let Some(error) = quic.close_reason() {
        return Err(connect_error(&name, &error));
    }
    let inner = match announced {
        Ok(inner) => {
            if !is_accepted {
                // The control stream was sent in early data, too.
                *inner.control.lock().await = open_control(&quic, context.config.max_head_bytes).await?;
            }
            inner
        }
        Err(_) => begin(quic).await?,
    };
    pending.0 = None;
    inner.note_source(address, meanwhile).await;
    Ok(inner)
}

/// An attempt on which early data may be under way. When another one wins, or all of them are given up, its
/// requests must hear of it at once: they hold the connection, which would wait for its server on and on.
struct Pending(Option<quinn::Connection>);

impl Drop for Pending {
    fn drop(&mut self) {
        if let Some(quic) = &self.0 {
            quic.close(stream_code(code::NO_ERROR), b"");
        }
    }
}

/// The addresses, with the families by turns: that of the first address begins, and each keeps the resolver's order.
fn interleaved(found: Vec<SocketAddr>) -> VecDeque<SocketAddr> {
    let is_first_v6 = found.first().is_some_and(SocketAddr::is_ipv6);
    let (first, second): (Vec<_>, Vec<_>) =
        found.into_iter().partition(|address| address.is_ipv6() == is_first_v6);
    let mut turns = VecDeque::new();
    let (mut first, mut second) = (first.into_iter(), second.into_iter());
    loop {
        let (a, b) = (first.next(), second.next());
        if a.is_none() && b.is_none() {
            return turns;
        }
        turns.extend(a.into_iter().chain(b));
    }
}

fn endpoint(address: SocketAddr, handoff: Option<&Arc<CopyHandoff>>) -> std::io::Result<Endpoint> {
    let socket = socket::open(address, handoff)?;
    Endpoint::new_with_abstract_socket(EndpointConfig::default(), None, socket, Arc::new(ClientRuntime))
}

/// How a client's connections behave.
pub fn transport(config: &ClientConfig) -> TransportConfig {
    let mut transport = TransportConfig::default();
    transport
        .max_concurrent_bidi_streams(0u32.into())
        .max_concurrent_uni_streams(8u32.into())
        .stream_receive_window(config.stream_window.into())
        .receive_window(config.connection_window.into())
        .keep_alive_interval(Some(config.idle_timeout / 3))
        .max_idle_timeout(VarInt::from_u64(config.idle_timeout.as_millis() as u64).ok().map(Into::into))
        .congestion_controller_factory(congestion::factory(CONGESTION))
        .datagram_receive_buffer_size(None);
    if config.echo.is_some() {
        transport.packet_threshold(PACKET_THRESHOLD);
    }
    transport
}

pub fn connect_error(name: &str, error: &ConnectionError) -> Error {
    let kind = match error {
        error if is_alert(error) => Kind::Tls,
        ConnectionError::TimedOut => Kind::ConnectTimeout,
        _ => Kind::Connect,
    };
    Error::new(kind, format!("{name}: {error}"))
}

#[cfg(test)]
mod tests {
    use super::interleaved;

    #[test]
    fn families_take_turns() {
        let found = ["[::1]:1", "[::2]:1", "[::3]:1", "1.1.1.1:1", "2.2.2.2:1"];
        let turns = interleaved(found.iter().filter_map(|text| text.parse().ok()).collect());
        let shown: Vec<_> = turns.iter().map(ToString::to_string).collect();
        assert_eq!(shown, ["[::1]:1", "1.1.1.1:1", "[::2]:1", "2.2.2.2:1", "[::3]:1"]);
    }
}
