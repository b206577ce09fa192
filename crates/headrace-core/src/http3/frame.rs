//! Frames (RFC 9114 §7).
//!
//! In: bytes of a stream, cut anywhere. Out: frames of a request stream or of the control stream. A frame's
//! length is held against its limit before a byte of its payload is kept; unknown frames are skipped, never
//! stored. Empty and unknown frames are told, too: who sends too many of them keeps us busy for nothing.

use bytes::{Buf, BufMut, Bytes, BytesMut};

use super::code::{self, Http3Error};
use super::varint;

pub const DATA: u64 = 0x0;
pub const HEADERS: u64 = 0x1;
pub const CANCEL_PUSH: u64 = 0x3;
pub const SETTINGS: u64 = 0x4;
pub const PUSH_PROMISE: u64 = 0x5;
pub const GOAWAY: u64 = 0x7;
pub const MAX_PUSH_ID: u64 = 0xd;
pub const PRIORITY_UPDATE_REQUEST: u64 = 0xf_0700;
pub const PRIORITY_UPDATE_PUSH: u64 = 0xf_0701;

/// The largest frame on the control stream that is read; those that exist have a few dozen bytes.
pub const MAX_CONTROL_FRAME: u64 = 1024;

/// Which stream the frames are read from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum On {
    /// A request stream: what a client or a server sends on it.
    Request,
    /// A control stream.
    Control,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Frame {
    /// A whole HEADERS frame's payload: an encoded field section.
    Headers(Bytes),
    /// Some bytes of a DATA frame; none, if it is empty. `is_first`: the frame begins with them.
    Data { bytes: Bytes, is_first: bool },
    /// A frame of a type that means nothing here began (§9); it is skipped.
    Unknown,
    /// A whole frame of the control stream.
    Control { kind: u64, payload: Bytes },
}

#[derive(Debug)]
enum State {
    Header,
    /// A frame of known, bounded length is being collected.
    Whole {
        kind: u64,
        left: usize,
    },
    Data {
        left: u64,
        is_first: bool,
    },
    Skip {
        left: u64,
    },
}

/// Reads the frames of one stream.
#[derive(Debug)]
pub struct Decoder {
    on: On,
    state: State,
    /// A frame header cut in two, or the payload collected so far.
    kept: BytesMut,
    max_headers: u64,
}

/// Why a request stream cannot be read on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FrameError {
    Http3(Http3Error),
    /// A HEADERS frame longer than allowed; nothing of it was kept.
    HeadTooLarge,
}

impl From<Http3Error> for FrameError {
    fn from(error: Http3Error) -> Self {
        FrameError::Http3(error)
    }
}

impl Decoder {
    /// `max_headers`: the longest HEADERS frame that is read, in bytes.
    pub fn new(on: On, max_headers: usize) -> Self {
        let max_headers = max_headers as u64;
        Self { on, state: State::Header, kept: BytesMut::new(), max_headers }
    }

    /// Takes what it needs from the front of `input` for one frame; `None` when more bytes are needed.
    ///
    /// # Errors
    /// When the peer broke the protocol, or a limit.
    pub fn poll(&mut self, input: &mut Bytes) -> Result<Option<Frame>, FrameError> {
        loop {
            match &mut self.state {
                State::Header => {
                    let Some((kind, length)) = self.header(input) else { return Ok(None) };
                    self.begin(kind, length)?;
                    match self.state {
                        State::Whole { kind, left: 0 } => {
                            self.state = State::Header;
                            return Ok(Some(self.whole(kind)));
                        }
                        State::Data { left: 0, .. } => {
                            self.state = State::Header;
                            return Ok(Some(Frame::Data { bytes: Bytes::new(), is_first: true }));
                        }
                        State::Skip { .. } => return Ok(Some(Frame::Unknown)),
                        _ => {}
                    }
                }
                State::Data { left, is_first } => {
                    if input.is_empty() {
                        return Ok(None);
                    }
                    let take = input.len().min(usize::try_from(*left).unwrap_or(usize::MAX));
                    let frame = Frame::Data { bytes: input.split_to(take), is_first: *is_first };
                    *left -= take as u64;
                    *is_first = false;
                    if *left == 0 {
                        self.state = State::Header;
                    }
                    return Ok(Some(frame));
                }
                State::Whole { kind, left } => {
                    let take = input.len().min(*left);
                    self.kept.extend_from_slice(&input.split_to(take));
                    *left -= take;
                    if *left > 0 {
                        return Ok(None);
                    }
                    let kind = *kind;
                    self.state = State::Header;
                    return Ok(Some(self.whole(kind)));
                }
                State::Skip { left } => {
                    let take = input.len().min(usize::try_from(*left).unwrap_or(usize::MAX));
                    input.advance(take);
                    *left -= take as u64;
                    if *left > 0 {
                        return Ok(None);
                    }
                    self.state = State::Header;
                }
            }
        }
    }

    /// What is kept of a frame that is not whole yet.
    pub fn kept(&self) -> &[u8] {
        &self.kept
    }

    /// Whether the stream may end here: between two frames (RFC 9114 §7.1).
    pub fn is_between_frames(&self) -> bool {
        matches!(self.state, State::Header) && self.kept.is_empty()
    }

    fn header(&mut self, input: &mut Bytes) -> Option<(u64, u64)> {
        let parse = |bytes: &[u8]| {
            let (kind, first) = varint::decode(bytes)?;
            let (length, second) = varint::decode(&bytes[first..])?;
            Some((kind, length, first + second))
        };
        if self.kept.is_empty()
            && let Some((kind, length, size)) = parse(input)
        {
            input.advance(size);
            return Some((kind, length));
        }
        // A header is at most 16 bytes: a byte at a time is fine for the rare one that is cut.
        while input.has_remaining() {
            self.kept.put_u8(input.get_u8());
            if let Some((kind, length, _)) = parse(&self.kept) {
                self.kept.clear();
                return Some((kind, length));
            }
        }
        None
    }

    fn begin(&mut self, kind: u64, length: u64) -> Result<(), FrameError> {
        self.state = match (self.on, kind) {
            (_, 0x2 | 0x6 | 0x8 | 0x9) => return Err(unexpected("a frame type of HTTP/2")),
            (On::Request, DATA) => State::Data { left: length, is_first: true },
            (On::Request, HEADERS) if length > self.max_headers => return Err(FrameError::HeadTooLarge),
            (On::Request, HEADERS) => State::Whole { kind, left: length as usize },
            (
                On::Request,
                CANCEL_PUSH
                | SETTINGS
                | PUSH_PROMISE
                | GOAWAY
                | MAX_PUSH_ID
                | PRIORITY_UPDATE_REQUEST
                | PRIORITY_UPDATE_PUSH,
            ) => return Err(unexpected("a frame that does not belong on a request stream")),
            (On::Control, DATA | HEADERS | PUSH_PROMISE) => {
                return Err(unexpected("a frame that does not belong on the control stream"));
            }
            (
                On::Control,
                CANCEL_PUSH
                | SETTINGS
                | GOAWAY
                | MAX_PUSH_ID
                | PRIORITY_UPDATE_REQUEST
                | PRIORITY_UPDATE_PUSH,
            ) => {
                if length > MAX_CONTROL_FRAME {
                    return Err(
                        Http3Error::connection(code::EXCESSIVE_LOAD, "a control frame is too large").into()
                    );
                }
                State::Whole { kind, left: length as usize }
            }
            // Reserved and unknown types are skipped (§9).
            _ => State::Skip { left: length },
        };
        Ok(())
    }

    fn whole(&mut self, kind: u64) -> Frame {
        let payload = self.kept.split().freeze();
        match self.on {
            On::Request => Frame::Headers(payload),
            On::Control => Frame::Control { kind, payload },
        }
    }
}

fn unexpected(reason: &'static str) -> FrameError {
    Http3Error::connection(code::FRAME_UNEXPECTED, reason).into()
}

/// Writes a frame header.
pub fn put_header(out: &mut impl BufMut, kind: u64, length: usize) {
    varint::encode(out, kind);
    varint::encode(out, length as u64);
}

/// A whole frame.
pub fn encode(kind: u64, payload: &[u8]) -> Bytes {
    let mut out = BytesMut::with_capacity(payload.len() + 16);
    put_header(&mut out, kind, payload.len());
    out.put_slice(payload);
    out.freeze()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frames(on: On, parts: &[&[u8]]) -> Result<Vec<Frame>, FrameError> {
        let mut decoder = Decoder::new(on, 1000);
        let mut found = Vec::new();
        for part in parts {
            let mut input = Bytes::copy_from_slice(part);
            while let Some(frame) = decoder.poll(&mut input)? {
                found.push(frame);
            }
            assert!(input.is_empty());
        }
        Ok(found)
    }

    #[test]
    fn frames_are_read_however_they_are_cut() {
        let mut stream = encode(HEADERS, b"section").to_vec();
        stream.extend_from_slice(&encode(0x21, &[7; 300])); // reserved: skipped
        stream.extend_from_slice(&encode(DATA, &[1; 90]));
        stream.extend_from_slice(&encode(DATA, b""));
        stream.extend_from_slice(&encode(DATA, &[2; 3]));
        for step in 1..stream.len() {
            let parts: Vec<&[u8]> = stream.chunks(step).collect();
            let found = frames(On::Request, &parts).unwrap();
            assert_eq!(found[0], Frame::Headers(Bytes::from_static(b"section")));
            let firsts = found.iter().filter(|f| matches!(f, Frame::Data { is_first: true, .. })).count();
            assert_eq!(firsts, 3, "step {step}");
            let data: Vec<u8> = found
                .iter()
                .filter_map(|f| if let Frame::Data { bytes, .. } = f { Some(bytes.to_vec()) } else { None })
                .flatten()
                .collect();
            assert_eq!(data, [&[1u8; 90][..], &[2; 3]].concat());
        }
    }

    #[test]
    fn a_limit_is_checked_before_anything_is_kept() {
        let mut decoder = Decoder::new(On::Request, 1000);
        let mut head = BytesMut::new();
        put_header(&mut head, HEADERS, 10_000_000);
        assert_eq!(decoder.poll(&mut head.freeze()), Err(FrameError::HeadTooLarge));
        let mut decoder = Decoder::new(On::Control, 1000);
        let mut head = BytesMut::new();
        put_header(&mut head, SETTINGS, 1025);
        assert!(decoder.poll(&mut head.freeze()).is_err());
    }

    #[test]
    fn frames_on_the_wrong_stream_end_the_connection() {
        for (on, kind) in [
            (On::Request, SETTINGS),
            (On::Request, CANCEL_PUSH),
            (On::Request, GOAWAY),
            (On::Request, MAX_PUSH_ID),
            (On::Request, PUSH_PROMISE),
            (On::Request, PRIORITY_UPDATE_REQUEST),
            (On::Request, 0x2),
            (On::Request, 0x6),
            (On::Request, 0x8),
            (On::Request, 0x9),
            (On::Control, DATA),
            (On::Control, HEADERS),
            (On::Control, PUSH_PROMISE),
            (On::Control, 0x8),
        ] {
            let FrameError::Http3(error) = frames(on, &[&encode(kind, b"")]).unwrap_err() else { panic!() };
            assert_eq!(error, Http3Error::connection(code::FRAME_UNEXPECTED, error.reason));
        }
    }

    #[test]
    fn empty_and_unknown_frames_are_told() {
        let empty = Frame::Data { bytes: Bytes::new(), is_first: true };
        assert_eq!(frames(On::Request, &[&encode(DATA, b"").repeat(3)]).unwrap(), vec![empty; 3]);
        let unknown = [encode(0x21, b"x"), encode(0x40, b"")].concat();
        for on in [On::Request, On::Control] {
            assert_eq!(frames(on, &[&unknown]).unwrap(), [Frame::Unknown, Frame::Unknown]);
        }
    }

    #[test]
    fn a_stream_may_end_only_between_frames() {
        let whole = encode(DATA, b"abc");
        for cut in 0..=whole.len() {
            let mut decoder = Decoder::new(On::Request, 1000);
            let mut input = whole.slice(..cut);
            while decoder.poll(&mut input).unwrap().is_some() {}
            assert_eq!(decoder.is_between_frames(), cut == 0 || cut == whole.len(), "{cut}");
        }
    }
}
