//! The link emulator carries packets from one end to the other as late, and as few of them, as it was told.
//!
//! In: a configuration, packets of a [`wire`], commands. Out: the packets, each when it is due; a log of all of
//! them; counts. What becomes of a packet is [`crate::network`]'s to decide; this thread keeps the times. It
//! must not know what a packet is for.
//!
//! * [`config`]: what it is told; [`emulator`]: the loop; [`realtime`]: why it is on time
//! * [`tun`], [`udp`]: the ends; [`log`], [`report`]: what it has to say

pub mod clock;
pub mod config;
mod emulator;
mod log;
mod realtime;
pub mod report;
mod tun;
mod udp;
mod wire;

use std::fs::File;
use std::io::Write;
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::Mutex;
use std::sync::PoisonError;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;

use crate::Error;

use config::{Command, LinkConfig, WireConfig};
use emulator::Emulator;
use log::Log;
use report::Answer;
use wire::Wire;

/// How many commands may wait.
const WAITING: usize = 64;

/// An order for the emulator's thread, and where its answer goes.
enum Order {
    Do(Command, SyncSender<Result<Answer, Error>>),
    Stop,
}

/// Orders, and the descriptor that wakes the loop for them.
struct Inbox {
    orders: Receiver<Order>,
    bell: OwnedFd,
}

/// A link whose ends exist; it carries nothing before [`Link::start`].
pub struct Link {
    ready: Mutex<Option<(Emulator, Inbox)>>,
    running: Mutex<Option<JoinHandle<Answer>>>,
    orders: SyncSender<Order>,
    bell: File,
    /// Where the clients of a UDP relay connect to.
    pub address: Option<SocketAddr>,
}

impl Link {
    /// Makes the two ends.
    pub fn open(config: LinkConfig) -> Result<Self, Error> {
        let (wire, address): (Box<dyn Wire>, _) = match &config.wire {
            WireConfig::Tun { client, server, nat_pool } => {
                (Box::new(tun::Tun::open(client, server, *nat_pool)?), None)
            }
            WireConfig::Udp { listen, server, max_flows } => {
                let relay = udp::Udp::bind(*listen, *server, *max_flows)
                    .map_err(|error| failed("no UDP socket", &error))?;
                let address = relay.address();
                (Box::new(relay), Some(address))
            }
        };
        let log = Log::create(&config.log, config.max_log_packets)
            .map_err(|error| failed(&format!("no packet log at {}", config.log.display()), &error))?;
        let emulator = Emulator::new(config, wire, log)?;
        // SAFETY: a plain system call; the result is checked.
        let bell = unsafe { libc::eventfd(0, libc::EFD_NONBLOCK | libc::EFD_CLOEXEC) };
        if bell < 0 {
            return Err(failed("no bell", &std::io::Error::last_os_error()));
        }
        // SAFETY: the descriptor was just made, and nobody else has it.
        let bell = unsafe { OwnedFd::from_raw_fd(bell) };
        let ring = bell.try_clone().map_err(|error| failed("no bell", &error))?;
        let (sender, orders) = sync_channel(WAITING);
        Ok(Self {
            ready: Mutex::new(Some((emulator, Inbox { orders, bell }))),
            running: Mutex::new(None),
            orders: sender,
            bell: File::from(ring),
            address,
        })
    }

    /// Begins to carry packets on a thread of its own.
    pub fn start(&self) -> Result<(), Error> {
        let ready = self.ready.lock().unwrap_or_else(PoisonError::into_inner).take();
        let (emulator, inbox) = ready.ok_or_else(|| Error::Misuse("the link was started before".into()))?;
        let thread = std::thread::Builder::new().name("link".into()).spawn(move || emulator.run(&inbox));
        let thread = thread.map_err(|error| failed("no thread", &error))?;
        *self.running.lock().unwrap_or_else(PoisonError::into_inner) = Some(thread);
        Ok(())
    }

    /// Carries a command out and waits for the answer.
    pub fn command(&self, command: Command) -> Result<Answer, Error> {
        let (sender, answer) = sync_channel(1);
        self.order(Order::Do(command, sender))?;
        answer.recv().unwrap_or_else(|_| Err(ended()))
    }

    /// Ends it; the log is complete then.
    pub fn stop(&self) -> Result<Answer, Error> {
        let thread = self.running.lock().unwrap_or_else(PoisonError::into_inner).take();
        let thread = thread.ok_or_else(ended)?;
        self.order(Order::Stop)?;
        thread.join().map_err(|_| Error::Internal("the link's thread died".into()))
    }

    fn order(&self, order: Order) -> Result<(), Error> {
        self.orders.send(order).map_err(|_| ended())?;
        (&self.bell).write_all(&1u64.to_ne_bytes()).map_err(|error| failed("the bell", &error))
    }
}

impl Inbox {
    /// Returns what has come since the last look.
    fn take(&self) -> impl Iterator<Item = Order> + '_ {
        let mut count = [0u8; 8];
        // SAFETY: the descriptor is open, and the buffer is valid for its length. Nothing to read is not an
        // error.
        unsafe { libc::read(self.bell.as_raw_fd(), count.as_mut_ptr().cast(), count.len()) };
        self.orders.try_iter()
    }
}

fn failed(what: &str, error: &std::io::Error) -> Error {
    Error::Config(format!("{what}: {error}"))
}

fn ended() -> Error {
    Error::Misuse("the link does not run".into())
}
