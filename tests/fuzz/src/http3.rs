//! HTTP/3: frames, field sections, what stands on control and QPACK streams.

use bytes::Bytes;
use headrace_core::fields;
use headrace_core::http3::control::{Control, Role};
use headrace_core::http3::frame::{Decoder, Frame, FrameError, On};
use headrace_core::http3::{message, priority, qpack, settings, varint};
use http::HeaderMap;

use crate::pieces;

const MAX_HEAD: usize = 1000;

/// The frames of a request stream and of a control stream, and what they carry.
pub fn frames(data: &[u8]) {
    let Some((whole, pieces)) = pieces(data) else { return };
    for on in [On::Request, On::Control] {
        let read = self::read(on, &[whole]);
        assert_eq!(read, self::read(on, &pieces), "{on:?}");
        let (mut server, mut client) = (Control::new(Role::Server), Control::new(Role::Client));
        for frame in read.0 {
            match frame {
                Frame::Headers(section) => sections(&section),
                Frame::Control { kind, payload } => {
                    let _ = (server.handle_frame(kind, &payload), client.handle_frame(kind, &payload));
                }
                Frame::Data { .. } | Frame::Unknown => {}
            }
        }
    }
}

/// All frames in these pieces, with the pieces of one DATA frame put together; and the error behind them.
fn read(on: On, pieces: &[&[u8]]) -> (Vec<Frame>, Option<FrameError>) {
    let (mut decoder, mut frames) = (Decoder::new(on, MAX_HEAD), Vec::<Frame>::new());
    for piece in pieces {
        let mut input = Bytes::copy_from_slice(piece);
        loop {
            match decoder.poll(&mut input) {
                Err(error) => return (frames, Some(error)),
                Ok(None) => break,
                Ok(Some(Frame::Data { bytes, is_first: false })) => match frames.last_mut() {
                    Some(Frame::Data { bytes: before, .. }) => {
                        *before = [&before[..], &bytes].concat().into()
                    }
                    _ => panic!("a DATA frame goes on that has not begun"),
                },
                Ok(Some(frame)) => frames.push(frame),
            }
        }
        assert!(decoder.kept().len() <= MAX_HEAD.max(1024) + 16, "more is kept than the limit");
    }
    (frames, None)
}

/// A field section as a request, an answer and trailers; QPACK's streams; and the small formats beside them.
pub fn qpack(data: &[u8]) {
    let Some((whole, pieces)) = pieces(data) else { return };
    sections(whole);
    let mut instructions = qpack::DecoderInstructions::default();
    let at_once = instructions.handle_data(whole);
    let mut instructions = qpack::DecoderInstructions::default();
    let in_pieces = pieces.iter().try_for_each(|piece| instructions.handle_data(piece));
    assert_eq!(at_once.is_ok(), in_pieces.is_ok());
    let _ = qpack::handle_encoder_instructions(whole);
    let _ = settings::decode(&Bytes::copy_from_slice(whole));
    assert!(priority::urgency(whole) <= 7);
    if let Some((value, size)) = varint::decode(whole) {
        let mut encoded = Vec::new();
        varint::encode(&mut encoded, value);
        assert!(encoded.len() <= size && varint::decode(&encoded) == Some((value, encoded.len())));
    }
}

fn sections(section: &[u8]) {
    if let Ok(request) = message::decode_request(section, MAX_HEAD) {
        check(&request.headers);
        assert!(request.path.bytes().all(|byte| byte > b' ' && byte != 0x7f), "{:?}", request.path);
        let mut encoded = message::encode_request(&request);
        let frame = Decoder::new(On::Request, 10 * MAX_HEAD).poll(&mut encoded);
        let Ok(Some(Frame::Headers(section))) = frame else { panic!("{frame:?}") };
        let again = message::decode_request(&section, MAX_HEAD);
        assert_eq!(again.map(|head| (head.path, head.headers)), Ok((request.path, request.headers)));
    }
    if let Ok(response) = message::decode_response(section, MAX_HEAD) {
        check(&response.headers);
    }
    if let Ok(trailers) = message::decode_trailers(section, MAX_HEAD) {
        check(&trailers);
    }
}

/// Nothing that HTTP/1.1 would read as something else, and no more than was allowed.
fn check(headers: &HeaderMap) {
    let size: usize =
        headers.iter().map(|(name, value)| name.as_str().len() + value.len() + fields::OVERHEAD).sum();
    assert!(size <= MAX_HEAD, "{size} bytes");
    for (name, value) in headers {
        assert!(fields::is_valid_value(value.as_bytes()), "{name}: {value:?}");
        assert!(!fields::is_connection_specific(name.as_str(), value.as_bytes()), "{name}");
    }
}
