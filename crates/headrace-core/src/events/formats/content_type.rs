//! A content type and its parameters (RFC 9110 §8.3).
//!
//! In: the value of a `content-type` field. Out: the type in lower case, and its parameters. What is malformed is
//! passed over, not refused: the body goes on to the client as it is.

/// The content type of a message.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ContentType {
    /// Type and subtype, in lower case; empty when there is none.
    pub essence: String,
    /// Names in lower case, values without their quotes.
    parameters: Vec<(String, String)>,
}

impl ContentType {
    pub fn parse(value: Option<&str>) -> Self {
        let mut parts = split_unquoted(value.unwrap_or(""));
        let essence = parts.next().unwrap_or("").trim().to_ascii_lowercase();
        let parameters = parts
            .filter_map(|part| part.split_once('='))
            .map(|(name, value)| (name.trim().to_ascii_lowercase(), unquote(value.trim())))
            .collect();
        Self { essence, parameters }
    }

    /// The value of a parameter, whose name is given in lower case.
    pub fn parameter(&self, name: &str) -> Option<&str> {
        self.parameters.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }
}

/// The parts between semicolons, but for those inside a quoted string.
fn split_unquoted(text: &str) -> impl Iterator<Item = &str> {
    let (mut is_quoted, mut is_escaped) = (false, false);
    text.split(move |c| {
        let was_escaped = std::mem::take(&mut is_escaped);
        match c {
            '\\' if is_quoted && !was_escaped => is_escaped = true,
            '"' if !was_escaped => is_quoted = !is_quoted,
            ';' => return !is_quoted,
            _ => {}
        }
        false
    })
}

/// A quoted string's text (RFC 9110 §5.6.4); a token stays as it is.
fn unquote(value: &str) -> String {
    let Some(inner) = value.strip_prefix('"') else { return value.to_owned() };
    let mut text = String::with_capacity(inner.len());
    let mut chars = inner.chars();
    while let Some(c) = chars.next() {
        match c {
            '"' => break,
            '\\' => text.extend(chars.next()),
            c => text.push(c),
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_are_read_as_they_were_meant() {
        let parsed = ContentType::parse(Some(r#"Multipart/Mixed; Boundary="a;b=\"c\\"; charset=UTF-8"#));
        assert_eq!(parsed.essence, "multipart/mixed");
        assert_eq!(parsed.parameter("boundary"), Some(r#"a;b="c\"#));
        assert_eq!(parsed.parameter("charset"), Some("UTF-8"));
        assert_eq!(parsed.parameter("q"), None);
    }

    #[test]
    fn what_is_malformed_is_passed_over() {
        for (value, essence) in [
            (None, ""),
            (Some(""), ""),
            (Some(";;"), ""),
            (Some("text/event-stream;"), "text/event-stream"),
            (Some("text/event-stream; charset"), "text/event-stream"),
            (Some("text/event-stream; a=\"open"), "text/event-stream"),
        ] {
            assert_eq!(ContentType::parse(value).essence, essence, "{value:?}");
        }
    }
}
