//! Event streams: where one event ends, which is the last, and what is still open.

use headrace_core::Kind;
use headrace_core::events::Splitter;
use headrace_core::events::dialects::Dialect;

use crate::pieces;

/// Longer events leave in pieces.
const MAX_EVENT: usize = 64;
const PATHS: [&str; 4] = ["/v1/chat/completions", "/v1/messages", "/api/chat", "/"];

/// Server-Sent Events.
pub fn sse(data: &[u8]) {
    events(data, "text/event-stream");
}

/// One JSON text a line.
pub fn ndjson(data: &[u8]) {
    events(data, "application/x-ndjson");
}

/// What a splitter makes of a body.
#[derive(Debug, PartialEq)]
struct Split {
    events: usize,
    is_inside_event: bool,
    has_error_event: bool,
}

fn events(data: &[u8], content_type: &str) {
    let Some((whole, pieces)) = pieces(data) else { return };
    let path = PATHS[whole.len() % PATHS.len()];
    let (split, in_pieces) = (split(&[whole], path, content_type), split(&pieces, path, content_type));
    assert_eq!(split.events, in_pieces.events);
    // Whether a part of a long event has left already depends on how it came.
    assert!(whole.len() > MAX_EVENT || split == in_pieces, "{split:?} {in_pieces:?}");
}

fn split(pieces: &[&[u8]], path: &str, content_type: &str) -> Split {
    let mut splitter = Splitter::new(Dialect::of(path), Some(content_type), [], MAX_EVENT);
    let (mut events, mut out, mut read) = (0, Vec::new(), Vec::new());
    for piece in pieces {
        read.extend_from_slice(piece);
        splitter.handle_data(piece, |piece| {
            assert!(!piece.is_empty(), "a piece without a byte");
            events += usize::from(piece.is_event);
            out.extend_from_slice(piece.held);
            out.extend_from_slice(piece.fresh);
        });
        assert!(splitter.held() <= MAX_EVENT);
        assert_eq!(out.len() + splitter.held(), read.len(), "bytes are neither lost nor added");
    }
    assert!(read.starts_with(&out));
    let is_inside_event = splitter.is_inside_event();
    let error = splitter.poll_error_event(Kind::UpstreamClosed);
    if let Some(error) = &error {
        assert!(error.ends_with(b"\n") && !error.contains(&b'\0'));
    }
    Split { events, is_inside_event, has_error_event: error.is_some() }
}
