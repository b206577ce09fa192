//! The answer to one request across the seam.
//!
//! In: a function that takes the result. Out: exactly one call of it. A reply that is dropped unanswered
//! answers `closed`, so nobody is left waiting for a peer that vanished.

use headrace_core::{Error, Kind};

type Answer<T> = Box<dyn FnOnce(Result<T, Error>) + Send>;

/// Takes one result; a reply that is dropped without one says that the exchange is closed.
pub struct Reply<T>(Option<Answer<T>>);

impl<T> Reply<T> {
    pub fn new(answer: impl FnOnce(Result<T, Error>) + Send + 'static) -> Self {
        Self(Some(Box::new(answer)))
    }

    pub fn send(mut self, result: Result<T, Error>) {
        if let Some(answer) = self.0.take() {
            answer(result);
        }
    }
}

impl<T: Send + 'static> Reply<T> {
    /// A reply, and a future that resolves with what is sent by it.
    pub fn channel() -> (Self, impl Future<Output = Result<T, Error>>) {
        let (sender, receiver) = tokio::sync::oneshot::channel();
        let reply = Self::new(move |result| {
            let _ = sender.send(result);
        });
        (reply, async { receiver.await.unwrap_or_else(|_| Err(Kind::Closed.into())) })
    }
}

impl<T> Drop for Reply<T> {
    fn drop(&mut self) {
        if let Some(answer) = self.0.take() {
            answer(Err(Kind::Closed.into()));
        }
    }
}
