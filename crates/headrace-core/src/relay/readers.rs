//! The table of an answer that is told again from a record, to one of its readers.
//!
//! In: what happened, as [`ends::input`](super::ends::input) names it. Out: what becomes of the client's stream, and
//! the cause. *End* and *failed* are the record's: it was told whole, or it broke off. *Waiting*: no head was told.
//!
//! Rules, in prose:
//! * A reader that was told no head is left untouched when there is nothing to tell, or when its place went to somebody
//!   else: the handler may answer itself.
//! * A record that broke off ends its readers as it ended itself, after they had the time to read its last event.
//! * Whatever else happens to one reader ends that reader alone.

use super::Cause::{self, *};
use super::State::{self, *};
use super::table::Input;

/// What becomes of the client's stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// FIN.
    Finish,
    /// Nothing was sent, and nothing is.
    LeaveUntouched,
    Reset,
    /// A reset that waits until the client has read the last error event.
    ResetAfterReading,
}

use Action::*;

/// One row of the table. Without a cause, it is the record's.
pub type Row = (State, Input, Action, Option<Cause>);

pub const TABLE: &[Row] = &[
    (Waiting, Input::Failed, LeaveUntouched, Some(UpstreamFailed)),
    (Waiting, Input::Stalled, Reset, Some(Timeout)),
    (Waiting, Input::Displaced, LeaveUntouched, Some(Displaced)),
    (Waiting, Input::Stopped, Reset, Some(Stopped)),
    (Waiting, Input::Lost, Reset, Some(Lost)),
    (Waiting, Input::Expired, Reset, Some(Cut)),
    (Waiting, Input::Abandoned, Reset, Some(Abandoned)),
    (Streaming, Input::End, Finish, Some(Done)),
    (Streaming, Input::Failed, ResetAfterReading, None),
    (Streaming, Input::Stalled, Reset, Some(Timeout)),
    (Streaming, Input::Displaced, Reset, Some(Displaced)),
    (Streaming, Input::Stopped, Reset, Some(Stopped)),
    (Streaming, Input::Lost, Reset, Some(Lost)),
    (Streaming, Input::Left, Reset, Some(Done)),
    (Streaming, Input::Expired, Reset, Some(Cut)),
    (Streaming, Input::Abandoned, Reset, Some(Abandoned)),
];

/// What the table says; an input without a row in this state breaks the answer off.
pub fn end(state: State, input: Input) -> (Action, Option<Cause>) {
    let row = TABLE.iter().find(|(when, on, ..)| *when == state && *on == input);
    row.map_or((Reset, Some(Abandoned)), |(_, _, action, cause)| (*action, *cause))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_state_and_input_has_two_rows() {
        for (index, row) in TABLE.iter().enumerate() {
            assert!(!TABLE[index + 1..].iter().any(|other| (other.0, other.1) == (row.0, row.1)), "{row:?}");
        }
    }

    #[test]
    fn only_a_record_told_whole_ends_with_fin() {
        for (state, input, action, cause) in TABLE {
            let is_whole = (*state, *input) == (Streaming, Input::End);
            assert_eq!(*action == Finish, is_whole, "{input:?}");
            assert!(!is_whole || *cause == Some(Done));
        }
    }

    #[test]
    fn only_a_reader_without_a_head_is_left_untouched() {
        assert!(TABLE.iter().all(|row| row.2 != LeaveUntouched || row.0 == Waiting));
    }

    #[test]
    fn an_input_without_a_row_never_looks_complete() {
        for input in [Input::Head, Input::HeldHead, Input::Flushed, Input::TimedOut] {
            assert_eq!(end(Streaming, input), (Reset, Some(Abandoned)));
        }
        assert_eq!(end(Waiting, Input::End), (Reset, Some(Abandoned)));
    }
}
