//! Messages (RFC 9114 §4): pseudo-header fields, and what makes a head malformed.
//!
//! In: an encoded field section. Out: a request's or an answer's head that later code need not check again,
//! or an error. What HTTP/1.1 would read differently is refused here: connection-specific fields, doubled
//! pseudo-headers, an authority that `host` contradicts, a path with blanks.

use bytes::Bytes;
use http::header::{HOST, HeaderMap, HeaderName, HeaderValue};
use http::{Method, StatusCode};

use super::code::{self, Http3Error};
use super::frame;
use super::qpack::{self, DecodeError};
use crate::fields;

/// A request's head, whatever protocol it came by.
#[derive(Clone, Debug)]
pub struct RequestHead {
    pub method: Method,
    pub scheme: String,
    pub authority: String,
    /// Path and query, beginning with `/`, or `*`.
    pub path: String,
    pub headers: HeaderMap,
}

/// An answer's head.
#[derive(Clone, Debug)]
pub struct ResponseHead {
    pub status: StatusCode,
    pub headers: HeaderMap,
}

/// Why a head cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeadError {
    Http3(Http3Error),
    TooLarge,
    /// CONNECT, plain or extended, or TRACE.
    MethodRefused,
}

impl From<DecodeError> for HeadError {
    fn from(error: DecodeError) -> Self {
        match error {
            DecodeError::Http3(error) => HeadError::Http3(error),
            DecodeError::TooLarge => HeadError::TooLarge,
        }
    }
}

const fn malformed(reason: &'static str) -> Http3Error {
    Http3Error::stream(code::MESSAGE_ERROR, reason)
}

/// The pseudo-header fields of a section, and its other fields.
#[derive(Default)]
struct Section {
    method: Option<String>,
    scheme: Option<String>,
    authority: Option<String>,
    path: Option<String>,
    protocol: Option<String>,
    status: Option<String>,
    headers: HeaderMap,
}

impl Section {
    fn decode(section: &[u8], max_size: usize) -> Result<Self, HeadError> {
        let mut found = Section::default();
        let mut regular = false;
        qpack::decode(section, max_size, |name, value| {
            if !fields::is_valid_value(value) {
                return Err(malformed("a field value has control characters or blanks at its ends"));
            }
            if name.first() != Some(&b':') {
                regular = true;
                return found.field(name, value);
            }
            if regular {
                return Err(malformed("a pseudo-header field after a regular one"));
            }
            found.pseudo(name, value)
        })?;
        Ok(found)
    }

    fn pseudo(&mut self, name: &[u8], value: &[u8]) -> Result<(), Http3Error> {
        let place = match name {
            b":method" => &mut self.method,
            b":scheme" => &mut self.scheme,
            b":authority" => &mut self.authority,
            b":path" => &mut self.path,
            b":protocol" => &mut self.protocol,
            b":status" => &mut self.status,
            _ => return Err(malformed("an unknown pseudo-header field")),
        };
        let text = std::str::from_utf8(value).map_err(|_| malformed("a pseudo-header field is no text"))?;
        match place.replace(text.to_owned()) {
            Some(_) => Err(malformed("a pseudo-header field is given twice")),
            None => Ok(()),
        }
    }

    fn field(&mut self, name: &[u8], value: &[u8]) -> Result<(), Http3Error> {
        if name.iter().any(u8::is_ascii_uppercase) {
            return Err(malformed("a field name has upper case letters"));
        }
        let name = HeaderName::from_bytes(name).map_err(|_| malformed("a field name is malformed"))?;
        if fields::is_connection_specific(name.as_str(), value) {
            return Err(malformed("a field that belongs to an HTTP/1.1 connection"));
        }
        let value = HeaderValue::from_bytes(value).map_err(|_| malformed("a field value is malformed"))?;
        self.headers.try_append(name, value).map_err(|_| malformed("too many fields"))?;
        Ok(())
    }
}

/// Reads a request's head.
///
/// # Errors
/// When it is malformed (RFC 9114 §4.1.2), too large, or its method is not served.
pub fn decode_request(section: &[u8], max_size: usize) -> Result<RequestHead, HeadError> {
    let section = Section::decode(section, max_size)?;
    let missing = HeadError::Http3(malformed("a pseudo-header field is missing"));
    if section.status.is_some() {
        return Err(HeadError::Http3(malformed(":status in a request")));
    }
    let method = section.method.ok_or(missing)?;
    let method = Method::from_bytes(method.as_bytes()).map_err(|_| HeadError::Http3(malformed(":method")))?;
    if fields::is_refused_method(&method) {
        return Err(HeadError::MethodRefused);
    }
    if section.protocol.is_some() {
        return Err(HeadError::Http3(malformed(":protocol, but extended CONNECT is not offered")));
    }
    let (scheme, path) = (section.scheme.ok_or(missing)?, section.path.ok_or(missing)?);
    let host = section.headers.get(HOST).map(|host| host.to_str().unwrap_or(""));
    let authority = match (section.authority, host) {
        (Some(authority), Some(host)) if !authority.eq_ignore_ascii_case(host) => {
            return Err(HeadError::Http3(malformed(":authority and host differ")));
        }
        (Some(authority), _) => authority,
        (None, Some(host)) => host.to_owned(),
        (None, None) => return Err(missing),
    };
    if !is_authority(&authority) {
        return Err(HeadError::Http3(malformed(":authority")));
    }
    if !is_path(&path, &method) {
        return Err(HeadError::Http3(malformed(":path")));
    }
    let mut headers = section.headers;
    headers.remove(HOST);
    Ok(RequestHead { method, scheme, authority, path, headers })
}

/// What is known of a request whose head cannot be used, so that it is told so in the words of the API that it asked.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Begun {
    /// Empty: it is not known.
    pub path: String,
    /// Its answer has no body.
    pub is_head_request: bool,
}

/// Reads the pseudo-header fields of a field section that is not whole, or cannot be used. `max_size`: of what is
/// decoded.
pub fn decode_begun(section: &[u8], max_size: usize) -> Begun {
    let mut begun = Begun::default();
    // Where the section is cut off decoding fails, and where the other fields begin; what was found before is good.
    let _ = qpack::decode(section, max_size, |name, value| {
        match name {
            b":method" => begun.is_head_request = value == b"HEAD",
            b":path" => begun.path = String::from_utf8_lossy(value).into_owned(),
            [b':', ..] => {}
            _ => return Err(malformed("a field that is not looked at")),
        }
        Ok(())
    });
    begun
}

/// Whether a request that somebody wants to send may be sent: what `decode_request` would refuse must not leave.
///
/// # Errors
/// What is wrong with it.
pub fn check_request(head: &RequestHead) -> Result<(), String> {
    if head.method == Method::CONNECT {
        return Err("CONNECT cannot be sent".to_owned());
    }
    if !is_authority(&head.authority) {
        return Err(format!("{:?} is not a host and port", head.authority));
    }
    if !is_path(&head.path, &head.method) {
        return Err(format!(
            "{:?} is not a path: it must begin with /, and what is not ASCII, or a space, must be %-encoded",
            head.path
        ));
    }
    for (name, value) in &head.headers {
        if name == HOST || fields::is_connection_specific(name.as_str(), value.as_bytes()) {
            return Err(format!("{name} has no place in HTTP/3 (RFC 9114 §4.2); leave it out"));
        }
    }
    Ok(())
}

fn is_authority(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| (0x21..0x7f).contains(&byte) && !b"@/?#\\".contains(&byte))
}

fn is_path(text: &str, method: &Method) -> bool {
    (text.starts_with('/') || text == "*" && method == Method::OPTIONS)
        && text.bytes().all(|byte| (0x21..0x7f).contains(&byte) && byte != b'#')
}

/// Reads an answer's head, interim ones too.
///
/// # Errors
/// When it is malformed or too large.
pub fn decode_response(section: &[u8], max_size: usize) -> Result<ResponseHead, HeadError> {
    let section = Section::decode(section, max_size)?;
    let others = [&section.method, &section.scheme, &section.authority, &section.path, &section.protocol];
    if others.iter().any(|field| field.is_some()) {
        return Err(HeadError::Http3(malformed("a request's pseudo-header field in an answer")));
    }
    let status = section.status.as_deref().and_then(|status| StatusCode::from_bytes(status.as_bytes()).ok());
    let status = status.ok_or(HeadError::Http3(malformed(":status")))?;
    Ok(ResponseHead { status, headers: section.headers })
}

/// Reads a trailer section: no pseudo-header fields (§4.3).
///
/// # Errors
/// When it is malformed or too large.
pub fn decode_trailers(section: &[u8], max_size: usize) -> Result<HeaderMap, HeadError> {
    let mut headers = HeaderMap::new();
    let mut found = Section::default();
    qpack::decode(section, max_size, |name, value| {
        if name.first() == Some(&b':') || !fields::is_valid_value(value) {
            return Err(malformed("a pseudo-header field or a malformed value in the trailers"));
        }
        found.field(name, value)
    })?;
    std::mem::swap(&mut headers, &mut found.headers);
    Ok(headers)
}

/// A HEADERS frame with an answer's head.
pub fn encode_response(status: StatusCode, headers: &HeaderMap) -> Bytes {
    let mut section = qpack::Encoder::default();
    section.field(":status", status.as_str().as_bytes());
    encode_fields(section, headers)
}

/// A HEADERS frame with a request's head.
pub fn encode_request(head: &RequestHead) -> Bytes {
    let mut section = qpack::Encoder::default();
    section
        .field(":method", head.method.as_str().as_bytes())
        .field(":scheme", head.scheme.as_bytes())
        .field(":authority", head.authority.as_bytes())
        .field(":path", head.path.as_bytes());
    encode_fields(section, &head.headers)
}

/// The size of a request's field section, as RFC 9114 §4.2.2 counts it.
pub fn request_size(head: &RequestHead) -> usize {
    let pseudo = [
        (":method", head.method.as_str()),
        (":scheme", &head.scheme),
        (":authority", &head.authority),
        (":path", &head.path),
    ];
    let pseudo = pseudo.iter().map(|(name, value)| name.len() + value.len() + fields::OVERHEAD);
    pseudo.sum::<usize>() + fields::size(&head.headers)
}

/// A HEADERS frame with trailers.
pub fn encode_trailers(headers: &HeaderMap) -> Bytes {
    encode_fields(qpack::Encoder::default(), headers)
}

fn encode_fields(mut section: qpack::Encoder, headers: &HeaderMap) -> Bytes {
    for (name, value) in headers {
        section.field(name.as_str(), value.as_bytes());
    }
    frame::encode(frame::HEADERS, &section.finish())
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &[(&str, &str)] = &[
        (":method", "POST"),
        (":scheme", "https"),
        (":authority", "localhost:4433"),
        (":path", "/v1/chat/completions?x=1"),
        ("content-type", "application/json"),
    ];

    fn section(fields: &[(&str, &str)]) -> Vec<u8> {
        let mut encoder = qpack::Encoder::default();
        for (name, value) in fields {
            encoder.field(name, value.as_bytes());
        }
        encoder.finish()
    }

    fn with(more: &[(&str, &str)]) -> Vec<u8> {
        section(&[GOOD, more].concat())
    }

    fn without(name: &str) -> Vec<(&'static str, &'static str)> {
        GOOD.iter().copied().filter(|(field, _)| *field != name).collect()
    }

    #[test]
    fn a_request_is_read() {
        let head = decode_request(&with(&[("x-a", "1"), ("x-a", "2")]), 4096).unwrap();
        assert_eq!((head.method, head.path.as_str()), (Method::POST, "/v1/chat/completions?x=1"));
        assert_eq!(
            (head.authority.as_str(), head.headers.get_all("x-a").iter().count()),
            ("localhost:4433", 2)
        );
    }

    #[test]
    fn malformed_requests_end_their_stream() {
        let mut bad = vec![
            with(&[(":path", "/again")]),
            with(&[("connection", "close")]),
            with(&[("transfer-encoding", "chunked")]),
            with(&[("keep-alive", "1")]),
            with(&[("upgrade", "h2c")]),
            with(&[("proxy-connection", "close")]),
            with(&[("te", "gzip")]),
            with(&[("host", "other:4433")]),
            with(&[("Upper", "1")]),
            with(&[("bad name", "1")]),
            with(&[("x", "a\r\nb: c")]),
            with(&[("x", " padded")]),
            with(&[("x", "nul\0")]),
            with(&[(":status", "200")]),
            with(&[(":unknown", "1")]),
            section(&[GOOD, &[(":protocol", "websocket")]].concat()),
            section(&[
                ("x-first", "1"),
                (":method", "GET"),
                (":scheme", "https"),
                (":authority", "a"),
                (":path", "/"),
            ]),
        ];
        for name in [":method", ":scheme", ":authority", ":path"] {
            bad.push(section(&without(name)));
        }
        for path in ["", "no-slash", "/with blank", "/with#fragment", "*", "/é"] {
            bad.push(section(&[&without(":path")[..1], &[(":path", path)], &without(":path")[1..]].concat()));
        }
        for authority in ["", "user@host", "a/b", "a b"] {
            let rest = without(":authority");
            bad.push(section(&[&rest[..1], &[(":authority", authority)], &rest[1..]].concat()));
        }
        for section in bad {
            let Err(HeadError::Http3(error)) = decode_request(&section, 4096) else { panic!("{section:?}") };
            assert_eq!(error, Http3Error::stream(code::MESSAGE_ERROR, error.reason));
        }
    }

    #[test]
    fn a_host_that_agrees_is_fine_and_te_trailers_too() {
        let head = decode_request(&with(&[("host", "LOCALHOST:4433"), ("te", "trailers")]), 4096).unwrap();
        assert!(!head.headers.contains_key(HOST));
        let by_host = section(&[without(":authority").as_slice(), &[("host", "h")]].concat());
        assert_eq!(decode_request(&by_host, 4096).unwrap().authority, "h");
    }

    #[test]
    fn connect_is_refused_by_name() {
        let connect = section(&[(":method", "CONNECT"), (":authority", "a:1")]);
        assert_eq!(decode_request(&connect, 4096).unwrap_err(), HeadError::MethodRefused);
    }

    #[test]
    fn a_head_too_large_is_told_apart() {
        assert_eq!(
            decode_request(&with(&[("x", &"y".repeat(5000))]), 4096).unwrap_err(),
            HeadError::TooLarge
        );
    }

    #[test]
    fn answers_and_trailers_come_back() {
        let mut headers = HeaderMap::new();
        headers.insert("content-type", HeaderValue::from_static("text/event-stream"));
        let mut bytes = encode_response(StatusCode::OK, &headers);
        let mut decoder = frame::Decoder::new(frame::On::Request, 4096);
        let Ok(Some(frame::Frame::Headers(section))) = decoder.poll(&mut bytes) else { panic!() };
        let head = decode_response(&section, 4096).unwrap();
        assert_eq!((head.status, head.headers), (StatusCode::OK, headers));
        assert!(decode_trailers(&with(&[]), 4096).is_err());
        assert_eq!(decode_trailers(&section_of_trailers(), 4096).unwrap()["x-sum"], "1");
    }

    fn section_of_trailers() -> Vec<u8> {
        section(&[("x-sum", "1")])
    }
}
