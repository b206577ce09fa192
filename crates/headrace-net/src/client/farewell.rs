//! A process that is told to end (SIGTERM) closes its connections first, so that nothing is generated for it any more.
//!
//! In: the signal, in a process that does nothing about it. Out: the same end as without us, some 20 ms later, after
//! CONNECTION_CLOSE has left. A program that handles the signal itself has its own handler in the place of ours, and its
//! connections are closed when it exits (`network.rs`). It cannot be done for a process that is killed.

use std::os::fd::{FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, Ordering};

use tokio::io::unix::AsyncFd;

use crate::client::network;

/// The descriptor that the handler writes to, and the process whose it is: a forked child has nobody who reads it.
static BELL: AtomicI32 = AtomicI32::new(-1);
static OWNER: AtomicU32 = AtomicU32::new(0);
static IS_RUNG: AtomicBool = AtomicBool::new(false);

/// Begins to listen for the signal, where nobody else does. Must run on the client's runtime.
pub fn prepare() {
    if OWNER.swap(std::process::id(), Ordering::Relaxed) == std::process::id() {
        return;
    }
    // SAFETY: plain system calls; results are checked, and the structures are valid for the calls.
    unsafe {
        let mut current: libc::sigaction = std::mem::zeroed();
        let is_default = libc::sigaction(libc::SIGTERM, std::ptr::null(), &raw mut current) == 0
            && (current.sa_sigaction == libc::SIG_DFL
                || current.sa_sigaction == ring_bell as *const () as libc::sighandler_t);
        let bell = if is_default { libc::eventfd(0, libc::EFD_NONBLOCK | libc::EFD_CLOEXEC) } else { -1 };
        if bell < 0 {
            return;
        }
        IS_RUNG.store(false, Ordering::Relaxed);
        BELL.store(bell, Ordering::Relaxed);
        let mut handler: libc::sigaction = std::mem::zeroed();
        handler.sa_sigaction = ring_bell as *const () as libc::sighandler_t;
        handler.sa_flags = libc::SA_RESTART;
        libc::sigaction(libc::SIGTERM, &raw const handler, std::ptr::null_mut());
        // The number stays in `BELL`: the descriptor must outlive the handler.
        if let Ok(bell) = AsyncFd::register(OwnedFd::from_raw_fd(bell)) {
            tokio::spawn(leave(bell));
        }
    }
}

/// Runs in a signal handler: only what is safe there (`man 7 signal-safety`).
extern "C" fn ring_bell(_: libc::c_int) {
    let is_ours = OWNER.load(Ordering::Relaxed) == std::process::id();
    let one = 1u64.to_ne_bytes();
    // SAFETY: `write` is given eight valid bytes; a descriptor that is not open makes it fail.
    let is_told = is_ours
        && !IS_RUNG.swap(true, Ordering::Relaxed)
        && unsafe { libc::write(BELL.load(Ordering::Relaxed), one.as_ptr().cast(), one.len()) } == 8;
    if !is_told {
        end();
    }
}

async fn leave(bell: AsyncFd<OwnedFd>) {
    let _ = bell.readable().await;
    network::leave();
    tokio::time::sleep(network::CLOSING_TIME).await;
    end();
    drop(bell);
}

/// What would have happened without us.
fn end() {
    // SAFETY: both calls are safe in a signal handler, and take only numbers.
    unsafe {
        libc::signal(libc::SIGTERM, libc::SIG_DFL);
        libc::kill(libc::getpid(), libc::SIGTERM);
    }
}
