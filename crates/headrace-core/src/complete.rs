//! Whether a body is complete: one answer for every framing, and for both directions.
//!
//! In: how its bytes stopped, the length that its head announced, and whether an event was left open. Out: that it is
//! whole, or what is missing. Whoever reads a body says what was seen and judges nothing: requests over HTTP/3, HTTP/2
//! and HTTP/1.1, and answers of model servers over HTTP/2 and HTTP/1.1. What is not complete ends as a failure does:
//! an error event where the format has a place for one, then a reset.

use std::fmt;

use crate::fields::BodyLength;

/// How the bytes of a body stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    /// The framing said so: the last chunk, END_STREAM, FIN between two frames; or there was to be none, by the method
    /// or the status.
    Framed,
    /// The connection was closed in order, and nothing else delimits the body (RFC 9112 §8).
    Closed,
    /// Everything else, whatever reason it gives: a reset with NO_ERROR (RFC 9113 §8.1 lets one follow a complete
    /// answer only), GOAWAY below the stream's number, a connection that broke.
    Broken,
}

/// What a body lacks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Incomplete {
    /// Its end.
    Cut,
    /// Some of the bytes that its head announced, or it has more.
    WrongLength,
    /// The end of its last event.
    InsideEvent,
}

impl fmt::Display for Incomplete {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Incomplete::Cut => "the body was cut before its end",
            Incomplete::WrongLength => "the body does not have its content-length",
            Incomplete::InsideEvent => "the body ended inside an event",
        })
    }
}

/// The judgement. `is_inside_event`: of an event stream, that its last event has begun and not ended.
///
/// # Errors
/// When the body is not complete.
pub fn check(stop: Stop, length: &BodyLength, is_inside_event: bool) -> Result<(), Incomplete> {
    match (stop, length.is_announced()) {
        // Every byte that was announced is there: nothing that follows can take one away.
        (Stop::Broken | Stop::Closed, true) if length.is_complete() => {}
        (Stop::Closed, false) => {}
        (Stop::Broken | Stop::Closed, _) => return Err(Incomplete::Cut),
        (Stop::Framed, _) if length.is_complete() => {}
        (Stop::Framed, _) => return Err(Incomplete::WrongLength),
    }
    if is_inside_event { Err(Incomplete::InsideEvent) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn length(announced: Option<u64>, seen: usize) -> BodyLength {
        let mut length = BodyLength::new(announced);
        let _ = length.handle_data(seen);
        length
    }

    #[test]
    fn every_way_to_stop_is_judged() {
        use Incomplete::*;
        for (stop, announced, seen, inside, expected) in [
            (Stop::Framed, None, 5, false, Ok(())),
            (Stop::Framed, None, 5, true, Err(InsideEvent)),
            (Stop::Framed, Some(5), 5, false, Ok(())),
            (Stop::Framed, Some(5), 4, false, Err(WrongLength)),
            (Stop::Framed, Some(5), 6, false, Err(WrongLength)),
            (Stop::Framed, Some(5), 5, true, Err(InsideEvent)),
            (Stop::Closed, None, 5, false, Ok(())),
            (Stop::Closed, None, 5, true, Err(InsideEvent)),
            (Stop::Closed, Some(5), 4, false, Err(Cut)),
            (Stop::Closed, Some(5), 5, false, Ok(())),
            (Stop::Broken, None, 0, false, Err(Cut)),
            (Stop::Broken, None, 5, false, Err(Cut)),
            (Stop::Broken, Some(5), 4, false, Err(Cut)),
            (Stop::Broken, Some(5), 5, false, Ok(())),
            (Stop::Broken, Some(5), 5, true, Err(InsideEvent)),
            (Stop::Broken, Some(0), 0, false, Ok(())),
        ] {
            let found = check(stop, &length(announced, seen), inside);
            assert_eq!(found, expected, "{stop:?} {announced:?} {seen} {inside}");
        }
    }
}
