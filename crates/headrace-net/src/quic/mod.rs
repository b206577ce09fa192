//! What both ends of a QUIC connection need beside quinn: sockets, congestion controllers, the echo, and the
//! reading of HTTP/3 messages.

pub mod congestion;
pub mod echo;
pub mod guard;
pub mod message;
pub mod session;
pub mod stats;
pub mod steering;
pub mod udp;
pub mod useless;
pub mod worker_socket;

use std::time::Duration;

use quinn::{ConnectionError, VarInt};

use crate::gone::Gone;

pub fn stream_code(code: u64) -> VarInt {
    VarInt::from_u64(code).unwrap_or(VarInt::MAX)
}

/// Says something that the other side must acknowledge: the credit of the connection, which is as before (MAX_DATA).
/// quinn has PINGs of its own, at an interval that is chosen before the other side has said what it needs.
pub fn ping(connection: &quinn::Connection, receive_window: u32) {
    connection.set_receive_window((receive_window + 1).into());
    connection.set_receive_window(receive_window.into());
}

/// How long the other side needs to read what was sent, with one retransmission.
pub fn reading_time(connection: &quinn::Connection) -> Duration {
    (connection.rtt() * 3 + Duration::from_millis(25)).min(Duration::from_secs(1))
}

/// Whether a connection was ended on purpose.
pub fn gone(error: &ConnectionError) -> Gone {
    match error {
        // The other application closed on purpose; nobody comes back for this answer.
        ConnectionError::ApplicationClosed(_) => Gone::Stopped,
        _ => Gone::Lost,
    }
}
