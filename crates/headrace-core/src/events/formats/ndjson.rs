//! Where one NDJSON line ends.
//!
//! In: bytes, cut anywhere. Out: the position behind each line feed. A line of white space alone is passed on
//! but is not an event.

use std::borrow::Cow;

use memchr::memchr;

use super::{End, Event};

/// Finds the line ends of one stream of newline-delimited JSON.
#[derive(Clone, Debug, Default)]
pub struct Scanner {
    /// The current line has a byte that is not white space.
    line_has_value: bool,
    line_begun: bool,
}

impl super::Scanner for Scanner {
    fn handle_data(&mut self, data: &[u8], from: usize) -> Option<End> {
        let rest = &data[from..];
        let line = memchr(b'\n', rest).map_or(rest, |length| &rest[..length]);
        self.line_begun |= !line.is_empty();
        self.line_has_value = self.line_has_value || line.iter().any(|byte| !byte.is_ascii_whitespace());
        (line.len() < rest.len()).then(|| {
            self.line_begun = false;
            End { at: from + line.len() + 1, is_event: std::mem::take(&mut self.line_has_value) }
        })
    }

    fn is_between_events(&self) -> bool {
        !self.line_begun
    }
}

/// Reads one event: the line. Its name, where it has one, is a member of the JSON.
pub fn read(event: &[u8]) -> Event<'_> {
    Event { name: None, data: Cow::Borrowed(event) }
}

/// Writes one event; a line has no name.
pub fn write(_name: Option<&str>, data: &str) -> Vec<u8> {
    format!("{data}\n").into_bytes()
}
