//! The client's side: HTTP/3 connections to a server.
//!
//! In: an address, whom to trust, requests. Out: answers (`client_stream.rs`). All clients of a process share
//! one runtime on one thread, started when the first of them connects. Every connection has a socket of its
//! own, so that one can move to another network without the others.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bytes::Bytes;
use headrace_core::http3::control::{Control, Message, Role, stream_type};
use headrace_core::http3::frame::{self, Frame};
use headrace_core::http3::message::RequestHead;
use headrace_core::http3::{Http3Error, code, qpack, settings, varint};
use headrace_core::{Error, Kind};
use quinn::congestion::BbrConfig;
use quinn::{
    ConnectionError, Endpoint, EndpointConfig, RecvStream, SendStream, TokioRuntime, TransportConfig, VarInt,
};

use crate::client_stream::{self, ResponseStream};
use crate::http3_stream::stream_code;
use crate::tls::{self, Trust};

/// How a client behaves; every value is Python's choice.
#[derive(Clone, Debug)]
pub struct ClientConfig {
    pub trust: Trust,
    pub handshake_timeout: Duration,
    pub idle_timeout: Duration,
    pub max_head_bytes: usize,
    /// What a stream may have unread before its server must wait.
    pub stream_window: u32,
    pub connection_window: u32,
}

/// One connection; dropping the last clone closes it.
#[derive(Clone)]
pub struct ClientConnection {
    inner: Arc<Inner>,
}

pub struct Inner {
    pub quic: quinn::Connection,
    pub max_head_bytes: usize,
    /// Requests with this stream id and above were not handled; `u64::MAX` until the server says GOAWAY.
    goaway: AtomicU64,
    /// Kept open: ending the control stream is an error (RFC 9114 §6.2.1).
    _control: SendStream,
    _endpoint: Endpoint,
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.quic.close(stream_code(code::NO_ERROR), b"");
    }
}

/// The runtime that all clients of this process share.
///
/// # Errors
/// When the thread cannot be started, or the process was forked after it was: threads do not survive that.
pub fn runtime() -> Result<&'static tokio::runtime::Handle, Error> {
    static RUNTIME: OnceLock<Result<tokio::runtime::Handle, String>> = OnceLock::new();
    static STARTED_IN: OnceLock<u32> = OnceLock::new();
    if *STARTED_IN.get_or_init(std::process::id) != std::process::id() {
        return Err(Error::new(Kind::Misuse, "the process was forked after its first connection"));
    }
    let started = RUNTIME.get_or_init(|| {
        let build = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = build.map_err(|error| error.to_string())?;
        let handle = runtime.handle().clone();
        std::thread::Builder::new()
            .name("headrace-client".to_owned())
            .spawn(move || runtime.block_on(std::future::pending::<()>()))
            .map_err(|error| error.to_string())?;
        Ok(handle)
    });
    started.as_ref().map_err(|error| Error::new(Kind::Internal, error.clone()))
}

impl ClientConnection {
    /// Connects. Must run on [`runtime`].
    ///
    /// # Errors
    /// [`Kind::Connect`], [`Kind::ConnectTimeout`], [`Kind::Tls`].
    pub async fn connect(config: &ClientConfig, host: &str, port: u16) -> Result<Self, Error> {
        let name = format!("{host}:{port}");
        let address = tokio::net::lookup_host((host, port))
            .await
            .map_err(|error| Error::new(Kind::Connect, format!("{name}: {error}")))?
            .next()
            .ok_or_else(|| Error::new(Kind::Connect, format!("{name}: no address")))?;
        let endpoint = endpoint(address).map_err(|error| Error::new(Kind::Connect, error.to_string()))?;
        let mut quic_config = quinn::ClientConfig::new(tls::quic_client(&config.trust)?);
        quic_config.transport_config(Arc::new(transport(config)));
        let connecting = endpoint
            .connect_with(quic_config, address, host)
            .map_err(|error| Error::new(Kind::Connect, format!("{name}: {error}")))?;
        let quic = tokio::time::timeout(config.handshake_timeout, connecting)
            .await
            .map_err(|_| {
                let waited = config.handshake_timeout.as_secs_f64();
                Error::new(Kind::ConnectTimeout, format!("{name}: no answer over UDP within {waited} s"))
            })?
            .map_err(|error| connect_error(&name, &error))?;
        let mut control = quic.open_uni().await.map_err(|error| connect_error(&name, &error))?;
        let mut first = vec![stream_type::CONTROL as u8];
        first.extend_from_slice(&settings::encode(config.max_head_bytes as u64));
        control.write_all(&first).await.map_err(|error| Error::new(Kind::Connect, error.to_string()))?;
        let max_head_bytes = config.max_head_bytes;
        let goaway = AtomicU64::new(u64::MAX);
        let inner = Inner { quic, max_head_bytes, goaway, _control: control, _endpoint: endpoint };
        let inner = Arc::new(inner);
        let for_task = Arc::downgrade(&inner);
        let quic = inner.quic.clone();
        tokio::spawn(async move {
            while let Ok(recv) = quic.accept_uni().await {
                let (quic, inner) = (quic.clone(), for_task.clone());
                tokio::spawn(async move {
                    let note = |id| {
                        if let Some(inner) = inner.upgrade() {
                            inner.goaway.store(id, Ordering::Relaxed);
                        }
                    };
                    if let Err(error) = read_uni(recv, note).await {
                        quic.close(stream_code(error.code), error.reason.as_bytes());
                    }
                });
            }
        });
        Ok(Self { inner })
    }

    /// Sends a request; the stream is there at once, its head comes later. Must run on [`runtime`].
    pub fn request(&self, head: RequestHead, body: Bytes, is_recorded: bool) -> ResponseStream {
        client_stream::start(self.inner.clone(), head, body, is_recorded)
    }

    pub fn close(&self) {
        self.inner.quic.close(stream_code(code::NO_ERROR), b"");
    }

    pub fn quic(&self) -> &quinn::Connection {
        &self.inner.quic
    }
}

impl Inner {
    /// Whether a request with this stream id was refused by a GOAWAY, and may be sent again elsewhere.
    pub fn is_refused(&self, stream: u64) -> bool {
        stream >= self.goaway.load(Ordering::Relaxed)
    }

    pub fn is_going_away(&self) -> bool {
        self.goaway.load(Ordering::Relaxed) != u64::MAX
    }
}

fn endpoint(address: SocketAddr) -> std::io::Result<Endpoint> {
    let local: SocketAddr = match address {
        SocketAddr::V4(_) => (Ipv4Addr::UNSPECIFIED, 0).into(),
        SocketAddr::V6(_) => (Ipv6Addr::UNSPECIFIED, 0).into(),
    };
    Endpoint::new(EndpointConfig::default(), None, UdpSocket::bind(local)?, Arc::new(TokioRuntime))
}

fn transport(config: &ClientConfig) -> TransportConfig {
    let mut transport = TransportConfig::default();
    transport
        .max_concurrent_bidi_streams(0u32.into())
        .max_concurrent_uni_streams(8u32.into())
        .stream_receive_window(config.stream_window.into())
        .receive_window(config.connection_window.into())
        .keep_alive_interval(Some(config.idle_timeout / 3))
        .max_idle_timeout(VarInt::from_u64(config.idle_timeout.as_millis() as u64).ok().map(Into::into))
        .congestion_controller_factory(Arc::new(BbrConfig::default()))
        .datagram_receive_buffer_size(None);
    transport
}

fn connect_error(name: &str, error: &ConnectionError) -> Error {
    let kind = match error {
        // 0x100 to 0x1ff: a TLS alert (RFC 9001 §4.8), ours or the server's.
        ConnectionError::TransportError(error) if (0x100..0x200).contains(&u64::from(error.code)) => {
            Kind::Tls
        }
        ConnectionError::TimedOut => Kind::ConnectTimeout,
        _ => Kind::Connect,
    };
    Error::new(kind, format!("{name}: {error}"))
}

/// The end of a connection, as the error of a stream on it.
pub fn lost(error: &ConnectionError) -> Error {
    Error::new(Kind::ConnectionLost, error.to_string())
}

async fn read_uni(mut recv: RecvStream, goaway: impl Fn(u64)) -> Result<(), Http3Error> {
    let mut kind = [0];
    // The types that matter are one byte long; reserved ones are not read.
    if recv.read_exact(&mut kind).await.is_err() {
        return Ok(());
    }
    let mut control = Control::new(Role::Client);
    let mut frames = frame::Decoder::new(frame::On::Control, 0);
    let mut instructions = qpack::DecoderInstructions::default();
    match u64::from(kind[0]) {
        stream_type::CONTROL | stream_type::QPACK_ENCODER | stream_type::QPACK_DECODER => {}
        stream_type::PUSH => {
            return Err(Http3Error::connection(code::ID_ERROR, "a push that nobody allowed"));
        }
        _ => {
            let _ = recv.stop(stream_code(code::STREAM_CREATION_ERROR));
            return Ok(());
        }
    }
    while let Ok(Some(mut chunk)) = recv.read_chunk(4096, true).await {
        match u64::from(kind[0]) {
            stream_type::QPACK_ENCODER => qpack::handle_encoder_instructions(&chunk.bytes)?,
            stream_type::QPACK_DECODER => instructions.handle_data(&chunk.bytes)?,
            _ => loop {
                match frames.poll(&mut chunk.bytes) {
                    Ok(Some(Frame::Control { kind, payload })) => {
                        if let Message::GoAway(id) = control.handle_frame(kind, &payload)? {
                            goaway(id.min(varint::MAX));
                        }
                    }
                    Ok(Some(_)) => {}
                    Ok(None) => break,
                    Err(frame::FrameError::Http3(error)) => return Err(error),
                    Err(frame::FrameError::HeadTooLarge) => break,
                }
            },
        }
    }
    Ok(())
}
