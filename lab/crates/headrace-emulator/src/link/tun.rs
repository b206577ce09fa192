//! Two TUN devices, each in a network namespace of its own.
//!
//! In: names of namespaces and devices. Out: IP packets, one for each read. The devices are gone when their descriptors
//! are closed. Without IFF_VNET_HDR the kernel cuts what it offloads (TSO, UDP_SEGMENT) into packets and fills in
//! checksums before it hands them over.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use crate::Error;
use crate::network::Direction;
use crate::network::nat::Nat;
use crate::network::packet;

use super::config::TunConfig;
use super::wire::{Emitted, Packet, PollSet, Rebinding, Wire, pollfd};

pub struct Tun {
    /// The devices of the client and of the server.
    ends: [File; 2],
    buffer: Box<[u8; 65_536]>,
    nat: Nat,
}

impl Tun {
    pub fn open(client: &TunConfig, server: &TunConfig, pool: std::net::Ipv4Addr) -> Result<Self, Error> {
        let ends = [open_in(client)?, open_in(server)?];
        Ok(Self { ends, buffer: Box::new([0; 65_536]), nat: Nat::new(pool) })
    }
}

impl Wire for Tun {
    fn watch(&mut self, set: &mut PollSet) {
        set.truncate(1);
        set.extend(self.ends.iter().map(|end| pollfd(end.as_raw_fd())));
    }

    fn read(&mut self, direction: Direction, set: &PollSet) -> Option<Packet> {
        if set[1 + direction as usize].revents == 0 {
            return None;
        }
        loop {
            let length = self.ends[direction as usize].read(&mut self.buffer[..]).ok()?;
            let data = &self.buffer[..length];
            // What is not IPv4 (the devices have no other addresses) is left out, and has no index.
            if let Some(head) = packet::parse(data) {
                return Some(Packet {
                    data: data.to_vec(),
                    length: length as u32,
                    protocol: head.source.protocol,
                    source_port: head.source.port,
                    destination_port: head.destination.port,
                    flow: 0,
                });
            }
        }
    }

    fn pass_outward(&mut self, packet: &mut Packet) -> bool {
        self.nat.pass_outward(&mut packet.data) && {
            packet.source_port = packet::parse(&packet.data).map_or(0, |head| head.source.port);
            true
        }
    }

    fn emit(&mut self, direction: Direction, packet: &mut Packet) -> Emitted {
        if direction == Direction::Down && !self.nat.pass_inward(&mut packet.data) {
            return Emitted::NoMapping;
        }
        let taken = self.ends[1 - direction as usize].write(&packet.data);
        if taken.is_ok_and(|length| length == packet.data.len()) { Emitted::Sent } else { Emitted::Refused }
    }

    fn rebind(&mut self, rebinding: Rebinding) {
        match rebinding {
            Rebinding::Port => self.nat.rebind_port(),
            Rebinding::Address => self.nat.rebind_address(),
        }
    }
}

/// Opens a device on a thread of its own, because a thread moves to the namespace.
fn open_in(end: &TunConfig) -> Result<File, Error> {
    let TunConfig { namespace, device } = end;
    let opened = std::thread::scope(|scope| scope.spawn(|| open(namespace, device)).join());
    let failed = |error: io::Error| {
        let help = "the link needs root and /dev/net/tun";
        Error::Config(format!("no TUN device in {}: {error}; {help}", namespace.display()))
    };
    opened.unwrap_or_else(|_| Err(io::Error::other("its thread died"))).map_err(failed)
}

fn open(namespace: &Path, device: &str) -> io::Result<File> {
    let namespace = File::open(namespace)?;
    // SAFETY: a plain system call on an open descriptor.
    if unsafe { libc::setns(namespace.as_raw_fd(), libc::CLONE_NEWNET) } != 0 {
        return Err(io::Error::last_os_error());
    }
    let file =
        OpenOptions::new().read(true).write(true).custom_flags(libc::O_NONBLOCK).open("/dev/net/tun")?;
    // SAFETY: all bytes zero is a valid value of this plain structure.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    if device.len() >= request.ifr_name.len() {
        return Err(io::Error::other("the name of the device is too long"));
    }
    for (to, from) in request.ifr_name.iter_mut().zip(device.bytes()) {
        *to = from as libc::c_char;
    }
    request.ifr_ifru.ifru_flags = (libc::IFF_TUN | libc::IFF_NO_PI) as libc::c_short;
    // SAFETY: the descriptor is open, and `request` is valid for the call.
    if unsafe { libc::ioctl(file.as_raw_fd(), libc::TUNSETIFF as _, &raw mut request) } != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(file)
}
