//! Connections to model servers: a name looked up, a socket, TLS.
//!
//! In: a target, and how long it may take. Out: a connection, plain or TLS, and whether it speaks HTTP/2.

use std::io;
use std::net::SocketAddr;
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
use crate::upstream::{Target, UpstreamProtocol};

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
    let addresses = tokio::net::lookup_host((target.host.as_str(), target.port))
        .await
        .map_err(|error| Error::new(Kind::UpstreamResolve, format!("{name}: {error}")))?;
    let mut last = Error::new(Kind::UpstreamResolve, format!("{name}: the name has no address"));
    for address in addresses {
        match connect_to(address).await {
            Ok(stream) if target.is_tls => return handshake(tls, stream, target).await,
            Ok(stream) => return Ok((Io::Plain(stream), target.protocol == UpstreamProtocol::Http2)),
            Err(error) => last = Error::new(Kind::UpstreamConnect, format!("{name}: {error}")),
        }
    }
    Err(last)
}

async fn connect_to(address: SocketAddr) -> io::Result<TcpStream> {
    let stream = TcpStream::connect(address).await?;
    stream.set_nodelay(true)?;
    Ok(stream)
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
