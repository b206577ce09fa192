//! Single fields of a JSON object, read without building the rest of it.
//!
//! In: the bytes of a request's body, from anybody, and the names of a few fields at its top. Out: what they hold,
//! within bounds; or nothing, when the bytes are not a JSON object. It must not know what a field is for. Nested
//! values are skipped without recursion, so depth costs a byte of memory a level, and no stack.

use std::fmt;

use serde::de::{Deserializer as _, IgnoredAny, MapAccess, Visitor};
use serde_json::value::RawValue;

/// The longest text that is taken over, in bytes of UTF-8.
pub const MAX_TEXT_BYTES: usize = 256;

/// `\u0041` for one letter: the most that a text may grow by being escaped.
const ESCAPED_BYTES: usize = 6;

/// What a field holds.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    Text(String),
    Bool(bool),
    /// A number, a list, an object, or a text that is longer than [`MAX_TEXT_BYTES`].
    Other,
}

/// Names and what they hold.
pub type Fields = Vec<(String, Value)>;

/// The fields of `names` that the object has and that are not `null`, in the order of `names`. Of a name that comes
/// twice the last one counts, as in Python's `json` and Go's `encoding/json`.
///
/// An empty body has no fields. `None` when `body` is something else than one JSON object.
pub fn read(body: &[u8], names: &[impl AsRef<str>]) -> Option<Fields> {
    if body.trim_ascii().is_empty() {
        return Some(Fields::new());
    }
    let mut found: Vec<Option<Value>> = vec![None; names.len()];
    let mut parser = serde_json::Deserializer::from_slice(body);
    parser.deserialize_map(Object { names, found: &mut found }).ok()?;
    parser.end().ok()?;
    let named = names.iter().map(|name| name.as_ref().to_owned());
    Some(named.zip(found).filter_map(|(name, value)| Some((name, value?))).collect())
}

/// Whether these bytes are one JSON text and nothing else.
pub fn is_json(text: &[u8]) -> bool {
    serde_json::from_slice::<IgnoredAny>(text).is_ok()
}

struct Object<'a, N> {
    names: &'a [N],
    found: &'a mut [Option<Value>],
}

impl<'de, N: AsRef<str>> Visitor<'de> for Object<'_, N> {
    type Value = ();

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("a JSON object")
    }

    fn visit_map<M: MapAccess<'de>>(self, mut map: M) -> Result<(), M::Error> {
        // Raw: neither a key nor a value is copied before its length is known.
        while let Some(key) = map.next_key::<&RawValue>()? {
            let key = text(key.get());
            let index = self.names.iter().position(|name| key.as_deref() == Some(name.as_ref()));
            match index {
                Some(index) => self.found[index] = value(map.next_value::<&RawValue>()?.get()),
                None => drop(map.next_value::<IgnoredAny>()?),
            }
        }
        Ok(())
    }
}

fn value(raw: &str) -> Option<Value> {
    match raw {
        "null" => None,
        "true" => Some(Value::Bool(true)),
        "false" => Some(Value::Bool(false)),
        _ => Some(text(raw).map_or(Value::Other, Value::Text)),
    }
}

/// The text that a JSON string of at most [`MAX_TEXT_BYTES`] stands for.
fn text(raw: &str) -> Option<String> {
    if !raw.starts_with('"') || raw.len() > 2 + ESCAPED_BYTES * MAX_TEXT_BYTES {
        return None;
    }
    serde_json::from_str(raw).ok().filter(|text: &String| text.len() <= MAX_TEXT_BYTES)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn model(body: &str) -> Option<Option<Value>> {
        read(body.as_bytes(), &["model"]).map(|found| found.into_iter().next().map(|(_, value)| value))
    }

    fn is_text(text: &str) -> Option<Option<Value>> {
        Some(Some(Value::Text(text.to_owned())))
    }

    #[test]
    fn a_text_is_found_wherever_and_however_it_is_written() {
        for body in [
            r#"{"model":"a"}"#,
            " \r\n\t{ \"x\" : [1, {\"model\": \"inner\"}], \"model\" : \"a\" , \"y\": 1e9 } \n",
            r#"{"\u006dodel":"\u0061"}"#,
            r#"{"model":1,"model":"a"}"#,
            r#"{"model":null,"":{},"model":"a"}"#,
        ] {
            assert_eq!(model(body), is_text("a"), "{body}");
        }
        assert_eq!(model(r#"{"model":"\ud83d\ude00\n"}"#), is_text("😀\n"));
    }

    #[test]
    fn several_fields_come_in_the_order_of_their_names() {
        let found = read(br#"{"stream":true,"n":2,"model":"a"}"#, &["model", "stream", "n", "gone"]);
        let expected =
            [("model", Value::Text("a".into())), ("stream", Value::Bool(true)), ("n", Value::Other)];
        assert_eq!(found, Some(expected.into_iter().map(|(name, value)| (name.into(), value)).collect()));
    }

    #[test]
    fn what_is_absent_or_null_is_not_there_and_what_is_no_text_is_other() {
        for body in ["", " \r\n", "{}", r#"{"model":null}"#, r#"{"Model":"a"}"#, r#"{"x":{"model":"a"}}"#] {
            assert_eq!(model(body), Some(None), "{body}");
        }
        for held in ["5", "-1.5e3", "[]", r#"{"a":["b"]}"#, r#""\ud800""#] {
            assert_eq!(model(&format!(r#"{{"model":{held}}}"#)), Some(Some(Value::Other)), "{held}");
        }
    }

    #[test]
    fn what_is_not_one_json_object_is_nothing() {
        for body in [
            "null",
            "[]",
            r#""model""#,
            "{",
            r#"{"model""#,
            r#"{"model":"#,
            r#"{"model":"a""#,
            r#"{"model":"a"}}"#,
            r#"{"model":"a"} x"#,
            r#"{'model':'a'}"#,
            r#"{model:"a"}"#,
            r#"{"model":"a",}"#,
            "{\"model\":\"a\n\"}",
            "\u{feff}{}",
            "--x\r\n",
            r#"{"x":nul}"#,
            r#"{"x":01}"#,
            r#"{"x":[1}"#,
        ] {
            assert_eq!(model(body), None, "{body}");
        }
        assert_eq!(read(b"{\"model\":\"\xff\"}", &["model"]), None);
    }

    #[test]
    fn depth_and_length_are_bounded() {
        let deep = 1_000_000;
        let nested = format!(r#"{{"x":{}{},"model":"a"}}"#, "[".repeat(deep), "]".repeat(deep));
        assert_eq!(model(&nested), is_text("a"));
        assert_eq!(model(&format!(r#"{{"x":{}"#, "[".repeat(deep))), None);
        let longest = "é".repeat(MAX_TEXT_BYTES / 2);
        assert_eq!(model(&format!(r#"{{"model":"{longest}"}}"#)), is_text(&longest));
        let escaped = "\\u0061".repeat(MAX_TEXT_BYTES);
        assert_eq!(model(&format!(r#"{{"model":"{escaped}"}}"#)), is_text(&"a".repeat(MAX_TEXT_BYTES)));
        for long in [format!("{longest}a"), format!("{escaped}a"), "x".repeat(1 << 20), "\\n".repeat(1 << 20)]
        {
            assert_eq!(model(&format!(r#"{{"model":"{long}"}}"#)), Some(Some(Value::Other)));
        }
        assert_eq!(model(&format!(r#"{{"{}":1,"model":"a"}}"#, "\\n".repeat(1 << 20))), is_text("a"));
    }

    /// Whatever is cut off, or broken, is nothing; and never a panic.
    #[test]
    fn every_beginning_of_an_object_is_nothing() {
        let body = r#"{"a":[{"b":"\u00e9\\\""},-1.5e-7,true,null],"model":"x","c":{"d":{}}}"#;
        for end in 1..body.len() {
            if body.is_char_boundary(end) {
                assert_eq!(model(&body[..end]), None, "{}", &body[..end]);
            }
        }
        assert_eq!(model(body), is_text("x"));
    }
}
