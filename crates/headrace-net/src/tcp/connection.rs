//! The TCP listener of one worker: TLS, then HTTP/2 or HTTP/1.1 by hyper.
//!
//! In: a TCP socket. Out: the same exchanges as HTTP/3 has, for clients and networks without UDP. Every
//! answer names the HTTP/3 service on the same port (`Alt-Svc`, RFC 7838).

use std::convert::Infallible;
use std::future::poll_fn;
use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Poll;
use std::time::Duration;

use headrace_core::events::Piece;
use headrace_core::fields::{self, Coding};
use headrace_core::http3::message::RequestHead;
use headrace_core::{Error, Kind, Side};
use http::{HeaderValue, Response, header};
use hyper::body::Incoming;
use hyper::server::conn::{http1, http2};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

use crate::config::Limits;
use crate::downstream::Downstream;
use crate::downstream::tcp::{self, Body, Connection};
use crate::exchange::driver;
use crate::exchange::request_body::{RequestBody, Source};
use crate::exchange::{Handler, Request};
use crate::gone::Protocol;
use crate::shares::{ConnectionShare, Place, silence};
use crate::tcp::idle::{CountedBody, InFlight};
use crate::tcp::observed::{FrameBudgets, Heard, ObservedStream};
use crate::tls::ServerTls;
use crate::worker::{Phase, Worker};

/// The pause after accept() failed for want of descriptors: some must be given back first.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// How long a closed server lets hyper write its last frames.
const CLOSE_TIME: Duration = Duration::from_millis(500);
/// A draining server ends a connection once it was quiet for so long. HTTP/1.1 cannot refuse a request that is
/// under way when its connection closes: a busy one ends with its next answer (`connection: close`) instead. And
/// clients of HTTP/2 that are built on Python's h2, httpx among them, lose their running answers to a GOAWAY.
const QUIET: Duration = Duration::from_millis(250);
/// The most bytes that hyper may hold of one answer beyond what the kernel took.
const SEND_BUFFER: usize = 16 * 1024;
/// What hyper reads of a head at least. It answers a larger one itself, without a word of why; what is between
/// `limits.max_head_bytes` and this is told by us.
const MIN_HEAD_BUFFER: usize = 64 * 1024;

/// Accepts connections until the server closes.
pub async fn serve(
    worker: Arc<Worker>,
    handler: Handler,
    socket: TcpListener,
    tls: watch::Receiver<ServerTls>,
) {
    let Ok(listener) = tokio::net::TcpListener::from_std(socket) else { return };
    let mut phase = worker.shared.phase.clone();
    loop {
        tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok((stream, client)) => admit(&worker, &handler, &tls, stream, client),
                Err(_) => {
                    make_room(&worker);
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            },
            _ = phase.wait_for(|phase| *phase != Phase::Running) => break,
        }
    }
    // Connections that are in the queue already would be reset with the listener.
    while let Ok((stream, client)) = poll_fn(|cx| match listener.poll_accept(cx) {
        Poll::Ready(accepted) => Poll::Ready(accepted),
        Poll::Pending => Poll::Ready(Err(io::ErrorKind::WouldBlock.into())),
    })
    .await
    {
        admit(&worker, &handler, &tls, stream, client);
    }
    drop(listener);
    let _ = phase.wait_for(|phase| *phase == Phase::Closed).await;
    tokio::time::sleep(CLOSE_TIME.min(Duration::from_millis(50))).await;
}

/// Without descriptors nobody new gets in, whatever the limits say: the largest owner loses what waits longest.
fn make_room(worker: &Worker) {
    let tables = &worker.shared.tables;
    let nobody = tables.block(Ipv4Addr::UNSPECIFIED.into());
    let _ = tables.tcp_handshakes.lose_one(&nobody) || tables.connections.lose_one(&nobody);
}

fn admit(
    worker: &Arc<Worker>,
    handler: &Handler,
    tls: &watch::Receiver<ServerTls>,
    stream: TcpStream,
    client: SocketAddr,
) {
    let tables = &worker.shared.tables;
    let owner = tables.block(client.ip());
    let Ok(place) = tables.tcp_handshakes.take_waiting(owner.clone()) else { return worker.count_refused() };
    let (worker, handler, share) =
        (worker.clone(), handler.clone(), ConnectionShare::new(tables.clone(), owner));
    let acceptor = TlsAcceptor::from(tls.borrow().tcp.clone());
    tokio::spawn(async move {
        let _ = stream.set_nodelay(true);
        let Some(stream) = shake_hands(&worker, acceptor, stream, place).await else { return };
        if share.place().is_err() {
            return worker.count_refused();
        }
        worker.shared.counters.connections_total.fetch_add(1, Ordering::Relaxed);
        let _counted = worker.slot(|counters| &counters.connections);
        serve_connection(worker, handler, stream, client, share).await;
    });
}

/// `None` when the client does not go through with it, falls silent, takes too long, or others need its place.
async fn shake_hands(
    worker: &Worker,
    acceptor: TlsAcceptor,
    stream: TcpStream,
    place: Place,
) -> Option<TlsStream<Heard>> {
    let _counted = worker.slot(|counters| &counters.handshakes);
    let timeouts = &worker.config.timeouts;
    let stream = Heard::new(stream);
    let reads = stream.reads.clone();
    tokio::select! {
        accepted = acceptor.accept(stream) => accepted.ok(),
        () = silence(|| reads.load(Ordering::Relaxed), timeouts.silent_handshake_s) => None,
        () = tokio::time::sleep(timeouts.handshake_s) => None,
        () = place.loss.lost() => None,
    }
}

async fn serve_connection(
    worker: Arc<Worker>,
    handler: Handler,
    stream: TlsStream<Heard>,
    client: SocketAddr,
    share: Arc<ConnectionShare>,
) {
    let is_http2 = stream.get_ref().1.alpn_protocol() == Some(b"h2");
    let connection = Connection { is_open: Arc::new(AtomicBool::new(true)), is_http2 };
    let in_flight = Arc::new(InFlight::default());
    let limits = worker.config.limits.clone();
    let head_buffer = limits.max_head_bytes.saturating_mul(2).max(MIN_HEAD_BUFFER);
    let is_overdrawn = Arc::<AtomicBool>::default();
    let io = TokioIo::new(ObservedStream {
        stream,
        is_open: connection.is_open.clone(),
        budgets: is_http2.then(|| FrameBudgets::new(&limits)),
        is_overdrawn: is_overdrawn.clone(),
    });
    let service = service_fn({
        let (worker, in_flight, share) = (worker.clone(), in_flight.clone(), share.clone());
        move |request| {
            let (worker, handler, share) = (worker.clone(), handler.clone(), share.clone());
            let (connection, counted) = (connection.clone(), in_flight.begin());
            async move {
                let response = handle_request(worker, handler, request, connection, client, &share).await?;
                Ok::<_, Infallible>(response.map(|body| CountedBody { body, _in_flight: counted }))
            }
        }
    });
    if is_http2 {
        let connection = http2::Builder::new(TokioExecutor::new())
            .timer(TokioTimer::new())
            .max_concurrent_streams(limits.max_streams_per_connection)
            .max_header_list_size(u32::try_from(head_buffer).unwrap_or(u32::MAX))
            .initial_stream_window_size(limits.stream_receive_window_bytes)
            .initial_connection_window_size(limits.connection_receive_window_bytes)
            .max_send_buf_size(SEND_BUFFER)
            .keep_alive_interval(worker.config.timeouts.idle_s / 3)
            .keep_alive_timeout(worker.config.timeouts.idle_s)
            .serve_connection(io, service);
        // GOAWAY in two steps (RFC 9113 §6.8): hyper does both.
        run(&worker, &share, in_flight, connection, |connection| connection.graceful_shutdown()).await;
    } else {
        let connection = http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(worker.config.timeouts.request_s)
            .max_buf_size(head_buffer)
            // As many as fit into a head: hyper's own 100 would be a limit that no setting names.
            .max_headers(limits.max_head_bytes.saturating_mul(2) / fields::OVERHEAD)
            .serve_connection(io, service);
        run(&worker, &share, in_flight, connection, |connection| connection.graceful_shutdown()).await;
    }
    if is_overdrawn.load(Ordering::Relaxed) {
        worker.shared.counters.breaches_total.fetch_add(1, Ordering::Relaxed);
    }
}

/// Drives a connection; tells it to end when nobody uses it, or when the server drains; drops it when its place is
/// needed.
async fn run<C: Future>(
    worker: &Worker,
    share: &ConnectionShare,
    in_flight: Arc<InFlight>,
    connection: C,
    end: impl Fn(Pin<&mut C>),
) {
    tokio::pin!(connection);
    let reason = reason_to_end(worker.shared.phase.clone(), in_flight, worker.config.timeouts.unused_s);
    let mut closed_phase = worker.shared.phase.clone();
    let closed = async {
        let _ = closed_phase.wait_for(|phase| *phase == Phase::Closed).await;
        tokio::time::sleep(Duration::from_millis(20)).await;
    };
    tokio::pin!(closed);
    tokio::select! {
        _ = &mut connection => return,
        () = &mut closed => return,
        () = share.loss.lost() => return,
        () = reason => end(connection.as_mut()),
    }
    tokio::select! {
        _ = &mut connection => {}
        () = &mut closed => {}
        () = share.loss.lost() => {}
    }
}

/// Resolves when nobody has used the connection for `unused`, or when the server drains and nobody uses it now.
async fn reason_to_end(mut phase: watch::Receiver<Phase>, in_flight: Arc<InFlight>, unused: Duration) {
    let drained = async {
        let _ = phase.wait_for(|phase| *phase >= Phase::Draining).await;
        tokio::select! {
            () = in_flight.unused(QUIET) => {}
            // When the grace time is over, last error events and resets say all there is to say.
            _ = phase.wait_for(|phase| *phase == Phase::Forcing) => {}
        }
    };
    tokio::select! {
        () = drained => {}
        () = in_flight.unused(unused) => {}
    }
}

async fn handle_request(
    worker: Arc<Worker>,
    handler: Handler,
    request: http::Request<Incoming>,
    connection: Connection,
    client: SocketAddr,
    share: &Arc<ConnectionShare>,
) -> Result<Response<Body>, Infallible> {
    let protocol = if connection.is_http2 { Protocol::Http2 } else { Protocol::Http1 };
    let (mut sender, head_receiver) = tcp::channel(connection);
    sender.set_alt_svc(worker.alt_svc.clone());
    let mut is_refused = false;
    let begun = read_head(&request, &worker.config.limits).and_then(|head| {
        let active = worker.begin_exchange(share, &head.path)?;
        Ok((head, active))
    });
    match begun {
        Ok((head, active)) => {
            let is_http2 = protocol == Protocol::Http2;
            let source = Source::Hyper { body: request.into_body(), is_http2 };
            let body = RequestBody::new(source, &head.headers, active.share.clone());
            let request = Request { head, protocol, client, early_data: None };
            let (exchange, driver) =
                driver::pair(request, Downstream::Tcp(sender), body, worker.clone(), active);
            handler.handle_exchange(exchange);
            tokio::spawn(driver.run());
        }
        Err(error) => {
            // Where such a request ends, it may not say for certain.
            is_refused = error.kind.side() == Side::Client;
            let (status, headers, body) = worker.error_answer(&error, request.uri().path());
            sender.queue_head(status, &headers);
            sender.queue_data(&Piece::whole(&body, false));
            sender.finish();
        }
    }
    let mut response = head_receiver.await.unwrap_or_else(|_| tcp::broken_off());
    if protocol == Protocol::Http1 && (is_refused || worker.is_draining()) {
        response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
    }
    Ok(response)
}

/// A request's head, checked as strictly as HTTP/3's (`headrace_core::http3::message`).
fn read_head(request: &http::Request<Incoming>, limits: &Limits) -> Result<RequestHead, Error> {
    let bad = |reason: &'static str| Error::new(Kind::BadRequest, reason);
    if fields::is_refused_method(request.method()) {
        return Err(Kind::MethodRefused.into());
    }
    let path = request.uri().path_and_query().map_or("/", |path| path.as_str()).to_owned();
    let size = fields::size(request.headers()) + path.len();
    if size > limits.max_head_bytes || request.headers().len() > limits.max_fields {
        return Err(Kind::HeadTooLarge.into());
    }
    match fields::transfer_coding(request.headers()) {
        Coding::Plain => {}
        Coding::Ambiguous => return Err(bad("transfer-encoding must be chunked, once (RFC 9112 §6.3)")),
        Coding::Unknown => return Err(Kind::CodingRefused.into()),
    }
    let mut headers = request.headers().clone();
    let mut hosts = headers.get_all(header::HOST).iter();
    let host = hosts.next().map(|host| host.to_str().unwrap_or("").to_owned());
    if hosts.next().is_some() {
        return Err(bad("Host is given twice; HTTP/1.1 allows it once"));
    }
    let authority = match (request.uri().authority(), host) {
        (Some(authority), Some(host)) if !authority.as_str().eq_ignore_ascii_case(&host) => {
            return Err(bad(":authority and host differ; they must be the same"));
        }
        (Some(authority), _) => authority.as_str().to_owned(),
        (None, Some(host)) if !host.is_empty() => host,
        (None, _) => return Err(bad("Host is missing; HTTP/1.1 requires it")),
    };
    fields::strip_hop_by_hop(&mut headers);
    headers.remove(header::HOST);
    Ok(RequestHead { method: request.method().clone(), scheme: "https".to_owned(), authority, path, headers })
}
