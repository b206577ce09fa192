//! One UDP and one TCP socket per worker, all on one port.
//!
//! In: an address and a number of workers. Out: bound sockets, in the workers' order. Which of them a datagram
//! reaches is decided elsewhere (`quic/steering.rs`).

use std::io;
use std::net::{SocketAddr, TcpListener, ToSocketAddrs, UdpSocket};

use headrace_core::{Error, Kind};
use socket2::{Domain, Protocol, Socket, Type};

/// The receive and send buffers that are asked for on UDP sockets; the kernel may grant less.
const UDP_BUFFER: usize = 2 * 1024 * 1024;
const TCP_BACKLOG: i32 = 1024;
/// How many ports are tried that are free for TCP and turn out to be taken for UDP.
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
            Error::new(Kind::Config, format!("listen.host: {host:?} is not an address of this machine"))
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
        io::ErrorKind::AddrNotAvailable => ": listen.host is not an address of this machine",
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

#[cfg(test)]
mod tests {
    use super::*;
    #[cfg(target_os = "linux")]
    use crate::quic::steering::attach_steering;

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
