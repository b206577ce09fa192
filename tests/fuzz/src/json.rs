//! JSON of clients: the fields of a request's body.

use headrace_core::json_fields::{self, MAX_TEXT_BYTES, Value};
use serde_json::Value as Json;

/// Of names of fields.
const NAMES: [&str; 3] = ["model", "stream", "\u{e9}"];

/// The fields of a body that the gateway reads, held against a parser that builds all of it.
pub fn body(data: &[u8]) {
    let found = json_fields::read(data, &NAMES);
    for (name, value) in found.iter().flatten() {
        assert!(NAMES.contains(&name.as_str()));
        assert!(!matches!(value, Value::Text(text) if text.len() > MAX_TEXT_BYTES));
    }
    let Ok(Json::Object(object)) = serde_json::from_slice(data) else { return };
    let expected = NAMES.iter().filter_map(|&name| Some((name.to_owned(), value(object.get(name)?)?)));
    assert_eq!(found, Some(expected.collect()));
}

fn value(json: &Json) -> Option<Value> {
    match json {
        Json::Null => None,
        Json::Bool(value) => Some(Value::Bool(*value)),
        Json::String(text) if text.len() <= MAX_TEXT_BYTES => Some(Value::Text(text.clone())),
        _ => Some(Value::Other),
    }
}
