//! The UDP socket of one worker.
//!
//! In: datagrams of the kernel, and those that other workers forward. Out: datagrams of connections that this
//! worker owns; misdelivered ones go to their owner by a bounded channel (when it is full, they are lost, as on any
//! network). `quic/echo/socket.rs` wraps it.

use std::fmt;
use std::io::{self, IoSliceMut};
use std::net::{SocketAddr, UdpSocket};
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};

use quinn::udp::{RecvMeta, Transmit};
use quinn::{AsyncUdpSocket, UdpPoller};
use tokio::sync::mpsc;

use crate::quic::steering;
use crate::quic::udp::{RoomPoller, Udp};

/// How many datagrams may be on their way to one worker from the others.
const FORWARD_QUEUE: usize = 256;

/// A datagram that another worker received, and its owner is given.
pub struct Misdelivered {
    meta: RecvMeta,
    bytes: Vec<u8>,
}

/// The mailboxes as one worker has them: all workers', to put datagrams in, and its own, to take them from.
pub struct Mailboxes {
    /// One for each worker, in order.
    pub others: Vec<mpsc::Sender<Misdelivered>>,
    pub own: mpsc::Receiver<Misdelivered>,
}

/// Makes the mailboxes of all workers.
pub fn mailboxes(workers: usize) -> Vec<Mailboxes> {
    let (senders, receivers): (Vec<_>, Vec<_>) = (0..workers).map(|_| mpsc::channel(FORWARD_QUEUE)).unzip();
    receivers.into_iter().map(|own| Mailboxes { others: senders.clone(), own }).collect()
}

/// The socket by which quinn sends and receives.
pub struct WorkerSocket {
    udp: Udp,
    worker: usize,
    others: Vec<mpsc::Sender<Misdelivered>>,
    own: Mutex<mpsc::Receiver<Misdelivered>>,
}

impl WorkerSocket {
    /// # Errors
    /// When the runtime cannot poll the socket.
    pub fn new(socket: UdpSocket, worker: usize, mailboxes: Mailboxes) -> io::Result<Self> {
        Ok(Self { udp: Udp::new(socket)?, worker, others: mailboxes.others, own: Mutex::new(mailboxes.own) })
    }

    /// Passes a datagram on when another worker owns it.
    fn forward(&self, meta: &RecvMeta, bytes: &[u8]) -> bool {
        match steering::owner(bytes, self.others.len()) {
            Some(owner) if owner != self.worker => {
                let _ = self.others[owner].try_send(Misdelivered { meta: *meta, bytes: bytes.to_vec() });
                true
            }
            _ => false,
        }
    }

    /// Moves the datagrams of this worker to the front of `count` received buffers; the result is their number.
    fn sort(&self, bufs: &mut [IoSliceMut<'_>], meta: &mut [RecvMeta], count: usize) -> usize {
        let mut kept = 0;
        for index in 0..count {
            // Datagrams that the kernel coalesced came by one flow, and so belong to one connection.
            if self.forward(&meta[index], &bufs[index][..meta[index].len]) {
                continue;
            }
            if kept != index {
                let length = meta[index].len;
                let (front, back) = bufs.split_at_mut(index);
                front[kept][..length].copy_from_slice(&back[0][..length]);
                meta[kept] = meta[index];
            }
            kept += 1;
        }
        kept
    }

    fn poll_misdelivered(&self, cx: &mut Context<'_>, buf: &mut IoSliceMut<'_>, meta: &mut RecvMeta) -> bool {
        let mut own = self.own.lock().unwrap_or_else(PoisonError::into_inner);
        while let Poll::Ready(Some(misdelivered)) = own.poll_recv(cx) {
            if misdelivered.bytes.len() <= buf.len() {
                buf[..misdelivered.bytes.len()].copy_from_slice(&misdelivered.bytes);
                *meta = misdelivered.meta;
                return true;
            }
        }
        false
    }
}

impl AsyncUdpSocket for WorkerSocket {
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
        let many = self.others.len() > 1;
        if many && self.poll_misdelivered(cx, &mut bufs[0], &mut meta[0]) {
            return Poll::Ready(Ok(1));
        }
        loop {
            let count = ready!(self.udp.poll_recv(cx, bufs, meta))?;
            let kept = if many { self.sort(bufs, meta, count) } else { count };
            if kept > 0 {
                return Poll::Ready(Ok(kept));
            }
        }
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.udp.socket().local_addr()
    }

    fn max_transmit_segments(&self) -> usize {
        self.udp.state.max_gso_segments()
    }

    fn max_receive_segments(&self) -> usize {
        self.udp.state.gro_segments()
    }

    fn may_fragment(&self) -> bool {
        self.udp.state.may_fragment()
    }
}

impl AsRef<Udp> for WorkerSocket {
    fn as_ref(&self) -> &Udp {
        &self.udp
    }
}

impl fmt::Debug for WorkerSocket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "WorkerSocket {} of {}", self.worker, self.others.len())
    }
}
