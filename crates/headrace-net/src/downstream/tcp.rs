//! One answer over HTTP/1.1 or HTTP/2, between our relay and hyper.
//!
//! In: pieces queued by the relay. Out: frames that hyper pulls when its connection has room. What hyper has
//! not pulled is what counts against the stream's budget. hyper drops the body when the stream is over,
//! however it ended; that drop is how the relay learns that the client is gone.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use bytes::Bytes;
use headrace_core::events::Piece;
use http::{HeaderMap, HeaderValue, Response, StatusCode, header};
use http_body::Frame;
use tokio::sync::oneshot;

use crate::gone::Gone;

/// The time between a last error event and the connection's end: hyper needs a turn to write the event.
const WRITING_TIME: Duration = Duration::from_millis(50);

/// What a frame costs that waits, beside its bytes.
const FRAME_COST: usize = 128;

/// The end of a body that broke off: hyper resets the HTTP/2 stream, or closes the HTTP/1.1 connection without the
/// last chunk.
#[derive(Debug)]
pub struct BrokenOff;

impl std::fmt::Display for BrokenOff {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("the answer broke off")
    }
}

impl std::error::Error for BrokenOff {}

#[derive(Default)]
struct Queue {
    frames: VecDeque<Frame<Bytes>>,
    bytes: usize,
    taken: u64,
    is_ended: bool,
    is_broken: bool,
    /// hyper has let go of the body.
    is_dropped: bool,
    body_waker: Option<Waker>,
    flush_waker: Option<Waker>,
    gone_waker: Option<Waker>,
}

#[derive(Clone, Default)]
struct Shared(Arc<Mutex<Queue>>);

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The connection's part in a stream's end.
#[derive(Clone, Debug)]
pub struct Connection {
    /// The client's side of the connection has not ended (`tcp/connection.rs` observes it).
    pub is_open: Arc<AtomicBool>,
    /// HTTP/2 can end one stream; HTTP/1.1 can only close the connection.
    pub is_http2: bool,
}

/// Writes one answer.
pub struct Sender {
    head: Option<oneshot::Sender<Response<Body>>>,
    shared: Shared,
    connection: Connection,
    alt_svc: Option<HeaderValue>,
    is_finished: bool,
}

/// The body that hyper pulls.
pub struct Body(Shared);

/// A sender, and the receiver of the head that it sends.
pub fn channel(connection: Connection) -> (Sender, oneshot::Receiver<Response<Body>>) {
    let (head, receiver) = oneshot::channel();
    (
        Sender { head: Some(head), shared: Shared::default(), connection, alt_svc: None, is_finished: false },
        receiver,
    )
}

/// The answer of an exchange that was reset before its head: an error, which ends the HTTP/2 stream or the
/// HTTP/1.1 connection.
pub fn broken_off() -> Response<Body> {
    let shared = Shared::default();
    shared.lock().is_broken = true;
    let mut response = Response::new(Body(shared));
    *response.status_mut() = StatusCode::BAD_GATEWAY;
    response
}

impl Sender {
    /// The alternative service that the answer's head names.
    pub fn set_alt_svc(&mut self, value: HeaderValue) {
        self.alt_svc = Some(value);
    }

    pub fn queue_head(&mut self, status: StatusCode, headers: &HeaderMap) {
        let mut response = Response::new(Body(self.shared.clone()));
        *response.status_mut() = status;
        *response.headers_mut() = headers.clone();
        if let Some(alt_svc) = self.alt_svc.take() {
            response.headers_mut().insert(header::ALT_SVC, alt_svc);
        }
        if let Some(head) = self.head.take() {
            // When the client is gone, nobody waits for the head any more; the drop of the body says so.
            let _ = head.send(response);
        }
    }

    pub fn queue_data(&mut self, piece: &Piece<'_>) {
        let bytes = match piece.held.is_empty() {
            true => Bytes::copy_from_slice(piece.fresh),
            false => Bytes::from([piece.held, piece.fresh].concat()),
        };
        self.push(bytes.len(), Frame::data(bytes));
    }

    pub fn queue_trailers(&mut self, headers: &HeaderMap) {
        self.push(0, Frame::trailers(headers.clone()));
    }

    pub fn queued(&self) -> usize {
        self.shared.lock().bytes
    }

    /// How many bytes hyper has pulled so far.
    pub fn taken(&self) -> u64 {
        self.shared.lock().taken
    }

    pub fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Gone>> {
        let mut queue = self.shared.lock();
        if queue.frames.is_empty() {
            return Poll::Ready(Ok(()));
        }
        if queue.is_dropped {
            drop(queue);
            return Poll::Ready(Err(self.gone()));
        }
        queue.flush_waker = Some(cx.waker().clone());
        Poll::Pending
    }

    pub fn poll_gone(&mut self, cx: &mut Context<'_>) -> Poll<Gone> {
        if self.is_finished {
            return Poll::Pending;
        }
        if let Some(head) = &mut self.head {
            return head.poll_closed(cx).map(|()| self.gone());
        }
        let mut queue = self.shared.lock();
        if queue.is_dropped {
            drop(queue);
            return Poll::Ready(self.gone());
        }
        queue.gone_waker = Some(cx.waker().clone());
        Poll::Pending
    }

    pub fn finish(&mut self) {
        self.end(|queue| queue.is_ended = true);
    }

    pub fn reset(&mut self, _code: u64) {
        self.end(|queue| queue.is_broken = true);
    }

    pub async fn delivered(&mut self) {
        let _ = poll_fn(|cx| self.poll_flush(cx)).await;
    }

    pub fn reading_time(&self) -> Duration {
        WRITING_TIME
    }

    /// HTTP/2 says *stop* with RST_STREAM while the connection lives on; HTTP/1.1 cannot say it.
    fn gone(&self) -> Gone {
        match self.connection.is_http2 && self.connection.is_open.load(Ordering::Relaxed) {
            true => Gone::Stopped,
            false => Gone::Lost,
        }
    }

    fn push(&mut self, size: usize, frame: Frame<Bytes>) {
        let mut queue = self.shared.lock();
        queue.bytes += size + FRAME_COST;
        queue.frames.push_back(frame);
        wake(&mut queue.body_waker);
    }

    fn end(&mut self, how: impl FnOnce(&mut Queue)) {
        if !self.is_finished {
            self.is_finished = true;
            // Without a head, hyper must not wait for one.
            self.head = None;
            let mut queue = self.shared.lock();
            how(&mut queue);
            wake(&mut queue.body_waker);
        }
    }
}

impl Drop for Sender {
    fn drop(&mut self) {
        self.reset(0);
    }
}

impl http_body::Body for Body {
    type Data = Bytes;
    type Error = BrokenOff;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BrokenOff>>> {
        let mut queue = self.0.lock();
        if let Some(frame) = queue.frames.pop_front() {
            let size = frame.data_ref().map_or(0, Bytes::len);
            queue.bytes -= size + FRAME_COST;
            queue.taken += size as u64;
            wake(&mut queue.flush_waker);
            return Poll::Ready(Some(Ok(frame)));
        }
        if queue.is_broken {
            return Poll::Ready(Some(Err(BrokenOff)));
        }
        if queue.is_ended {
            return Poll::Ready(None);
        }
        queue.body_waker = Some(cx.waker().clone());
        Poll::Pending
    }

    fn is_end_stream(&self) -> bool {
        let queue = self.0.lock();
        queue.is_ended && queue.frames.is_empty()
    }
}

impl Drop for Body {
    fn drop(&mut self) {
        let mut queue = self.0.lock();
        queue.is_dropped = true;
        wake(&mut queue.flush_waker);
        wake(&mut queue.gone_waker);
    }
}

fn wake(waker: &mut Option<Waker>) {
    if let Some(waker) = waker.take() {
        waker.wake();
    }
}
