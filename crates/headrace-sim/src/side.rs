//! One end: quinn's endpoint and its connections, without a socket.
//!
//! In: datagrams, the time. Out: datagrams, events of connections. It does what quinn's driver does with a
//! socket, in the same order: what a connection has to send leaves before the application hears of anything.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

use bytes::{Bytes, BytesMut};
use headrace_core::recovery::echo::Copies;
use headrace_net::quic::echo::{CopyHandoff, SendDecision};
use quinn_proto::{
    ClientConfig, Connection, ConnectionHandle, DatagramEvent, EcnCodepoint, Endpoint, FrameStats, Incoming,
};

/// What quinn's driver allows in one system call (GSO).
const SEGMENTS: usize = 10;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Role {
    Client,
    Server,
}

impl Role {
    pub fn other(self) -> Self {
        match self {
            Self::Client => Self::Server,
            Self::Server => Self::Client,
        }
    }
}

/// A datagram that leaves.
#[derive(Clone, Debug)]
pub struct Datagram {
    /// `None`: the endpoint's own (Retry, stateless reset, version negotiation).
    pub connection: Option<usize>,
    pub destination: SocketAddr,
    pub ecn: Option<EcnCodepoint>,
    pub bytes: Bytes,
    /// The frames in it. In a batch (GSO) the first datagram has those of all datagrams.
    pub frames: Frames,
    /// How the product's echo copies it.
    pub copies: Copies,
}

/// How many frames of each kind that somebody asked for so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Frames {
    pub acks: u64,
    pub crypto: u64,
    pub new_token: u64,
    pub path_challenge: u64,
    pub path_response: u64,
    pub ping: u64,
    pub reset_stream: u64,
    pub stop_sending: u64,
    pub stream: u64,
}

impl Frames {
    fn between(before: &FrameStats, after: &FrameStats) -> Self {
        Self {
            acks: after.acks - before.acks,
            crypto: after.crypto - before.crypto,
            new_token: after.new_token - before.new_token,
            path_challenge: after.path_challenge - before.path_challenge,
            path_response: after.path_response - before.path_response,
            ping: after.ping - before.ping,
            reset_stream: after.reset_stream - before.reset_stream,
            stop_sending: after.stop_sending - before.stop_sending,
            stream: after.stream - before.stream,
        }
    }
}

pub struct Side {
    endpoint: Endpoint,
    connections: BTreeMap<usize, Connection>,
    /// Whether an address must first be shown to be the client's own (Retry).
    pub asks_retry: bool,
    handoff: Option<Arc<CopyHandoff>>,
    buffer: Vec<u8>,
}

impl Side {
    pub fn new(endpoint: Endpoint, handoff: Option<Arc<CopyHandoff>>) -> Self {
        let (connections, buffer) = (BTreeMap::new(), Vec::with_capacity(2048));
        Self { endpoint, connections, asks_retry: false, handoff, buffer }
    }

    /// # Errors
    /// What quinn says about the configuration.
    pub fn connect(&mut self, now: Instant, config: ClientConfig, to: SocketAddr) -> Result<usize, String> {
        let connected = self.endpoint.connect(now, config, to, "peer");
        let (handle, connection) = connected.map_err(|error| error.to_string())?;
        self.connections.insert(handle.0, connection);
        Ok(handle.0)
    }

    pub fn connection(&self, handle: usize) -> Option<&Connection> {
        self.connections.get(&handle)
    }

    pub fn connection_mut(&mut self, handle: usize) -> Option<&mut Connection> {
        self.connections.get_mut(&handle)
    }

    /// Returns every connection that is not forgotten.
    pub fn handles(&self) -> Vec<usize> {
        self.connections.keys().copied().collect()
    }

    /// The next time at which a connection wants to be called.
    pub fn poll_timeout(&mut self) -> Option<Instant> {
        self.connections.values_mut().filter_map(Connection::poll_timeout).min()
    }

    /// Takes a datagram that arrived.
    pub fn handle_datagram(
        &mut self,
        now: Instant,
        from: SocketAddr,
        ecn: Option<EcnCodepoint>,
        bytes: &[u8],
        out: &mut Vec<Datagram>,
    ) {
        if let Some(handoff) = &self.handoff {
            handoff.handle_received(from, bytes);
        }
        self.buffer.clear();
        let event = self.endpoint.handle(now, from, None, ecn, BytesMut::from(bytes), &mut self.buffer);
        match event {
            None => {}
            Some(DatagramEvent::ConnectionEvent(handle, event)) => {
                if let Some(connection) = self.connections.get_mut(&handle.0) {
                    connection.handle_event(event);
                }
            }
            Some(DatagramEvent::NewConnection(incoming)) => self.admit(now, incoming, out),
            Some(DatagramEvent::Response(transmit)) => self.respond(&transmit, out),
        }
    }

    /// Returns how many networks the echo of this side remembers, and how many addresses of handshakes.
    pub fn held(&self) -> (usize, usize) {
        self.handoff.as_ref().map(|handoff| handoff.held()).unwrap_or_default()
    }

    /// Whether a copy may leave: see the product's echo.
    pub fn may_copy(&self, copy: &Datagram) -> bool {
        let may = |handoff: &Arc<CopyHandoff>| handoff.may_copy(copy.destination, copy.bytes.len());
        !copy.copies.is_unvalidated || self.handoff.as_ref().is_none_or(may)
    }

    /// Advances the connections whose time has come, and collects what all of them have to send.
    pub fn poll_datagrams(&mut self, now: Instant, out: &mut Vec<Datagram>) {
        for (&handle, connection) in &mut self.connections {
            if connection.poll_timeout().is_some_and(|at| at <= now) {
                connection.handle_timeout(now);
            }
            while let Some(event) = connection.poll_endpoint_events() {
                if let Some(event) = self.endpoint.handle_event(ConnectionHandle(handle), event) {
                    connection.handle_event(event);
                }
            }
            loop {
                let before = connection.stats().frame_tx;
                self.buffer.clear();
                let Some(transmit) = connection.poll_transmit(now, SEGMENTS, &mut self.buffer) else { break };
                let mut frames = Frames::between(&before, &connection.stats().frame_tx);
                let contents = &self.buffer[..transmit.size];
                let handoff = self.handoff.as_ref();
                let copies = match handoff.map(|handoff| handoff.take(transmit.destination, contents)) {
                    Some(SendDecision::Withhold) => continue,
                    Some(SendDecision::SendWithCopies(_, copies, _)) => copies,
                    Some(SendDecision::SendOnce) | None => Copies::default(),
                };
                let segment = transmit.segment_size.unwrap_or(transmit.size).max(1);
                for bytes in self.buffer[..transmit.size].chunks(segment) {
                    out.push(Datagram {
                        connection: Some(handle),
                        destination: transmit.destination,
                        ecn: transmit.ecn,
                        bytes: Bytes::copy_from_slice(bytes),
                        frames: std::mem::take(&mut frames),
                        copies,
                    });
                }
            }
        }
    }

    /// Forgets connections that are over, once their last events were read.
    pub fn forget_drained(&mut self) {
        self.connections.retain(|_, connection| !connection.is_drained());
    }

    fn admit(&mut self, now: Instant, incoming: Incoming, out: &mut Vec<Datagram>) {
        self.buffer.clear();
        if self.asks_retry && !incoming.remote_address_validated() && incoming.may_retry() {
            if let Ok(transmit) = self.endpoint.retry(incoming, &mut self.buffer) {
                self.respond(&transmit, out);
            }
            return;
        }
        match self.endpoint.accept(incoming, now, &mut self.buffer, None) {
            Ok((handle, connection)) => {
                self.connections.insert(handle.0, connection);
            }
            Err(error) => {
                if let Some(transmit) = error.response {
                    self.respond(&transmit, out);
                }
            }
        }
    }

    fn respond(&self, transmit: &quinn_proto::Transmit, out: &mut Vec<Datagram>) {
        out.push(Datagram {
            connection: None,
            destination: transmit.destination,
            ecn: transmit.ecn,
            bytes: Bytes::copy_from_slice(&self.buffer[..transmit.size]),
            frames: Frames::default(),
            copies: Copies::default(),
        });
    }
}
