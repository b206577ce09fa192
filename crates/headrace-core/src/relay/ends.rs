//! What something that happened means to an answer: the inputs of the two tables.
//!
//! In: what was seen, and how far the answer is. Out: the input of [`table`](super::table); or, for an answer that a
//! handler writes itself, what becomes of it. Everything here is a pure function: whoever sees something hands it in,
//! and judges nothing.

use super::{Cause, Input, State};
use crate::{Error, Kind};

/// Why nobody reads any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gone {
    /// The client ended the stream, or the connection, on purpose.
    Stopped,
    /// The connection died, or its protocol cannot say which of the two it was.
    Lost,
}

impl From<Gone> for Error {
    fn from(gone: Gone) -> Self {
        match gone {
            Gone::Stopped => Kind::Stopped.into(),
            Gone::Lost => Kind::Lost.into(),
        }
    }
}

/// What was seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seen {
    /// The head of the model server's answer; `is_held`: its status is reported to the handler first.
    Head { is_held: bool },
    /// The body's own end.
    End,
    /// The model server failed, with an error of this kind.
    Failed(Kind),
    /// The client has taken nothing for too long.
    Stalled,
    /// Its place was given to somebody else, at a limit.
    Displaced,
    /// The transport has taken everything that was queued.
    Flushed,
    /// The client reads no more.
    Gone(Gone),
    /// The server goes away, and its answers have had their time.
    Expired,
    /// The handler gave up.
    Abandoned,
}

/// How far the answer, and the server, are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// The last event that was handed on is the one by which the API says that the answer is over.
    pub is_last_event_sent: bool,
    /// The server has closed its connections: that a client is lost is the server's own doing.
    pub is_server_closed: bool,
}

/// The input of the relay's table.
pub fn input(seen: Seen, state: State, progress: Progress) -> Input {
    match seen {
        Seen::Head { is_held: true } => Input::HeldHead,
        Seen::Head { is_held: false } => Input::Head,
        Seen::End => Input::End,
        Seen::Failed(
            Kind::UpstreamConnectTimeout | Kind::UpstreamHeadTimeout | Kind::UpstreamIdleTimeout,
        ) => Input::TimedOut,
        Seen::Failed(_) => Input::Failed,
        Seen::Stalled => Input::Stalled,
        Seen::Displaced => Input::Displaced,
        Seen::Flushed => Input::Flushed,
        Seen::Gone(_) if progress.is_last_event_sent => Input::Left,
        Seen::Gone(Gone::Stopped) => Input::Stopped,
        // An answer that has failed already keeps its own cause.
        Seen::Gone(Gone::Lost) if progress.is_server_closed && state != State::Failing => Input::Expired,
        Seen::Gone(Gone::Lost) => Input::Lost,
        Seen::Expired => Input::Expired,
        Seen::Abandoned => Input::Abandoned,
    }
}

/// The reason that an input brings with it; what failed before keeps its own. `cause`: the one that stands so far.
pub fn error(input: Input, cause: Option<Cause>) -> Option<Kind> {
    match input {
        Input::Stalled => Some(Kind::ClientStalled),
        Input::Displaced => Some(Kind::Overloaded),
        Input::Expired if matches!(cause, None | Some(Cause::Done)) => Some(Kind::GatewayDraining),
        _ => None,
    }
}

/// The kind whose code a reset carries (RFC 9114 §8.1). `error`: why the answer failed, where it did.
pub fn reset_kind(input: Input, error: Option<Kind>) -> Kind {
    match input {
        Input::Stopped | Input::Lost | Input::Left => Kind::Stopped,
        _ => error.unwrap_or(Kind::Internal),
    }
}

/// Whether the end of the server cut an exchange short: when its time was over, the client was still there (or lost,
/// which then is the server's doing) and had no whole answer.
pub fn is_cut_short(is_time_over: bool, is_complete: bool, gone: Option<Gone>) -> bool {
    is_time_over && !is_complete && gone != Some(Gone::Stopped)
}

#[cfg(test)]
mod tests {
    use super::*;

    const STATES: [State; 5] =
        [State::Waiting, State::Streaming, State::Finishing, State::Failing, State::Ended];

    fn progress() -> impl Iterator<Item = Progress> {
        [(false, false), (false, true), (true, false), (true, true)]
            .into_iter()
            .map(|(is_last_event_sent, is_server_closed)| Progress { is_last_event_sent, is_server_closed })
    }

    #[test]
    fn a_client_that_leaves_after_the_last_event_is_never_stopped_or_lost() {
        for progress in progress().filter(|progress| progress.is_last_event_sent) {
            for (state, gone) in STATES.iter().flat_map(|state| [(state, Gone::Stopped), (state, Gone::Lost)])
            {
                assert_eq!(input(Seen::Gone(gone), *state, progress), Input::Left);
            }
        }
    }

    #[test]
    fn a_client_that_the_server_left_is_cut_unless_its_answer_had_failed() {
        let closed = Progress { is_server_closed: true, ..Progress::default() };
        for state in STATES {
            let expected = if state == State::Failing { Input::Lost } else { Input::Expired };
            assert_eq!(input(Seen::Gone(Gone::Lost), state, closed), expected);
            assert_eq!(input(Seen::Gone(Gone::Stopped), state, closed), Input::Stopped);
            assert_eq!(input(Seen::Gone(Gone::Lost), state, Progress::default()), Input::Lost);
        }
    }

    #[test]
    fn only_the_clients_end_depends_on_how_far_the_answer_is() {
        let seen = [
            (Seen::Head { is_held: false }, Input::Head),
            (Seen::Head { is_held: true }, Input::HeldHead),
            (Seen::End, Input::End),
            (Seen::Failed(Kind::UpstreamClosed), Input::Failed),
            (Seen::Failed(Kind::UpstreamHeadTimeout), Input::TimedOut),
            (Seen::Stalled, Input::Stalled),
            (Seen::Displaced, Input::Displaced),
            (Seen::Flushed, Input::Flushed),
            (Seen::Expired, Input::Expired),
            (Seen::Abandoned, Input::Abandoned),
        ];
        for (seen, expected) in seen {
            for (state, progress) in STATES.iter().flat_map(|state| progress().map(move |one| (*state, one)))
            {
                assert_eq!(input(seen, state, progress), expected);
            }
        }
    }

    #[test]
    fn every_timeout_of_an_upstream_counts_as_one() {
        for kind in Kind::ALL {
            let is_timeout = kind.side() == crate::Side::Upstream && kind.status() == 504;
            let found = input(Seen::Failed(*kind), State::Waiting, Progress::default());
            assert_eq!(found == Input::TimedOut, is_timeout, "{kind:?}");
        }
    }

    #[test]
    fn a_failure_keeps_its_reason_when_the_servers_time_is_over() {
        assert_eq!(error(Input::Expired, None), Some(Kind::GatewayDraining));
        assert_eq!(error(Input::Expired, Some(Cause::Done)), Some(Kind::GatewayDraining));
        assert_eq!(error(Input::Expired, Some(Cause::UpstreamFailed)), None);
        assert_eq!(error(Input::Stalled, Some(Cause::UpstreamFailed)), Some(Kind::ClientStalled));
    }

    #[test]
    fn a_stop_is_not_counted_as_cut() {
        assert!(is_cut_short(true, false, None) && is_cut_short(true, false, Some(Gone::Lost)));
        assert!(!is_cut_short(true, false, Some(Gone::Stopped)));
        assert!(!is_cut_short(true, true, None) && !is_cut_short(false, false, None));
    }
}
