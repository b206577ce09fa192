//! Extensible priorities (RFC 9218), as far as they order streams of one connection.
//!
//! In: the value of a `Priority` field or of a PRIORITY_UPDATE frame. Out: an urgency. Every token stream is
//! treated as incremental, whatever it says: an answer that waits for its neighbour to end is of no use to
//! anyone.

/// Urgency 0 (first) to 7 (last).
pub const DEFAULT_URGENCY: u8 = 3;

/// The urgency in a structured field dictionary; malformed or missing members mean the default (RFC 9218 §4,
/// §5).
pub fn urgency(field: &[u8]) -> u8 {
    let text = std::str::from_utf8(field).unwrap_or("");
    let mut urgency = DEFAULT_URGENCY;
    for member in text.split(',') {
        let member = member.split(';').next().unwrap_or("").trim();
        if let Some(value) = member.strip_prefix("u=") {
            match value.as_bytes() {
                [digit @ b'0'..=b'7'] => urgency = digit - b'0',
                _ => urgency = DEFAULT_URGENCY,
            }
        }
    }
    urgency
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urgencies_are_read_and_nonsense_is_the_default() {
        for (field, expected) in [
            ("u=0", 0),
            ("u=7, i", 7),
            ("i, u=5", 5),
            ("u=1;x=2", 1),
            ("u=2, u=4", 4),
            ("u=8", 3),
            ("u=-1", 3),
            ("u=a", 3),
            ("", 3),
            ("i", 3),
        ] {
            assert_eq!(urgency(field.as_bytes()), expected, "{field}");
        }
        assert_eq!(urgency(&[0xff, 0xfe]), 3);
    }
}
