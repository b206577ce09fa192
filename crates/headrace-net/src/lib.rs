//! The I/O half of headrace: the path of a token, by file names.
//!
//! ```text
//! server -> http3/{listener, connection, request} -> exchange -> relay -> upstream
//!           tcp/connection -----------------------------^          |
//!                                                     downstream <-+  (http3, tcp)
//! ```
//!
//! It does what Python decided and holds no policy and no defaults ([`config`]). It must not know Python:
//! [`exchange::Handler`] and [`reply::Reply`] are all that the seam sees.

pub mod client;
pub mod config;
pub mod downstream;
pub mod exchange;
pub mod gone;
mod http3;
pub mod quic;
pub mod relay;
pub mod replay;
pub mod reply;
pub mod server;
mod shares;
mod tcp;
pub mod tls;
pub mod upstream;
pub mod worker;

// What both sides tell QUIC, for a driver that has no sockets (`headrace-sim`).
pub use client::connect::transport as client_transport;
pub use http3::listener::transport as server_transport;
