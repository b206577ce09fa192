//! The client's side: HTTP/3 connections to a server.
//!
//! In: a server, whom to trust, and requests. Out: answers (`client/stream.rs`). A connection is there at once, and
//! is reached in the background (`client/connect.rs`); requests that are made meanwhile wait for it. All clients of a
//! process share one runtime on one thread, which is started when the first of them connects.

mod activity;
mod clock;
pub mod connect;
pub mod connection;
mod farewell;
mod monitor;
pub mod network;
mod request;
pub mod sessions;
mod socket;
pub mod stream;

use std::sync::Arc;
use std::sync::atomic::{AtomicPtr, Ordering};

use headrace_core::http3::message::RequestHead;
use headrace_core::{Error, Kind};
use tokio::sync::watch;

use crate::reply::Reply;
use activity::Streams;
pub use clock::monotonic_ns;
pub use connect::ClientConfig;
use connection::{Handle, Inner, Progress};
pub use sessions::Target;
use stream::{Options, RequestBody, ResponseStream};

/// One connection; dropping the last clone closes it.
#[derive(Clone)]
pub struct ClientConnection(Arc<Handle>);

struct Runtime {
    process: u32,
    handle: tokio::runtime::Handle,
}

/// The runtime that all clients of this process share. Threads do not survive a fork: a child gets its own, and
/// cannot use what its parent has connected.
///
/// # Errors
/// When the thread cannot be started.
pub fn runtime() -> Result<&'static tokio::runtime::Handle, Error> {
    // There is no lock, because a fork may happen while another thread holds it. What a fork or a race leaves behind
    // leaks.
    static CURRENT: AtomicPtr<Runtime> = AtomicPtr::new(std::ptr::null_mut());
    let process = std::process::id();
    loop {
        let found = CURRENT.load(Ordering::Acquire);
        // SAFETY: it is null, or was leaked below, and is never changed.
        if let Some(runtime) = unsafe { found.as_ref() }.filter(|runtime| runtime.process == process) {
            return Ok(&runtime.handle);
        }
        let build = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = build.map_err(|error| Error::new(Kind::Internal, error.to_string()))?;
        let made = Box::into_raw(Box::new(Runtime { process, handle: runtime.handle().clone() }));
        if CURRENT.compare_exchange(found, made, Ordering::AcqRel, Ordering::Acquire).is_ok() {
            std::thread::Builder::new()
                .name("headrace-client".to_owned())
                .spawn(move || runtime.block_on(std::future::pending::<()>()))
                .map_err(|error| Error::new(Kind::Internal, error.to_string()))?;
        }
    }
}

impl ClientConnection {
    /// Begins to connect.
    ///
    /// # Errors
    /// Those of [`runtime`].
    pub fn open(config: ClientConfig, target: Target) -> Result<Self, Error> {
        let (sender, progress) = watch::channel(Progress::Connecting);
        let sender = Arc::new(sender);
        let streams = Arc::<Streams>::default();
        let counted = streams.clone();
        let task = runtime()?.spawn(async move {
            sender.send_replace(match connect::connect(&config, &target, &sender).await {
                Ok(inner) => {
                    monitor::start(&inner, counted, &config);
                    Progress::Reached(inner)
                }
                Err(error) => Progress::Failed(error),
            });
        });
        Ok(Self(Arc::new(Handle::new(progress, streams, task.abort_handle()))))
    }

    /// Answers when the connection is reached, or cannot be.
    ///
    /// # Errors
    /// Those of [`runtime`]; [`Kind::Misuse`] in a process that was forked from the one that made the connection.
    pub fn wait_reached(&self, reply: Reply<()>) -> Result<(), Error> {
        self.0.check_process()?;
        let handle = self.0.clone();
        runtime()?.spawn(async move { reply.send(handle.reached().await.map(|_| ())) });
        Ok(())
    }

    /// Sends a request; the stream is there at once, its head comes later.
    ///
    /// # Errors
    /// Those of [`runtime`]; [`Kind::Misuse`] in a process that was forked from the one that made the connection.
    pub fn request(
        &self,
        head: RequestHead,
        body: RequestBody,
        options: Options,
    ) -> Result<ResponseStream, Error> {
        self.0.check_process()?;
        Ok(request::start(runtime()?, self.0.clone(), head, body, options))
    }

    pub fn close(&self) {
        self.0.close();
    }

    /// The connection; `None` while it is being reached, and when it could not be.
    pub fn inner(&self) -> Option<Arc<Inner>> {
        self.0.inner()
    }

    /// Whether it takes new requests, now or once it is reached.
    pub fn is_usable(&self) -> bool {
        self.0.is_usable()
    }

    /// How many streams have not ended, also those that wait for credit.
    pub fn streams(&self) -> usize {
        self.0.streams()
    }

    /// How many streams have no credit (MAX_STREAMS) yet.
    pub fn waiting(&self) -> usize {
        self.0.waiting()
    }
}
