//! The body of an answer over HTTP/1.1: its framing taken off (RFC 9112 §6, §7).
//!
//! In: what the head says of the body's framing; bytes, cut anywhere. Out: runs of body bytes, the trailers, and
//! whether the body has ended, or may end with the connection.

use http::header::{HeaderMap, HeaderName, HeaderValue, TRANSFER_ENCODING};
use http::{Method, StatusCode};

use crate::fields;

/// The longest chunk-size line that is read, with its extensions.
const MAX_CHUNK_LINE: usize = 256;
const MAX_TRAILER_BYTES: usize = 8 * 1024;

/// Why an answer cannot be read; the text is for the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProtocolError(pub &'static str);

/// The reader of one body.
#[derive(Debug)]
pub struct Body {
    state: State,
    trailers: Vec<u8>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Length(u64),
    UntilClose,
    ChunkLine { length: u64, digits: u8, in_extension: bool, line: u16 },
    ChunkData(u64),
    ChunkCr,
    ChunkLf,
    Trailers,
    Ended,
}

const CHUNK_LINE: State = State::ChunkLine { length: 0, digits: 0, in_extension: false, line: 0 };

impl Body {
    /// How the body of this answer is framed (RFC 9112 §6.3).
    pub fn of(method: &Method, status: StatusCode, headers: &HeaderMap) -> Result<Self, ProtocolError> {
        let empty = method == Method::HEAD
            || status.is_informational()
            || status == StatusCode::NO_CONTENT
            || status == StatusCode::NOT_MODIFIED;
        let mut codings = headers.get_all(TRANSFER_ENCODING).iter();
        let state = if empty {
            State::Ended
        } else if let Some(coding) = codings.next() {
            if codings.next().is_some() || !coding.as_bytes().eq_ignore_ascii_case(b"chunked") {
                return Err(ProtocolError("the answer's transfer coding is not plain chunked"));
            }
            CHUNK_LINE
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
        Ok(Self { state, trailers: Vec::new() })
    }

    pub fn is_ended(&self) -> bool {
        self.state == State::Ended
    }

    /// Whether nothing but the connection's end ends the body.
    pub fn is_open_ended(&self) -> bool {
        self.state == State::UntilClose
    }

    /// Whether the body may end with the connection right now.
    pub fn may_end_at_close(&self) -> bool {
        matches!(self.state, State::Ended | State::UntilClose)
    }

    /// Takes bytes in; calls `emit` with each run of body bytes; returns how many bytes belonged to this
    /// body.
    ///
    /// # Errors
    /// When the chunked framing is broken.
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
                State::ChunkLine { .. } => self.handle_chunk_line(rest[0])?,
                State::ChunkCr => self.expect(rest[0], b'\r', State::ChunkLf)?,
                State::ChunkLf => self.expect(rest[0], b'\n', CHUNK_LINE)?,
                State::Trailers => self.handle_trailer_byte(rest[0])?,
                State::Ended => 0,
            };
        }
        Ok(at)
    }

    /// The trailers of a chunked body that has ended.
    pub fn poll_trailers(&mut self) -> Option<HeaderMap> {
        let section = std::mem::take(&mut self.trailers);
        let mut parsed = [httparse::EMPTY_HEADER; 32];
        let Ok(httparse::Status::Complete((_, found))) = httparse::parse_headers(&section, &mut parsed)
        else {
            return None;
        };
        let mut headers = HeaderMap::new();
        for field in found {
            let name = HeaderName::from_bytes(field.name.as_bytes()).ok()?;
            headers.append(name, HeaderValue::from_bytes(field.value).ok()?);
        }
        fields::strip_hop_by_hop(&mut headers);
        // A trailer must not frame or route the message (RFC 9110 §6.5.1).
        headers.remove(http::header::CONTENT_LENGTH);
        headers.remove(http::header::HOST);
        (!headers.is_empty()).then_some(headers)
    }

    fn expect(&mut self, byte: u8, wanted: u8, next: State) -> Result<usize, ProtocolError> {
        if byte != wanted {
            return Err(ProtocolError("a chunk is longer than its size"));
        }
        self.state = next;
        Ok(1)
    }

    /// `chunk-size [ chunk-ext ] CRLF` (RFC 9112 §7.1), a byte at a time.
    fn handle_chunk_line(&mut self, byte: u8) -> Result<usize, ProtocolError> {
        const BAD: ProtocolError = ProtocolError("a chunk size is malformed");
        let State::ChunkLine { mut length, mut digits, mut in_extension, line } = self.state else {
            return Err(BAD);
        };
        if usize::from(line) >= MAX_CHUNK_LINE {
            return Err(ProtocolError("a chunk extension is too long"));
        }
        match byte {
            b'\n' if digits > 0 => {
                self.state = if length == 0 { State::Trailers } else { State::ChunkData(length) };
                return Ok(1);
            }
            b'\r' if digits > 0 => in_extension = true,
            _ if in_extension => {}
            b';' | b' ' | b'\t' if digits > 0 => in_extension = true,
            _ => {
                let digit = (byte as char).to_digit(16).ok_or(BAD)?;
                digits += 1;
                if digits > 15 {
                    return Err(BAD);
                }
                length = length << 4 | u64::from(digit);
            }
        }
        self.state = State::ChunkLine { length, digits, in_extension, line: line + 1 };
        Ok(1)
    }

    fn handle_trailer_byte(&mut self, byte: u8) -> Result<usize, ProtocolError> {
        if self.trailers.len() >= MAX_TRAILER_BYTES {
            return Err(ProtocolError("the trailers are too large"));
        }
        self.trailers.push(byte);
        let section = self.trailers.as_slice();
        if section == b"\r\n"
            || section == b"\n"
            || section.ends_with(b"\n\r\n")
            || section.ends_with(b"\n\n")
        {
            self.state = State::Ended;
        }
        Ok(1)
    }
}
