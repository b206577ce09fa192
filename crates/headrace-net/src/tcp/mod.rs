//! HTTP/2 and HTTP/1.1 over TLS, for clients and networks without UDP.

pub mod connection;
pub mod idle;
mod observed;
