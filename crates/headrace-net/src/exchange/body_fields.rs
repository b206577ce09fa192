//! Single fields of a request's body, for a handler that need not see the rest.
//!
//! In: the body, once it has come whole, and names. Out: what those fields hold. The body itself goes nowhere.

use bytes::Bytes;
use headrace_core::Error;
use headrace_core::json_fields::{self, Fields};

use crate::exchange::{Command, Exchange};
use crate::reply::Reply;

/// What is read on the worker's own thread: some 0.1 ms, in which none of its other tokens moves. A longer body is
/// read on another thread.
const READ_HERE_BYTES: usize = 128 * 1024;

impl Exchange {
    /// Answers with the fields of [`json_fields::read`], or with why there is no whole body.
    ///
    /// # Errors
    /// Those of [`Exchange::command`].
    pub fn body_fields(&self, names: Vec<String>, reply: Reply<Option<Fields>>) -> Result<(), Error> {
        let runtime = self.runtime.clone();
        self.command(Command::Body(Reply::new(move |body: Result<Bytes, Error>| match body {
            Ok(body) if body.len() > READ_HERE_BYTES => {
                runtime.spawn_blocking(move || reply.send(Ok(json_fields::read(&body, &names))));
            }
            body => reply.send(body.map(|body| json_fields::read(&body, &names))),
        })))
    }
}
