//! What stands at the two ends of a link.
//!
//! In: packets from one end. Out: packets at the other. [`super::tun`] and [`super::udp`] are the two
//! kinds. A wire does not decide about delay or loss.

use crate::network::Direction;

/// Descriptors to wait for; the first is the emulator's own bell.
pub type PollSet = Vec<libc::pollfd>;

pub struct Packet {
    pub data: Vec<u8>,
    /// Bytes of IP, headers included.
    pub length: u32,
    /// 0: not known.
    pub protocol: u8,
    pub source_port: u16,
    pub destination_port: u16,
    /// The flow of a UDP relay that the datagram belongs to.
    pub flow: u64,
}

/// What happened to a packet that was due.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Emitted {
    Sent,
    /// The NAT has no mapping for it.
    NoMapping,
    /// The device or socket did not take it.
    Refused,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Rebinding {
    Port,
    Address,
}

pub trait Wire: Send {
    /// Sets what to wait for, after the first element.
    fn watch(&mut self, set: &mut PollSet);

    /// Returns the next packet from one end; `None` when there is none. `set` is what `watch` set, after a poll.
    fn read(&mut self, direction: Direction, set: &PollSet) -> Option<Packet>;

    /// Passes a packet through the NAT on its way out of the client's network. False: the packet cannot pass.
    fn pass_outward(&mut self, packet: &mut Packet) -> bool;

    /// Hands a packet over at the far end, through the NAT on its way in.
    fn emit(&mut self, direction: Direction, packet: &mut Packet) -> Emitted;

    fn rebind(&mut self, rebinding: Rebinding);

    /// Returns how many packets the wire's own sockets had no room for.
    fn dropped(&self) -> u64 {
        0
    }
}

pub fn pollfd(fd: libc::c_int) -> libc::pollfd {
    libc::pollfd { fd, events: libc::POLLIN, revents: 0 }
}
