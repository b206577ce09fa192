//! What may cross from one connection to the next.
//!
//! In: header fields of one side. Out: whether they may be read at all, and what is left of them for the
//! other side. Hop-by-hop fields end here in both directions (RFC 9110 §7.6.1); that, and our own framing on
//! every hop, is what closes request smuggling from HTTP/3 to HTTP/1.1.

use http::Method;
use http::header::{CONNECTION, CONTENT_LENGTH, HOST, HeaderMap, HeaderName, TRANSFER_ENCODING};

/// Fields that belong to one connection, whatever `Connection` says (RFC 9110 §7.6.1, RFC 9114 §4.2).
const HOP_BY_HOP: [&str; 9] = [
    "connection",
    "keep-alive",
    "proxy-connection",
    "transfer-encoding",
    "upgrade",
    "te",
    "trailer",
    "proxy-authenticate",
    "proxy-authorization",
];

/// Whether a request's method ends here: CONNECT asks for a tunnel, and TRACE has what a client sent, and what proxies
/// added, shown to whoever made the client send it (RFC 9110 §9.3.6, §9.3.8).
pub fn is_refused_method(method: &Method) -> bool {
    matches!(*method, Method::CONNECT | Method::TRACE)
}

/// What a request's `transfer-encoding` fields come to (RFC 9112 §6.1, §6.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Coding {
    /// None, or chunked, once.
    Plain,
    /// Chunked twice, or not last: who reads it otherwise sees another end of the body.
    Ambiguous,
    /// Something else, which is not served here.
    Unknown,
}

/// Judges all `transfer-encoding` fields of a request together.
pub fn transfer_coding(headers: &HeaderMap) -> Coding {
    let fields = headers.get_all(TRANSFER_ENCODING).iter();
    let codings: Vec<&[u8]> = fields
        .flat_map(|field| field.as_bytes().split(|byte| *byte == b','))
        .map(<[u8]>::trim_ascii)
        .collect();
    let is_chunked = |coding: &&[u8]| coding.eq_ignore_ascii_case(b"chunked");
    match codings.as_slice() {
        [] => Coding::Plain,
        [only] if is_chunked(only) => Coding::Plain,
        [.., last] if !is_chunked(last) => Coding::Ambiguous,
        all if all.iter().filter(|coding| is_chunked(coding)).count() > 1 => Coding::Ambiguous,
        _ => Coding::Unknown,
    }
}

/// Whether `name` is hop-by-hop by its name alone.
pub fn is_hop_by_hop(name: &HeaderName) -> bool {
    HOP_BY_HOP.contains(&name.as_str())
}

/// Whether a message of HTTP/2 or HTTP/3 with this field is malformed (RFC 9114 §4.2).
pub fn is_connection_specific(name: &str, value: &[u8]) -> bool {
    match name {
        "connection" | "keep-alive" | "proxy-connection" | "transfer-encoding" | "upgrade" => true,
        "te" => value != b"trailers",
        _ => false,
    }
}

/// Removes every hop-by-hop field, also those that `Connection` names.
pub fn strip_hop_by_hop(headers: &mut HeaderMap) {
    if headers.contains_key(CONNECTION) {
        let named: Vec<HeaderName> = headers
            .get_all(CONNECTION)
            .iter()
            .filter_map(|value| value.to_str().ok())
            .flat_map(|value| value.split(','))
            .filter_map(|name| HeaderName::from_bytes(name.trim().as_bytes()).ok())
            .collect();
        for name in named {
            headers.remove(name);
        }
    }
    for name in HOP_BY_HOP {
        headers.remove(name);
    }
}

/// Leaves of trailers what may cross: nothing in them frames or routes the message (RFC 9110 §6.5.1).
pub fn strip_trailers(trailers: &mut HeaderMap) {
    strip_hop_by_hop(trailers);
    trailers.remove(CONTENT_LENGTH);
    trailers.remove(HOST);
}

/// Whether bytes may stand in a field's value: no control characters, no white space at either end
/// (RFC 9110 §5.5, RFC 9113 §8.2.1).
pub fn is_valid_value(value: &[u8]) -> bool {
    let blank = |byte: &u8| *byte == b' ' || *byte == b'\t';
    value.iter().all(|&byte| byte == b'\t' || (byte >= 0x20 && byte != 0x7f))
        && !value.first().is_some_and(blank)
        && !value.last().is_some_and(blank)
}

/// What each field costs beside its bytes (RFC 9114 §4.2.2).
pub const OVERHEAD: usize = 32;

/// The size of fields, as RFC 9114 §4.2.2 and RFC 9113 §10.5.1 count it.
pub fn size(headers: &HeaderMap) -> usize {
    headers.iter().map(|(name, value)| name.as_str().len() + value.len() + OVERHEAD).sum()
}

/// A `content-length` that cannot be believed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BadLength;

/// The length a message says its body has.
///
/// # Errors
/// [`BadLength`] when it is not a decimal number, or when two fields disagree (RFC 9110 §8.6).
pub fn content_length(headers: &HeaderMap) -> Result<Option<u64>, BadLength> {
    let mut length = None;
    for value in headers.get_all(CONTENT_LENGTH) {
        let bytes = value.as_bytes();
        if bytes.is_empty() || bytes.len() > 18 || !bytes.iter().all(u8::is_ascii_digit) {
            return Err(BadLength);
        }
        let number = bytes.iter().fold(0u64, |n, digit| n * 10 + u64::from(digit - b'0'));
        if length.is_some_and(|before| before != number) {
            return Err(BadLength);
        }
        length = Some(number);
    }
    Ok(length)
}

/// Holds a body to the length its head announced, at every kind of end.
#[derive(Clone, Copy, Debug)]
pub struct BodyLength {
    expected: Option<u64>,
    seen: u64,
}

impl BodyLength {
    pub fn new(expected: Option<u64>) -> Self {
        Self { expected, seen: 0 }
    }

    /// Counts `more` bytes; false when the body is now longer than announced.
    #[must_use]
    pub fn handle_data(&mut self, more: usize) -> bool {
        self.seen += more as u64;
        self.expected.is_none_or(|expected| self.seen <= expected)
    }

    pub fn is_announced(&self) -> bool {
        self.expected.is_some()
    }

    /// Whether the body may end here.
    pub fn is_complete(&self) -> bool {
        self.expected.is_none_or(|expected| self.seen == expected)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::HeaderValue;

    fn map(fields: &[(&str, &str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in fields {
            headers.append(
                HeaderName::from_bytes(name.as_bytes()).unwrap(),
                HeaderValue::from_str(value).unwrap(),
            );
        }
        headers
    }

    #[test]
    fn fields_named_by_connection_do_not_cross() {
        let mut headers = map(&[
            ("connection", "close, X-Hop"),
            ("x-hop", "1"),
            ("x-end", "2"),
            ("transfer-encoding", "chunked"),
            ("te", "trailers"),
            ("upgrade", "h2c"),
        ]);
        strip_hop_by_hop(&mut headers);
        assert_eq!(headers, map(&[("x-end", "2")]));
    }

    #[test]
    fn a_request_is_chunked_once_or_not_at_all() {
        use Coding::*;
        for (values, expected) in [
            (&[][..], Plain),
            (&["chunked"][..], Plain),
            (&["Chunked"], Plain),
            (&["chunked", "chunked"], Ambiguous),
            (&["chunked, chunked"], Ambiguous),
            (&["chunked,identity"], Ambiguous),
            (&["identity"], Ambiguous),
            (&["chunked", "gzip"], Ambiguous),
            (&["gzip, chunked", "chunked"], Ambiguous),
            (&["", "chunked"], Unknown),
            (&["xchunked"], Ambiguous),
            (&["chunked;q=1"], Ambiguous),
            (&["gzip, chunked"], Unknown),
            (&["gzip", "chunked"], Unknown),
        ] {
            let fields: Vec<_> = values.iter().map(|value| ("transfer-encoding", *value)).collect();
            assert_eq!(transfer_coding(&map(&fields)), expected, "{values:?}");
        }
    }

    #[test]
    fn content_lengths_that_disagree_are_refused() {
        assert_eq!(content_length(&map(&[("content-length", "5"), ("content-length", "5")])), Ok(Some(5)));
        for bad in [&[("content-length", "5"), ("content-length", "6")][..], &[("content-length", "+5")]] {
            assert_eq!(content_length(&map(bad)), Err(BadLength));
        }
        assert_eq!(content_length(&map(&[("content-length", "99999999999999999999")])), Err(BadLength));
        assert_eq!(content_length(&map(&[])), Ok(None));
    }

    #[test]
    fn a_body_must_end_at_its_length() {
        let mut body = BodyLength::new(Some(3));
        assert!(!body.is_complete());
        assert!(body.handle_data(3) && body.is_complete());
        assert!(!body.handle_data(1));
        assert!(BodyLength::new(None).is_complete());
    }

    #[test]
    fn values_with_control_characters_or_outer_blanks_are_refused() {
        assert!(is_valid_value(b"") && is_valid_value(b"a b\tc") && is_valid_value("é".as_bytes()));
        for bad in [&b"a\r\nb"[..], b"a\0", b" a", b"a\t", b"\x7f"] {
            assert!(!is_valid_value(bad));
        }
    }
}
