//! Connections to model servers: a name looked up, a socket, TLS.
//!
//! In: a target, and how long it may take. Out: a connection, plain or TLS, and whether it speaks HTTP/2.

use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use headrace_core::{Error, Kind};
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout_at};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use crate::tls::{self, Trust};
use crate::upstream::{Target, UpstreamProtocol, addresses};

/// TLS configurations towards model servers, by the protocol asked for.
#[derive(Clone)]
pub struct Tls {
    auto: Arc<rustls::ClientConfig>,
    http1: Arc<rustls::ClientConfig>,
    http2: Arc<rustls::ClientConfig>,
}

impl Tls {
    /// `ca_pem`: certificates that are trusted beside the system's.
    ///
    /// # Errors
    /// [`Kind::Config`].
    pub fn new(ca_pem: &str) -> Result<Self, Error> {
        let trust = Trust::System { ca_pem: ca_pem.to_owned() };
        let of = |alpn: &[&[u8]]| match tls::client(&trust, None, alpn) {
            Ok(config) => Ok(Arc::new(config)),
            Err(error) => Err(Error::new(error.kind, format!("pool.{}", error.detail))),
        };
        Ok(Self { auto: of(&[b"h2", b"http/1.1"])?, http1: of(&[b"http/1.1"])?, http2: of(&[b"h2"])? })
    }
}

/// Connects within `time`; says whether the connection speaks HTTP/2.
///
/// # Errors
/// [`Kind::UpstreamResolve`], [`Kind::UpstreamConnect`], [`Kind::UpstreamTls`], [`Kind::UpstreamConnectTimeout`].
pub async fn connect_within(tls: &Tls, target: &Target, time: Duration) -> Result<(Io, bool), Error> {
    let connected = timeout_at(Instant::now() + time, connect(tls, target)).await;
    connected.unwrap_or_else(|_| Err(Kind::UpstreamConnectTimeout.into()))
}

async fn connect(tls: &Tls, target: &Target) -> Result<(Io, bool), Error> {
    let name = format!("{}:{}", target.host, target.port);
    let addresses = tokio::net::lookup_host((target.host.as_str(), target.port));
    let addresses = addresses.await.map_err(|error| match has_descriptor() {
        true => Error::new(Kind::UpstreamResolve, format!("{name}: {error}")),
        false => no_descriptor(&name),
    })?;
    let stream = addresses::connect(addresses).await.map_err(|failed| translate(&name, &failed))?;
    if target.is_tls {
        return handshake(tls, stream, target).await;
    }
    Ok((Io::Plain(stream), target.protocol == UpstreamProtocol::Http2))
}

/// Whose fault it is: what we lack ourselves is nothing that the model server did.
fn translate(name: &str, (address, error): &addresses::Failed) -> Error {
    match error.raw_os_error() {
        Some(libc::EMFILE | libc::ENFILE) => no_descriptor(name),
        Some(libc::ENOBUFS | libc::ENOMEM) => {
            Error::new(Kind::Overloaded, format!("the system has no memory left for a connection to {name}"))
        }
        // Of IPv6 it says that this machine has no such address at all.
        Some(libc::EADDRNOTAVAIL) if address.is_some_and(|address| address.is_ipv4()) => {
            Error::new(Kind::Overloaded, format!("no local port is left for a connection to {name}"))
        }
        _ if address.is_none() => Error::new(Kind::UpstreamResolve, format!("{name}: {error}")),
        _ => Error::new(Kind::UpstreamConnect, format!("{name}: {error}")),
    }
}

fn no_descriptor(name: &str) -> Error {
    let limit = "raise the limit of open files (ulimit -n, LimitNOFILE)";
    Error::new(Kind::Overloaded, format!("no file descriptor is left for a connection to {name}; {limit}"))
}

/// Resolvers do not say that they could not open a file.
fn has_descriptor() -> bool {
    std::fs::File::open("/dev/null").is_ok()
}

async fn handshake(tls: &Tls, stream: TcpStream, target: &Target) -> Result<(Io, bool), Error> {
    let failed = |detail: String| Error::new(Kind::UpstreamTls, format!("{}: {detail}", target.host));
    let name = ServerName::try_from(target.host.clone()).map_err(|error| failed(error.to_string()))?;
    let config = match target.protocol {
        UpstreamProtocol::Auto => tls.auto.clone(),
        UpstreamProtocol::Http1 => tls.http1.clone(),
        UpstreamProtocol::Http2 => tls.http2.clone(),
    };
    let stream =
        TlsConnector::from(config).connect(name, stream).await.map_err(|error| failed(error.to_string()))?;
    let is_http2 = stream.get_ref().1.alpn_protocol() == Some(b"h2");
    if target.protocol == UpstreamProtocol::Http2 && !is_http2 {
        return Err(failed(
            "it does not speak HTTP/2; set the upstream's protocol to auto or http1".to_owned(),
        ));
    }
    Ok((Io::Tls(Box::new(stream)), is_http2))
}

/// A connection to a model server.
pub enum Io {
    Plain(TcpStream),
    Tls(Box<TlsStream<TcpStream>>),
}

impl Io {
    /// How many of our bytes the other side's system has acknowledged, on this connection; `None` where our own does not
    /// say. Bytes that it has not acknowledged with its FIN came behind it: no program there can have read them.
    pub fn acknowledged(&self) -> Option<u64> {
        let stream = match self {
            Io::Plain(stream) => stream,
            Io::Tls(stream) => stream.get_ref().0,
        };
        tcp_bytes_acked(stream.as_raw_fd())
    }

    /// Whether an idle connection can carry another request: nothing has come, and it is not closed.
    pub fn is_alive(&mut self) -> bool {
        let mut byte = [0];
        let mut context = Context::from_waker(std::task::Waker::noop());
        Pin::new(self).poll_read(&mut context, &mut ReadBuf::new(&mut byte)).is_pending()
    }
}

impl AsyncRead for Io {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Io::Plain(stream) => Pin::new(stream).poll_read(cx, buffer),
            Io::Tls(stream) => Pin::new(stream).poll_read(cx, buffer),
        }
    }
}

impl AsyncWrite for Io {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Io::Plain(stream) => Pin::new(stream).poll_write(cx, bytes),
            Io::Tls(stream) => Pin::new(stream).poll_write(cx, bytes),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Io::Plain(stream) => Pin::new(stream).poll_flush(cx),
            Io::Tls(stream) => Pin::new(stream).poll_flush(cx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Io::Plain(stream) => Pin::new(stream).poll_shutdown(cx),
            Io::Tls(stream) => Pin::new(stream).poll_shutdown(cx),
        }
    }
}

/// `tcpi_bytes_acked` of Linux' `struct tcp_info`, which libc does not know as far as that.
fn tcp_bytes_acked(descriptor: RawFd) -> Option<u64> {
    const OFFSET: usize = 120;
    let mut info = [0u8; OFFSET + 8];
    let mut length = info.len() as libc::socklen_t;
    // SAFETY: the descriptor is open, and `info` has room for the `length` bytes that the kernel may write.
    let result = unsafe {
        libc::getsockopt(
            descriptor,
            libc::IPPROTO_TCP,
            libc::TCP_INFO,
            info.as_mut_ptr().cast(),
            &raw mut length,
        )
    };
    let is_known = result == 0 && length as usize == info.len();
    is_known.then(|| u64::from_ne_bytes(std::array::from_fn(|at| info[OFFSET + at])))
}
