//! A connection to the first of several addresses that answers (RFC 8305).
//!
//! In: the addresses of one name, in the resolver's order. Out: a connection; an address that is silent holds nobody up
//! longer than [`ATTEMPT_DELAY`], for then the next one is tried beside it. It must not know what a name is.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::sleep;

/// RFC 8305 §8: what is recommended between the beginnings of two attempts.
const ATTEMPT_DELAY: Duration = Duration::from_millis(250);
/// Of one name; more are not tried.
const MOST_ADDRESSES: usize = 16;

/// Why no address could be connected to, with the one that failed last.
pub type Failed = (Option<SocketAddr>, io::Error);

/// Connects. Dropping the future ends every attempt.
pub async fn connect(addresses: impl IntoIterator<Item = SocketAddr>) -> Result<TcpStream, Failed> {
    let mut waiting = alternating(addresses).into_iter().take(MOST_ADDRESSES);
    let mut attempts = JoinSet::new();
    let mut failed = (None, io::Error::new(io::ErrorKind::NotFound, "the name has no address"));
    loop {
        match waiting.next() {
            Some(address) => _ = attempts.spawn(async move { (address, connect_to(address).await) }),
            None if attempts.is_empty() => return Err(failed),
            None => {}
        }
        tokio::select! {
            Some(ended) = attempts.join_next() => match ended {
                Ok((_, Ok(stream))) => return Ok(stream),
                Ok((address, Err(error))) => failed = (Some(address), error),
                Err(error) => failed = (None, io::Error::other(error)),
            },
            () = sleep(ATTEMPT_DELAY), if waiting.len() > 0 => {}
        }
    }
}

async fn connect_to(address: SocketAddr) -> io::Result<TcpStream> {
    let stream = TcpStream::connect(address).await?;
    stream.set_nodelay(true)?;
    Ok(stream)
}

/// The families take turns, the resolver's first choice first (RFC 8305 §4).
fn alternating(addresses: impl IntoIterator<Item = SocketAddr>) -> Vec<SocketAddr> {
    let addresses: Vec<_> = addresses.into_iter().collect();
    let Some(first) = addresses.first() else { return addresses };
    let (same, other): (Vec<_>, Vec<_>) =
        addresses.iter().copied().partition(|address| address.is_ipv6() == first.is_ipv6());
    let (mut same, mut other) = (same.into_iter(), other.into_iter());
    let mut turns = Vec::with_capacity(addresses.len());
    while let Some(address) = same.next().or_else(|| other.next()) {
        turns.push(address);
        turns.extend(other.next());
    }
    turns
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    fn address(text: &str) -> SocketAddr {
        text.parse().unwrap()
    }

    #[test]
    fn the_families_take_turns() {
        let [a, b, c] = ["[::1]:1", "[::2]:1", "[::3]:1"].map(address);
        let [x, y] = ["1.1.1.1:1", "2.2.2.2:1"].map(address);
        assert_eq!(alternating([a, b, c, x, y]), [a, x, b, y, c]);
        assert_eq!(alternating([x, a, b, c]), [x, a, b, c]);
        assert_eq!(alternating([a, x, y]), [a, x, y]);
        assert_eq!(alternating([]), []);
    }

    /// A socket that listens and whose queue is full: a handshake with it is not answered.
    fn silent() -> (socket2::Socket, Vec<socket2::Socket>) {
        use socket2::{Domain, Socket, Type};
        let listening = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        listening.bind(&address("127.0.0.1:0").into()).unwrap();
        listening.listen(0).unwrap();
        let to = listening.local_addr().unwrap();
        let fill = |_| {
            let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
            socket.set_nonblocking(true).unwrap();
            let _ = socket.connect(&to);
            socket
        };
        let fillers = (0..8).map(fill).collect();
        (listening, fillers)
    }

    #[tokio::test]
    async fn a_silent_address_and_a_closed_one_hold_nobody_up() {
        let open = TcpListener::bind("127.0.0.1:0").unwrap();
        let closed = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let (silent, _fillers) = silent();
        let silent = silent.local_addr().unwrap().as_socket().unwrap();
        let open = open.local_addr().unwrap();
        for addresses in [vec![open], vec![closed, open], vec![silent, open], vec![silent, closed, open]] {
            let stream = connect(addresses).await.unwrap();
            assert_eq!(stream.peer_addr().unwrap(), open);
        }
        let (address, error) = connect([closed]).await.unwrap_err();
        assert_eq!((address, error.kind()), (Some(closed), io::ErrorKind::ConnectionRefused));
        assert_eq!(connect([]).await.unwrap_err().1.kind(), io::ErrorKind::NotFound);
    }
}
