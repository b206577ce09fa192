//! What Python decided, as the engine reads it.
//!
//! In: one JSON text, written by `python/headrace/config/engine.py`; every default stands in `sections.py` beside it,
//! with its unit and its reason. Nothing here has a default: a field that Python forgot is an error.

use std::time::Duration;

use headrace_core::recovery::echo::{Mode, Settings};
use serde::{Deserialize, Deserializer};

/// Everything a server needs to start.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ServerConfig {
    /// An address or a name; a name is resolved once, when the server starts.
    pub host: String,
    /// UDP and TCP port; 0 lets the system choose one for both.
    pub port: u16,
    pub workers: usize,
    pub certificate_pem: String,
    pub key_pem: String,
    pub alt_svc_max_age_s: u64,
    /// Paths that probes of the gateway's health ask for.
    pub probe_paths: Vec<String>,
    pub congestion: Congestion,
    pub echo: Echo,
    pub steering: Steering,
    pub limits: Limits,
    pub timeouts: Timeouts,
    pub upstream: UpstreamConfig,
}

#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub enum Congestion {
    Bbr,
    Cubic,
    NewReno,
    Steady,
}

/// Sending small datagrams again (`headrace_core::recovery::echo`).
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Echo {
    pub mode: EchoMode,
    #[serde(deserialize_with = "seconds")]
    pub near_s: Duration,
    #[serde(deserialize_with = "seconds")]
    pub far_s: Duration,
    pub max_extra_bytes_per_s: u64,
    #[serde(deserialize_with = "seconds")]
    pub first_s: Duration,
    #[serde(deserialize_with = "seconds")]
    pub hold_s: Duration,
}

#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub enum EchoMode {
    Auto,
    Off,
    On,
}

impl Echo {
    /// What the echo is told; `None`: there is no echo.
    pub fn settings(&self) -> Option<Settings> {
        let mode = match self.mode {
            EchoMode::Auto => Mode::Auto,
            EchoMode::On => Mode::On,
            EchoMode::Off => return None,
        };
        let &Self { near_s: near, far_s: far, max_extra_bytes_per_s, first_s: first, hold_s: hold, .. } =
            self;
        Some(Settings { mode, near, far, max_extra_bytes_per_s, first, hold })
    }
}

/// How a datagram reaches the worker that owns its connection.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub enum Steering {
    /// The kernel chooses the socket by the connection ID; where it cannot, workers forward datagrams.
    Bpf,
    /// The worker that receives a datagram passes it on.
    Forward,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Limits {
    pub max_head_bytes: usize,
    /// Fields of one head or of trailers, a request's or an answer's.
    pub max_fields: usize,
    pub max_body_bytes: usize,
    pub max_buffered_bytes: usize,
    pub max_event_bytes: usize,
    /// An owner that is not known is a block of so many leading bits of an address.
    pub ipv4_block_bits: u8,
    pub ipv6_block_bits: u8,
    /// Of connections, exchanges and buffered bytes, what only known owners can have.
    pub reserve_percent: u8,
    pub max_connections: usize,
    /// Of TCP, and again of QUIC.
    pub max_handshakes: usize,
    pub retry_above_handshakes: usize,
    /// Session tickets that are kept; 0: there is no early data.
    pub max_tickets: usize,
    pub handshake_buffer_bytes: u64,
    pub max_streams_per_connection: u32,
    pub max_exchanges: usize,
    pub max_waiting_heads: usize,
    pub cancel_burst: u32,
    pub cancels_per_second: u32,
    /// Frames that move nothing on, of one connection.
    pub useless_burst: u32,
    pub useless_per_second: u32,
    /// Changes of one connection to an address that it has not shown.
    pub path_changes_burst: u32,
    pub path_changes_per_second: u32,
    pub stream_budget_bytes: usize,
    pub stream_receive_window_bytes: u32,
    pub connection_receive_window_bytes: u32,
    pub connection_send_window_bytes: u64,
    pub max_connection_send_window_bytes: u64,
    /// What all send windows may have grown by.
    pub max_unread_bytes: usize,
}

/// How long the server waits; durations come as seconds.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Timeouts {
    #[serde(deserialize_with = "seconds")]
    pub handshake_s: Duration,
    #[serde(deserialize_with = "seconds")]
    pub silent_handshake_s: Duration,
    #[serde(deserialize_with = "seconds")]
    pub request_s: Duration,
    #[serde(deserialize_with = "seconds")]
    pub short_answer_s: Duration,
    #[serde(deserialize_with = "seconds")]
    pub idle_s: Duration,
    #[serde(deserialize_with = "seconds")]
    pub suspect_s: Duration,
    #[serde(deserialize_with = "seconds")]
    pub unused_s: Duration,
    #[serde(deserialize_with = "seconds")]
    pub stalled_reader_s: Duration,
    #[serde(deserialize_with = "seconds")]
    pub ticket_s: Duration,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct UpstreamConfig {
    /// Certificates to trust beside the system's, as PEM; may be empty.
    pub ca_pem: String,
    pub max_head_bytes: usize,
    pub max_fields: usize,
    pub pool_idle_per_upstream: usize,
    #[serde(deserialize_with = "seconds")]
    pub pool_idle_s: Duration,
    #[serde(deserialize_with = "seconds")]
    pub pool_warm_s: Duration,
}

fn seconds<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
    let value = f64::deserialize(deserializer)?;
    Duration::try_from_secs_f64(value).map_err(serde::de::Error::custom)
}
