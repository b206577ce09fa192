//! What both ends of a QUIC connection need beside quinn: sockets, congestion controllers, the echo.

pub mod congestion;
pub mod echo;
pub mod udp;
pub mod worker_socket;
