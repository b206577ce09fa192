//! A socket that sends some datagrams again.
//!
//! In: a socket, and the handoff by which controllers say what is copied (`quic/echo/handoff.rs`). Out: the same
//! socket, with an echo. One timer serves all copies; it sleeps while there are none.

use std::fmt;
use std::io::{self, IoSliceMut};
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Context, Poll, ready};
use std::time::Instant;

use headrace_core::recovery::echo::queue::{Queue, Waiting};
use quinn::udp::{EcnCodepoint, RecvMeta, Transmit};
use quinn::{AsyncUdpSocket, UdpPoller};
use tokio::sync::Notify;

use crate::quic::echo::counts::Counters;
use crate::quic::echo::handoff::{CopyHandoff, SendDecision, is_initial};

/// Where a copy goes, and how: the same as its original.
struct How {
    destination: SocketAddr,
    ecn: Option<EcnCodepoint>,
    segment_size: Option<usize>,
    src_ip: Option<IpAddr>,
    is_unvalidated: bool,
    counters: Arc<Counters>,
}

struct EchoSocket {
    inner: Arc<dyn AsyncUdpSocket>,
    handoff: Arc<CopyHandoff>,
    queue: Mutex<Queue<How>>,
    /// The server has a client's first flight.
    is_answered: AtomicBool,
    /// Something is due earlier than the timer knows, or the socket is gone.
    wake: Arc<Notify>,
}

/// Gives a socket an echo. Must run on a runtime.
pub fn wrap(inner: Arc<dyn AsyncUdpSocket>, handoff: Option<&Arc<CopyHandoff>>) -> Arc<dyn AsyncUdpSocket> {
    let Some(handoff) = handoff else { return inner };
    let wake = Arc::<Notify>::default();
    let socket = Arc::new(EchoSocket {
        inner,
        handoff: handoff.clone(),
        queue: Mutex::default(),
        is_answered: AtomicBool::new(false),
        wake: wake.clone(),
    });
    tokio::spawn(send_copies(Arc::downgrade(&socket), wake));
    socket
}

async fn send_copies(socket: Weak<EchoSocket>, wake: Arc<Notify>) {
    let timer = tokio::time::sleep(std::time::Duration::ZERO);
    tokio::pin!(timer);
    loop {
        let Some(due) = socket.upgrade().map(|socket| socket.send_due()) else { return };
        match due {
            None => wake.notified().await,
            Some(at) => {
                timer.as_mut().reset(at.into());
                tokio::select! {
                    () = &mut timer => {}
                    () = wake.notified() => {}
                }
            }
        }
    }
}

impl EchoSocket {
    /// Sends the copies that are due; the result is when the next one is.
    fn send_due(&self) -> Option<Instant> {
        let (now, mut queue) = (Instant::now(), self.queue());
        while queue.poll_copy(now, |copy| self.send_copy(copy)) {}
        queue.next_due()
    }

    fn send_copy(&self, copy: &Waiting<How>) {
        let How { destination, ecn, segment_size, src_ip, is_unvalidated, ref counters } = copy.how;
        let contents = copy.bytes.as_slice();
        if is_unvalidated && !self.handoff.may_copy(destination, contents.len()) {
            return;
        }
        // A copy that does not fit into the socket now would only be late.
        if self.inner.try_send(&Transmit { destination, ecn, contents, segment_size, src_ip }).is_ok() {
            counters.count_copy(contents.len());
            self.handoff.counters.count_copy(contents.len());
        }
    }

    /// A late copy of a ClientHello would be a new connection to a server that has refused or forgotten the first, and
    /// hold a place there.
    fn forget_first_flight(&self, came: &[u8]) {
        if self.handoff.is_client() && is_initial(came) && !self.is_answered.swap(true, Ordering::Relaxed) {
            self.queue().forget(is_initial);
        }
    }

    fn queue(&self) -> MutexGuard<'_, Queue<How>> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for EchoSocket {
    fn drop(&mut self) {
        self.wake.notify_one();
    }
}

impl AsyncUdpSocket for EchoSocket {
    fn create_io_poller(self: Arc<Self>) -> Pin<Box<dyn UdpPoller>> {
        self.inner.clone().create_io_poller()
    }

    fn try_send(&self, transmit: &Transmit<'_>) -> io::Result<()> {
        let (now, copies, counters) = match self.handoff.take(transmit.destination, transmit.contents) {
            SendDecision::SendOnce => return self.inner.try_send(transmit),
            SendDecision::Withhold => return Ok(()),
            SendDecision::SendWithCopies(now, copies, counters) => (now, copies, counters),
        };
        self.inner.try_send(transmit)?;
        let &Transmit { destination, ecn, segment_size, src_ip, contents } = transmit;
        let is_unvalidated = copies.is_unvalidated;
        let how = How { destination, ecn, segment_size, src_ip, is_unvalidated, counters };
        let mut queue = self.queue();
        let before = queue.next_due();
        queue.push(now, how, contents, copies.after());
        // Some copies leave right behind their original.
        while queue.poll_copy(now, |copy| self.send_copy(copy)) {}
        if queue.next_due() != before {
            self.wake.notify_one();
        }
        Ok(())
    }

    fn poll_recv(
        &self,
        cx: &mut Context<'_>,
        bufs: &mut [IoSliceMut<'_>],
        meta: &mut [RecvMeta],
    ) -> Poll<io::Result<usize>> {
        let received = ready!(self.inner.poll_recv(cx, bufs, meta));
        if let Ok(count) = received {
            for (buf, meta) in bufs.iter().zip(meta.iter()).take(count) {
                self.handoff.handle_received(meta.addr, &buf[..meta.len]);
                self.forget_first_flight(&buf[..meta.len]);
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

impl fmt::Debug for EchoSocket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "EchoSocket with {} copies waiting, on {:?}", self.queue().len(), self.inner)
    }
}
