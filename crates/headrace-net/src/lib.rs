//! The I/O half of headrace: the path of a token, by file names.
//!
//! ```text
//! listener, socket -> http3_listener -> http3_connection -> http3_request -> exchange -> relay -> upstream
//!                     tcp_connection ----------------------------^             |
//!                                       http3_stream, tcp_stream <- downstream <
//! ```
//!
//! It does what Python decided and holds no policy and no defaults ([`config`]). It must not know Python:
//! [`server::Handler`] and [`reply::Reply`] are all that the seam sees.

pub mod client;
pub mod client_connect;
pub mod client_exchange;
pub mod client_origins;
pub mod client_socket;
pub mod client_stream;
pub mod client_watch;
pub mod config;
pub mod congestion;
pub mod downstream;
mod drain;
mod driver;
pub mod echo;
pub mod echo_counts;
mod echo_socket;
pub mod exchange;
mod follow;
mod http3_connection;
mod http3_listener;
mod http3_request;
mod http3_stream;
mod inbox;
mod key_share;
pub mod link;
mod listener;
mod memory;
pub mod network;
mod pool;
mod progress;
pub mod recording;
pub mod relay;
pub mod reply;
pub mod report;
mod request_body;
pub mod server;
mod socket;
mod tcp_connection;
mod tcp_stream;
mod tcp_use;
pub mod tickets;
pub mod tls;
mod udp;
pub mod upstream;
mod upstream_http2;
mod warm;
mod watch;

// What both sides tell QUIC, for who drives it without sockets.
pub use client_connect::transport as client_transport;
pub use http3_listener::transport as server_transport;
