//! How one answer is relayed, and how it ends.
//!
//! * [`table`]: the state table of an answer that comes from a model server
//! * [`readers`]: the smaller one of an answer that is told again from a record
//! * [`ends`]: which input of the tables something is that was seen; the only place where that is decided
//!
//! The rooms `relay`, `exchange` and `replay` of `headrace-net` do what is asked here, and decide nothing.

pub mod ends;
pub mod readers;
pub mod table;

pub use ends::Gone;
pub use table::{Action, Input, Relay, State};

/// How a relay ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    Done,
    Stopped,
    Lost,
    UpstreamFailed,
    Timeout,
    /// The server went away before the answer's end.
    Cut,
    /// At a limit its place was given to somebody else: its client did not read, or its owner held most.
    Displaced,
    Abandoned,
}

impl Cause {
    /// How the client is gone, when that is the cause.
    pub fn gone(self) -> Option<Gone> {
        match self {
            Cause::Stopped => Some(Gone::Stopped),
            Cause::Lost => Some(Gone::Lost),
            _ => None,
        }
    }

    pub fn name(self) -> &'static str {
        match self {
            Cause::Done => "done",
            Cause::Stopped => "stopped",
            Cause::Lost => "lost",
            Cause::UpstreamFailed => "upstream_failed",
            Cause::Timeout => "timeout",
            Cause::Cut => "cut",
            Cause::Displaced => "displaced",
            Cause::Abandoned => "abandoned",
        }
    }
}
