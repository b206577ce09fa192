//! HTTP/3 (RFC 9114), QPACK with the static table alone (RFC 9204), priorities (RFC 9218).
//!
//! In: bytes of QUIC streams, cut anywhere. Out: frames, fields, or an error that says whether it ends the
//! stream or the connection. Every limit is checked on a length before the bytes behind it are kept. There is
//! no dynamic QPACK table: capacity 0 and 0 blocked streams, so that class of attack does not exist here; the
//! price is a few hundred bytes a request.

pub mod code;
pub mod control;
pub mod frame;
mod huffman;
pub mod message;
pub mod priority;
pub mod qpack;
pub mod settings;
mod static_table;
pub mod varint;

pub use code::Http3Error;
