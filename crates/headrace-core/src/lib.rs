//! The pure half of headrace.
//!
//! In: bytes and moments. Out: frames, events, decisions. It must not know tokio, sockets or the clock: time
//! is always an argument, so every test here runs in no time and every rule can be read as a table.
//!
//! * [`http3`]: RFC 9114 frames, RFC 9204 field sections, RFC 9218 priorities
//! * [`http1`]: the response side of RFC 9112, for model servers
//! * [`http2`]: what a client's frames are for, by their headers
//! * [`events`]: where one event of an answer ends ([`events::formats`]), and what it says ([`events::dialects`])
//! * [`relay`]: the state table of one relayed answer, and how it ends
//! * [`complete`]: whether a body is whole, whatever its framing
//! * [`fields`]: what may cross from one connection to the next
//! * [`json_fields`]: single fields of a request's body
//! * [`stats`], [`budget`], [`memory`]: counting gaps, misbehaviour, and the bytes of requests' bodies
//! * [`replay`]: the record of one answer
//! * [`shares`]: who holds how much of something scarce, and who loses at the limit
//! * [`recovery`]: what a transport does about loss, delay and change on a path
//! * [`error`]: the one table of error kinds

pub mod budget;
pub mod complete;
pub mod error;
pub mod events;
pub mod fields;
pub mod http1;
pub mod http2;
pub mod http3;
pub mod json_fields;
pub mod recovery;
pub mod relay;
pub mod replay;
pub mod shares;
pub mod stats;

pub use error::{Error, Kind, Side};
