//! The HTTP/3 side of a server, in the order of a request.

pub mod connection;
pub mod listener;
mod monitor;
pub mod request;
