//! The client's half of RFC 9112, as far as a gateway needs it: write one request, read one answer.
//!
//! In: a head to send; bytes received, cut anywhere. Out: the request's bytes; the answer's head, its body
//! without its framing, its trailers, and whether the connection may carry another request. Nothing here
//! trusts the model server: heads, chunk lines and trailers are bounded, and anything ambiguous is an error
//! (RFC 9112 §6.3, §11).

mod body;

use bytes::{BufMut, Bytes, BytesMut};
use http::header::{CONNECTION, HeaderMap, HeaderName, HeaderValue, TRANSFER_ENCODING};
use http::{Method, StatusCode};

use crate::fields;
pub use body::{Body, ProtocolError};

const MAX_FIELDS: usize = 128;

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

/// Reads an answer's head from the front of `input`; the number is the head's length in bytes.
///
/// Interim answers (1xx) are returned like any other: the caller skips them.
///
/// # Errors
/// When the head is malformed, or longer than `max_bytes`.
pub fn decode_head(
    input: &[u8],
    method: &Method,
    max_bytes: usize,
) -> Result<Option<(Head, usize)>, ProtocolError> {
    let mut parsed = [httparse::EMPTY_HEADER; MAX_FIELDS];
    let mut response = httparse::Response::new(&mut parsed);
    let length = match response.parse(input) {
        Ok(httparse::Status::Complete(length)) if length <= max_bytes => length,
        Ok(httparse::Status::Partial) if input.len() <= max_bytes => return Ok(None),
        Ok(_) => return Err(ProtocolError("the answer's head is too large")),
        Err(_) => return Err(ProtocolError("the answer's head is malformed")),
    };
    let status = response.code.and_then(|code| StatusCode::from_u16(code).ok());
    let status = status.ok_or(ProtocolError("the answer's status is malformed"))?;
    let mut headers = HeaderMap::with_capacity(response.headers.len());
    for field in response.headers.iter() {
        headers.append(
            HeaderName::from_bytes(field.name.as_bytes())
                .map_err(|_| ProtocolError("a field name is malformed"))?,
            HeaderValue::from_bytes(field.value).map_err(|_| ProtocolError("a field value is malformed"))?,
        );
    }
    let body = Body::of(method, status, &headers)?;
    let is_doubly_framed =
        headers.contains_key(TRANSFER_ENCODING) && headers.contains_key(http::header::CONTENT_LENGTH);
    let is_last = response.version != Some(1) || has_token(&headers, CONNECTION, "close");
    let is_reusable = !(is_doubly_framed || body.is_open_ended() || is_last);
    Ok(Some((Head { status, headers, body, is_reusable }, length)))
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

    fn head(text: &str) -> Result<Head, ProtocolError> {
        decode_head(text.as_bytes(), &Method::POST, 4096).map(|found| found.unwrap().0)
    }

    fn read(text: &str, body: &[u8], step: usize) -> Result<(Vec<u8>, Body, usize), ProtocolError> {
        let mut reader = head(text)?.body;
        let (mut out, mut used) = (Vec::new(), 0);
        for part in body.chunks(step) {
            used += reader.handle_data(part, |data| out.extend_from_slice(data))?;
        }
        Ok((out, reader, used))
    }

    const CHUNKED: &str = "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n";

    #[test]
    fn chunked_bodies_are_read_however_they_are_cut() {
        let body = b"5\r\nhello\r\nA;ext=1\r\n0123456789\r\n0\r\nx-sum: 15\r\n\r\nNEXT";
        for step in 1..=body.len() {
            let (out, mut reader, used) = read(CHUNKED, body, step).unwrap();
            assert_eq!(out, b"hello0123456789");
            assert!(reader.is_ended());
            assert_eq!(used, body.len() - 4, "what follows the body is left alone");
            assert_eq!(reader.poll_trailers().unwrap()["x-sum"], "15");
        }
    }

    #[test]
    fn broken_chunks_are_an_error() {
        for bad in ["5\r\nhelloX", "\r\n", "g\r\n", "5 5\r\nhelloXX", "FFFFFFFFFFFFFFFFF\r\n", "-1\r\n"] {
            assert!(read(CHUNKED, bad.as_bytes(), 1).is_err(), "{bad:?}");
        }
        let long = format!("1;{}", "x".repeat(300));
        assert!(read(CHUNKED, long.as_bytes(), 7).is_err());
        let trailers = format!("0\r\n{}", "a: b\r\n".repeat(2000));
        assert!(read(CHUNKED, trailers.as_bytes(), 64).is_err());
    }

    #[test]
    fn a_length_ends_a_body_and_a_close_ends_one_without() {
        let (out, reader, used) =
            read("HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\n", b"abcdEFG", 2).unwrap();
        assert_eq!((out.as_slice(), reader.is_ended(), used), (&b"abcd"[..], true, 4));
        let (out, reader, _) = read("HTTP/1.1 200 OK\r\n\r\n", b"abc", 2).unwrap();
        assert!(out == b"abc" && reader.may_end_at_close() && !reader.is_ended());
        let (_, reader, _) = read("HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\n", b"abc", 3).unwrap();
        assert!(!reader.may_end_at_close());
    }

    #[test]
    fn a_connection_is_reused_only_when_its_framing_is_certain() {
        for (text, reusable) in [
            ("HTTP/1.1 200 OK\r\ncontent-length: 1\r\n\r\n", true),
            (CHUNKED, true),
            ("HTTP/1.1 204 No Content\r\n\r\n", true),
            ("HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n", true),
            ("HTTP/1.1 200 OK\r\n\r\n", false),
            ("HTTP/1.0 200 OK\r\ncontent-length: 1\r\n\r\n", false),
            ("HTTP/1.1 200 OK\r\ncontent-length: 1\r\nconnection: x, Close\r\n\r\n", false),
            ("HTTP/1.1 200 OK\r\ncontent-length: 1\r\ntransfer-encoding: chunked\r\n\r\n", false),
        ] {
            assert_eq!(head(text).unwrap().is_reusable, reusable, "{text}");
        }
    }

    #[test]
    fn ambiguous_heads_are_refused() {
        for bad in [
            "HTTP/1.1 200 OK\r\ntransfer-encoding: gzip, chunked\r\n\r\n",
            "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\ntransfer-encoding: chunked\r\n\r\n",
            "HTTP/1.1 200 OK\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\n",
            "HTTP/1.1 200 OK\r\ncontent-length: x\r\n\r\n",
            "HTTP/9 200 OK\r\n\r\n",
        ] {
            assert!(head(bad).is_err(), "{bad}");
        }
        assert!(decode_head(&b"HTTP/1.1 200 OK\r\na: ".repeat(300), &Method::GET, 4096).is_err());
        assert!(decode_head(b"HTTP/1.1 200 OK\r\na: b", &Method::GET, 4096).unwrap().is_none());
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
        for text in ["HTTP/1.1 204 No\r\n\r\n", "HTTP/1.1 100 Continue\r\n\r\n"] {
            assert!(head(text).unwrap().body.is_ended());
        }
        let head = decode_head(b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\n", &Method::HEAD, 99);
        assert!(head.unwrap().unwrap().0.body.is_ended());
    }
}
