//! A UDP relay: the link for users without root. It carries the datagrams of one server, and nothing else.
//!
//! In: datagrams from clients at one port. Out: the same datagrams to the server, from a socket for each
//! client, so that the server can tell them apart; and the way back. A rebinding gives every client a new socket: the server sees a new
//! port. There is no other address to rebind to, so an address rebinding is a port rebinding here.

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::AsRawFd;

use crate::network::Direction;
use crate::network::packet::UDP;

use super::wire::{Emitted, Packet, PollSet, Rebinding, Wire, pollfd};

/// The place of the count of drops in what SO_MEMINFO gives (linux/sock_diag.h, SK_MEMINFO_DROPS).
const DROPS: usize = 8;
/// The headers of IPv4 and UDP: lengths count what would be on a wire.
const HEADERS: usize = 28;

struct Flow {
    client: SocketAddr,
    socket: UdpSocket,
    is_forgotten: bool,
}

pub struct Udp {
    inside: UdpSocket,
    server: SocketAddr,
    /// Flows by number; the first is the oldest.
    flows: BTreeMap<u64, Flow>,
    /// The flow that the datagrams of each client take.
    current: HashMap<SocketAddr, u64>,
    max_flows: usize,
    next: u64,
    has_changed: bool,
    /// What the sockets of flows that have ended dropped.
    gone_dropped: u64,
    buffer: Box<[u8; 65_536]>,
}

impl Udp {
    pub fn bind(listen: SocketAddr, server: SocketAddr, max_flows: usize) -> io::Result<Self> {
        let inside = UdpSocket::bind(listen)?;
        inside.set_nonblocking(true)?;
        Ok(Self {
            inside,
            server,
            flows: BTreeMap::new(),
            current: HashMap::new(),
            max_flows: max_flows.max(1),
            next: 0,
            has_changed: true,
            gone_dropped: 0,
            buffer: Box::new([0; 65_536]),
        })
    }

    pub fn address(&self) -> SocketAddr {
        self.inside.local_addr().unwrap_or(self.server)
    }

    fn packet(&self, length: usize, flow: u64, ports: (u16, u16)) -> Packet {
        Packet {
            data: self.buffer[..length].to_vec(),
            length: (length + HEADERS) as u32,
            protocol: UDP,
            source_port: ports.0,
            destination_port: ports.1,
            flow,
        }
    }

    /// Returns the flow of a client. A new one takes the place of the oldest when there are too many.
    fn flow_of(&mut self, client: SocketAddr) -> io::Result<u64> {
        if let Some(&known) = self.current.get(&client) {
            return Ok(known);
        }
        if self.flows.len() >= self.max_flows
            && let Some((number, oldest)) = self.flows.pop_first()
        {
            self.gone_dropped += dropped(&oldest.socket);
            if self.current.get(&oldest.client) == Some(&number) {
                self.current.remove(&oldest.client);
            }
        }
        let any: SocketAddr =
            if self.server.is_ipv4() { ([0, 0, 0, 0], 0).into() } else { ([0; 16], 0).into() };
        let socket = UdpSocket::bind(any)?;
        socket.set_nonblocking(true)?;
        socket.connect(self.server)?;
        let number = self.next;
        self.next += 1;
        self.flows.insert(number, Flow { client, socket, is_forgotten: false });
        self.current.insert(client, number);
        self.has_changed = true;
        Ok(number)
    }
}

impl Wire for Udp {
    fn watch(&mut self, set: &mut PollSet) {
        if std::mem::take(&mut self.has_changed) {
            set.truncate(1);
            set.push(pollfd(self.inside.as_raw_fd()));
            set.extend(self.flows.values().map(|flow| pollfd(flow.socket.as_raw_fd())));
        }
    }

    fn read(&mut self, direction: Direction, set: &PollSet) -> Option<Packet> {
        if direction == Direction::Up {
            if set[1].revents == 0 {
                return None;
            }
            let (length, client) = self.inside.recv_from(&mut self.buffer[..]).ok()?;
            let flow = self.flow_of(client).ok()?;
            return Some(self.packet(length, flow, (client.port(), self.server.port())));
        }
        // A set that is older than a flow does not say which flow has something; the next set does.
        let readable = self.flows.iter().zip(set.get(2..)?).filter(|(_, each)| each.revents != 0);
        for ((number, flow), _) in readable.filter(|_| !self.has_changed) {
            if let Ok(length) = flow.socket.recv(&mut self.buffer[..]) {
                let outside = flow.socket.local_addr().map_or(0, |address| address.port());
                return Some(self.packet(length, *number, (self.server.port(), outside)));
            }
        }
        None
    }

    fn pass_outward(&mut self, packet: &mut Packet) -> bool {
        let socket = self.flows.get(&packet.flow).map(|flow| &flow.socket);
        packet.source_port = socket.and_then(|socket| socket.local_addr().ok()).map_or(0, |own| own.port());
        packet.source_port != 0
    }

    fn emit(&mut self, direction: Direction, packet: &mut Packet) -> Emitted {
        let Some(flow) = self.flows.get(&packet.flow) else { return Emitted::NoMapping };
        let sent = match direction {
            Direction::Up => flow.socket.send(&packet.data),
            Direction::Down if flow.is_forgotten => return Emitted::NoMapping,
            Direction::Down => self.inside.send_to(&packet.data, flow.client),
        };
        if sent.is_ok() { Emitted::Sent } else { Emitted::Refused }
    }

    fn dropped(&self) -> u64 {
        let sockets = self.flows.values().map(|flow| &flow.socket);
        self.gone_dropped + sockets.chain([&self.inside]).map(dropped).sum::<u64>()
    }

    fn rebind(&mut self, _: Rebinding) {
        self.current.clear();
        // Their sockets stay open: a server that still sends there must not be told that the port is closed.
        self.flows.values_mut().for_each(|flow| flow.is_forgotten = true);
    }
}

/// Returns how many datagrams the kernel dropped because a socket had no room.
fn dropped(socket: &UdpSocket) -> u64 {
    let mut memory = [0u32; DROPS + 1];
    let mut length = std::mem::size_of_val(&memory) as libc::socklen_t;
    // SAFETY: the descriptor is open; `memory` and `length` are valid for the call, and of one size.
    let result = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_MEMINFO,
            memory.as_mut_ptr().cast(),
            &raw mut length,
        )
    };
    if result == 0 { u64::from(memory[DROPS]) } else { 0 }
}
