//! Every dialect's last event is known in every spelling and however it is cut; and nothing else is taken for it.

#![allow(clippy::unwrap_used)]

use headrace_core::events::Splitter;
use headrace_core::events::dialects::marks::Mark;
use headrace_core::events::dialects::{DIALECTS, Dialect};
use headrace_core::events::formats::{FORMATS, Format};

/// Data with the mark, in as many spellings as JSON and people know.
fn data(mark: Mark) -> Vec<String> {
    let member = |path: &[&str], value: &str| {
        let (last, outer) = path.split_last().unwrap();
        let nested = outer.iter().rfold(format!(r#""{last}":{value}"#), |inner, name| {
            format!(r#""{name}":[{{"content":{{"parts":[]}},{inner},"index":0}}]"#)
        });
        vec![
            format!("{{{nested}}}"),
            format!(r#"{{"a":[1,-2.5e3,null,"\\\"{{"],{nested},"usage":{{"done":false}}}}"#),
            format!(" {{ {} }} ", nested.replace("\":", "\" : ").replace(",\"", " , \"")),
            format!(r#"{{"z":"é😀 \u00e9",{nested}}}"#),
        ]
    };
    match mark {
        Mark::Data(text) => vec![text.to_owned(), format!(" {text} ")],
        Mark::Type(name) => member(&["type"], &format!("\"{name}\"")),
        Mark::True(path) => member(path, "true"),
        Mark::Text(path) => member(path, "\"STOP\""),
    }
}

/// Events with the mark.
fn spellings(mark: Mark, format: &Format) -> Vec<String> {
    let mut all: Vec<String> = Vec::new();
    for data in data(mark) {
        if format.name == "ndjson" {
            all.extend([format!("{data}\n"), format!("{data}\r\n"), format!("\n  \n{data}\n")]);
            continue;
        }
        all.extend([
            format!("data: {data}\n\n"),
            format!("data:{data}\n\n"),
            format!("data: {data}\r\n\r\n"),
            format!("data: {data}\r\r"),
            format!("id: 7\nevent: x\nretry: 1\ndata: {data}\n\n"),
            format!("data: {data}\nevent: x\nid: 7\n\n"),
            format!(": a comment\n\ndata: {data}\n\n"),
            format!(": a comment\ndata: {data}\n: another\n\n"),
        ]);
        if data.starts_with('{') && !data.contains('\\') {
            let lines = data.replace(':', ":\ndata: ").replace("{\"", "{\ndata:\"");
            all.push(format!("data: {lines}\n\n"));
        }
    }
    if let (Mark::Type(name), "sse") = (mark, format.name) {
        all.extend([
            format!("event: {name}\ndata: {{}}\n\n"),
            format!("event:{name}\r\ndata: {{}}\r\n\r\n"),
            format!("data: {{\"a\":1}}\nevent: {name}\n\n"),
            format!("event: {name}\ndata: not JSON\n\n"),
        ]);
    }
    all
}

/// Events that only speak of the mark.
fn decoys(mark: Mark, format: &Format) -> Vec<String> {
    let mut all: Vec<String> = Vec::new();
    let mut said: Vec<String> = spellings(mark, format);
    said.push(mark.word());
    for text in said {
        let text = serde_json::Value::from(text).to_string();
        all.extend([
            format!(r#"{{"choices":[{{"delta":{{"content":{text}}}}}]}}"#),
            format!(r#"{{"type":"content_block_delta","delta":{{"type":"text_delta","text":{text}}}}}"#),
            format!(r#"{{"message":{{"content":{text}}},"done":false,"stop":false}}"#),
            format!(
                r#"{{"candidates":[{{"content":{{"parts":[{{"text":{text}}}]}},"finishReason":null}}]}}"#
            ),
        ]);
    }
    let inner = data(mark).swap_remove(0);
    let inner = if inner.starts_with('{') { inner } else { format!("\"{inner}\"") };
    all.push(format!(r#"{{"tool":{{"arguments":{inner}}},"list":[{inner}]}}"#));
    all.push(format!(r#"{{"delta":{inner}}}"#));
    let write = format.write.unwrap();
    let mut events: Vec<String> =
        all.iter().map(|data| String::from_utf8(write(Some("delta"), data)).unwrap()).collect();
    if format.name == "sse" {
        let word = mark.word();
        events.extend([
            format!("data: so\ndata: {word}\n\n"),
            format!("data: {word}\ndata: so\n\n"),
            format!("data: {word} so\n\n"),
            format!("id: {word}\ndata: so\n\n"),
            format!(": {word}\ndata: so\n\n"),
            format!("x-event: {word}\ndata: so\n\n"),
            format!("event: x{word}\ndata: so\n\n"),
        ]);
    }
    events
}

fn all_rows() -> impl Iterator<Item = (&'static Dialect, &'static Format, Mark)> {
    DIALECTS.iter().flat_map(|dialect| {
        let formats = FORMATS.iter().filter(|format| dialect.formats.contains(&format.name));
        formats.flat_map(move |format| dialect.last.iter().map(move |mark| (dialect, format, *mark)))
    })
}

/// Whether the last event that a splitter hands out is said to be the answer's last.
fn ends(dialect: &'static Dialect, format: &Format, parts: &[&[u8]], max_event_bytes: usize) -> bool {
    let mut splitter = Splitter::new(dialect, Some(format.content_types[0]), None, max_event_bytes);
    let mut is_last = false;
    for part in parts {
        splitter.handle_data(part, |piece| is_last = piece.is_last || is_last && !piece.is_event);
    }
    is_last
}

#[test]
fn every_dialects_last_event_is_known_however_it_is_spelt_and_cut() {
    for (dialect, format, mark) in all_rows() {
        for event in spellings(mark, format) {
            let bytes = event.as_bytes();
            assert!(ends(dialect, format, &[bytes], 1 << 16), "{}: {event:?}", dialect.name);
            for at in 0..bytes.len() {
                let parts = [&bytes[..at], &bytes[at..]];
                assert!(ends(dialect, format, &parts, 1 << 16), "{}: {event:?} cut at {at}", dialect.name);
            }
            let single: Vec<&[u8]> = bytes.chunks(1).collect();
            assert!(ends(dialect, format, &single, 1 << 16), "{}: {event:?} byte by byte", dialect.name);
        }
    }
}

#[test]
fn a_model_that_writes_about_the_mark_ends_nothing() {
    for (dialect, format, mark) in all_rows() {
        for event in decoys(mark, format) {
            let bytes = event.as_bytes();
            assert!(!ends(dialect, format, &[bytes], 1 << 16), "{}: {event:?}", dialect.name);
            let (first, second) = bytes.split_at(bytes.len() / 2);
            assert!(!ends(dialect, format, &[first, second], 1 << 16), "{}: {event:?}", dialect.name);
            for max_event_bytes in [8, 40, 100] {
                let parts: Vec<&[u8]> = bytes.chunks(10).collect();
                assert!(!ends(dialect, format, &parts, max_event_bytes), "{}: {event:?}", dialect.name);
            }
        }
    }
}

#[test]
fn a_last_event_that_is_too_long_to_be_held_is_known_by_its_type() {
    for (dialect, format, mark) in all_rows() {
        let Mark::Type(name) = mark else { continue };
        let text = "x".repeat(500);
        for event in [
            format!("event: {name}\ndata: {{\"text\":\"{text}\"}}\n\n"),
            format!("data: {{\"type\":\"{name}\",\"text\":\"{text}\"}}\n\n"),
            format!("data: {{\"n\":1, \"type\": \"{name}\", \"response\":{{\"text\":\"{text}\"}}}}\n\n"),
        ] {
            let parts: Vec<&[u8]> = event.as_bytes().chunks(90).collect();
            assert!(ends(dialect, format, &parts, 100), "{}: {event:?}", dialect.name);
            // Only its end tells, not its beginning.
            assert!(!ends(dialect, format, &parts[..parts.len() - 1], 100), "{}: {event:?}", dialect.name);
        }
    }
}

#[test]
fn an_answer_that_is_not_a_stream_of_events_has_no_last_event() {
    for (dialect, format, mark) in all_rows() {
        for event in spellings(mark, format) {
            for (content_type, encoding) in [
                (Some("application/json"), None),
                (None, None),
                (Some(format.content_types[0]), Some("gzip")),
            ] {
                let mut splitter = Splitter::new(dialect, content_type, encoding, 1 << 16);
                splitter.handle_data(event.as_bytes(), |piece| assert!(!piece.is_event && !piece.is_last));
            }
        }
    }
}
