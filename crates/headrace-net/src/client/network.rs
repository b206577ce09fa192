//! The system's network: addresses and routes that come and go.
//!
//! In: what the kernel says on a netlink socket (rtnetlink, `man 7 rtnetlink`). Out: every live client
//! connection looks at its route again. What the kernel says is not parsed: only that it said something matters.

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, PoisonError, Weak};
use std::time::Duration;

use headrace_core::http3::code;
use tokio::io::unix::AsyncFd;
use tokio::time::sleep;

use crate::client::connection::Inner;
use crate::client::farewell;
use crate::quic::stream_code;

/// The pause between two looks: a change of network is a burst of changes, and this leaves time for what follows.
const PAUSE: Duration = Duration::from_millis(10);

/// The time for closing frames to leave at the end of the process.
pub const CLOSING_TIME: Duration = Duration::from_millis(20);

static CONNECTIONS: Mutex<Vec<Weak<Inner>>> = Mutex::new(Vec::new());
/// The process that listens to the kernel; a child that was forked from it has to begin anew.
static REGISTERED_BY: AtomicU32 = AtomicU32::new(0);
/// The process that ends.
static IS_LEAVING: AtomicU32 = AtomicU32::new(0);

/// Lets the connection follow the network. Must run on the client's runtime.
pub fn register(connection: Weak<Inner>) {
    let mut connections = CONNECTIONS.lock().unwrap_or_else(PoisonError::into_inner);
    connections.retain(|each| each.strong_count() > 0);
    connections.push(connection);
    drop(connections);
    if REGISTERED_BY.swap(std::process::id(), Ordering::Relaxed) != std::process::id() {
        farewell::prepare();
        // Where the kernel refuses the socket, connections move only when they are told to.
        if let Some(socket) = listen() {
            tokio::spawn(run(socket));
        }
    }
}

/// Closes every client connection of the process, and leaves the time for what says so to leave. Called at its end.
pub fn close_all() {
    if close_connections() > 0 {
        std::thread::sleep(CLOSING_TIME);
    }
}

/// The process ends: nobody is to hear how its answers ended.
pub fn is_leaving() -> bool {
    IS_LEAVING.load(Ordering::Relaxed) == std::process::id()
}

/// Closes every client connection of the process; how many were open. Their streams say nothing of it any more.
pub fn leave() -> usize {
    IS_LEAVING.store(std::process::id(), Ordering::Relaxed);
    close_connections()
}

fn close_connections() -> usize {
    if REGISTERED_BY.load(Ordering::Relaxed) != std::process::id() {
        return 0; // The connections are another process's.
    }
    let connections = CONNECTIONS.lock().map(|mut all| std::mem::take(&mut *all)).unwrap_or_default();
    let live: Vec<_> = connections.iter().filter_map(Weak::upgrade).collect();
    let live = live.iter().filter(|each| each.quic.close_reason().is_none());
    live.map(|each| each.quic.close(stream_code(code::NO_ERROR), b"")).count()
}

async fn run(socket: AsyncFd<OwnedFd>) {
    loop {
        let Ok(mut ready) = socket.readable().await else { return };
        drain(socket.get_ref());
        ready.clear_ready();
        let connections = CONNECTIONS.lock().unwrap_or_else(PoisonError::into_inner).clone();
        for connection in connections.iter().filter_map(Weak::upgrade) {
            connection.follow_route();
        }
        sleep(PAUSE).await;
    }
}

/// Takes everything that is there, also an overrun (ENOBUFS).
fn drain(socket: &OwnedFd) {
    let mut buffer = [0u8; 8192];
    loop {
        // SAFETY: the descriptor is open, and the buffer is valid for its length.
        let got = unsafe { libc::recv(socket.as_raw_fd(), buffer.as_mut_ptr().cast(), buffer.len(), 0) };
        let is_overrun = got < 0 && std::io::Error::last_os_error().raw_os_error() == Some(libc::ENOBUFS);
        if got <= 0 && !is_overrun {
            return;
        }
    }
}

fn listen() -> Option<AsyncFd<OwnedFd>> {
    let kind = libc::SOCK_RAW | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
    // SAFETY: a plain system call; the result is checked.
    let fd = unsafe { libc::socket(libc::AF_NETLINK, kind, libc::NETLINK_ROUTE) };
    if fd < 0 {
        return None;
    }
    // SAFETY: the descriptor was just made, and nobody else has it.
    let socket = unsafe { OwnedFd::from_raw_fd(fd) };
    let groups = libc::RTMGRP_LINK
        | libc::RTMGRP_IPV4_IFADDR
        | libc::RTMGRP_IPV6_IFADDR
        | libc::RTMGRP_IPV4_ROUTE
        | libc::RTMGRP_IPV6_ROUTE;
    // SAFETY: all bytes zero is a valid value of this plain structure.
    let mut address: libc::sockaddr_nl = unsafe { std::mem::zeroed() };
    address.nl_family = libc::AF_NETLINK as libc::sa_family_t;
    address.nl_groups = groups as u32;
    let length = std::mem::size_of::<libc::sockaddr_nl>() as libc::socklen_t;
    // SAFETY: `address` is valid for the call, and of the length that is given.
    let bound = unsafe { libc::bind(socket.as_raw_fd(), (&raw const address).cast(), length) };
    if bound != 0 {
        return None;
    }
    // SAFETY: the descriptor is the socket's own, open for as long as the `AsyncFd` has the socket.
    unsafe { AsyncFd::register(socket) }.ok()
}
