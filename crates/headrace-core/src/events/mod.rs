//! Cutting an answer into the pieces that leave as one DATA frame each.
//!
//! In: the bytes of an answer's body as they arrive, cut anywhere. Out: pieces, in order, whose bytes together
//! are exactly the bytes that came in. A piece of an event stream is one SSE event or one NDJSON line, so that
//! no client ever waits for the second half of a token; of any other body, a piece is whatever has just
//! arrived.
//!
//! At most one incomplete event is held back, and never more than `max_event_bytes`: a longer one leaves in parts.

pub mod dialects;
pub mod formats;

use std::borrow::Cow;

use dialects::Dialect;
use dialects::errors::Refusal;
use dialects::marks::LastEvent;
use formats::content_type::ContentType;
use formats::{End, Format, Scanner};

use crate::{Kind, json_fields};

/// Some bytes that leave together: `held` (from before) and then `fresh` (of this call).
#[derive(Clone, Copy, Debug)]
pub struct Piece<'a> {
    pub held: &'a [u8],
    pub fresh: &'a [u8],
    /// The piece completes an event (and is not a comment, a blank line, or raw bytes).
    pub is_event: bool,
    /// The event by which the API says that the answer is over, before its body ends.
    pub is_last: bool,
}

impl<'a> Piece<'a> {
    /// Bytes that are whole.
    pub fn whole(bytes: &'a [u8], is_event: bool) -> Self {
        Self { held: &[], fresh: bytes, is_event, is_last: false }
    }

    pub fn len(&self) -> usize {
        self.held.len() + self.fresh.len()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// The splitter of one body.
pub struct Splitter {
    format: &'static Format,
    dialect: &'static Dialect,
    scanner: Box<dyn Scanner>,
    last_event: LastEvent,
    held: Vec<u8>,
    max_event_bytes: usize,
    /// Part of the current event has left already, because it was too long to hold.
    is_split: bool,
    /// That part began as an answer's last event does.
    is_last_begun: bool,
}

impl Splitter {
    /// For an answer's body. `dialect`: of its request.
    pub fn new<'a>(
        dialect: &'static Dialect,
        content_type: Option<&str>,
        content_encodings: impl IntoIterator<Item = &'a str>,
        max_event_bytes: usize,
    ) -> Self {
        let content_type = ContentType::parse(content_type);
        let format = Format::of(&content_type, content_encodings);
        let dialect = dialect.confirmed(format);
        Self {
            format,
            dialect,
            scanner: (format.scanner)(&content_type),
            last_event: LastEvent::new(dialect.last, format),
            held: Vec::new(),
            max_event_bytes,
            is_split: false,
            is_last_begun: false,
        }
    }

    pub fn format(&self) -> &'static Format {
        self.format
    }

    /// Takes bytes in; calls `emit` for each piece that is now complete.
    pub fn handle_data(&mut self, data: &[u8], mut emit: impl FnMut(Piece<'_>)) {
        let mut start = 0;
        while let Some(End { at, is_event }) = self.scanner.handle_data(data, start) {
            let fresh = &data[start..at];
            let is_last = is_event && self.is_last(fresh);
            emit(Piece { held: &self.held, fresh, is_event, is_last });
            self.held.clear();
            self.is_split = false;
            start = at;
        }
        let rest = &data[start..];
        if self.held.len() + rest.len() > self.max_event_bytes {
            if !self.is_split {
                self.is_last_begun = self.last_event.begins(&self.whole(rest));
            }
            emit(Piece { held: &self.held, fresh: rest, is_event: false, is_last: false });
            self.held = Vec::new();
            self.is_split = true;
        } else {
            self.held.extend_from_slice(rest);
        }
    }

    /// Whether an event has begun and not ended: a body that stops here was cut.
    ///
    /// Two ends are borne that many servers write: an answer's last event, and a line that is a whole JSON text, without
    /// the line feeds behind them.
    pub fn is_inside_event(&self) -> bool {
        if self.scanner.is_between_events() {
            return false;
        }
        let data = (self.format.read)(&self.held).data;
        let is_json = json_fields::is_json(&data);
        let is_said = is_json || !data.trim_ascii().starts_with(b"{");
        let is_last = is_said && !data.is_empty() && self.is_last(&[]);
        let is_line = is_json && self.format.is_line;
        self.is_split || !(is_last || is_line)
    }

    /// Ends the body as its framing says: what is held leaves, whether it is a whole event or not.
    pub fn handle_end(&mut self, mut emit: impl FnMut(Piece<'_>)) {
        if !self.held.is_empty() {
            let is_event = !self.scanner.is_between_events();
            let is_last = is_event && self.is_last(&[]);
            emit(Piece { held: &self.held, fresh: &[], is_event, is_last });
            self.held = Vec::new();
        }
    }

    /// An event that says that the answer broke off. It stands between two events, so what is held, half an event, is
    /// dropped. `None` for a raw body, which has no place for one, and when half an event has left already.
    pub fn poll_error_event(&mut self, kind: Kind) -> Option<Vec<u8>> {
        self.held = Vec::new();
        let errors = &self.dialect.errors;
        let write = self.format.write.filter(|_| !self.is_split)?;
        Some(write(errors.event_name, &(errors.event)(&Refusal::from(kind))))
    }

    /// How many bytes are held back now.
    pub fn held(&self) -> usize {
        self.held.len()
    }

    /// Whether the event that ends with `fresh` is the answer's last.
    fn is_last(&self, fresh: &[u8]) -> bool {
        match self.is_split {
            true => self.is_last_begun,
            false => self.last_event.is(&self.whole(fresh)),
        }
    }

    /// What is held and what has come, as one; few events come in two reads.
    fn whole<'a>(&self, fresh: &'a [u8]) -> Cow<'a, [u8]> {
        match self.held.is_empty() {
            true => Cow::Borrowed(fresh),
            false => Cow::Owned([&self.held, fresh].concat()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SSE: &str = "text/event-stream";
    const NDJSON: &str = "application/x-ndjson";

    fn splitter(content_type: &str, max_event_bytes: usize) -> Splitter {
        Splitter::new(Dialect::of("/"), Some(content_type), [], max_event_bytes)
    }

    /// Feeds `parts` and returns (bytes, is_event) of each piece, and what was left at the end.
    fn split(content_type: &str, parts: &[&[u8]]) -> Vec<(String, bool)> {
        let mut splitter = splitter(content_type, 1 << 16);
        let mut pieces = Vec::new();
        let mut keep = |piece: Piece<'_>| {
            let bytes = [piece.held, piece.fresh].concat();
            pieces.push((String::from_utf8_lossy(&bytes).into_owned(), piece.is_event));
        };
        for part in parts {
            splitter.handle_data(part, &mut keep);
        }
        splitter.handle_end(&mut keep);
        pieces
    }

    fn events(content_type: &str, parts: &[&[u8]]) -> Vec<String> {
        let pieces = split(content_type, parts).into_iter();
        pieces.filter(|(_, is_event)| *is_event).map(|(text, _)| text).collect()
    }

    const STREAMS: &[(&str, &[&str])] = &[
        ("data: a\n\ndata: b\n\n", &["data: a\n\n", "data: b\n\n"]),
        ("data: a\r\n\r\ndata: b\r\n\r\n", &["data: a\r\n\r\n", "data: b\r\n\r\n"]),
        ("data: a\r\rdata: b\r\r", &["data: a\r\r", "data: b\r\r"]),
        ("\u{feff}data: a\n\nid: 1\ndata: b\n\n", &["\u{feff}data: a\n\n", "id: 1\ndata: b\n\n"]),
        ("event: x\ndata: é😀\ndata: 2\n\n", &["event: x\ndata: é😀\ndata: 2\n\n"]),
        ("data: a\n\n\n\ndata: b\n\n", &["data: a\n\n", "\n\ndata: b\n\n"]),
    ];

    #[test]
    fn one_piece_per_event_however_the_stream_is_cut() {
        for (stream, expected) in STREAMS {
            let bytes = stream.as_bytes();
            assert_eq!(&events(SSE, &[bytes]), expected);
            for first in 0..bytes.len() {
                for second in first..bytes.len() {
                    let parts = [&bytes[..first], &bytes[first..second], &bytes[second..]];
                    let pieces = split(SSE, &parts);
                    let joined: String = pieces.iter().map(|(text, _)| text.as_str()).collect();
                    let found = pieces.iter().filter(|(_, is_event)| *is_event).count();
                    assert_eq!(found, expected.len(), "{stream:?} cut at {first} and {second}: {pieces:?}");
                    // Cutting inside a character only confuses the test's own decoding.
                    if stream.is_ascii() {
                        assert_eq!(&joined, stream);
                    }
                }
            }
            let single: Vec<&[u8]> = bytes.chunks(1).collect();
            assert_eq!(events(SSE, &single).len(), expected.len(), "{stream:?} byte by byte");
        }
    }

    #[test]
    fn an_event_leaves_as_soon_as_its_blank_line_is_there() {
        let mut splitter = splitter(SSE, 1 << 16);
        let mut pieces = 0;
        splitter.handle_data(b"data: a\r\n\r", |piece| pieces += usize::from(piece.is_event));
        assert_eq!(pieces, 1, "the CR of the blank line is enough");
        splitter.handle_data(b"\ndata: b\r\n\r\n", |piece| {
            pieces += 1;
            assert_eq!((piece.held, piece.fresh), (&b""[..], &b"\ndata: b\r\n\r\n"[..]));
        });
        assert_eq!(pieces, 2);
    }

    #[test]
    fn a_heartbeat_comment_is_not_held_back() {
        assert_eq!(split(SSE, &[b": ping\n"]), [(": ping\n".to_owned(), false)]);
        assert_eq!(split(SSE, &[b": ping\n\n"]), [(": ping\n\n".to_owned(), false)]);
        assert_eq!(
            split(SSE, &[b": ping\ndata: a\n\n"]),
            [(": ping\ndata: a\n\n".to_owned(), true)],
            "a comment before an event belongs to it"
        );
        assert_eq!(events(SSE, &[b"data: a\n", b": in between\n", b"\n"]).len(), 1);
    }

    #[test]
    fn an_unfinished_event_leaves_at_a_clean_end() {
        assert_eq!(split(SSE, &[b"data: a\n\ndata: b"])[1], ("data: b".to_owned(), true));
        assert_eq!(split(NDJSON, &[b"{}\n{\"a\":"])[1], ("{\"a\":".to_owned(), true));
    }

    #[test]
    fn every_place_inside_an_event_is_known() {
        let inside = |path: &str, content_type: &str, bytes: &[u8], step: usize| {
            let mut splitter = Splitter::new(Dialect::of(path), Some(content_type), [], 64);
            bytes.chunks(step).for_each(|part| splitter.handle_data(part, |_| {}));
            splitter.is_inside_event()
        };
        let (openai, anthropic) = ("/v1/chat/completions", "/v1/messages");
        let stop = "event: message_stop\ndata: {\"type\":\"message_stop\"}";
        for (path, content_type, text, expected) in [
            (openai, SSE, "", false),
            (openai, SSE, "data: a\n\n", false),
            (openai, SSE, "data: a\r\n\r\n", false),
            (openai, SSE, "data: a\n\n\n", false),
            (openai, SSE, ": ping\n", false),
            (openai, SSE, "data: [DONE]", false),
            (openai, SSE, "data: [DONE]\n", false),
            (openai, SSE, "d", true),
            (openai, SSE, "data: a", true),
            (openai, SSE, "data: a\n", true),
            (openai, SSE, "data: {}\n", true),
            (openai, SSE, "data: a\r\n", true),
            (openai, SSE, "id: 1\n", true),
            (openai, SSE, ": pi", true),
            (openai, SSE, "data: a\n\nev", true),
            (openai, SSE, "data: [DON", true),
            (anthropic, SSE, stop, false),
            (anthropic, SSE, &stop[..stop.len() - 1], true),
            (anthropic, SSE, "event: message_stop\n", true),
            (openai, NDJSON, "", false),
            (openai, NDJSON, "{}\n", false),
            (openai, NDJSON, "{}", false),
            (openai, NDJSON, "{}\n\n", false),
            (openai, NDJSON, "{\"a\":[1,{}]}", false),
            (openai, NDJSON, "{", true),
            (openai, NDJSON, "{\"a\":\"}", true),
            (openai, NDJSON, "{}\n{", true),
            (openai, NDJSON, "[1,2", true),
            (openai, NDJSON, "nul", true),
            (openai, "text/plain", "data: a", false),
        ] {
            for step in 1..=text.len().max(1) {
                let found = inside(path, content_type, text.as_bytes(), step);
                assert_eq!(found, expected, "{content_type} {text:?}");
            }
        }
        let long = format!("{{\"a\":\"{}\"}}", "x".repeat(100));
        assert!(
            inside(openai, NDJSON, long.as_bytes(), 200),
            "nobody can say that what has left in part is whole"
        );
        assert!(inside(openai, SSE, format!("data: {long}").as_bytes(), 200));
    }

    #[test]
    fn one_piece_per_line_of_ndjson() {
        let stream = b"{\"a\":1}\n{\"b\":\"x\"}\r\n\n{\"c\":3}\n";
        let expected = ["{\"a\":1}\n", "{\"b\":\"x\"}\r\n", "{\"c\":3}\n"];
        assert_eq!(events(NDJSON, &[stream]), expected);
        for cut in 0..stream.len() {
            assert_eq!(events(NDJSON, &[&stream[..cut], &stream[cut..]]), expected);
        }
    }

    #[test]
    fn other_bodies_leave_as_they_come() {
        assert_eq!(split("text/plain", &[b"ab", b"", b"c"]), [("ab".into(), false), ("c".into(), false)]);
    }

    #[test]
    fn an_event_too_long_to_hold_leaves_in_pieces() {
        let mut splitter = splitter(SSE, 16);
        let mut sizes = Vec::new();
        splitter.handle_data(b"data: 0123456789", |piece| sizes.push(piece.len()));
        splitter.handle_data(b"abcdef", |piece| sizes.push(piece.len()));
        assert_eq!(sizes, [22]);
        assert_eq!(splitter.poll_error_event(Kind::UpstreamClosed), None, "half an event has left");
        splitter.handle_data(b"\n\n", |piece| sizes.push(piece.len()));
        assert_eq!(sizes, [22, 2]);
        assert!(splitter.poll_error_event(Kind::UpstreamClosed).is_some());
    }

    #[test]
    fn an_error_event_drops_the_half_event_and_is_in_the_words_of_the_api() {
        for (path, content_type, begin, end) in [
            (
                "/v1/chat/completions",
                SSE,
                "event: error\ndata: {\"type\":\"error\",\"error\":{\"message\":",
                "}}\n\n",
            ),
            (
                "/v1/messages",
                SSE,
                "event: error\ndata: {\"type\":\"error\",\"error\":{\"message\":",
                "}}\n\n",
            ),
            (
                "/v1/responses",
                SSE,
                "event: error\ndata: {\"type\":\"error\",\"code\":\"gateway_draining\"",
                "}}\n\n",
            ),
            ("/v1beta/models/m:streamGenerateContent", SSE, "data: {\"error\":{\"code\":503,", "}}\n\n"),
            ("/api/chat", NDJSON, "{\"error\":\"", "\"}\n"),
            ("/unknown", NDJSON, "{\"error\":\"", "\"}\n"),
        ] {
            let mut splitter = Splitter::new(Dialect::of(path), Some(content_type), None, 1 << 16);
            splitter.handle_data(b"data: half", |_| panic!("nothing is complete"));
            let event = String::from_utf8(splitter.poll_error_event(Kind::GatewayDraining).unwrap()).unwrap();
            assert!(event.starts_with(begin) && event.ends_with(end), "{path}: {event}");
            assert!(event.contains(Kind::GatewayDraining.sentence()) && splitter.held() == 0);
        }
        assert_eq!(splitter("text/plain", 16).poll_error_event(Kind::GatewayDraining), None);
    }
}
