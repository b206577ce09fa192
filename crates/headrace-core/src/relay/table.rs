//! The state table of one relayed answer.
//!
//! In: what happened, upstream or downstream. Out: what is to be done, and how it ended. The driver
//! (`headrace-net/relay/mod.rs`) does the doing and decides nothing.
//!
//! Rules, in prose:
//! * While no head went downstream, a failed upstream leaves the downstream untouched: the handler may try
//!   another upstream, or answer itself.
//! * Once a head went downstream, the answer ends in exactly one of two ways: FIN after the upstream's own
//!   end, or a reset. Nothing that was cut ever looks complete.
//! * *Stop* and *lost* end everything at once, in every state: what is still queued is dropped, the upstream
//!   is closed, and it is never reused.
//! * A client that leaves after the answer's own last event was not cut short.
//! * When the server's own time is over, an answer that still runs ends as one whose upstream failed: an error
//!   event, then a reset. Its cause says whose doing it was.
//! * Who reads nothing loses its place, at a limit, to somebody who does: while it was sent nothing, it is told so.
//! * An upstream connection goes back to the pool only after an end that its own framing declared.

use State::*;

use crate::relay::Cause;

/// Where a relay stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Connecting, sending the request, waiting for the answer's head.
    Waiting,
    /// A head went downstream; events follow.
    Streaming,
    /// The upstream has ended; the rest of the queue goes downstream.
    Finishing,
    /// The upstream has failed; the queue and an error event go downstream.
    Failing,
    Ended,
}

/// What happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Input {
    /// An answer's head that may go downstream.
    Head,
    /// An answer's head with a status that the handler wants to hear of first.
    HeldHead,
    /// The body ended as its framing says.
    End,
    /// The upstream refused, closed, or broke its protocol.
    Failed,
    /// The upstream was silent for too long.
    TimedOut,
    /// The client has not read for too long.
    Stalled,
    /// Its place was given to somebody else, at a limit.
    Displaced,
    /// The queue went downstream to its last byte.
    Flushed,
    /// The client stopped the stream.
    Stopped,
    /// The client's connection is gone.
    Lost,
    /// The client left, by a stop or with its connection, after the answer's own last event, as its API
    /// has it (`events/dialects`): it had all of it. OpenAI's SDK does so after `data: [DONE]`.
    Left,
    /// The server goes away, and its answers have had their time.
    Expired,
    /// The handler gave up: it was cancelled, or it reset the exchange.
    Abandoned,
}

/// What is to be done, in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    SendHead,
    /// Put the upstream's connection back, if its framing allows.
    PoolUpstream,
    CloseUpstream,
    /// Queue what is held of the body's last, unfinished event, and the trailers.
    QueueRest,
    /// Say that the answer broke off, where the framing has a place for it.
    QueueErrorEvent,
    Finish,
    Reset,
}

/// One row of the table.
pub type Row = (State, Input, State, &'static [Action], Option<Cause>);

use Action::*;

pub const TABLE: &[Row] = &[
    (Waiting, Input::Head, Streaming, &[SendHead], None),
    (Waiting, Input::HeldHead, Ended, &[CloseUpstream], Some(Cause::UpstreamFailed)),
    (Waiting, Input::Failed, Ended, &[CloseUpstream], Some(Cause::UpstreamFailed)),
    (Waiting, Input::TimedOut, Ended, &[CloseUpstream], Some(Cause::Timeout)),
    (Waiting, Input::Stopped, Ended, &[CloseUpstream, Reset], Some(Cause::Stopped)),
    (Waiting, Input::Lost, Ended, &[CloseUpstream, Reset], Some(Cause::Lost)),
    (Waiting, Input::Expired, Ended, &[CloseUpstream], Some(Cause::Cut)),
    (Waiting, Input::Displaced, Ended, &[CloseUpstream], Some(Cause::Displaced)),
    (Waiting, Input::Abandoned, Ended, &[CloseUpstream, Reset], Some(Cause::Abandoned)),
    (Streaming, Input::End, Finishing, &[PoolUpstream, QueueRest], Some(Cause::Done)),
    (Streaming, Input::Failed, Failing, &[CloseUpstream, QueueErrorEvent], Some(Cause::UpstreamFailed)),
    (Streaming, Input::TimedOut, Failing, &[CloseUpstream, QueueErrorEvent], Some(Cause::Timeout)),
    // What keeps an answer for clients that come back (`replay`) ends with its upstream here, too.
    (Streaming, Input::Expired, Failing, &[CloseUpstream, QueueErrorEvent], Some(Cause::Cut)),
    (Streaming, Input::Stalled, Ended, &[CloseUpstream, Reset], Some(Cause::Timeout)),
    (Streaming, Input::Displaced, Ended, &[CloseUpstream, Reset], Some(Cause::Displaced)),
    (Streaming, Input::Stopped, Ended, &[CloseUpstream, Reset], Some(Cause::Stopped)),
    (Streaming, Input::Lost, Ended, &[CloseUpstream, Reset], Some(Cause::Lost)),
    (Streaming, Input::Abandoned, Ended, &[CloseUpstream, Reset], Some(Cause::Abandoned)),
    (Streaming, Input::Left, Ended, &[CloseUpstream, Reset], Some(Cause::Done)),
    (Finishing, Input::Flushed, Ended, &[Finish], None),
    (Finishing, Input::Left, Ended, &[Reset], Some(Cause::Done)),
    (Failing, Input::Left, Ended, &[Reset], None),
    (Finishing, Input::Stalled, Ended, &[Reset], Some(Cause::Timeout)),
    (Finishing, Input::Displaced, Ended, &[Reset], Some(Cause::Displaced)),
    (Finishing, Input::Stopped, Ended, &[Reset], Some(Cause::Stopped)),
    (Finishing, Input::Lost, Ended, &[Reset], Some(Cause::Lost)),
    (Finishing, Input::Expired, Ended, &[Reset], Some(Cause::Cut)),
    (Finishing, Input::Abandoned, Ended, &[Reset], Some(Cause::Abandoned)),
    (Failing, Input::Flushed, Ended, &[Reset], None),
    (Failing, Input::Stalled, Ended, &[Reset], None),
    (Failing, Input::Displaced, Ended, &[Reset], None),
    (Failing, Input::Stopped, Ended, &[Reset], None),
    (Failing, Input::Lost, Ended, &[Reset], None),
    (Failing, Input::Abandoned, Ended, &[Reset], None),
];

/// The machine: a state, and the cause that stands so far.
#[derive(Clone, Copy, Debug)]
pub struct Relay {
    state: State,
    cause: Option<Cause>,
}

impl Default for Relay {
    fn default() -> Self {
        Self { state: Waiting, cause: None }
    }
}

impl Relay {
    /// Moves by one row; an input that has no row in this state asks for nothing.
    pub fn handle(&mut self, input: Input) -> &'static [Action] {
        let Some((_, _, next, actions, cause)) =
            TABLE.iter().find(|(state, on, ..)| *state == self.state && *on == input)
        else {
            return &[];
        };
        self.state = *next;
        self.cause = cause.or(self.cause);
        actions
    }

    pub fn state(&self) -> State {
        self.state
    }

    pub fn cause(&self) -> Option<Cause> {
        self.cause
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const INPUTS: [Input; 13] = [
        Input::Head,
        Input::HeldHead,
        Input::End,
        Input::Failed,
        Input::TimedOut,
        Input::Stalled,
        Input::Displaced,
        Input::Flushed,
        Input::Stopped,
        Input::Lost,
        Input::Left,
        Input::Expired,
        Input::Abandoned,
    ];

    /// Every path of at most `depth` inputs from the start, with all its actions.
    fn paths(depth: usize) -> Vec<(Vec<Input>, Relay, Vec<Action>)> {
        let mut all = vec![(vec![], Relay::default(), vec![])];
        let mut last = all.clone();
        for _ in 0..depth {
            let mut next = Vec::new();
            for (inputs, relay, actions) in &last {
                for input in INPUTS {
                    let (mut inputs, mut relay, mut actions) = (inputs.clone(), *relay, actions.clone());
                    actions.extend_from_slice(relay.handle(input));
                    inputs.push(input);
                    next.push((inputs, relay, actions));
                }
            }
            all.extend(next.iter().cloned());
            last = next;
        }
        all
    }

    #[test]
    fn no_state_and_input_has_two_rows() {
        for (index, row) in TABLE.iter().enumerate() {
            assert!(!TABLE[index + 1..].iter().any(|other| (other.0, other.1) == (row.0, row.1)), "{row:?}");
        }
    }

    #[test]
    fn a_fin_comes_only_after_the_upstreams_own_end() {
        for (inputs, relay, actions) in paths(5) {
            if actions.contains(&Finish) {
                assert!(inputs.contains(&Input::Head) && inputs.contains(&Input::End), "{inputs:?}");
                assert!(!actions.contains(&Reset) && !actions.contains(&QueueErrorEvent), "{inputs:?}");
                assert_eq!(relay.cause(), Some(Cause::Done), "{inputs:?}");
            }
        }
    }

    #[test]
    fn the_upstream_is_closed_or_pooled_exactly_once() {
        for (inputs, relay, actions) in paths(5) {
            let count =
                actions.iter().filter(|action| matches!(action, PoolUpstream | CloseUpstream)).count();
            assert!(count <= 1, "{inputs:?}");
            assert!(relay.state() != Ended || count == 1, "{inputs:?}");
        }
    }

    #[test]
    fn nothing_touches_the_downstream_before_a_head_unless_the_client_is_gone() {
        for (inputs, _, actions) in paths(4) {
            let gone = [Input::Stopped, Input::Lost, Input::Abandoned].iter().any(|on| inputs.contains(on));
            if !actions.contains(&SendHead) && !gone {
                assert!(actions.iter().all(|action| *action == CloseUpstream), "{inputs:?}");
            }
        }
    }

    #[test]
    fn who_runs_out_of_time_is_told_before_the_reset() {
        let mut relay = Relay::default();
        relay.handle(Input::Head);
        assert_eq!(relay.handle(Input::Expired), &[CloseUpstream, QueueErrorEvent]);
        assert_eq!(relay.handle(Input::Flushed), &[Reset]);
        assert_eq!(relay.cause(), Some(Cause::Cut));
    }

    #[test]
    fn every_end_has_a_cause() {
        for (inputs, relay, _) in paths(5) {
            assert!(relay.state() != Ended || relay.cause().is_some(), "{inputs:?}");
        }
    }
}
