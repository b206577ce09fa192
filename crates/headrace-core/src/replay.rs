//! The record of one answer, from which it can be told again.
//!
//! In: the head, the body piece by piece, how it ended; and how far it was read. Out: the same, to any reader, from
//! any place that is still kept. The record is bounded: when it is full, the oldest pieces that somebody has read are
//! forgotten, and a reader that still needs them is told so. What nobody has read yet stays: the writer looks at
//! [`Record::unread`], and pauses.

use std::collections::VecDeque;

use bytes::Bytes;
use http::{HeaderMap, StatusCode};

use crate::Error;
use crate::relay::Cause;

/// What an entry costs beside its bytes, so that many small ones do not hold more memory than they seem to.
const ENTRY_COST: usize = 64;

/// One piece of the body: a whole event where `is_event`, the answer's last where `is_last`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    pub bytes: Bytes,
    pub is_event: bool,
    pub is_last: bool,
}

impl Entry {
    fn cost(&self) -> usize {
        self.bytes.len() + ENTRY_COST
    }
}

/// How the answer ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum End {
    /// The answer is whole; its trailers, if it has any.
    Finished(Option<HeaderMap>),
    /// It broke off, or never began.
    Broken(Break),
}

impl End {
    /// The end of an answer whose stream was reset for this cause. When all readers left after the answer's own last
    /// event, it is whole.
    pub fn of_reset(code: u64, cause: Cause, error: Option<Error>) -> Self {
        match cause {
            Cause::Done => End::Finished(None),
            _ => End::Broken(Break { code, cause, error }),
        }
    }
}

/// Why an answer broke off; the code is that of the stream reset (RFC 9114 §8.1).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Break {
    pub code: u64,
    pub cause: Cause,
    pub error: Option<Error>,
}

/// What is at a place of the record.
#[derive(Debug, PartialEq, Eq)]
pub enum Place<'a> {
    Entry(&'a Entry),
    /// Nothing yet.
    Open,
    /// It was kept once.
    Forgotten,
    End(&'a End),
}

#[derive(Debug)]
pub struct Record {
    most_bytes: usize,
    bytes: usize,
    head: Option<(StatusCode, HeaderMap)>,
    entries: VecDeque<Entry>,
    /// The number of the first entry that is kept.
    first: u64,
    /// The number of the first entry that nobody has read, and the bytes from there on.
    read: u64,
    unread: usize,
    end: Option<End>,
}

impl Record {
    /// `most_bytes`: what is kept of head and body, with what keeping them costs.
    pub fn new(most_bytes: usize) -> Self {
        let entries = VecDeque::new();
        Self { most_bytes, bytes: 0, head: None, entries, first: 0, read: 0, unread: 0, end: None }
    }

    pub fn set_head(&mut self, status: StatusCode, headers: HeaderMap) {
        self.bytes += headers.iter().map(|(name, value)| name.as_str().len() + value.len()).sum::<usize>();
        self.head = Some((status, headers));
    }

    pub fn head(&self) -> Option<(StatusCode, &HeaderMap)> {
        self.head.as_ref().map(|(status, headers)| (*status, headers))
    }

    pub fn push(&mut self, entry: Entry) {
        self.bytes += entry.cost();
        self.unread += entry.cost();
        self.entries.push_back(entry);
        self.forget(self.most_bytes);
    }

    /// Somebody has read every entry before this one.
    pub fn note_read(&mut self, number: u64) {
        while self.read < number
            && let Some(entry) = self.entries.get((self.read - self.first) as usize)
        {
            self.unread -= entry.cost();
            self.read += 1;
        }
        self.forget(self.most_bytes);
    }

    /// Forgets the oldest entries that were read, until at most `most_bytes` are kept.
    pub fn forget(&mut self, most_bytes: usize) {
        while self.bytes > most_bytes
            && self.first < self.read
            && let Some(forgotten) = self.entries.pop_front()
        {
            self.bytes -= forgotten.cost();
            self.first += 1;
        }
    }

    /// How many bytes nobody has read yet.
    pub fn unread(&self) -> usize {
        self.unread
    }

    /// Whether as much is unread as may be kept of an answer.
    pub fn is_full(&self) -> bool {
        self.unread >= self.most_bytes
    }

    /// Ends the record; does nothing after the first time.
    pub fn set_end(&mut self, end: End) {
        self.end.get_or_insert(end);
    }

    pub fn end(&self) -> Option<&End> {
        self.end.as_ref()
    }

    /// How many bytes are kept.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Whether everything since the first byte is still kept.
    pub fn is_whole(&self) -> bool {
        self.first == 0
    }

    pub fn at(&self, number: u64) -> Place<'_> {
        let Some(index) = number.checked_sub(self.first) else { return Place::Forgotten };
        match self.entries.get(index as usize) {
            Some(entry) => Place::Entry(entry),
            None => self.end.as_ref().map_or(Place::Open, Place::End),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(text: &'static str) -> Entry {
        Entry { bytes: Bytes::from_static(text.as_bytes()), is_event: true, is_last: false }
    }

    fn broken() -> End {
        End::Broken(Break { code: 7, cause: Cause::UpstreamFailed, error: None })
    }

    #[test]
    fn it_is_told_again_in_order_to_its_end() {
        let mut record = Record::new(1000);
        assert_eq!(record.at(0), Place::Open);
        record.push(entry("one"));
        record.push(entry("two"));
        assert_eq!(record.at(0), Place::Entry(&entry("one")));
        assert_eq!(record.at(1), Place::Entry(&entry("two")));
        assert_eq!(record.at(2), Place::Open);
        record.set_end(End::Finished(None));
        record.set_end(broken());
        assert_eq!(record.at(2), Place::End(&End::Finished(None)));
    }

    #[test]
    fn what_does_not_fit_is_forgotten_from_the_front_and_said() {
        let mut record = Record::new(2 * (ENTRY_COST + 3));
        for text in ["one", "two", "six"] {
            record.push(entry(text));
            record.note_read(2);
        }
        assert_eq!((record.at(0), record.is_whole()), (Place::Forgotten, false));
        assert_eq!(record.at(1), Place::Entry(&entry("two")));
        assert_eq!(record.bytes(), 2 * (ENTRY_COST + 3));
    }

    #[test]
    fn what_nobody_has_read_is_not_forgotten() {
        let mut record = Record::new(2);
        record.push(entry("three"));
        record.push(entry("four"));
        assert!(record.is_full());
        assert_eq!(record.at(0), Place::Entry(&entry("three")));
        record.note_read(1);
        assert_eq!((record.at(0), record.unread()), (Place::Forgotten, ENTRY_COST + 4));
        record.note_read(9);
        assert_eq!((record.at(1), record.unread(), record.bytes()), (Place::Forgotten, 0, 0));
        assert_eq!(record.at(2), Place::Open);
    }
}
