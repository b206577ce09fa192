//! What passes through the TLS of a QUIC connection that quinn does not tell.
//!
//! In: rustls' sessions, as quinn uses them. Out: the same; and the idle timeout that the peer has announced (RFC 9000
//! §18.2), and a handshake that fails where a client announces its transport parameters by the number of the drafts
//! alone, which RFC 9001 §8.2 does not know.

use std::any::Any;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use headrace_core::http3::varint;
use quinn_proto::crypto::{
    self, ExportKeyingMaterialError, HeaderKey, KeyPair, Keys, PacketKey, Session, UnsupportedVersion,
};
use quinn_proto::transport_parameters::TransportParameters;
use quinn_proto::{ConnectError, ConnectionId, Side, TransportError, TransportErrorCode};

/// The extension by which transport parameters come (RFC 9001 §8.2), and the parameter that is looked for.
const TRANSPORT_PARAMETERS: u16 = 0x39;
const MAX_IDLE_TIMEOUT: u64 = 1;
/// A TLS alert (RFC 8446 §6).
const MISSING_EXTENSION: u8 = 109;
/// The longest ClientHello that is looked through; rustls takes no longer one.
const MAX_HELLO: usize = 64 * 1024;

/// What a peer has announced.
#[derive(Debug, Default)]
pub struct Peer {
    /// In milliseconds; 0 while nothing is known, and for a peer that has none.
    idle_ms: AtomicU64,
}

impl Peer {
    /// Which idle timeout holds for the connection (RFC 9000 §10.1). `ours`: what we have announced.
    pub fn idle_timeout(&self, ours: Duration) -> Duration {
        match self.idle_ms.load(Ordering::Relaxed) {
            0 => ours,
            theirs => ours.min(Duration::from_millis(theirs)),
        }
    }
}

/// A server's TLS for one connection.
pub struct ServerCrypto {
    inner: Arc<dyn crypto::ServerConfig>,
    peer: Arc<Peer>,
}

impl ServerCrypto {
    pub fn new(inner: Arc<dyn crypto::ServerConfig>, peer: Arc<Peer>) -> Self {
        Self { inner, peer }
    }
}

impl crypto::ServerConfig for ServerCrypto {
    fn initial_keys(&self, version: u32, dst_cid: &ConnectionId) -> Result<Keys, UnsupportedVersion> {
        self.inner.initial_keys(version, dst_cid)
    }

    fn retry_tag(&self, version: u32, orig_dst_cid: &ConnectionId, packet: &[u8]) -> [u8; 16] {
        self.inner.retry_tag(version, orig_dst_cid, packet)
    }

    fn start_session(self: Arc<Self>, version: u32, params: &TransportParameters) -> Box<dyn Session> {
        let inner = self.inner.clone().start_session(version, params);
        Box::new(ObservedSession { inner, peer: self.peer.clone(), hello: Some(Vec::new()) })
    }
}

/// A client's TLS for one connection.
pub struct ClientCrypto {
    inner: Arc<dyn crypto::ClientConfig>,
    peer: Arc<Peer>,
}

impl ClientCrypto {
    pub fn new(inner: Arc<dyn crypto::ClientConfig>, peer: Arc<Peer>) -> Self {
        Self { inner, peer }
    }
}

impl crypto::ClientConfig for ClientCrypto {
    fn start_session(
        self: Arc<Self>,
        version: u32,
        server_name: &str,
        params: &TransportParameters,
    ) -> Result<Box<dyn Session>, ConnectError> {
        let inner = self.inner.clone().start_session(version, server_name, params)?;
        Ok(Box::new(ObservedSession { inner, peer: self.peer.clone(), hello: None }))
    }
}

struct ObservedSession {
    inner: Box<dyn Session>,
    peer: Arc<Peer>,
    /// Of a server: the ClientHello as far as it has come, until it is whole.
    hello: Option<Vec<u8>>,
}

impl Session for ObservedSession {
    fn read_handshake(&mut self, buf: &[u8]) -> Result<bool, TransportError> {
        if let Some(hello) = &mut self.hello {
            hello.extend_from_slice(buf);
            if let Some(extensions) = extensions(hello) {
                if !has_extension(extensions, TRANSPORT_PARAMETERS) {
                    return Err(TransportError {
                        code: TransportErrorCode::crypto(MISSING_EXTENSION),
                        frame: None,
                        reason: "the ClientHello has no quic_transport_parameters".to_owned(),
                    });
                }
                self.hello = None;
            } else if hello.len() > MAX_HELLO {
                // rustls says what is wrong with it.
                self.hello = None;
            }
        }
        self.inner.read_handshake(buf)
    }

    fn transport_parameters(&self) -> Result<Option<TransportParameters>, TransportError> {
        let found = self.inner.transport_parameters()?;
        if let Some(params) = &found {
            let mut written = Vec::new();
            params.write(&mut written);
            let idle = parameter(&written, MAX_IDLE_TIMEOUT).unwrap_or(0);
            self.peer.idle_ms.store(idle, Ordering::Relaxed);
        }
        Ok(found)
    }

    fn initial_keys(&self, dst_cid: &ConnectionId, side: Side) -> Keys {
        self.inner.initial_keys(dst_cid, side)
    }

    fn handshake_data(&self) -> Option<Box<dyn Any>> {
        self.inner.handshake_data()
    }

    fn peer_identity(&self) -> Option<Box<dyn Any>> {
        self.inner.peer_identity()
    }

    fn early_crypto(&self) -> Option<(Box<dyn HeaderKey>, Box<dyn PacketKey>)> {
        self.inner.early_crypto()
    }

    fn early_data_accepted(&self) -> Option<bool> {
        self.inner.early_data_accepted()
    }

    fn is_handshaking(&self) -> bool {
        self.inner.is_handshaking()
    }

    fn write_handshake(&mut self, buf: &mut Vec<u8>) -> Option<Keys> {
        self.inner.write_handshake(buf)
    }

    fn next_1rtt_keys(&mut self) -> Option<KeyPair<Box<dyn PacketKey>>> {
        self.inner.next_1rtt_keys()
    }

    fn is_valid_retry(&self, orig_dst_cid: &ConnectionId, header: &[u8], payload: &[u8]) -> bool {
        self.inner.is_valid_retry(orig_dst_cid, header, payload)
    }

    fn export_keying_material(
        &self,
        output: &mut [u8],
        label: &[u8],
        context: &[u8],
    ) -> Result<(), ExportKeyingMaterialError> {
        self.inner.export_keying_material(output, label, context)
    }
}

/// The extensions of a ClientHello (RFC 8446 §4.1.2); `None` while it is not whole, or when it is none.
fn extensions(mut hello: &[u8]) -> Option<&[u8]> {
    let input = &mut hello;
    let _type = take(input, 1)?;
    let length = number(input, 3)?;
    let mut body = take(input, length)?;
    let input = &mut body;
    let (_version, _random) = (take(input, 2)?, take(input, 32)?);
    for length_bytes in [1, 2, 1] {
        // The session's ID, cipher suites, compression methods.
        let length = number(input, length_bytes)?;
        take(input, length)?;
    }
    let length = number(input, 2).unwrap_or(0);
    take(input, length)
}

fn has_extension(mut extensions: &[u8], wanted: u16) -> bool {
    let input = &mut extensions;
    while let Some(kind) = number(input, 2) {
        if kind == usize::from(wanted) {
            return true;
        }
        if number(input, 2).and_then(|length| take(input, length)).is_none() {
            return false;
        }
    }
    false
}

/// The value of a transport parameter that is a number (RFC 9000 §18).
fn parameter(mut parameters: &[u8], wanted: u64) -> Option<u64> {
    let input = &mut parameters;
    loop {
        let (id, size) = varint::decode(input)?;
        take(input, size)?;
        let (length, size) = varint::decode(input)?;
        take(input, size)?;
        let value = take(input, usize::try_from(length).ok()?)?;
        if id == wanted {
            return varint::decode(value).map(|(value, _)| value);
        }
    }
}

fn take<'a>(input: &mut &'a [u8], length: usize) -> Option<&'a [u8]> {
    let (taken, rest) = input.split_at_checked(length)?;
    *input = rest;
    Some(taken)
}

fn number(input: &mut &[u8], bytes: usize) -> Option<usize> {
    Some(take(input, bytes)?.iter().fold(0, |value, &byte| value << 8 | usize::from(byte)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hello(kinds: &[u16]) -> Vec<u8> {
        let extensions: Vec<u8> =
            kinds.iter().flat_map(|kind| [&kind.to_be_bytes()[..], &[0, 3], b"abc"].concat()).collect();
        let mut body = vec![3, 3];
        body.extend_from_slice(&[7; 32]);
        body.extend_from_slice(&[0, 0, 2, 0x13, 1, 1, 0]);
        body.extend_from_slice(&(extensions.len() as u16).to_be_bytes());
        body.extend_from_slice(&extensions);
        [&[1, 0, 0, body.len() as u8][..], &body].concat()
    }

    #[test]
    fn the_extensions_of_a_hello_are_found_once_it_is_whole() {
        let whole = hello(&[0, 16, 0x39, 43]);
        assert!(has_extension(extensions(&whole).unwrap(), 0x39));
        assert!(!has_extension(extensions(&hello(&[0, 0xffa5])).unwrap(), 0x39));
        assert!(!has_extension(extensions(&hello(&[])).unwrap(), 0x39));
        assert!((0..whole.len()).all(|cut| extensions(&whole[..cut]).is_none()));
        for byte in 0..=255 {
            let _ = extensions(&[byte; 100]).map(|found| has_extension(found, 0x39));
        }
    }

    #[test]
    fn the_idle_timeout_is_the_shorter_of_two() {
        // Length 0; 3,000 ms; something else behind it.
        let parameters = [0x0f, 0, 0x01, 2, 0x4b, 0xb8, 0x20, 1, 0];
        assert_eq!(parameter(&parameters, MAX_IDLE_TIMEOUT), Some(3000));
        assert_eq!(parameter(&parameters, 0x02), None);
        let (peer, ours) = (Peer::default(), Duration::from_secs(30));
        assert_eq!(peer.idle_timeout(ours), ours);
        peer.idle_ms.store(3000, Ordering::Relaxed);
        assert_eq!(peer.idle_timeout(ours), Duration::from_secs(3));
        peer.idle_ms.store(60_000, Ordering::Relaxed);
        assert_eq!(peer.idle_timeout(ours), ours);
    }
}
