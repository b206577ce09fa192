//! HTTP/1.1: the answer of a model server.

use bytes::BytesMut;
use headrace_core::complete::Stop;
use headrace_core::fields;
use headrace_core::http1::{HeadLimits, HeadReader};
use http::{HeaderMap, Method, StatusCode};

use crate::pieces;

const LIMITS: HeadLimits = HeadLimits { bytes: 1000, fields: 20 };

/// What an answer came to.
#[derive(Debug, PartialEq)]
enum Read {
    NoHead,
    BadHead,
    Head { status: StatusCode, headers: HeaderMap, is_reusable: bool, body: Box<Body> },
}

#[derive(Debug, PartialEq)]
enum Body {
    Bad,
    Read { bytes: Vec<u8>, stop: Stop, trailers: Option<HeaderMap>, left: usize },
}

/// The head, the body in its framing, the trailers, and where they end.
pub fn http1(data: &[u8]) {
    let Some((whole, pieces)) = pieces(data) else { return };
    for method in [Method::POST, Method::HEAD] {
        let (read, in_pieces) = (self::read(&[whole], &method), self::read(&pieces, &method));
        // What is no HTTP is known by the first bytes that come; how many those are is chance.
        let is_head = |read: &Read| matches!(read, Read::Head { .. });
        assert!(read == in_pieces || !(is_head(&read) || is_head(&in_pieces)), "{read:?} {in_pieces:?}");
        let Read::Head { headers, body, .. } = read else { continue };
        assert!(headers.len() <= LIMITS.fields);
        let trailers = match *body {
            Body::Read { bytes, trailers, left, .. } => {
                assert!(bytes.len() + left <= whole.len());
                trailers.unwrap_or_default()
            }
            Body::Bad => HeaderMap::new(),
        };
        assert!(trailers.keys().all(|name| !fields::is_hop_by_hop(name) && name != "content-length"));
    }
}

fn read(pieces: &[&[u8]], method: &Method) -> Read {
    let (mut reader, mut buffer) = (HeadReader::new(method.clone(), LIMITS), BytesMut::new());
    let mut pieces = pieces.iter();
    let head = loop {
        let Some(piece) = pieces.next() else { return Read::NoHead };
        buffer.extend_from_slice(piece);
        match reader.handle_data(&mut buffer) {
            Ok(Some(head)) => break head,
            Ok(None) => {}
            Err(_) => return Read::BadHead,
        }
    };
    let (mut body, mut bytes, mut left) = (head.body, Vec::new(), 0);
    let mut is_bad = false;
    for piece in std::iter::once(&buffer[..]).chain(pieces.copied()) {
        match body.handle_data(piece, |data| bytes.extend_from_slice(data)) {
            Ok(used) => left += piece.len() - used,
            Err(_) => is_bad = true,
        }
        if is_bad {
            break;
        }
    }
    let body = match is_bad {
        true => Body::Bad,
        false => Body::Read { bytes, stop: body.stop_at_close(), trailers: body.take_trailers(), left },
    };
    Read::Head {
        status: head.status,
        headers: head.headers,
        is_reusable: head.is_reusable,
        body: Box::new(body),
    }
}
