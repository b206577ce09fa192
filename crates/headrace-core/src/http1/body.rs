//! The body of an answer over HTTP/1.1, taken out of its framing.
//!
//! In: how its head frames it, and bytes, cut anywhere. Out: the bytes of the body, where it ends, and its trailers. It
//! must not know what the bytes mean.

use http::header::{HeaderMap, TRANSFER_ENCODING};
use http::{Method, StatusCode};

use super::{ProtocolError, fields_of};
use crate::complete::Stop;
use crate::fields;

/// The longest chunk-size line that is read, with its extensions.
const MAX_CHUNK_LINE: usize = 256;
const MAX_TRAILER_BYTES: usize = 8 * 1024;
const MAX_TRAILER_FIELDS: usize = 32;

/// The reader of one body.
#[derive(Debug)]
pub struct Body {
    state: State,
    /// The section as it comes.
    section: Vec<u8>,
    trailers: Option<HeaderMap>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Length(u64),
    UntilClose,
    ChunkLine(ChunkLine),
    ChunkData(u64),
    ChunkCr,
    ChunkLf,
    Trailers,
    Ended,
}

/// `chunk-size [ chunk-ext ] CRLF` (RFC 9112 §7.1), as far as it has come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct ChunkLine {
    size: u64,
    digits: u8,
    at: LinePart,
    bytes: usize,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum LinePart {
    #[default]
    Size,
    /// White space behind the size: bad, and borne (`BWS`), but no digit may follow.
    Blank,
    Extension,
    Lf,
}

impl Body {
    /// How the body of this answer is framed (RFC 9112 §6.3).
    pub(super) fn of(
        method: &Method,
        status: StatusCode,
        headers: &HeaderMap,
    ) -> Result<Self, ProtocolError> {
        let empty = method == Method::HEAD
            || status.is_informational()
            || status == StatusCode::NO_CONTENT
            || status == StatusCode::NOT_MODIFIED;
        let mut codings = headers.get_all(TRANSFER_ENCODING).iter();
        let state = if empty {
            State::Ended
        } else if let Some(coding) = codings.next() {
            if codings.next().is_some() || !coding.as_bytes().eq_ignore_ascii_case(b"chunked") {
                return Err(ProtocolError("the answer's transfer coding is not chunked, once"));
            }
            State::ChunkLine(ChunkLine::default())
        } else {
            match fields::content_length(headers) {
                Err(fields::BadLength) => {
                    return Err(ProtocolError("the answer's content-length is malformed"));
                }
                Ok(Some(0)) => State::Ended,
                Ok(Some(length)) => State::Length(length),
                Ok(None) => State::UntilClose,
            }
        };
        Ok(Self { state, section: Vec::new(), trailers: None })
    }

    pub fn is_ended(&self) -> bool {
        self.state == State::Ended
    }

    pub(super) fn is_until_close(&self) -> bool {
        self.state == State::UntilClose
    }

    /// How the body stops when its connection is closed, in order, right now.
    pub fn stop_at_close(&self) -> Stop {
        match self.state {
            State::Ended => Stop::Framed,
            State::UntilClose => Stop::Closed,
            _ => Stop::Broken,
        }
    }

    /// Takes bytes in; calls `emit` with each run of body bytes; returns how many bytes belonged to this
    /// body.
    ///
    /// # Errors
    /// When the chunked framing, or the trailers, are broken.
    pub fn handle_data(&mut self, input: &[u8], mut emit: impl FnMut(&[u8])) -> Result<usize, ProtocolError> {
        let mut at = 0;
        while at < input.len() && self.state != State::Ended {
            let rest = &input[at..];
            at += match &mut self.state {
                State::Length(left) | State::ChunkData(left) => {
                    let take = rest.len().min(usize::try_from(*left).unwrap_or(usize::MAX));
                    emit(&rest[..take]);
                    *left -= take as u64;
                    match self.state {
                        State::Length(0) => self.state = State::Ended,
                        State::ChunkData(0) => self.state = State::ChunkCr,
                        _ => {}
                    }
                    take
                }
                State::UntilClose => {
                    emit(rest);
                    rest.len()
                }
                State::ChunkLine(line) => {
                    if let Some(next) = line.handle_byte(rest[0])? {
                        self.state = next;
                    }
                    1
                }
                State::ChunkCr => self.expect(rest[0], b'\r', State::ChunkLf)?,
                State::ChunkLf => self.expect(rest[0], b'\n', State::ChunkLine(ChunkLine::default()))?,
                State::Trailers => self.handle_trailer_byte(rest[0])?,
                State::Ended => 0,
            };
        }
        Ok(at)
    }

    /// The trailers of a body that has ended; once.
    pub fn take_trailers(&mut self) -> Option<HeaderMap> {
        self.trailers.take()
    }

    fn expect(&mut self, byte: u8, wanted: u8, next: State) -> Result<usize, ProtocolError> {
        if byte != wanted {
            return Err(ProtocolError("a chunk is longer than its size"));
        }
        self.state = next;
        Ok(1)
    }

    fn handle_trailer_byte(&mut self, byte: u8) -> Result<usize, ProtocolError> {
        if self.section.len() >= MAX_TRAILER_BYTES {
            return Err(ProtocolError("the trailers are too large"));
        }
        self.section.push(byte);
        if self.section == b"\r\n" || self.section.ends_with(b"\r\n\r\n") {
            self.trailers = decode_trailers(&self.section)?;
            self.state = State::Ended;
        }
        Ok(1)
    }
}

impl ChunkLine {
    /// What comes behind the line, once its end is there.
    fn handle_byte(&mut self, byte: u8) -> Result<Option<State>, ProtocolError> {
        use LinePart::{Blank, Extension, Lf, Size};
        self.bytes += 1;
        if self.bytes > MAX_CHUNK_LINE {
            return Err(ProtocolError("a chunk extension is too long"));
        }
        let has_size = self.digits > 0;
        self.at = match (self.at, byte) {
            (Size, byte) if byte.is_ascii_hexdigit() && self.digits < 15 => {
                let digit = (byte as char).to_digit(16).unwrap_or_default();
                self.size = self.size << 4 | u64::from(digit);
                self.digits += 1;
                Size
            }
            (Size | Blank, b' ' | b'\t') if has_size => Blank,
            (Size | Blank, b';') if has_size => Extension,
            (Size | Blank | Extension, b'\r') if has_size => Lf,
            (Extension, byte) if byte == b'\t' || (byte >= b' ' && byte != 0x7f) => Extension,
            (Lf, b'\n') if self.size == 0 => return Ok(Some(State::Trailers)),
            (Lf, b'\n') => return Ok(Some(State::ChunkData(self.size))),
            _ => return Err(ProtocolError("a chunk size is malformed")),
        };
        Ok(None)
    }
}

fn decode_trailers(section: &[u8]) -> Result<Option<HeaderMap>, ProtocolError> {
    let mut parsed = [httparse::EMPTY_HEADER; MAX_TRAILER_FIELDS];
    let Ok(httparse::Status::Complete((length, found))) = httparse::parse_headers(section, &mut parsed)
    else {
        return Err(ProtocolError("the trailers are malformed"));
    };
    if length != section.len() {
        return Err(ProtocolError("the trailers are malformed"));
    }
    let mut headers = fields_of(found)?;
    fields::strip_trailers(&mut headers);
    Ok(Some(headers).filter(|headers| !headers.is_empty()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn body(fields: &[(&'static str, &'static str)]) -> Body {
        let fields = fields.iter().map(|(name, value)| httparse::Header { name, value: value.as_bytes() });
        let headers = fields_of(&fields.collect::<Vec<_>>()).unwrap();
        Body::of(&Method::POST, StatusCode::OK, &headers).unwrap()
    }

    fn chunked() -> Body {
        body(&[("transfer-encoding", "Chunked")])
    }

    fn read(mut reader: Body, input: &[u8], step: usize) -> Result<(Vec<u8>, Body, usize), ProtocolError> {
        let (mut out, mut used) = (Vec::new(), 0);
        for part in input.chunks(step) {
            used += reader.handle_data(part, |data| out.extend_from_slice(data))?;
        }
        Ok((out, reader, used))
    }

    #[test]
    fn chunked_bodies_are_read_however_they_are_cut() {
        let input =
            b"5\r\nhello\r\n00A \t;ext=\"1\";x\r\n0123456789\r\n0\r\nx-sum: 15\r\nhost: x\r\n\r\nNEXT";
        for step in 1..=input.len() {
            let (out, mut reader, used) = read(chunked(), input, step).unwrap();
            assert_eq!(out, b"hello0123456789");
            assert!(reader.is_ended());
            assert_eq!(used, input.len() - 4, "what follows the body is left alone");
            let trailers = reader.take_trailers().unwrap();
            assert_eq!((trailers.len(), trailers["x-sum"].as_bytes()), (1, &b"15"[..]));
        }
    }

    #[test]
    fn broken_chunks_are_an_error() {
        for bad in [
            "5\r\nhelloX",
            "5\r\nhello\nX",
            "\r\n",
            " 5\r\n",
            "g\r\n",
            "5 5\r\n",
            "5\t5\r\n",
            "5\n",
            "5;x\n",
            "5;x\ry",
            "5\r5\r\n",
            "5;\0\r\n",
            "5;\x7f\r\n",
            "5\x0b\r\n",
            "0x5\r\n",
            "+5\r\n",
            "-1\r\n",
            ";x\r\n",
            "5,5\r\n",
            "FFFFFFFFFFFFFFFFF\r\n",
            "0000000000000005\r\n",
            "0\r\na b: c\r\n\r\n",
            "0\r\na\r\n\r\n",
            "0\r\n: b\r\n\r\n",
            "0\r\na: b\0\r\n\r\n",
        ] {
            for step in [1, bad.len()] {
                assert!(read(chunked(), bad.as_bytes(), step).is_err(), "{bad:?}");
            }
        }
        let long = format!("1;{}", "x".repeat(300));
        assert!(read(chunked(), long.as_bytes(), 7).is_err());
        let trailers = format!("0\r\n{}", "a: b\r\n".repeat(2000));
        assert!(read(chunked(), trailers.as_bytes(), 64).is_err());
        let many = format!("0\r\n{}\r\n", "a: b\r\n".repeat(MAX_TRAILER_FIELDS + 1));
        assert!(read(chunked(), many.as_bytes(), 64).is_err());
    }

    /// In every state but two a closed connection is a broken one.
    #[test]
    fn a_close_ends_a_body_that_has_ended_or_has_no_other_end() {
        let whole = b"5\r\nhello\r\n0\r\nx: y\r\n\r\n";
        for end in 0..whole.len() {
            let (_, reader, _) = read(chunked(), &whole[..end], 1).unwrap();
            assert_eq!(reader.stop_at_close(), Stop::Broken, "{end}");
        }
        assert_eq!(read(chunked(), whole, 1).unwrap().1.stop_at_close(), Stop::Framed);
        let (out, reader, used) = read(body(&[("content-length", "4")]), b"abcdEFG", 2).unwrap();
        assert_eq!((out.as_slice(), reader.stop_at_close(), used), (&b"abcd"[..], Stop::Framed, 4));
        let (_, reader, _) = read(body(&[("content-length", "4")]), b"abc", 3).unwrap();
        assert_eq!(reader.stop_at_close(), Stop::Broken);
        let (out, reader, _) = read(body(&[]), b"abc", 2).unwrap();
        assert_eq!((out.as_slice(), reader.stop_at_close()), (&b"abc"[..], Stop::Closed));
    }
}
