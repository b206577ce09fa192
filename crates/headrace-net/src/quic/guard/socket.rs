//! The socket before which the guard stands.
//!
//! In: a socket, datagrams. Out: the same datagrams, but for those that would be too much for an address that may be
//! somebody else's: the rest of a handshake's flight waits until more has come from there, all others are lost.

use std::fmt;
use std::io::{self, IoSliceMut};
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use quinn::udp::{EcnCodepoint, RecvMeta, Transmit};
use quinn::{AsyncUdpSocket, UdpPoller};

use crate::quic::guard::{Guard, MAX_HELD};

/// The first bit of a long header: a handshake's packet (RFC 9000 §17.2).
const LONG: u8 = 0x80;

/// A datagram that waits.
pub(super) struct Held {
    contents: Vec<u8>,
    ecn: Option<EcnCodepoint>,
    src_ip: Option<IpAddr>,
}

struct GuardSocket {
    inner: Arc<dyn AsyncUdpSocket>,
    guard: Arc<Guard>,
}

pub fn wrap(inner: Arc<dyn AsyncUdpSocket>, guard: &Arc<Guard>) -> Arc<dyn AsyncUdpSocket> {
    Arc::new(GuardSocket { inner, guard: guard.clone() })
}

impl GuardSocket {
    /// Keeps the datagrams behind so many bytes.
    fn hold(&self, transmit: &Transmit<'_>, allowed: usize, segment: usize) {
        let mut state = self.guard.lock();
        let held = state.waiting_for(transmit.destination);
        let &Transmit { ecn, src_ip, contents, .. } = transmit;
        let rest = contents[allowed..].chunks(segment).take(MAX_HELD - held.len().min(MAX_HELD));
        held.extend(rest.map(|datagram| Held { contents: datagram.to_vec(), ecn, src_ip }));
    }

    /// Something came: what waits may leave, as far as it is allowed now.
    fn handle_received(&self, from: SocketAddr, bytes: usize) {
        let state = &mut *self.guard.lock();
        state.addresses.handle_received(from, bytes as u64);
        let Some(held) = state.held.get_mut(&from).map(|waiting| &mut waiting.datagrams) else { return };
        while let Some(Held { contents, ecn, src_ip }) = held.first() {
            if !state.addresses.may_send(from, contents.len() as u64, false) {
                return;
            }
            let transmit =
                Transmit { destination: from, ecn: *ecn, contents, segment_size: None, src_ip: *src_ip };
            // One for which there is no room is lost, as on any network.
            let _ = self.inner.try_send(&transmit);
            held.remove(0);
        }
        state.held.remove(&from);
    }
}

impl AsyncUdpSocket for GuardSocket {
    fn create_io_poller(self: Arc<Self>) -> Pin<Box<dyn UdpPoller>> {
        self.inner.clone().create_io_poller()
    }

    fn try_send(&self, transmit: &Transmit<'_>) -> io::Result<()> {
        let bytes = transmit.contents.len();
        let segment = transmit.segment_size.unwrap_or(bytes).max(1);
        let allowed = self.guard.judge(transmit.destination, bytes, segment);
        if allowed == bytes {
            return self.inner.try_send(transmit);
        }
        if transmit.contents.first().is_some_and(|first| first & LONG != 0) {
            self.hold(transmit, allowed, segment);
        }
        if allowed == 0 {
            return Ok(());
        }
        let &Transmit { destination, ecn, contents, src_ip, .. } = transmit;
        let segment_size = (allowed > segment).then_some(segment);
        self.inner.try_send(&Transmit {
            destination,
            ecn,
            contents: &contents[..allowed],
            segment_size,
            src_ip,
        })
    }

    fn poll_recv(
        &self,
        cx: &mut Context<'_>,
        bufs: &mut [IoSliceMut<'_>],
        meta: &mut [RecvMeta],
    ) -> Poll<io::Result<usize>> {
        let received = ready!(self.inner.poll_recv(cx, bufs, meta));
        if let Ok(count) = received {
            for meta in meta.iter().take(count) {
                self.handle_received(meta.addr, meta.len);
            }
        }
        Poll::Ready(received)
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.inner.local_addr()
    }

    fn max_transmit_segments(&self) -> usize {
        self.inner.max_transmit_segments()
    }

    fn max_receive_segments(&self) -> usize {
        self.inner.max_receive_segments()
    }

    fn may_fragment(&self) -> bool {
        self.inner.may_fragment()
    }
}

impl fmt::Debug for GuardSocket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "GuardSocket on {:?}", self.inner)
    }
}
