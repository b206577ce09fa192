//! One request of an HTTP/3 connection, from its first byte to its slot given back.
//!
//! In: a request stream. Out: an [`crate::exchange::Exchange`] for the handler, and the driver run to its
//! end; or an answer of our own when the head cannot be used.

use std::future::{Future, poll_fn};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::task::Poll;

use headrace_core::events::Piece;
use headrace_core::http3::code::Scope;
use headrace_core::http3::message::{self, Begun, HeadError, RequestHead};
use headrace_core::http3::{Http3Error, code, priority};
use headrace_core::{Error, Kind};
use http::Method;
use quinn::{RecvStream, SendStream};

use crate::downstream::Downstream;
use crate::downstream::http3::Sender;
use crate::exchange::Request;
use crate::exchange::driver;
use crate::exchange::request_body::{RequestBody, Source};
use crate::gone::Protocol;
use crate::http3::connection::Connection;
use crate::quic::message::{MessageReader, Part, ReadFailure};
use crate::worker::Worker;

/// Serves one request stream.
pub async fn serve(
    worker: Arc<Worker>,
    connection: Arc<Connection>,
    send: SendStream,
    recv: RecvStream,
    urgency: Arc<AtomicU8>,
) {
    let limits = &worker.config.limits;
    let mut reader = MessageReader::new(recv, limits.max_head_bytes, connection.useless.clone());
    let (quic, tally, window) =
        (connection.quic.clone(), connection.tally.clone(), connection.window.clone());
    let suspicion = connection.monitor.suspicion();
    let sender = Sender::new(quic, tally, window, suspicion, send, urgency.clone());
    let head = match wait_head(&worker, &connection, &mut reader).await {
        Ok(head) => head,
        Err(failure) => return refuse(&worker, &connection, sender, reader, failure).await,
    };
    let active = match worker.begin_exchange(&connection.share, &head.path) {
        Ok(active) => active,
        Err(error) => {
            let request = Begun { is_head_request: head.method == Method::HEAD, path: head.path };
            let refusal = Refusal::Answer { error, request };
            return refuse(&worker, &connection, sender, reader, refusal).await;
        }
    };
    if let Some(field) = head.headers.get("priority") {
        // A PRIORITY_UPDATE that came before the request wins (RFC 9218 §7).
        let value = priority::urgency(field.as_bytes());
        let default = priority::DEFAULT_URGENCY;
        let _ = urgency.compare_exchange(default, value, Ordering::Relaxed, Ordering::Relaxed);
    }
    let early_data = reader.is_early_data().then(|| connection.handshake.clone());
    if early_data.is_some() {
        worker.shared.counters.early_requests_total.fetch_add(1, Ordering::Relaxed);
    }
    let client = connection.client_address();
    let source = Source::Http3 { reader, quic: connection.quic.clone(), useless: connection.useless.clone() };
    let body = RequestBody::new(source, &head.headers, active.share.clone());
    let request = Request { head, protocol: Protocol::Http3, client, early_data };
    let (exchange, driver) = driver::pair(request, Downstream::Http3(sender), body, worker.clone(), active);
    connection.handler.handle_exchange(exchange);
    if driver.run().await.is_some() {
        connection.count_cancel();
    }
}

/// Why a head does not become an exchange.
enum Refusal {
    /// The client is told why, by an answer in the words of the API that it asked.
    Answer { error: Error, request: Begun },
    /// The client broke the protocol, on this stream (RFC 9114 §4.1.2) or on the connection.
    Breach(Http3Error),
    /// The client is gone.
    Silent,
    /// Its place was needed before its head was there: the client may send it again.
    Displaced,
}

/// Reads the head, as long as that may take. A head that does not come at once takes a place among those that wait.
async fn wait_head(
    worker: &Worker,
    connection: &Connection,
    reader: &mut MessageReader,
) -> Result<RequestHead, Refusal> {
    {
        let limits = &worker.config.limits;
        let reading = read_head(reader, limits.max_head_bytes, limits.max_fields);
        tokio::pin!(reading);
        if let Poll::Ready(head) = poll_fn(|cx| Poll::Ready(reading.as_mut().poll(cx))).await {
            return head;
        }
        let Ok(place) = worker.shared.tables.heads.take_waiting(connection.share.owner()) else {
            worker.count_refused();
            return Err(Refusal::Displaced);
        };
        tokio::select! {
            head = reading => return head,
            () = place.loss.lost() => return Err(Refusal::Displaced),
            () = tokio::time::sleep(worker.config.timeouts.request_s) => {}
        }
    }
    Err(Refusal::answer(Kind::RequestTimeout, reader.begun_request().await))
}

impl Refusal {
    fn answer(kind: Kind, request: Begun) -> Self {
        Refusal::Answer { error: kind.into(), request }
    }
}

async fn read_head(
    reader: &mut MessageReader,
    max_head_bytes: usize,
    max_fields: usize,
) -> Result<RequestHead, Refusal> {
    let section = match reader.next().await {
        Ok(Part::Fields(section)) => section,
        Ok(Part::Data { .. }) => return Err(Refusal::Silent),
        Ok(Part::End) => {
            return Err(Refusal::Breach(Http3Error::stream(
                code::REQUEST_INCOMPLETE,
                "the stream ended before its HEADERS",
            )));
        }
        Err(ReadFailure::Http3(error)) => return Err(Refusal::Breach(error)),
        Err(ReadFailure::HeadTooLarge) => {
            return Err(Refusal::answer(Kind::HeadTooLarge, reader.begun_request().await));
        }
        Err(ReadFailure::Reset(_) | ReadFailure::Lost(_) | ReadFailure::Rejected) => {
            return Err(Refusal::Silent);
        }
    };
    let begun = || message::decode_begun(&section, max_head_bytes);
    let head = message::decode_request(&section, max_head_bytes).map_err(|error| match error {
        HeadError::Http3(error) => Refusal::Breach(error),
        HeadError::TooLarge => Refusal::answer(Kind::HeadTooLarge, begun()),
        HeadError::MethodRefused => Refusal::answer(Kind::MethodRefused, begun()),
    })?;
    if head.headers.len() > max_fields {
        return Err(Refusal::answer(Kind::HeadTooLarge, begun()));
    }
    Ok(head)
}

async fn refuse(
    worker: &Worker,
    connection: &Connection,
    mut sender: Sender,
    mut reader: MessageReader,
    refusal: Refusal,
) {
    match refusal {
        Refusal::Silent => connection.count_cancel(),
        Refusal::Displaced => {
            sender.reset(code::REQUEST_REJECTED);
            reader.stop(code::REQUEST_REJECTED);
            connection.count_cancel();
        }
        Refusal::Breach(error) => {
            connection.breach(error);
            if error.scope == Scope::Stream {
                sender.reset(error.code);
                reader.stop(error.code);
                connection.count_cancel();
            }
        }
        Refusal::Answer { error, request } => {
            let (status, headers, body) = worker.error_answer(&error, &request.path);
            sender.queue_head(status, &headers);
            if !request.is_head_request {
                sender.queue_data(&Piece::whole(&body, false));
            }
            // It is read at once, or not at all: what it holds has no place of its own.
            if let Poll::Ready(Ok(())) = poll_fn(|cx| Poll::Ready(sender.poll_flush(cx))).await {
                sender.finish();
            } else {
                sender.reset(error.kind.h3_code());
            }
            connection.count_cancel();
        }
    }
}
