//! Who the client is to an answer: what it speaks, and why it no longer reads.
//!
//! Every room of the server's side uses these two, so they stand below all of them.

pub use headrace_core::relay::Gone;

/// What the client speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    Http1,
    Http2,
    Http3,
}

impl Protocol {
    pub fn name(self) -> &'static str {
        match self {
            Protocol::Http1 => "HTTP/1.1",
            Protocol::Http2 => "HTTP/2",
            Protocol::Http3 => "HTTP/3",
        }
    }
}
