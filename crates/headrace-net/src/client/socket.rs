//! The UDP socket of one client connection.
//!
//! In: reads of the kernel, each of up to 64 datagrams that it has coalesced (GRO). Out: datagrams, one by one.
//! quinn keeps room for as many reads as it makes at once, for each socket: 3 MB. A client has a socket for each
//! connection, and waits for it when it connects: where the allocator had given that memory back, filling it
//! took 1.6 ms of a first token. So all sockets of a thread read into the same buffer, and quinn's is small.
//!
//! Making a socket takes 0.15 ms, because quinn asks the kernel each time what it can do, by sockets that are made
//! for it. So a thread keeps one ready of each family, which is made while the server's answer to the first is on its
//! way.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::fmt;
use std::future::Future;
use std::io::{self, IoSliceMut};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Instant;

use quinn::udp::{RecvMeta, Transmit};
use quinn::{AsyncTimer, AsyncUdpSocket, Runtime, TokioRuntime, UdpPoller};

use crate::quic::echo;
use crate::quic::echo::CopyHandoff;
use crate::quic::udp::{RoomPoller, Udp};

/// How many reads are made at once.
const READS: usize = 4;
/// The length of the longest read: what a UDP length can say.
const READ_BYTES: usize = 64 * 1024;

thread_local! {
    static SCRATCH: RefCell<Box<[u8]>> = RefCell::new(vec![0; READS * READ_BYTES].into());
}

thread_local! {
    /// The socket that is ready, of IPv4 and of IPv6. It is bound to any address of ours, so it does not matter where
    /// the network is when it is taken.
    static SPARES: RefCell<[Option<Arc<dyn AsyncUdpSocket>>; 2]> = RefCell::default();
}

/// A socket towards `server`, with an echo when there is a handoff. Must run on the client's runtime.
///
/// # Errors
/// What the system says.
pub fn open(server: SocketAddr, handoff: Option<&Arc<CopyHandoff>>) -> io::Result<Arc<dyn AsyncUdpSocket>> {
    Ok(echo::socket::wrap(take(server)?, handoff))
}

/// The address of ours from which the system would reach the server.
pub fn source_towards(server: SocketAddr) -> Option<IpAddr> {
    let socket = UdpSocket::bind(any_port(server)).ok()?;
    socket.connect(server).ok()?;
    socket.local_addr().ok().map(|address| address.ip())
}

/// A socket towards `server`. Must run on the client's runtime.
///
/// # Errors
/// What the system says.
fn take(server: SocketAddr) -> io::Result<Arc<dyn AsyncUdpSocket>> {
    let spare = SPARES.with_borrow_mut(|spares| spares[usize::from(server.is_ipv6())].take());
    spare.map_or_else(|| make(server), Ok)
}

/// Makes one ready for the next connection to a server of this family. Must run on the client's runtime.
pub fn keep_spare(server: SocketAddr) {
    SPARES.with_borrow_mut(|spares| {
        let spare = &mut spares[usize::from(server.is_ipv6())];
        if spare.is_none() {
            // Without one, the next connection makes its own, or says why it cannot.
            *spare = make(server).ok();
        }
    });
}

fn make(server: SocketAddr) -> io::Result<Arc<dyn AsyncUdpSocket>> {
    ClientRuntime.wrap_udp_socket(UdpSocket::bind(any_port(server))?)
}

/// Where a socket towards `server` is bound: any address of ours, any port.
fn any_port(server: SocketAddr) -> SocketAddr {
    match server {
        SocketAddr::V4(_) => (Ipv4Addr::UNSPECIFIED, 0).into(),
        SocketAddr::V6(_) => (Ipv6Addr::UNSPECIFIED, 0).into(),
    }
}

/// tokio's runtime, with sockets of this kind.
#[derive(Debug)]
pub struct ClientRuntime;

impl Runtime for ClientRuntime {
    fn new_timer(&self, at: Instant) -> Pin<Box<dyn AsyncTimer>> {
        TokioRuntime.new_timer(at)
    }

    fn spawn(&self, future: Pin<Box<dyn Future<Output = ()> + Send>>) {
        TokioRuntime.spawn(future);
    }

    fn wrap_udp_socket(&self, socket: UdpSocket) -> io::Result<Arc<dyn AsyncUdpSocket>> {
        Ok(Arc::new(ClientSocket { udp: Udp::new(socket)?, left: Mutex::default() }))
    }

    fn now(&self) -> Instant {
        TokioRuntime.now()
    }
}

struct ClientSocket {
    udp: Udp,
    /// What of the last reads did not fit. Nothing is read before it is taken, so it is less than `READS` reads.
    left: Mutex<VecDeque<(RecvMeta, Vec<u8>)>>,
}

/// Hands out datagrams, as long as there are buffers for them.
struct Out<'a, 'b> {
    bufs: &'a mut [IoSliceMut<'b>],
    meta: &'a mut [RecvMeta],
    count: usize,
}

impl Out<'_, '_> {
    /// Takes the datagrams of a read; the result is how many of its bytes are done with.
    fn take(&mut self, read: &RecvMeta, bytes: &[u8]) -> usize {
        let mut done = 0;
        for datagram in bytes.chunks(read.stride.max(1)) {
            let Some((buf, meta)) = self.bufs.get_mut(self.count).zip(self.meta.get_mut(self.count)) else {
                break;
            };
            done += datagram.len();
            // A datagram that is longer than we said that we take (`max_udp_payload_size`, RFC 9000 §18.2) is dropped.
            if let Some(place) = buf.get_mut(..datagram.len()) {
                place.copy_from_slice(datagram);
                *meta = RecvMeta { len: datagram.len(), stride: datagram.len(), ..*read };
                self.count += 1;
            }
        }
        done
    }
}

impl AsyncUdpSocket for ClientSocket {
    fn create_io_poller(self: Arc<Self>) -> Pin<Box<dyn UdpPoller>> {
        RoomPoller::begin(self)
    }

    fn try_send(&self, transmit: &Transmit<'_>) -> io::Result<()> {
        self.udp.try_send(transmit)
    }

    fn poll_recv(
        &self,
        cx: &mut Context<'_>,
        bufs: &mut [IoSliceMut<'_>],
        meta: &mut [RecvMeta],
    ) -> Poll<io::Result<usize>> {
        let mut left = self.left.lock().unwrap_or_else(PoisonError::into_inner);
        let mut out = Out { bufs, meta, count: 0 };
        while let Some((read, mut bytes)) = left.pop_front() {
            let done = out.take(&read, &bytes);
            if done < bytes.len() {
                bytes.drain(..done);
                left.push_front((read, bytes));
                break;
            }
        }
        while out.count == 0 {
            ready!(SCRATCH.with_borrow_mut(|scratch| self.poll_read(cx, scratch, &mut out, &mut left)))?;
        }
        Poll::Ready(Ok(out.count))
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.udp.socket().local_addr()
    }

    fn max_transmit_segments(&self) -> usize {
        self.udp.state.max_gso_segments()
    }

    fn may_fragment(&self) -> bool {
        self.udp.state.may_fragment()
    }
}

impl ClientSocket {
    fn poll_read(
        &self,
        cx: &mut Context<'_>,
        scratch: &mut [u8],
        out: &mut Out<'_, '_>,
        left: &mut VecDeque<(RecvMeta, Vec<u8>)>,
    ) -> Poll<io::Result<()>> {
        let mut reads = [RecvMeta::default(); READS];
        let mut places = scratch.chunks_mut(READ_BYTES).map(IoSliceMut::new).collect::<Vec<_>>();
        let count = ready!(self.udp.poll_recv(cx, &mut places, &mut reads))?;
        for (read, place) in reads.iter().zip(&places).take(count) {
            let bytes = place.get(..read.len).unwrap_or_default();
            let done = out.take(read, bytes);
            if done < bytes.len() {
                left.push_back((*read, bytes[done..].to_vec()));
            }
        }
        Poll::Ready(Ok(()))
    }
}

impl AsRef<Udp> for ClientSocket {
    fn as_ref(&self) -> &Udp {
        &self.udp
    }
}

impl fmt::Debug for ClientSocket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ClientSocket {:?}", self.udp.socket())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_read_is_given_out_datagram_by_datagram() {
        let read = RecvMeta { len: 7, stride: 3, ..RecvMeta::default() };
        let (mut a, mut b) = ([0; 4], [0; 4]);
        let mut bufs = [IoSliceMut::new(&mut a), IoSliceMut::new(&mut b)];
        let mut meta = [RecvMeta::default(); 2];
        let mut out = Out { bufs: &mut bufs, meta: &mut meta, count: 0 };
        assert_eq!(out.take(&read, b"abcdefg"), 6);
        assert_eq!(out.count, 2);
        assert_eq!(out.meta.iter().map(|meta| (meta.len, meta.stride)).collect::<Vec<_>>(), [(3, 3), (3, 3)]);
        out.count = 0;
        assert_eq!(out.take(&read, b"g"), 1);
        assert_eq!((out.count, out.meta[0].len), (1, 1));
        assert_eq!((&a[..1], &b[..3]), (&b"g"[..], &b"def"[..]));
    }

    #[test]
    fn a_datagram_that_is_too_long_is_left_out() {
        let read = RecvMeta { len: 6, stride: 5, ..RecvMeta::default() };
        let mut a = [0; 4];
        let mut bufs = [IoSliceMut::new(&mut a)];
        let mut meta = [RecvMeta::default()];
        let mut out = Out { bufs: &mut bufs, meta: &mut meta, count: 0 };
        assert_eq!(out.take(&read, b"abcdef"), 6);
        assert_eq!((out.count, out.meta[0].len, &a[..1]), (1, 1, &b"f"[..]));
    }
}
