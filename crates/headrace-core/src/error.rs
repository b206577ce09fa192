//! The one table of error kinds.
//!
//! In: nothing. Out: for each kind its stable slug, whose fault it is, whether a retry can help, the HTTP
//! status and the HTTP/3 code it becomes, and a sentence for people. Rust, Python, the documentation and the
//! wire all read this table; a kind that is missing here cannot be raised.

use std::borrow::Cow;
use std::fmt;

use crate::http3::code;

/// Whose fault an error is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// The client (downstream).
    Client,
    /// headrace itself, or whoever runs it.
    Us,
    /// The model server (upstream).
    Upstream,
    /// A server that our own client talks to.
    Server,
}

impl Side {
    pub fn name(self) -> &'static str {
        match self {
            Side::Client => "client",
            Side::Us => "us",
            Side::Upstream => "upstream",
            Side::Server => "server",
        }
    }
}

macro_rules! kinds {
    ($($kind:ident $slug:literal $side:ident retry $retry:literal status $status:literal h3 $code:expr, $sentence:literal;)*) => {
        /// What went wrong; each row of the table at the top of `error.rs`.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum Kind { $(#[doc = $sentence] $kind,)* }

        impl Kind {
            pub const ALL: &'static [Kind] = &[$(Kind::$kind,)*];

            /// Stable name, also the `code` of a JSON error.
            pub fn slug(self) -> &'static str { match self { $(Kind::$kind => $slug,)* } }
            pub fn side(self) -> Side { match self { $(Kind::$kind => Side::$side,)* } }
            /// Whether the same request may succeed when it is sent again, elsewhere or later.
            pub fn retryable(self) -> bool { match self { $(Kind::$kind => $retry,)* } }
            /// The status a client is answered with while no head was sent yet.
            pub fn status(self) -> u16 { match self { $(Kind::$kind => $status,)* } }
            /// The code of the stream reset once a head was sent (RFC 9114 §8.1).
            pub fn h3_code(self) -> u64 { match self { $(Kind::$kind => $code,)* } }
            pub fn sentence(self) -> &'static str { match self { $(Kind::$kind => $sentence,)* } }
        }
    };
}

kinds! {
    Stopped "stopped" Client retry false status 499 h3 code::REQUEST_CANCELLED,
        "the client stopped the stream";
    Lost "lost" Client retry false status 499 h3 code::REQUEST_CANCELLED,
        "the connection to the client was lost";
    BadRequest "bad_request" Client retry false status 400 h3 code::MESSAGE_ERROR,
        "the request is malformed";
    HeadTooLarge "head_too_large" Client retry false status 431 h3 code::EXCESSIVE_LOAD,
        "the request's header fields are larger than limits.max_head_bytes, or more than limits.max_fields";
    BodyTooLarge "body_too_large" Client retry false status 413 h3 code::EXCESSIVE_LOAD,
        "the request's body is larger than limits.max_body_bytes";
    BodyIncomplete "body_incomplete" Client retry false status 400 h3 code::MESSAGE_ERROR,
        "the request's body ended before, or went on after, its content-length";
    RequestTimeout "request_timeout" Client retry true status 408 h3 code::REQUEST_CANCELLED,
        "the request did not arrive in time";
    ClientStalled "client_stalled" Client retry false status 408 h3 code::REQUEST_CANCELLED,
        "the client did not read its answer in time";
    MethodRefused "method_refused" Client retry false status 501 h3 code::REQUEST_REJECTED,
        "CONNECT and TRACE are not served here";
    CodingRefused "coding_refused" Client retry false status 501 h3 code::REQUEST_REJECTED,
        "the request has a transfer coding that is not served here; only chunked is";
    KeyReused "idempotency_key_reused" Client retry false status 422 h3 code::MESSAGE_ERROR,
        "the Idempotency-Key was used for another request; each request needs its own";
    KeyTooLate "idempotency_key_too_late" Client retry false status 409 h3 code::REQUEST_REJECTED,
        "the answer to this Idempotency-Key runs, and its beginning is not kept any more";
    TooEarly "too_early" Client retry true status 425 h3 code::REQUEST_REJECTED,
        "the request came in early data and may be a replay; send it again after the handshake";
    Overloaded "overloaded" Us retry true status 503 h3 code::EXCESSIVE_LOAD,
        "the gateway is at one of its limits; try again in a moment";
    ShuttingDown "shutting_down" Us retry true status 503 h3 code::REQUEST_REJECTED,
        "the gateway is going away; send the request again";
    GatewayDraining "gateway_draining" Us retry true status 503 h3 code::REQUEST_CANCELLED,
        "the gateway went away before the answer was complete; ask again";
    Closed "closed" Us retry false status 500 h3 code::INTERNAL_ERROR,
        "the exchange, stream or connection is already closed";
    Misuse "misuse" Us retry false status 500 h3 code::INTERNAL_ERROR,
        "the call is not possible in this state";
    Config "config" Us retry false status 500 h3 code::INTERNAL_ERROR,
        "the configuration is wrong";
    Internal "internal" Us retry false status 500 h3 code::INTERNAL_ERROR,
        "a bug in headrace";
    UpstreamResolve "upstream_resolve" Upstream retry true status 502 h3 code::INTERNAL_ERROR,
        "the upstream's name could not be resolved";
    UpstreamConnect "upstream_connect" Upstream retry true status 502 h3 code::INTERNAL_ERROR,
        "the upstream could not be reached";
    UpstreamConnectTimeout "upstream_connect_timeout" Upstream retry true status 504 h3 code::INTERNAL_ERROR,
        "the upstream did not accept the connection in time";
    UpstreamTls "upstream_tls" Upstream retry true status 502 h3 code::INTERNAL_ERROR,
        "the TLS handshake with the upstream failed";
    UpstreamClosed "upstream_closed" Upstream retry true status 502 h3 code::INTERNAL_ERROR,
        "the upstream closed the connection before its answer was complete";
    UpstreamProtocol "upstream_protocol" Upstream retry true status 502 h3 code::INTERNAL_ERROR,
        "the upstream's answer breaks its protocol";
    UpstreamStatus "upstream_status" Upstream retry true status 502 h3 code::INTERNAL_ERROR,
        "the upstream answered with a status that asks for another upstream";
    UpstreamHeadTimeout "upstream_head_timeout" Upstream retry true status 504 h3 code::INTERNAL_ERROR,
        "the upstream did not begin its answer in time";
    UpstreamIdleTimeout "upstream_idle_timeout" Upstream retry false status 504 h3 code::INTERNAL_ERROR,
        "the upstream fell silent in the middle of its answer";
    Connect "connect" Server retry true status 502 h3 code::INTERNAL_ERROR,
        "the server could not be reached";
    ConnectTimeout "connect_timeout" Server retry true status 504 h3 code::INTERNAL_ERROR,
        "the server did not complete the handshake in time";
    PoolTimeout "pool_timeout" Server retry true status 503 h3 code::INTERNAL_ERROR,
        "the server allowed no further stream in time";
    WriteTimeout "write_timeout" Server retry false status 504 h3 code::INTERNAL_ERROR,
        "the server did not take the request's body in time";
    ReadTimeout "read_timeout" Server retry false status 504 h3 code::INTERNAL_ERROR,
        "the server was silent for too long";
    Tls "tls" Server retry false status 502 h3 code::INTERNAL_ERROR,
        "the TLS handshake with the server failed";
    Refused "refused" Server retry true status 503 h3 code::REQUEST_REJECTED,
        "the server refused the request before it began; it can be sent again";
    StreamReset "stream_reset" Server retry false status 502 h3 code::INTERNAL_ERROR,
        "the server reset the stream";
    ConnectionLost "connection_lost" Server retry true status 502 h3 code::INTERNAL_ERROR,
        "the connection to the server was lost";
    WriteLost "write_lost" Server retry true status 502 h3 code::INTERNAL_ERROR,
        "the connection to the server was lost while the request was being sent";
    Protocol "protocol" Server retry false status 502 h3 code::INTERNAL_ERROR,
        "the server broke the protocol";
    Truncated "truncated" Server retry false status 502 h3 code::INTERNAL_ERROR,
        "the server's answer ended before it was complete";
}

/// A kind, and what was seen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Error {
    pub kind: Kind,
    /// What was seen, for the log and the person who debugs; may be empty.
    pub detail: Cow<'static, str>,
}

impl Error {
    pub fn new(kind: Kind, detail: impl Into<Cow<'static, str>>) -> Self {
        Self { kind, detail: detail.into() }
    }
}

impl From<Kind> for Error {
    fn from(kind: Kind) -> Self {
        Self { kind, detail: Cow::Borrowed("") }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.kind.sentence())?;
        if !self.detail.is_empty() {
            write!(f, ": {}", self.detail)?;
        }
        Ok(())
    }
}

impl std::error::Error for Error {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slugs_are_unique_and_snake_case() {
        let mut slugs: Vec<_> = Kind::ALL.iter().map(|kind| kind.slug()).collect();
        assert!(slugs.iter().all(|s| s.chars().all(|c| c.is_ascii_lowercase() || c == '_')));
        slugs.sort_unstable();
        slugs.dedup();
        assert_eq!(slugs.len(), Kind::ALL.len());
    }

    #[test]
    fn every_status_is_an_error_status() {
        assert!(Kind::ALL.iter().all(|kind| (400..600).contains(&kind.status())));
    }

    #[test]
    fn an_error_names_its_kind_and_what_was_seen() {
        let error = Error::new(Kind::UpstreamConnect, "127.0.0.1:9: refused");
        assert_eq!(error.to_string(), "the upstream could not be reached: 127.0.0.1:9: refused");
    }
}
