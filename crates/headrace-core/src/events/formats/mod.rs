//! The one table of streaming formats.
//!
//! In: an answer's `content-type` and `content-encoding`. Out: the row that says how its body is cut into events, how
//! one event is read, and how an event of our own is written. A format is one file beside this one, and one row here.
//! This file must not know what an API says in a format: that is `dialects/`.

pub mod codings;
pub mod content_type;
mod ndjson;
mod sse;

use std::borrow::Cow;

use content_type::ContentType;

/// One row of the table.
pub struct Format {
    /// Stable name, as reports and logs show it.
    pub name: &'static str,
    /// The content types that mean it, in lower case, without parameters.
    pub content_types: &'static [&'static str],
    /// Makes the scanner of one body; it is given the content type's parameters (a `boundary`).
    pub scanner: fn(&ContentType) -> Box<dyn Scanner>,
    /// An event is a line of JSON: one that is a whole text is a whole event, although its line feed did not come.
    pub is_line: bool,
    /// Reads one whole event.
    pub read: fn(&[u8]) -> Event<'_>,
    /// Writes one event. `None`: this format has no place for an event of our own.
    pub write: Option<Write>,
}

/// Writes an event with a name, where events have names, and a JSON text as its data.
pub type Write = fn(Option<&str>, &str) -> Vec<u8>;

/// What one event says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Event<'a> {
    pub name: Option<&'a [u8]>,
    pub data: Cow<'a, [u8]>,
}

/// A block of bytes that ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct End {
    /// Position behind the block's last byte, counted in the data of this call.
    pub at: usize,
    /// The block is an event: not a comment or a blank line.
    pub is_event: bool,
}

/// Finds where blocks end in one body, whose bytes come cut anywhere.
pub trait Scanner: Send {
    /// Looks for the end of the current block in `data[from..]`; everything before `from` was looked at already.
    fn handle_data(&mut self, data: &[u8], from: usize) -> Option<End>;

    /// Whether no event has begun since the last one ended.
    fn is_between_events(&self) -> bool;
}

pub static FORMATS: &[Format] = &[
    Format {
        name: "sse",
        content_types: &["text/event-stream"],
        scanner: |_| Box::new(sse::Scanner::default()),
        is_line: false,
        read: sse::read,
        write: Some(sse::write),
    },
    Format {
        name: "ndjson",
        content_types: &[
            "application/x-ndjson",
            "application/ndjson",
            "application/jsonl",
            "application/x-jsonlines",
            "application/jsonlines",
            "application/stream+json",
        ],
        scanner: |_| Box::new(ndjson::Scanner::default()),
        is_line: true,
        read: ndjson::read,
        write: Some(ndjson::write),
    },
];

/// Any other body: nothing in it is an event, and it leaves as it comes.
pub static RAW: Format = Format {
    name: "raw",
    content_types: &[],
    scanner: |_| Box::new(Raw),
    is_line: false,
    read: |_| Event::default(),
    write: None,
};

impl Format {
    /// The row of an answer. A compressed body hides its events, whatever its type.
    pub fn of<'a>(
        content_type: &ContentType,
        content_encodings: impl IntoIterator<Item = &'a str>,
    ) -> &'static Self {
        if codings::is_coded(content_encodings) {
            return &RAW;
        }
        let named = |format: &&Format| format.content_types.contains(&content_type.essence.as_str());
        FORMATS.iter().find(named).unwrap_or(&RAW)
    }
}

impl std::fmt::Debug for Format {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "<Format {}>", self.name)
    }
}

/// Every piece of a raw body is a block as soon as it is there.
struct Raw;

impl Scanner for Raw {
    fn handle_data(&mut self, data: &[u8], from: usize) -> Option<End> {
        (from < data.len()).then_some(End { at: data.len(), is_event: false })
    }

    fn is_between_events(&self) -> bool {
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(content_type: Option<&str>, encoding: Option<&str>) -> &'static str {
        Format::of(&ContentType::parse(content_type), encoding).name
    }

    #[test]
    fn a_format_is_known_by_its_content_type() {
        for format in FORMATS {
            for content_type in format.content_types {
                assert_eq!(of(Some(content_type), None), format.name);
                assert_eq!(of(Some(content_type), Some("identity")), format.name);
                assert_eq!(of(Some(content_type), Some("utf-8")), format.name);
                assert_eq!(of(Some(content_type), Some("gzip")), "raw");
                let spelt = format!(" {} ; charset=UTF-8", content_type.to_uppercase());
                assert_eq!(of(Some(&spelt), None), format.name);
            }
        }
        assert_eq!((of(Some("application/json"), None), of(None, None)), ("raw", "raw"));
    }

    /// What separates the parts of a body is named by a parameter of its content type.
    struct Parts(Vec<u8>);

    impl Scanner for Parts {
        fn handle_data(&mut self, data: &[u8], from: usize) -> Option<End> {
            let found = memchr::memmem::find(&data[from..], &self.0)?;
            Some(End { at: from + found + self.0.len(), is_event: true })
        }

        fn is_between_events(&self) -> bool {
            true
        }
    }

    #[test]
    fn parameters_of_the_content_type_reach_the_scanner() {
        let row = Format {
            name: "parts",
            content_types: &["multipart/mixed"],
            is_line: false,
            scanner: |content_type| {
                let boundary = content_type.parameter("boundary").unwrap_or_default();
                Box::new(Parts(format!("--{boundary}").into_bytes()))
            },
            read: |event| Event { name: None, data: Cow::Borrowed(event) },
            write: None,
        };
        let content_type = ContentType::parse(Some("multipart/mixed; charset=utf-8; Boundary=\"a;b\""));
        let mut scanner = (row.scanner)(&content_type);
        assert_eq!(scanner.handle_data(b"one--a;btwo", 0), Some(End { at: 8, is_event: true }));
        assert_eq!(scanner.handle_data(b"one--a;btwo", 8), None);
    }

    #[test]
    fn names_and_content_types_are_unique() {
        let mut seen: Vec<&str> = FORMATS.iter().map(|format| format.name).collect();
        seen.extend(FORMATS.iter().flat_map(|format| format.content_types));
        let count = seen.len();
        seen.sort_unstable();
        seen.dedup();
        assert_eq!(seen.len(), count);
    }

    #[test]
    fn what_a_format_writes_it_scans_and_reads_again() {
        for format in FORMATS {
            let Some(write) = format.write else { continue };
            let event = write(Some("error"), r#"{"a":1}"#);
            let mut scanner = (format.scanner)(&ContentType::default());
            assert_eq!(scanner.handle_data(&event, 0), Some(End { at: event.len(), is_event: true }));
            assert!(scanner.is_between_events());
            assert_eq!((format.read)(&event).data.trim_ascii(), br#"{"a":1}"#);
        }
    }
}
