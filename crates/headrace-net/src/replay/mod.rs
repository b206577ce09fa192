//! Answers that are kept while they are relayed, and told again.
//!
//! A relay writes into a [`Buffer`] by its [`Writer`], as if that were a client; every client, the first too, is
//! told from it, as a [`Reader`]. The loops that do so are the relay's (`relay/record.rs`, `relay/playback.rs`); this
//! room must not know them, nor how a client is reached.

mod buffer;
mod reader;
mod writer;

pub use buffer::{Budget, Buffer};
pub use reader::Reader;
pub use writer::Writer;
