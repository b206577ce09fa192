//! Whether a TCP connection is in use, and since when it has not been.
//!
//! In: requests that begin, and the bodies of their answers. Out: a future that resolves when nobody has used
//! the connection for a while. An answer counts until hyper has let go of its body.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};

/// The answers of one connection that are on their way.
pub struct InFlight {
    open: AtomicU64,
    /// When the last answer ended, in milliseconds after `start`.
    last: AtomicU64,
    start: Instant,
}

impl Default for InFlight {
    fn default() -> Self {
        Self { open: AtomicU64::new(0), last: AtomicU64::new(0), start: Instant::now() }
    }
}

/// A request that is being answered.
pub struct InFlightGuard(Arc<InFlight>);

impl InFlight {
    pub fn begin(self: &Arc<Self>) -> InFlightGuard {
        self.open.fetch_add(1, Ordering::Relaxed);
        InFlightGuard(self.clone())
    }

    /// Resolves when no answer has been open for `limit`.
    pub async fn unused(&self, limit: Duration) {
        loop {
            let last = Duration::from_millis(self.last.load(Ordering::Relaxed));
            let is_open = self.open.load(Ordering::Relaxed) > 0;
            let idle = if is_open { Duration::ZERO } else { self.start.elapsed().saturating_sub(last) };
            if idle >= limit {
                return;
            }
            tokio::time::sleep(limit - idle).await;
        }
    }
}

impl Drop for InFlightGuard {
    fn drop(&mut self) {
        self.0.last.store(self.0.start.elapsed().as_millis() as u64, Ordering::Relaxed);
        self.0.open.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A body whose connection is in use as long as it is there.
pub struct CountedBody<B> {
    pub body: B,
    pub _in_flight: InFlightGuard,
}

impl<B: Body<Data = Bytes> + Unpin> Body for CountedBody<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
