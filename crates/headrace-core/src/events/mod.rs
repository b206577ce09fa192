//! Cutting an answer into the pieces that leave as one DATA frame each.
//!
//! In: the bytes of an answer's body as they arrive, cut anywhere. Out: pieces, in order, whose bytes together
//! are exactly the bytes that came in. A piece of an event stream is one SSE event or one NDJSON line, so that
//! no client ever waits for the second half of a token; of any other body, a piece is whatever has just
//! arrived.
//!
//! At most one incomplete event is held back, and never more than `max_event_bytes`: a longer one leaves in parts.

pub mod ndjson;
pub mod sse;

use sse::End;

use crate::Kind;

/// How a body is framed inside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Framing {
    Sse,
    Ndjson,
    Raw,
}

impl Framing {
    /// Decides by the answer's `content-type` and `content-encoding`.
    pub fn of(content_type: Option<&str>, content_encoding: Option<&str>) -> Self {
        if content_encoding.is_some_and(|encoding| !encoding.trim().eq_ignore_ascii_case("identity")) {
            return Framing::Raw;
        }
        let essence = content_type.unwrap_or("").split(';').next().unwrap_or("").trim().to_ascii_lowercase();
        match essence.as_str() {
            "text/event-stream" => Framing::Sse,
            "application/x-ndjson"
            | "application/ndjson"
            | "application/jsonl"
            | "application/x-jsonlines"
            | "application/jsonlines"
            | "application/stream+json" => Framing::Ndjson,
            _ => Framing::Raw,
        }
    }

    pub fn name(self) -> &'static str {
        match self {
            Framing::Sse => "sse",
            Framing::Ndjson => "ndjson",
            Framing::Raw => "raw",
        }
    }
}

/// Some bytes that leave together: `held` (from before) and then `fresh` (of this call).
#[derive(Clone, Copy, Debug)]
pub struct Piece<'a> {
    pub held: &'a [u8],
    pub fresh: &'a [u8],
    /// The piece completes an event (and is not a comment, a blank line, or raw bytes).
    pub is_event: bool,
}

impl Piece<'_> {
    pub fn len(&self) -> usize {
        self.held.len() + self.fresh.len()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The event by which OpenAI-style servers say that the answer is over, before its body ends.
    pub fn is_done_mark(&self) -> bool {
        const MARK: &[u8] = b"data: [DONE]";
        let (from_held, from_fresh) = MARK.split_at(self.held.len().min(MARK.len()));
        self.is_event && self.held.starts_with(from_held) && self.fresh.starts_with(from_fresh)
    }
}

enum Scan {
    Sse(sse::Scanner),
    Ndjson(ndjson::Scanner),
    Raw,
}

/// The splitter of one body.
pub struct Splitter {
    scan: Scan,
    held: Vec<u8>,
    max_event_bytes: usize,
    /// Part of the current event has left already, because it was too long to hold.
    is_split: bool,
}

impl Splitter {
    pub fn new(framing: Framing, max_event_bytes: usize) -> Self {
        let scan = match framing {
            Framing::Sse => Scan::Sse(sse::Scanner::default()),
            Framing::Ndjson => Scan::Ndjson(ndjson::Scanner::default()),
            Framing::Raw => Scan::Raw,
        };
        Self { scan, held: Vec::new(), max_event_bytes, is_split: false }
    }

    pub fn framing(&self) -> Framing {
        match self.scan {
            Scan::Sse(_) => Framing::Sse,
            Scan::Ndjson(_) => Framing::Ndjson,
            Scan::Raw => Framing::Raw,
        }
    }

    /// Takes bytes in; calls `emit` for each piece that is now complete.
    pub fn handle_data(&mut self, data: &[u8], mut emit: impl FnMut(Piece<'_>)) {
        let mut start = 0;
        while let Some(End { at, is_event }) = self.scan_from(data, start) {
            emit(Piece { held: &self.held, fresh: &data[start..at], is_event });
            self.held.clear();
            self.is_split = false;
            start = at;
        }
        let rest = &data[start..];
        if self.held.len() + rest.len() > self.max_event_bytes {
            emit(Piece { held: &self.held, fresh: rest, is_event: false });
            self.held = Vec::new();
            self.is_split = true;
        } else {
            self.held.extend_from_slice(rest);
        }
    }

    /// Ends the body as its framing says: what is held leaves, whether it is a whole event or not.
    pub fn handle_end(&mut self, mut emit: impl FnMut(Piece<'_>)) {
        if !self.held.is_empty() {
            emit(Piece { held: &self.held, fresh: &[], is_event: !self.is_between_events() });
            self.held = Vec::new();
        }
    }

    /// An event that says that the answer broke off. It stands between two events, so what is held, half an event, is
    /// dropped. `None` for a raw body, which has no place for one, and when half an event has left already.
    pub fn poll_error_event(&mut self, kind: Kind) -> Option<Vec<u8>> {
        self.held = Vec::new();
        if self.is_split {
            return None;
        }
        // OpenAI's clients look for `error` in the data of any event, Anthropic's for an event named `error`
        // whose data has the type `error`; Ollama's for a line with `error`.
        let error = format!(
            r#"{{"message":{},"type":"{}_error","code":{}}}"#,
            json_string(kind.sentence()),
            kind.side().name(),
            json_string(kind.slug()),
        );
        match self.framing() {
            Framing::Sse => {
                Some(format!("event: error\ndata: {{\"type\":\"error\",\"error\":{error}}}\n\n").into_bytes())
            }
            Framing::Ndjson => Some(
                format!(
                    "{{\"error\":{},\"code\":{}}}\n",
                    json_string(kind.sentence()),
                    json_string(kind.slug())
                )
                .into_bytes(),
            ),
            Framing::Raw => None,
        }
    }

    /// How many bytes are held back now.
    pub fn held(&self) -> usize {
        self.held.len()
    }

    fn scan_from(&mut self, data: &[u8], from: usize) -> Option<End> {
        match &mut self.scan {
            Scan::Sse(scanner) => scanner.handle_data(data, from),
            Scan::Ndjson(scanner) => scanner.handle_data(data, from),
            Scan::Raw => (from < data.len()).then_some(End { at: data.len(), is_event: false }),
        }
    }

    fn is_between_events(&self) -> bool {
        match &self.scan {
            Scan::Sse(scanner) => scanner.is_between_events(),
            Scan::Ndjson(scanner) => scanner.is_between_events(),
            Scan::Raw => true,
        }
    }
}

/// `text` as a JSON string (RFC 8259 §7).
fn json_string(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 2);
    out.push('"');
    for c in text.chars() {
        match c {
            '"' | '\\' => out.extend(['\\', c]),
            c if (c as u32) < 0x20 => out.push_str(&format!("\\u{:04x}", c as u32)),
            c => out.push(c),
        }
    }
    out.push('"');
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mark_of_the_end_is_known_however_it_was_cut() {
        let mark = b"data: [DONE]\n\n";
        for at in 0..mark.len() {
            let (held, fresh) = mark.split_at(at);
            assert!(Piece { held, fresh, is_event: true }.is_done_mark());
        }
        for other in [&b"data: [DON"[..], b"data: {}\n\n", b"", b": [DONE]"] {
            assert!(!Piece { held: b"", fresh: other, is_event: true }.is_done_mark());
        }
    }

    /// Feeds `parts` and returns (bytes, is_event) of each piece, and what was left at the end.
    fn split(framing: Framing, parts: &[&[u8]]) -> Vec<(String, bool)> {
        let mut splitter = Splitter::new(framing, 1 << 16);
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

    fn events(framing: Framing, parts: &[&[u8]]) -> Vec<String> {
        split(framing, parts).into_iter().filter(|(_, is_event)| *is_event).map(|(text, _)| text).collect()
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
    fn one_unit_per_event_however_the_stream_is_cut() {
        for (stream, expected) in STREAMS {
            let bytes = stream.as_bytes();
            assert_eq!(&events(Framing::Sse, &[bytes]), expected);
            for first in 0..bytes.len() {
                for second in first..bytes.len() {
                    let parts = [&bytes[..first], &bytes[first..second], &bytes[second..]];
                    let pieces = split(Framing::Sse, &parts);
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
            assert_eq!(events(Framing::Sse, &single).len(), expected.len(), "{stream:?} byte by byte");
        }
    }

    #[test]
    fn an_event_leaves_as_soon_as_its_blank_line_is_there() {
        let mut splitter = Splitter::new(Framing::Sse, 1 << 16);
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
        assert_eq!(split(Framing::Sse, &[b": ping\n"]), [(": ping\n".to_owned(), false)]);
        assert_eq!(split(Framing::Sse, &[b": ping\n\n"]), [(": ping\n\n".to_owned(), false)]);
        assert_eq!(
            split(Framing::Sse, &[b": ping\ndata: a\n\n"]),
            [(": ping\ndata: a\n\n".to_owned(), true)],
            "a comment before an event belongs to it"
        );
        assert_eq!(events(Framing::Sse, &[b"data: a\n", b": in between\n", b"\n"]).len(), 1);
    }

    #[test]
    fn an_unfinished_event_leaves_at_a_clean_end() {
        assert_eq!(split(Framing::Sse, &[b"data: a\n\ndata: b"])[1], ("data: b".to_owned(), true));
        assert_eq!(split(Framing::Ndjson, &[b"{}\n{\"a\":"])[1], ("{\"a\":".to_owned(), true));
    }

    #[test]
    fn one_unit_per_line_of_ndjson() {
        let stream = b"{\"a\":1}\n{\"b\":\"x\"}\r\n\n{\"c\":3}\n";
        let expected = ["{\"a\":1}\n", "{\"b\":\"x\"}\r\n", "{\"c\":3}\n"];
        assert_eq!(events(Framing::Ndjson, &[stream]), expected);
        for cut in 0..stream.len() {
            assert_eq!(events(Framing::Ndjson, &[&stream[..cut], &stream[cut..]]), expected);
        }
    }

    #[test]
    fn other_bodies_leave_as_they_come() {
        assert_eq!(split(Framing::Raw, &[b"ab", b"", b"c"]), [("ab".into(), false), ("c".into(), false)]);
    }

    #[test]
    fn an_event_too_long_to_hold_leaves_in_pieces() {
        let mut splitter = Splitter::new(Framing::Sse, 16);
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
    fn the_framing_is_known_by_its_content_type() {
        for (content_type, encoding, framing) in [
            (Some("text/event-stream"), None, Framing::Sse),
            (Some("Text/Event-Stream; charset=utf-8"), Some("identity"), Framing::Sse),
            (Some("text/event-stream"), Some("gzip"), Framing::Raw),
            (Some("application/x-ndjson"), None, Framing::Ndjson),
            (Some("application/jsonl"), None, Framing::Ndjson),
            (Some("application/json"), None, Framing::Raw),
            (None, None, Framing::Raw),
        ] {
            assert_eq!(Framing::of(content_type, encoding), framing);
        }
    }

    #[test]
    fn an_error_event_fits_the_framing_and_drops_the_half_event() {
        let mut splitter = Splitter::new(Framing::Sse, 1 << 16);
        splitter.handle_data(b"data: half", |_| panic!("nothing is complete"));
        let event = String::from_utf8(splitter.poll_error_event(Kind::GatewayDraining).unwrap()).unwrap();
        let message = Kind::GatewayDraining.sentence();
        assert!(event.starts_with(&format!(
            "event: error\ndata: {{\"type\":\"error\",\"error\":{{\"message\":\"{message}\",\"type\":\"us_error\",\"code\":\"gateway_draining\""
        )));
        assert!(event.ends_with("\n\n") && splitter.held() == 0);
        let mut lines = Splitter::new(Framing::Ndjson, 1 << 16);
        let line = format!("{{\"error\":\"{message}\",\"code\":\"gateway_draining\"}}\n");
        assert_eq!(lines.poll_error_event(Kind::GatewayDraining).unwrap(), line.into_bytes());
        assert_eq!(Splitter::new(Framing::Raw, 16).poll_error_event(Kind::GatewayDraining), None);
    }
}
