//! The record of one answer, from which it can be told again.
//!
//! In: the head, the body unit by unit, how it ended. Out: the same, to anybody who reads from any place that is
//! still kept. It is bounded: when it is full, the oldest units are forgotten, and who would need them is told
//! so.

use std::collections::VecDeque;

use bytes::Bytes;
use http::{HeaderMap, StatusCode};

/// One piece of the body: a whole event where `is_event`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    pub bytes: Bytes,
    pub is_event: bool,
}

/// How the answer ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum End {
    /// Whole, with these trailers.
    Finished(Option<HeaderMap>),
    /// It broke off, or never began; the code is that of the stream reset (RFC 9114 §8.1).
    Broken(u64),
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
pub struct Journal {
    most_bytes: usize,
    bytes: usize,
    head: Option<(StatusCode, HeaderMap)>,
    entries: VecDeque<Entry>,
    /// The number of the first entry that is kept.
    first: u64,
    end: Option<End>,
}

impl Journal {
    /// `most_bytes`: of bodies that are kept.
    pub fn new(most_bytes: usize) -> Self {
        Self { most_bytes, bytes: 0, head: None, entries: VecDeque::new(), first: 0, end: None }
    }

    pub fn set_head(&mut self, status: StatusCode, headers: HeaderMap) {
        self.head = Some((status, headers));
    }

    pub fn head(&self) -> Option<(StatusCode, &HeaderMap)> {
        self.head.as_ref().map(|(status, headers)| (*status, headers))
    }

    pub fn push(&mut self, entry: Entry) {
        self.bytes += entry.bytes.len();
        self.entries.push_back(entry);
        while self.bytes > self.most_bytes
            && let Some(forgotten) = self.entries.pop_front()
        {
            self.bytes -= forgotten.bytes.len();
            self.first += 1;
        }
    }

    /// Does nothing after the first time.
    pub fn set_end(&mut self, end: End) {
        self.end.get_or_insert(end);
    }

    pub fn end(&self) -> Option<&End> {
        self.end.as_ref()
    }

    /// Of the body, as it is kept.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Everything since the first byte is here.
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
        Entry { bytes: Bytes::from_static(text.as_bytes()), is_event: true }
    }

    #[test]
    fn it_is_told_again_in_order_to_its_end() {
        let mut journal = Journal::new(100);
        assert_eq!(journal.at(0), Place::Open);
        journal.push(entry("one"));
        journal.push(entry("two"));
        assert_eq!(journal.at(0), Place::Entry(&entry("one")));
        assert_eq!(journal.at(1), Place::Entry(&entry("two")));
        assert_eq!(journal.at(2), Place::Open);
        journal.set_end(End::Finished(None));
        journal.set_end(End::Broken(7));
        assert_eq!(journal.at(2), Place::End(&End::Finished(None)));
    }

    #[test]
    fn what_does_not_fit_is_forgotten_from_the_front_and_said() {
        let mut journal = Journal::new(6);
        for text in ["one", "two", "six"] {
            journal.push(entry(text));
        }
        assert_eq!((journal.at(0), journal.is_whole()), (Place::Forgotten, false));
        assert_eq!(journal.at(1), Place::Entry(&entry("two")));
        assert_eq!(journal.bytes(), 6);
    }

    #[test]
    fn an_entry_larger_than_the_record_is_not_kept() {
        let mut journal = Journal::new(2);
        journal.push(entry("three"));
        assert_eq!((journal.at(0), journal.bytes()), (Place::Forgotten, 0));
        assert_eq!(journal.at(1), Place::Open);
    }
}
