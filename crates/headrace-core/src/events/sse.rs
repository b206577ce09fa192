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

use memchr::memchr2;

const BOM: &[u8] = b"\xef\xbb\xbf";

/// What the lines of the current block have been so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Block {
    Empty,
    Comments,
    Fields,
}

/// A block that ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct End {
    /// Position behind the block's last byte, counted in the data of this call.
    pub at: usize,
    /// False for a block of comments alone.
    pub is_event: bool,
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

impl Scanner {
    /// Looks for the end of the current block in `data[from..]`; everything before `from` was looked at
    /// already.
    pub fn handle_data(&mut self, data: &[u8], from: usize) -> Option<End> {
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

    /// Whether nothing but line ends has come since the last block.
    pub fn is_between_events(&self) -> bool {
        self.block == Block::Empty && !self.line_begun
    }

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
