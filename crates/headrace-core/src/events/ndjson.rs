//! Where one NDJSON line ends.
//!
//! In: bytes, cut anywhere. Out: the position behind each line feed. A line of white space alone is passed on
//! but is not an event.

use memchr::memchr;

use crate::events::sse::End;

/// Finds the line ends of one stream of newline-delimited JSON.
#[derive(Clone, Debug, Default)]
pub struct Scanner {
    /// The current line has a byte that is not white space.
    line_has_value: bool,
    line_begun: bool,
}

impl Scanner {
    /// Looks for the end of the current line in `data[from..]`; everything before `from` was looked at
    /// already.
    pub fn handle_data(&mut self, data: &[u8], from: usize) -> Option<End> {
        let rest = &data[from..];
        let line = memchr(b'\n', rest).map_or(rest, |length| &rest[..length]);
        self.line_begun |= !line.is_empty();
        self.line_has_value = self.line_has_value || line.iter().any(|byte| !byte.is_ascii_whitespace());
        (line.len() < rest.len()).then(|| {
            self.line_begun = false;
            End { at: from + line.len() + 1, is_event: std::mem::take(&mut self.line_has_value) }
        })
    }

    /// Whether the last line was complete.
    pub fn is_between_events(&self) -> bool {
        !self.line_begun
    }
}
