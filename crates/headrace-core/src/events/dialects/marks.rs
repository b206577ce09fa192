//! Whether an event is the last one of its answer.
//!
//! In: the marks of a dialect, and an answer's events, whole or (when too long to be held) only their beginnings. Out:
//! yes or no. Every event of every answer is asked, so it is only searched for the mark's own word; an event that holds
//! it is read by the rules of its format and of JSON: a model may write about `[DONE]` without ending its answer.

use std::cell::Cell;
use std::fmt;

use memchr::memmem::Finder;
use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};

use crate::events::formats::{Event, Format};

/// What is particular about an answer's last event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mark {
    /// Its data is this text and nothing else.
    Data(&'static str),
    /// It is of this type, by its name or by the `type` of its data.
    Type(&'static str),
    /// The member of its data at this path is `true`. An array is passed through; every element must have it.
    True(&'static [&'static str]),
    /// The member of its data at this path is a text that is not empty.
    Text(&'static [&'static str]),
}

impl fmt::Display for Mark {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Mark::Data(text) => write!(f, "data `{text}`"),
            Mark::Type(name) => write!(f, "type `{name}`"),
            Mark::True(path) => write!(f, "`{}` is true", path.join(".")),
            Mark::Text(path) => write!(f, "`{}` is a text", path.join(".")),
        }
    }
}

const TYPE: &[&str] = &["type"];

impl Mark {
    /// What every event with this mark has in it.
    pub fn word(self) -> String {
        match self {
            Mark::Data(text) | Mark::Type(text) => text.to_owned(),
            Mark::True(path) | Mark::Text(path) => format!("\"{}\"", path.last().unwrap_or(&"")),
        }
    }

    fn is_in(self, event: &Event<'_>) -> bool {
        match self {
            Mark::Data(text) => event.data.trim_ascii() == text.as_bytes(),
            Mark::Type(name) => is_type(event, name),
            Mark::True(path) => member(&event.data, path, Wanted::True) == Json::Whole(true),
            Mark::Text(path) => member(&event.data, path, Wanted::AnyText) == Json::Whole(true),
        }
    }
}

fn is_type(event: &Event<'_>, name: &str) -> bool {
    event.name.is_some_and(|found| found.trim_ascii() == name.as_bytes())
        || matches!(member(&event.data, TYPE, Wanted::Text(name)), Json::Whole(true) | Json::Cut(true))
}

/// Tells the last event of one answer.
pub struct LastEvent {
    format: &'static Format,
    marks: Vec<(Finder<'static>, Mark)>,
}

impl LastEvent {
    pub fn new(marks: &[Mark], format: &'static Format) -> Self {
        let finder = |mark: &Mark| Finder::new(mark.word().as_bytes()).into_owned();
        Self { format, marks: marks.iter().map(|mark| (finder(mark), *mark)).collect() }
    }

    /// Whether a whole event is the last one.
    pub fn is(&self, event: &[u8]) -> bool {
        self.marks
            .iter()
            .any(|(word, mark)| may_have(word, *mark, event) && mark.is_in(&(self.format.read)(event)))
    }

    /// Whether an event that begins like this will be the last one. Only its type can be known before its end.
    pub fn begins(&self, beginning: &[u8]) -> bool {
        self.marks.iter().any(|(word, mark)| match mark {
            Mark::Type(name) => {
                word.find(beginning).is_some() && is_type(&(self.format.read)(beginning), name)
            }
            _ => false,
        })
    }
}

/// False for nearly every event that is not the last, for the price of a search.
fn may_have(word: &Finder<'_>, mark: Mark, event: &[u8]) -> bool {
    match mark {
        // The word is in every event of Ollama's; `true` behind it is not.
        Mark::True(_) => word.find_iter(event).any(|at| begins_with_true(&event[at + word.needle().len()..])),
        _ => word.find(event).is_some(),
    }
}

/// Whether a member's value, behind its name, may be `true`. Lines of one event's data may end in between.
fn begins_with_true(mut rest: &[u8]) -> bool {
    loop {
        rest = rest.trim_ascii_start();
        match rest.strip_prefix(b"data:").or_else(|| rest.strip_prefix(b":")) {
            Some(more) => rest = more,
            None => return rest.starts_with(b"true"),
        }
    }
}

/// What a member is compared with.
#[derive(Clone, Copy)]
enum Wanted<'a> {
    True,
    Text(&'a str),
    AnyText,
}

/// Whether the member that was looked for is as wanted.
#[derive(Debug, PartialEq, Eq)]
enum Json {
    Whole(bool),
    /// The text is cut off, or not JSON; up to there it was so.
    Cut(bool),
}

/// Looks for the member at `path`, from the outermost object. Of two members with one name, the last counts.
fn member(json: &[u8], path: &[&str], wanted: Wanted<'_>) -> Json {
    let found = Cell::new(false);
    let mut deserializer = serde_json::Deserializer::from_slice(json);
    let read = Search { path, wanted, found: Some(&found) }.deserialize(&mut deserializer);
    match read.and_then(|_| deserializer.end()) {
        Ok(()) => Json::Whole(found.get()),
        Err(_) => Json::Cut(found.get()),
    }
}

/// Compares one value, or the member of it that a path leads to.
#[derive(Clone, Copy)]
struct Search<'a> {
    path: &'a [&'a str],
    wanted: Wanted<'a>,
    /// Where the outermost object notes what it has found so far.
    found: Option<&'a Cell<bool>>,
}

impl<'de> DeserializeSeed<'de> for Search<'_> {
    type Value = bool;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<bool, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Search<'_> {
    type Value = bool;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any JSON value")
    }

    fn visit_bool<E>(self, value: bool) -> Result<bool, E> {
        Ok(self.path.is_empty() && value && matches!(self.wanted, Wanted::True))
    }

    fn visit_str<E>(self, value: &str) -> Result<bool, E> {
        Ok(self.path.is_empty()
            && match self.wanted {
                Wanted::True => false,
                Wanted::Text(text) => value == text,
                Wanted::AnyText => !value.is_empty(),
            })
    }

    fn visit_i64<E>(self, _: i64) -> Result<bool, E> {
        Ok(false)
    }

    fn visit_u64<E>(self, _: u64) -> Result<bool, E> {
        Ok(false)
    }

    fn visit_f64<E>(self, _: f64) -> Result<bool, E> {
        Ok(false)
    }

    fn visit_unit<E>(self) -> Result<bool, E> {
        Ok(false)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut elements: A) -> Result<bool, A::Error> {
        let (mut count, mut are_all) = (0, true);
        while let Some(is_so) = elements.next_element_seed(Search { found: None, ..self })? {
            count += 1;
            are_all &= is_so;
        }
        Ok(count > 0 && are_all)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<bool, A::Error> {
        let mut is_so = false;
        while let Some(name) = members.next_key::<std::borrow::Cow<'de, str>>()? {
            match self.path.split_first() {
                Some((first, rest)) if *first == name => {
                    is_so = members.next_value_seed(Search { path: rest, found: None, ..self })?;
                    if let Some(found) = self.found {
                        found.set(is_so);
                    }
                }
                _ => {
                    members.next_value::<IgnoredAny>()?;
                }
            }
        }
        Ok(is_so)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_member_is_found_at_its_own_place_only() {
        let done = |json: &str| member(json.as_bytes(), &["done"], Wanted::True);
        assert_eq!(done(r#"{"done":true}"#), Json::Whole(true));
        assert_eq!(done(r#"{"done":true,"done":false}"#), Json::Whole(false));
        assert_eq!(done(r#"{"done":"true"}"#), Json::Whole(false));
        assert_eq!(done(r#"{"a":{"done":true}}"#), Json::Whole(false));
        assert_eq!(done(r#"[{"done":true}]"#), Json::Whole(false));
        assert_eq!(done(r#"{"done":true,"a":"#), Json::Cut(true));
        assert_eq!(done("true"), Json::Whole(false));
        let finish = |json: &str| member(json.as_bytes(), &["candidates", "finishReason"], Wanted::AnyText);
        let two = |second: &str| format!(r#"{{"candidates":[{{"finishReason":"STOP"}},{{{second}}}]}}"#);
        assert_eq!(finish(&two(r#""finishReason":"MAX_TOKENS""#)), Json::Whole(true));
        assert_eq!(finish(&two(r#""index":1"#)), Json::Whole(false), "the second goes on");
        assert_eq!(finish(r#"{"candidates":[]}"#), Json::Whole(false));
        assert_eq!(finish(r#"{"candidates":[{"finishReason":""}]}"#), Json::Whole(false));
    }
}
