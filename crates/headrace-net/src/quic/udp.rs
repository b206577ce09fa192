//! A UDP socket that is polled for what comes, and for room to send only while there is none.
//!
//! In: a bound socket. Out: reads and sends that do not block, and wake-ups. A task that waits for room on a socket is
//! woken by the kernel for every datagram that has left it: once for each token, to do nothing. There is nearly always
//! room, so a second descriptor of the socket waits for it, and only after a send that found none.

use std::fmt;
use std::future::Future;
use std::io::{self, IoSliceMut};
use std::net::UdpSocket;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, ready};

use quinn::UdpPoller;
use quinn::udp::{RecvMeta, Transmit, UdpSocketState};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

pub struct Udp {
    pub state: UdpSocketState,
    io: AsyncFd<UdpSocket>,
    /// The second descriptor, from a send that found no room until there is room again.
    full: Mutex<Option<Arc<AsyncFd<UdpSocket>>>>,
}

impl Udp {
    /// # Errors
    /// When the runtime cannot poll the socket.
    pub fn new(socket: UdpSocket) -> io::Result<Self> {
        socket.set_nonblocking(true)?;
        Ok(Self {
            state: UdpSocketState::new((&socket).into())?,
            io: register(socket, Interest::READABLE)?,
            full: Mutex::default(),
        })
    }

    pub fn socket(&self) -> &UdpSocket {
        self.io.get_ref()
    }

    /// Sends a datagram, or a batch of them.
    ///
    /// # Errors
    /// `WouldBlock` when there is no room; a [`RoomPoller`] says when there is.
    pub fn try_send(&self, transmit: &Transmit<'_>) -> io::Result<()> {
        let sent = self.state.send(self.socket().into(), transmit);
        match sent {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => match self.register_for_room() {
                Ok(()) => Err(error),
                // No descriptor is left: the datagram is lost, as on any network, and sent again later.
                Err(_) => Ok(()),
            },
            sent => sent,
        }
    }

    /// Registers the second descriptor; the kernel says at once whether there is room by now.
    fn register_for_room(&self) -> io::Result<()> {
        let mut full = self.full();
        if full.is_none() {
            *full = Some(Arc::new(register(self.socket().try_clone()?, Interest::WRITABLE)?));
        }
        Ok(())
    }

    /// Reads the datagrams that have come, at least one; the result is their number.
    pub fn poll_recv(
        &self,
        cx: &mut Context<'_>,
        bufs: &mut [IoSliceMut<'_>],
        meta: &mut [RecvMeta],
    ) -> Poll<io::Result<usize>> {
        loop {
            let mut guard = ready!(self.io.poll_read_ready(cx))?;
            let received = guard.try_io(|io| self.state.recv(io.get_ref().into(), bufs, meta));
            // Other errors are about datagrams that were sent before (ICMP), and are over once they were read.
            let Ok(Ok(count)) = received else { continue };
            if count < bufs.len() {
                // The queue was empty behind these. Saying so now saves a system call that would only say the same. No
                // event can have been noted meanwhile, because the runtime notes them on this thread.
                guard.clear_ready();
            }
            return Poll::Ready(Ok(count));
        }
    }

    fn full(&self) -> MutexGuard<'_, Option<Arc<AsyncFd<UdpSocket>>>> {
        self.full.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn register(socket: UdpSocket, interest: Interest) -> io::Result<AsyncFd<UdpSocket>> {
    // SAFETY: a `UdpSocket` has one descriptor, open as long as it lives, and the `AsyncFd` owns it.
    Ok(unsafe { AsyncFd::register_with_interest(socket, interest) }?)
}

type Room = Pin<Box<dyn Future<Output = io::Result<()>> + Send + Sync>>;

/// Waits until the socket takes datagrams again; each task that sends has its own.
pub struct RoomPoller {
    socket: Arc<dyn AsRef<Udp> + Send + Sync>,
    waiting: Option<Room>,
}

impl RoomPoller {
    pub fn begin(socket: Arc<dyn AsRef<Udp> + Send + Sync>) -> Pin<Box<dyn UdpPoller>> {
        Box::pin(Self { socket, waiting: None })
    }
}

impl UdpPoller for RoomPoller {
    fn poll_writable(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = &mut *self;
        let udp = (*this.socket).as_ref();
        let waiting = match &mut this.waiting {
            Some(waiting) => waiting,
            None => {
                let Some(full) = udp.full().clone() else { return Poll::Ready(Ok(())) };
                let room = async move { full.writable().await.map(|mut room| room.retain_ready()) };
                this.waiting.insert(Box::pin(room))
            }
        };
        let room = ready!(waiting.as_mut().poll(cx));
        this.waiting = None;
        *udp.full() = None;
        Poll::Ready(room)
    }
}

impl fmt::Debug for RoomPoller {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("RoomPoller")
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use super::*;

    struct Alone(Udp);

    impl AsRef<Udp> for Alone {
        fn as_ref(&self) -> &Udp {
            &self.0
        }
    }

    /// Loopback never lacks room: the test says that there was none, and the kernel that there is.
    #[tokio::test]
    async fn all_who_wait_for_room_are_woken_and_then_nobody_watches() {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        let socket = Arc::new(Alone(Udp::new(socket).unwrap()));
        let mut pollers = [RoomPoller::begin(socket.clone()), RoomPoller::begin(socket.clone())];
        poll_fn(|cx| pollers[0].as_mut().poll_writable(cx)).await.unwrap();
        for _ in 0..2 {
            socket.0.register_for_room().unwrap();
            let waits = |poller: &mut Pin<Box<dyn UdpPoller>>| {
                poller.as_mut().poll_writable(&mut Context::from_waker(std::task::Waker::noop())).is_pending()
            };
            assert!(pollers.iter_mut().all(waits));
            for poller in &mut pollers {
                poll_fn(|cx| poller.as_mut().poll_writable(cx)).await.unwrap();
            }
            assert!(socket.0.full().is_none());
        }
    }
}
