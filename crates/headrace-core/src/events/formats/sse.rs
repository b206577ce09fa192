//! Where one Server-Sent Event ends.
//!
//! In: bytes, cut anywhere. Out: the position behind each complete block. Lines end with LF, CR or CRLF, a
//! byte order mark may lead the stream, and an empty line ends a block (WHATWG HTML §9.2.5). Bytes are only
//! looked at, never changed: the caller passes them on as they came.
//!
//! Two rules keep a heartbeat from being held back, and an ending from being waited for:
//! * a comment line that stands alone at the end of what has arrived is a block of its own;
//! * a block ends at a CR although an LF may follow; that LF then leads the next block, where it means
//!   nothing.

use std::borrow::Cow;

use memchr::{memchr, memchr2};

use super::{End, Event};

const BOM: &[u8] = b"\xef\xbb\xbf";

/// What the lines of the current block have been so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Block {
    Empty,
    Comments,
    Fields,
}

/// Finds the block ends of one event stream.
#[derive(Clone, Debug)]
pub struct Scanner {
    block: Block,
    /// The current line has at least one byte.
    line_begun: bool,
    /// The current line began with a colon.
    line_is_comment: bool,
    /// The last byte was the CR of a line's end: an LF right after it belongs to the same end.
    after_cr: bool,
    /// How many bytes of the byte order mark were seen, until the first other byte.
    bom_seen: Option<usize>,
}

impl Default for Scanner {
    fn default() -> Self {
        Self {
            block: Block::Empty,
            line_begun: false,
            line_is_comment: false,
            after_cr: false,
            bom_seen: Some(0),
        }
    }
}

impl super::Scanner for Scanner {
    fn handle_data(&mut self, data: &[u8], from: usize) -> Option<End> {
        let mut at = self.skip_bom(data, from);
        if self.after_cr && at < data.len() {
            self.after_cr = false;
            at += usize::from(data[at] == b'\n');
        }
        while at < data.len() {
            let Some(offset) = memchr2(b'\n', b'\r', &data[at..]) else {
                self.begin_line(data[at]);
                break;
            };
            if offset > 0 {
                self.begin_line(data[at]);
            }
            let ended_by_cr = data[at + offset] == b'\r';
            at += offset + 1;
            if ended_by_cr {
                if data.get(at) == Some(&b'\n') {
                    at += 1;
                } else {
                    self.after_cr = at == data.len();
                }
            }
            if let Some(is_event) = self.end_line(at == data.len()) {
                return Some(End { at, is_event });
            }
        }
        None
    }

    fn is_between_events(&self) -> bool {
        self.block == Block::Empty && !self.line_begun
    }
}

impl Scanner {
    fn skip_bom(&mut self, data: &[u8], from: usize) -> usize {
        let mut at = from;
        while let Some(seen) = self.bom_seen {
            match data.get(at) {
                None => break,
                Some(&byte) if byte == BOM[seen] => {
                    at += 1;
                    self.bom_seen = (seen + 1 < BOM.len()).then_some(seen + 1);
                }
                Some(_) => {
                    // Half a mark is not a mark: those bytes began a line.
                    self.line_begun |= seen > 0;
                    self.bom_seen = None;
                }
            }
        }
        at
    }

    fn begin_line(&mut self, first: u8) {
        if !self.line_begun {
            self.line_begun = true;
            self.line_is_comment = first == b':';
        }
    }

    /// Ends the current line; says whether the block ends with it, and whether that block is an event.
    fn end_line(&mut self, is_last: bool) -> Option<bool> {
        let was_empty = !self.line_begun;
        self.line_begun = false;
        let ends = match (self.block, was_empty) {
            (Block::Empty, true) => false,
            (_, true) => true,
            (Block::Fields, false) => false,
            (_, false) if self.line_is_comment => {
                self.block = Block::Comments;
                is_last
            }
            (_, false) => {
                self.block = Block::Fields;
                false
            }
        };
        ends.then(|| std::mem::replace(&mut self.block, Block::Empty) == Block::Fields)
    }
}

/// Reads one event: its name, and its data with the lines joined (§9.2.6). The last field of a name counts.
pub fn read(event: &[u8]) -> Event<'_> {
    let mut read = Event::default();
    let mut has_data = false;
    for line in lines(event.strip_prefix(BOM).unwrap_or(event)) {
        let (field, value) = match memchr(b':', line) {
            Some(colon) => (&line[..colon], &line[colon + 1..]),
            None => (line, &b""[..]),
        };
        let value = value.strip_prefix(b" ").unwrap_or(value);
        match field {
            b"event" => read.name = Some(value),
            b"data" if has_data => {
                let data = read.data.to_mut();
                data.push(b'\n');
                data.extend_from_slice(value);
            }
            b"data" => {
                has_data = true;
                read.data = Cow::Borrowed(value);
            }
            _ => {}
        }
    }
    read
}

/// Lines that end with LF, CR or CRLF. An empty one between CR and LF does no harm here.
fn lines(text: &[u8]) -> impl Iterator<Item = &[u8]> {
    text.split(|byte| matches!(byte, b'\n' | b'\r'))
}

/// Writes one event.
pub fn write(name: Option<&str>, data: &str) -> Vec<u8> {
    let name = name.map(|name| format!("event: {name}\n")).unwrap_or_default();
    format!("{name}data: {data}\n\n").into_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read_as(event: &str) -> (Option<String>, String) {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let event = read(event.as_bytes());
        (event.name.map(text), text(&event.data))
    }

    #[test]
    fn an_event_is_read_by_its_fields() {
        for (event, name, data) in [
            ("data: a\n\n", None, "a"),
            ("data:a\r\ndata:  b\r\n\r\n", None, "a\n b"),
            ("event: x\rdata: a\r\r", Some("x"), "a"),
            (": note\nid: 1\ndata: a\nevent:y\n\n", Some("y"), "a"),
            ("\u{feff}data: a\n\n", None, "a"),
            ("\ndata: a\n\n", None, "a"),
            ("data\ndata\n\n", None, "\n"),
            ("dataset: a\nevents: x\n\n", None, ""),
            ("event: x\nevent: y\ndata: event: z\n\n", Some("y"), "event: z"),
        ] {
            assert_eq!(read_as(event), (name.map(str::to_owned), data.to_owned()), "{event:?}");
        }
    }
}
