//! One UDP and one TCP socket per worker, all on one port.
//!
//! In: an address and a number of workers. Out: bound sockets, in the workers' order. A connection belongs to
//! the worker whose number is in the first byte of its connection ID, modulo the number of workers: a classic
//! BPF program in the kernel reads it there, so that a client that moves to another address still reaches its
//! worker. Where the kernel refuses the program, the worker that receives a stray datagram forwards it
//! (`quic/worker_socket.rs`).

use std::io;
use std::net::{SocketAddr, TcpListener, ToSocketAddrs, UdpSocket};

use headrace_core::{Error, Kind};
use quinn_proto::{ConnectionId, ConnectionIdGenerator};
use rand::RngExt;
use socket2::{Domain, Protocol, Socket, Type};

/// Receive and send buffer asked for on UDP sockets; the kernel may grant less.
const UDP_BUFFER: usize = 2 * 1024 * 1024;
const TCP_BACKLOG: i32 = 1024;
/// Length of our connection IDs; the first byte carries the worker's number.
const CID_LENGTH: usize = 8;
/// How often a port that is free for TCP may turn out to be taken for UDP.
const PORT_TRIES: usize = 16;

/// The sockets of one worker.
pub struct Sockets {
    pub udp: UdpSocket,
    pub tcp: TcpListener,
}

/// Binds `workers` pairs of sockets.
///
/// # Errors
/// [`Kind::Config`] with the address when it cannot be resolved, is taken, or may not be bound.
pub fn bind(host: &str, port: u16, workers: usize) -> Result<(SocketAddr, Vec<Sockets>), Error> {
    let address =
        (host, port).to_socket_addrs().ok().and_then(|mut found| found.next()).ok_or_else(|| {
            Error::new(Kind::Config, format!("listen.host: {host:?} is no address of this machine"))
        })?;
    if port != 0 {
        // With SO_REUSEPORT a second server of the same user would silently share the port: look first.
        probe(address).map_err(|error| refused(address, &error))?;
        return bind_all(address, workers).map_err(|error| refused(address, &error));
    }
    let mut last = io::Error::other("no port was free for both");
    for _ in 0..PORT_TRIES {
        let chosen = tcp_socket(address).and_then(|tcp| tcp.local_addr());
        match chosen.and_then(|chosen| probe(chosen).and_then(|()| bind_all(chosen, workers))) {
            Ok(bound) => return Ok(bound),
            Err(error) => last = error,
        }
    }
    Err(refused(address, &last))
}

fn refused(address: SocketAddr, error: &io::Error) -> Error {
    let fix = match error.kind() {
        io::ErrorKind::AddrInUse => ": another program listens there; choose another listen.port",
        io::ErrorKind::PermissionDenied => ": ports below 1024 need a privilege (CAP_NET_BIND_SERVICE)",
        io::ErrorKind::AddrNotAvailable => ": listen.host is no address of this machine",
        _ => "",
    };
    Error::new(Kind::Config, format!("cannot listen on {address}: {error}{fix}"))
}

fn probe(address: SocketAddr) -> io::Result<()> {
    TcpListener::bind(address)?;
    UdpSocket::bind(address)?;
    Ok(())
}

fn bind_all(address: SocketAddr, workers: usize) -> io::Result<(SocketAddr, Vec<Sockets>)> {
    let mut all = Vec::with_capacity(workers);
    for _ in 0..workers {
        all.push(Sockets { udp: udp_socket(address)?, tcp: tcp_socket(address)? });
    }
    Ok((address, all))
}

fn udp_socket(address: SocketAddr) -> io::Result<UdpSocket> {
    let socket = Socket::new(Domain::for_address(address), Type::DGRAM, Some(Protocol::UDP))?;
    share(&socket, address)?;
    // Best effort: a small buffer costs losses under load, not correctness.
    let _ = socket.set_recv_buffer_size(UDP_BUFFER);
    let _ = socket.set_send_buffer_size(UDP_BUFFER);
    socket.bind(&address.into())?;
    Ok(socket.into())
}

fn tcp_socket(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    socket.set_reuse_address(true)?;
    share(&socket, address)?;
    socket.bind(&address.into())?;
    socket.listen(TCP_BACKLOG)?;
    Ok(socket.into())
}

fn share(socket: &Socket, address: SocketAddr) -> io::Result<()> {
    socket.set_reuse_port(true)?;
    socket.set_nonblocking(true)?;
    if address.is_ipv6() {
        // `::` serves IPv4 too, as people expect.
        socket.set_only_v6(false)?;
    }
    Ok(())
}

/// Attaches the program that chooses a socket by the connection ID. It belongs to the whole group of sockets:
/// attach it once, after the last one is bound, so that its index is the worker's number.
///
/// # Errors
/// When the kernel does not take it.
#[cfg(target_os = "linux")]
pub fn attach_steering(socket: &UdpSocket, workers: usize) -> io::Result<()> {
    use std::os::fd::AsRawFd;
    // RFC 8999: a long header has the connection ID's first byte at offset 6, a short header at offset 1.
    const LOAD_BYTE: u16 = (libc::BPF_LD | libc::BPF_B | libc::BPF_ABS) as u16;
    const JUMP_IF_SET: u16 = (libc::BPF_JMP | libc::BPF_JSET | libc::BPF_K) as u16;
    const JUMP: u16 = (libc::BPF_JMP | libc::BPF_JA) as u16;
    const MODULO: u16 = (libc::BPF_ALU | libc::BPF_MOD | libc::BPF_K) as u16;
    const RETURN_A: u16 = (libc::BPF_RET | libc::BPF_A) as u16;
    let op = |code, jt, jf, k| libc::sock_filter { code, jt, jf, k };
    let mut program = [
        op(LOAD_BYTE, 0, 0, 0),
        op(JUMP_IF_SET, 0, 2, 0x80),
        op(LOAD_BYTE, 0, 0, 6),
        op(JUMP, 0, 0, 1),
        op(LOAD_BYTE, 0, 0, 1),
        op(MODULO, 0, 0, workers as u32),
        op(RETURN_A, 0, 0, 0),
    ];
    let filter = libc::sock_fprog { len: program.len() as u16, filter: program.as_mut_ptr() };
    // SAFETY: `filter` and the program it points to outlive the call, which copies them.
    let result = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_ATTACH_REUSEPORT_CBPF,
            (&raw const filter).cast(),
            size_of::<libc::sock_fprog>() as libc::socklen_t,
        )
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[cfg(not(target_os = "linux"))]
pub fn attach_steering(_: &UdpSocket, _: usize) -> io::Result<()> {
    Err(io::Error::from(io::ErrorKind::Unsupported))
}

/// Which worker owns the connection of this datagram; `None` when the datagram is too short to say.
pub fn owner(datagram: &[u8], workers: usize) -> Option<usize> {
    let offset = if datagram.first()? & 0x80 != 0 { 6 } else { 1 };
    datagram.get(offset).map(|&byte| usize::from(byte) % workers)
}

/// Connection IDs of one worker: random, but for the first byte, which is the worker's number modulo their
/// count.
#[derive(Debug)]
pub struct WorkerCids {
    pub worker: usize,
    pub workers: usize,
}

impl ConnectionIdGenerator for WorkerCids {
    fn generate_cid(&mut self) -> ConnectionId {
        let mut cid = [0; CID_LENGTH];
        rand::rng().fill(&mut cid);
        let rounds = 256 / self.workers;
        cid[0] = ((usize::from(cid[0]) % rounds) * self.workers + self.worker) as u8;
        ConnectionId::new(&cid)
    }

    fn cid_len(&self) -> usize {
        CID_LENGTH
    }

    fn cid_lifetime(&self) -> Option<std::time::Duration> {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_connection_id_names_its_worker() {
        for workers in [1, 2, 3, 7, 64] {
            for worker in 0..workers {
                let mut cids = WorkerCids { worker, workers };
                for _ in 0..20 {
                    let cid = cids.generate_cid();
                    assert_eq!(owner(&[&[0x40], &cid[..]].concat(), workers), Some(worker));
                    let long = [&[0xc0, 0, 0, 0, 1, 8], &cid[..]].concat();
                    assert_eq!(owner(&long, workers), Some(worker));
                }
            }
        }
        assert_eq!(owner(&[], 4), None);
        assert_eq!(owner(&[0xc0, 0, 0], 4), None);
    }

    #[test]
    fn a_port_in_use_is_refused_with_a_fix() {
        let (address, _sockets) = bind("127.0.0.1", 0, 2).unwrap();
        let error = bind("127.0.0.1", address.port(), 2).err().unwrap();
        assert!(error.to_string().contains("another program listens there"), "{error}");
        let error = bind("no.such.host.invalid", 1, 1).err().unwrap();
        assert!(error.to_string().contains("listen.host"), "{error}");
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn the_kernel_delivers_by_connection_id() {
        let workers = 4;
        let (address, sockets) = bind("127.0.0.1", 0, workers).unwrap();
        attach_steering(&sockets[workers - 1].udp, workers).unwrap();
        let client = UdpSocket::bind("127.0.0.1:0").unwrap();
        for byte in 0..=255u8 {
            for datagram in [[0x40, byte, 0, 0, 0, 0, 0], [0xc0, 0, 0, 0, 1, 8, byte]] {
                client.send_to(&datagram, address).unwrap();
                let mut got = [0; 16];
                let expected = &sockets[usize::from(byte) % workers].udp;
                let (length, _) = retry(|| expected.recv_from(&mut got));
                assert_eq!(&got[..length], &datagram);
            }
        }
    }

    #[cfg(target_os = "linux")]
    fn retry<T>(mut receive: impl FnMut() -> io::Result<T>) -> T {
        for _ in 0..1000 {
            if let Ok(got) = receive() {
                return got;
            }
            std::thread::yield_now();
        }
        receive().expect("the datagram arrived at another worker")
    }
}
