//! The client's half of RFC 9112, as far as a gateway needs it: write one request, read one answer.
//!
//! In: a head to send; bytes received, cut anywhere. Out: the request's bytes; the answer's head, its body without its
//! framing ([`body`]), and whether the connection may carry another request. Nothing here trusts the model server:
//! heads, their number, chunk lines and trailers are bounded, and anything ambiguous is an error (RFC 9112 §6.3, §11).

pub mod body;

use bytes::{Buf, BufMut, Bytes, BytesMut};
use http::header::{CONNECTION, HeaderMap, HeaderName, HeaderValue, TRANSFER_ENCODING};
use http::{Method, StatusCode};

use crate::fields;
pub use body::Body;

/// Interim answers (1xx) before the final one: a server that says every few seconds that it still works is borne for
/// many minutes, one that says it without end is not.
pub const MAX_INTERIM: usize = 100;

/// Why an answer cannot be read; the text is for the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProtocolError(pub &'static str);

const MALFORMED: ProtocolError = ProtocolError("the answer's head is malformed");

/// The head of an answer, and what follows from it.
#[derive(Debug)]
pub struct Head {
    pub status: StatusCode,
    pub headers: HeaderMap,
    pub body: Body,
    /// The connection may be used again once the body has ended.
    pub is_reusable: bool,
}

/// Writes a request's head. `content_length` is our own framing; no field of `headers` may frame the body.
pub fn encode_request(
    method: &Method,
    target: &str,
    host: &str,
    headers: &HeaderMap,
    content_length: Option<u64>,
) -> Bytes {
    let mut out = BytesMut::with_capacity(256 + headers.len() * 48);
    for part in [method.as_str(), " ", target, " HTTP/1.1\r\nhost: ", host, "\r\n"] {
        out.put_slice(part.as_bytes());
    }
    for (name, value) in headers {
        if name == http::header::HOST || name == http::header::CONTENT_LENGTH || fields::is_hop_by_hop(name) {
            continue;
        }
        out.put_slice(name.as_str().as_bytes());
        out.put_slice(b": ");
        out.put_slice(value.as_bytes());
        out.put_slice(b"\r\n");
    }
    if let Some(length) = content_length {
        out.put_slice(format!("content-length: {length}\r\n").as_bytes());
    }
    out.put_slice(b"\r\n");
    out.freeze()
}

/// How much an answer's head may hold.
#[derive(Clone, Copy, Debug)]
pub struct HeadLimits {
    pub bytes: usize,
    pub fields: usize,
}

/// Reads the head of one answer, and passes over the interim answers before it.
///
/// However few bytes come at a time, each is looked at once, and a head is parsed when its end is there.
#[derive(Debug)]
pub struct HeadReader {
    method: Method,
    limits: HeadLimits,
    interim: usize,
    /// So many bytes of the buffer hold no end of a head.
    searched: usize,
}

impl HeadReader {
    /// `method`: of the request.
    pub fn new(method: Method, limits: HeadLimits) -> Self {
        Self { method, limits, interim: 0, searched: 0 }
    }

    /// Looks at what has come; takes the final head, and every interim one, from the front of `buffer`.
    ///
    /// # Errors
    /// When a head is malformed or too large, when there are more than [`MAX_INTERIM`] interim ones, and when the
    /// server switches protocols, which nobody asked it to.
    pub fn handle_data(&mut self, buffer: &mut BytesMut) -> Result<Option<Head>, ProtocolError> {
        loop {
            let is_first_look = self.searched == 0;
            let Some(end) = find_end(buffer, self.searched) else {
                if buffer.len() > self.limits.bytes {
                    return Err(ProtocolError("the answer's head is too large"));
                }
                // What is no HTTP at all is known by its first bytes, not when the patience is over.
                if is_first_look && !buffer.is_empty() {
                    self.decode(buffer)?;
                }
                self.searched = buffer.len();
                return Ok(None);
            };
            if end > self.limits.bytes {
                return Err(ProtocolError("the answer's head is too large"));
            }
            // An empty line before the status line is the end of no head.
            let head = self.decode(&buffer[..end])?.ok_or(MALFORMED)?;
            buffer.advance(end);
            self.searched = 0;
            if head.status == StatusCode::SWITCHING_PROTOCOLS {
                return Err(ProtocolError("it switches protocols unasked"));
            }
            if !head.status.is_informational() {
                return Ok(Some(head));
            }
            self.interim += 1;
            if self.interim > MAX_INTERIM {
                return Err(ProtocolError("there are too many interim answers (1xx)"));
            }
        }
    }

    /// The head that `input` is; nothing when it goes on.
    fn decode(&self, input: &[u8]) -> Result<Option<Head>, ProtocolError> {
        let mut parsed = vec![httparse::EMPTY_HEADER; self.limits.fields];
        let mut response = httparse::Response::new(&mut parsed);
        match response.parse(input) {
            Ok(httparse::Status::Complete(length)) if length == input.len() => {
                Head::of(&response, &self.method).map(Some)
            }
            Ok(httparse::Status::Partial) => Ok(None),
            Err(httparse::Error::TooManyHeaders) => {
                Err(ProtocolError("the answer's head has too many fields"))
            }
            Ok(_) | Err(_) => Err(MALFORMED),
        }
    }
}

/// Behind the first empty line that ends in `input[from..]`; a line may end with LF alone (RFC 9112 §2.2).
fn find_end(input: &[u8], from: usize) -> Option<usize> {
    let start = from.saturating_sub(2);
    memchr::memchr_iter(b'\n', &input[start..]).map(|at| start + at).find_map(|at| {
        let line = &input[..at];
        let before = line.strip_suffix(b"\r").unwrap_or(line);
        (before.is_empty() || before.ends_with(b"\n")).then_some(at + 1)
    })
}

impl Head {
    fn of(response: &httparse::Response<'_, '_>, method: &Method) -> Result<Self, ProtocolError> {
        let status = response.code.and_then(|code| StatusCode::from_u16(code).ok());
        let status = status.ok_or(ProtocolError("the answer's status is malformed"))?;
        let headers = fields_of(response.headers)?;
        let is_http10 = response.version != Some(1);
        let has_coding = headers.contains_key(TRANSFER_ENCODING);
        if has_coding && is_http10 {
            // RFC 9112 §6.1: its framing is faulty.
            return Err(ProtocolError("an answer of HTTP/1.0 has a transfer coding"));
        }
        let body = Body::of(method, status, &headers)?;
        let has_length = headers.contains_key(http::header::CONTENT_LENGTH);
        // With either, a server may send a body where there is none, and it would be read as the next answer.
        let is_doubtful = if body.is_ended() { has_coding } else { has_coding && has_length };
        let is_last = is_http10 || has_token(&headers, CONNECTION, "close");
        let is_reusable = !(is_doubtful || is_last || body.is_until_close());
        Ok(Self { status, headers, body, is_reusable })
    }
}

fn fields_of(parsed: &[httparse::Header<'_>]) -> Result<HeaderMap, ProtocolError> {
    let mut headers = HeaderMap::with_capacity(parsed.len());
    for field in parsed {
        headers.append(
            HeaderName::from_bytes(field.name.as_bytes())
                .map_err(|_| ProtocolError("a field name is malformed"))?,
            HeaderValue::from_bytes(field.value).map_err(|_| ProtocolError("a field value is malformed"))?,
        );
    }
    Ok(headers)
}

fn has_token(headers: &HeaderMap, name: HeaderName, token: &str) -> bool {
    headers
        .get_all(name)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .any(|found| found.trim().eq_ignore_ascii_case(token))
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: HeadLimits = HeadLimits { bytes: 4096, fields: 20 };

    /// The head in `text`, which comes in pieces of `step` bytes, and how many bytes are left of it.
    fn read(text: &[u8], step: usize, method: Method) -> Result<Option<(Head, usize)>, ProtocolError> {
        let (mut reader, mut buffer) = (HeadReader::new(method, LIMITS), BytesMut::new());
        let mut pieces = text.chunks(step);
        for piece in pieces.by_ref() {
            buffer.extend_from_slice(piece);
            if let Some(head) = reader.handle_data(&mut buffer)? {
                return Ok(Some((head, buffer.len() + pieces.map(<[u8]>::len).sum::<usize>())));
            }
        }
        Ok(None)
    }

    fn head(text: &str) -> Result<Head, ProtocolError> {
        read(text.as_bytes(), 1024, Method::POST).map(|found| found.unwrap().0)
    }

    const CHUNKED: &str = "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n";

    #[test]
    fn a_head_is_read_however_it_is_cut() {
        let interim = "HTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\n";
        let final_ = "HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\n";
        for text in [
            format!("{final_}abcd"),
            format!("{interim}{interim}{final_}abcd"),
            "HTTP/1.1 200 OK\ncontent-length: 4\n\nabcd".to_owned(),
        ] {
            for step in 1..=text.len() {
                let (head, left) = read(text.as_bytes(), step, Method::POST).unwrap().unwrap();
                assert_eq!((head.status, left), (StatusCode::OK, 4), "{text:?} by {step}");
                assert!(!head.body.is_ended() && head.is_reusable);
            }
        }
        assert!(read(b"HTTP/1.1 200 OK\r\na: b\r\n", 3, Method::POST).unwrap().is_none());
    }

    #[test]
    fn what_is_no_http_is_known_by_its_first_bytes() {
        for bad in [&b"\0\0"[..], b"SSH-2.0-x", b"{", b"HTTQ"] {
            assert!(read(bad, 64, Method::POST).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn interim_answers_have_an_end() {
        let text = "HTTP/1.1 102 Processing\r\n\r\n".repeat(MAX_INTERIM + 1);
        assert!(read(text.as_bytes(), 7, Method::POST).is_err());
        let enough = "HTTP/1.1 102 Processing\r\n\r\n".repeat(MAX_INTERIM) + CHUNKED;
        assert!(read(enough.as_bytes(), 7, Method::POST).unwrap().is_some());
    }

    #[test]
    fn a_connection_is_reused_only_when_its_framing_is_certain() {
        for (text, reusable) in [
            ("HTTP/1.1 200 OK\r\ncontent-length: 1\r\n\r\n", true),
            (CHUNKED, true),
            ("HTTP/1.1 200 OK\r\n\r\n", false),
            ("HTTP/1.0 200 OK\r\ncontent-length: 1\r\n\r\n", false),
            ("HTTP/1.1 200 OK\r\ncontent-length: 1\r\nconnection: x, Close\r\n\r\n", false),
            ("HTTP/1.1 200 OK\r\ncontent-length: 1\r\ntransfer-encoding: chunked\r\n\r\n", false),
            ("HTTP/1.1 204 No\r\n\r\n", true),
            ("HTTP/1.1 204 No\r\ntransfer-encoding: chunked\r\n\r\n", false),
        ] {
            assert_eq!(head(text).unwrap().is_reusable, reusable, "{text}");
        }
    }

    #[test]
    fn ambiguous_heads_are_refused() {
        for bad in [
            "HTTP/1.1 200 OK\r\ntransfer-encoding: gzip, chunked\r\n\r\n",
            "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked, chunked\r\n\r\n",
            "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\ntransfer-encoding: chunked\r\n\r\n",
            "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\ntransfer-encoding: identity\r\n\r\n",
            "HTTP/1.1 200 OK\r\ntransfer-encoding: \r\n\r\n",
            "HTTP/1.1 200 OK\r\ntransfer-encoding: xchunked\r\n\r\n",
            "HTTP/1.0 200 OK\r\ntransfer-encoding: chunked\r\n\r\n",
            "HTTP/1.1 200 OK\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\n",
            "HTTP/1.1 200 OK\r\ncontent-length: 1, 2\r\n\r\n",
            "HTTP/1.1 200 OK\r\ncontent-length: x\r\n\r\n",
            "HTTP/1.1 200 OK\r\ncontent-length: +1\r\n\r\n",
            "HTTP/1.1 200 OK\r\ncontent-length: 0x1\r\n\r\n",
            "HTTP/1.1 101 Switching Protocols\r\nupgrade: x\r\n\r\n",
            "HTTP/1.1 099 OK\r\n\r\n",
            "HTTP/1.1 20 OK\r\n\r\n",
            "HTTP/1.1 200 OK\r\na b: c\r\n\r\n",
            "HTTP/1.1 200 OK\r\na : c\r\n\r\n",
            "HTTP/1.1 200 OK\r\na: c\r\n d\r\n\r\n",
            "HTTP/1.1 200 OK\r\na: c\0\r\n\r\n",
            "HTTP/9 200 OK\r\n\r\n",
            "\r\nHTTP/1.1 200 OK\r\n\r\n",
            "\nHTTP/1.1 200 OK\r\n\r\n",
        ] {
            assert!(head(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn a_heads_size_and_number_of_fields_are_bounded() {
        let fields = |count: usize| format!("HTTP/1.1 200 OK\r\n{}\r\n", "a: b\r\n".repeat(count));
        assert!(head(&fields(LIMITS.fields)).is_ok());
        assert!(head(&fields(LIMITS.fields + 1)).is_err());
        let long = |size: usize| format!("HTTP/1.1 200 OK\r\na: {}\r\n\r\n", "x".repeat(size));
        assert!(head(&long(LIMITS.bytes - 30)).is_ok());
        assert!(head(&long(LIMITS.bytes)).is_err());
        for step in [1, 100] {
            assert!(read("a".repeat(5000).as_bytes(), step, Method::POST).is_err());
        }
    }

    #[test]
    fn a_request_carries_our_framing_and_nobody_elses() {
        let mut headers = HeaderMap::new();
        for (name, value) in [
            ("accept", "*/*"),
            ("content-length", "999"),
            ("transfer-encoding", "chunked"),
            ("host", "evil"),
            ("connection", "x"),
        ] {
            headers.insert(HeaderName::from_static(name), HeaderValue::from_static(value));
        }
        let bytes = encode_request(&Method::POST, "/v1", "model:1", &headers, Some(3));
        let text = std::str::from_utf8(&bytes).unwrap();
        assert_eq!(text, "POST /v1 HTTP/1.1\r\nhost: model:1\r\naccept: */*\r\ncontent-length: 3\r\n\r\n");
    }

    #[test]
    fn answers_without_a_body_end_at_once() {
        assert!(head("HTTP/1.1 204 No\r\n\r\n").unwrap().body.is_ended());
        let text = b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\n";
        assert!(read(text, 99, Method::HEAD).unwrap().unwrap().0.body.is_ended());
    }
}
