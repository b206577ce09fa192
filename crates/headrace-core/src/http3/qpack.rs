//! Field sections (RFC 9204) with the static table alone.
//!
//! In: an encoded field section, or fields. Out: fields, or an encoded section. The decoded size is bounded
//! as RFC 9114 §4.2.2 counts it (name + value + 32 bytes a field), and the bound is kept while decoding, so
//! that a small section cannot become a large one.

use bytes::BufMut;

use super::code::{self, Http3Error};
use super::static_table::{STATIC_TABLE, find};
use super::{huffman, varint};
use crate::fields;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DecodeError {
    /// The peer broke the protocol.
    Http3(Http3Error),
    /// The decoded section is larger than allowed.
    TooLarge,
}

const fn failed(reason: &'static str) -> DecodeError {
    DecodeError::Http3(Http3Error::connection(code::QPACK_DECOMPRESSION_FAILED, reason))
}

const TRUNCATED: DecodeError = failed("the field section is truncated");

/// Decodes a whole field section, calling `emit` for each field in order.
///
/// # Errors
/// When the section is malformed, refers to a dynamic table, or is larger than `max_size`.
pub fn decode(
    mut input: &[u8],
    max_size: usize,
    mut emit: impl FnMut(&[u8], &[u8]) -> Result<(), Http3Error>,
) -> Result<(), DecodeError> {
    // Prefix (§4.5.1): nothing of a dynamic table may be required.
    if integer(&mut input, 8)? != 0 {
        return Err(failed("the field section needs a dynamic table"));
    }
    // With a required insert count of 0, a sign puts the Base below zero (§4.5.1.2).
    let is_negative = input.first().is_some_and(|first| first & 0x80 != 0);
    integer(&mut input, 7)?;
    if is_negative {
        return Err(failed("the field section's Base is below zero"));
    }
    let (mut name, mut value) = (Vec::new(), Vec::new());
    let mut room = max_size;
    while let Some(&first) = input.first() {
        room = room.checked_sub(fields::OVERHEAD).ok_or(DecodeError::TooLarge)?;
        let (name, value) = if first & 0x80 != 0 {
            // Indexed field line (§4.5.2).
            let (name, value) = entry(first & 0x40 != 0, integer(&mut input, 6)?)?;
            (name.as_bytes(), value.as_bytes())
        } else if first & 0x40 != 0 {
            // Literal with a name reference (§4.5.4).
            let (name, _) = entry(first & 0x10 != 0, integer(&mut input, 4)?)?;
            string(&mut input, 7, &mut value, room.saturating_sub(name.len()))?;
            (name.as_bytes(), value.as_slice())
        } else if first & 0x20 != 0 {
            // Literal with a literal name (§4.5.6).
            string(&mut input, 3, &mut name, room)?;
            string(&mut input, 7, &mut value, room - name.len())?;
            (name.as_slice(), value.as_slice())
        } else {
            return Err(failed("a field refers to a dynamic table"));
        };
        room = room.checked_sub(name.len() + value.len()).ok_or(DecodeError::TooLarge)?;
        emit(name, value).map_err(DecodeError::Http3)?;
    }
    Ok(())
}

fn entry(is_static: bool, index: u64) -> Result<(&'static str, &'static str), DecodeError> {
    if !is_static {
        return Err(failed("a field refers to a dynamic table"));
    }
    let entry = usize::try_from(index).ok().and_then(|index| STATIC_TABLE.get(index));
    entry.copied().ok_or(failed("a static index does not exist"))
}

/// A prefixed integer (RFC 7541 §5.1) whose prefix has `bits` bits.
fn integer(input: &mut &[u8], bits: u32) -> Result<u64, DecodeError> {
    let (&first, mut rest) = input.split_first().ok_or(TRUNCATED)?;
    let mask = (1u64 << bits) - 1;
    let mut value = u64::from(first) & mask;
    if value == mask {
        let mut shift = 0;
        loop {
            let (&byte, after) = rest.split_first().ok_or(TRUNCATED)?;
            rest = after;
            if shift > 56 {
                return Err(failed("an integer is too large"));
            }
            value += u64::from(byte & 0x7f) << shift;
            shift += 7;
            if byte & 0x80 == 0 {
                break;
            }
        }
    }
    *input = rest;
    Ok(value)
}

/// A string whose length has a prefix of `bits` bits, below the Huffman flag (§4.1.2).
fn string(input: &mut &[u8], bits: u32, out: &mut Vec<u8>, room: usize) -> Result<(), DecodeError> {
    out.clear();
    let is_huffman = input.first().ok_or(TRUNCATED)? >> bits & 1 == 1;
    let length = usize::try_from(integer(input, bits)?).map_err(|_| TRUNCATED)?;
    let (text, rest) = input.split_at_checked(length).ok_or(TRUNCATED)?;
    *input = rest;
    if is_huffman {
        huffman::decode(text, out, room).map_err(|error| match error {
            huffman::Error::Malformed => failed("a string is not Huffman code"),
            huffman::Error::TooLong => DecodeError::TooLarge,
        })
    } else if text.len() > room {
        Err(DecodeError::TooLarge)
    } else {
        out.extend_from_slice(text);
        Ok(())
    }
}

/// The encoder of one field section.
pub struct Encoder {
    out: Vec<u8>,
}

impl Default for Encoder {
    fn default() -> Self {
        // Required insert count 0, base 0.
        Self { out: vec![0, 0] }
    }
}

impl Encoder {
    pub fn field(&mut self, name: &str, value: &[u8]) -> &mut Self {
        match find(name, value) {
            (Some(index), _) => self.integer(0xc0, 6, index),
            (None, Some(index)) => {
                self.integer(0x50, 4, index);
                self.string(0, 7, value);
            }
            (None, None) => {
                self.string(0x20, 3, name.as_bytes());
                self.string(0, 7, value);
            }
        }
        self
    }

    pub fn finish(self) -> Vec<u8> {
        self.out
    }

    fn integer(&mut self, flags: u8, bits: u32, value: usize) {
        let mask = (1usize << bits) - 1;
        if value < mask {
            self.out.put_u8(flags | value as u8);
            return;
        }
        self.out.put_u8(flags | mask as u8);
        let mut rest = value - mask;
        while rest >= 0x80 {
            self.out.put_u8(rest as u8 | 0x80);
            rest >>= 7;
        }
        self.out.put_u8(rest as u8);
    }

    fn string(&mut self, flags: u8, bits: u32, text: &[u8]) {
        let packed = huffman::encoded_len(text);
        if packed < text.len() {
            self.integer(flags | 1 << bits, bits, packed);
            huffman::encode(&mut self.out, text);
        } else {
            self.integer(flags, bits, text.len());
            self.out.extend_from_slice(text);
        }
    }
}

/// Checks the instructions that a peer sends on its encoder stream (§4.3): with capacity 0, only "capacity is 0"
/// is legal.
///
/// # Errors
/// For every other instruction.
pub fn handle_encoder_instructions(input: &[u8]) -> Result<(), Http3Error> {
    match input.iter().all(|&byte| byte == 0x20) {
        true => Ok(()),
        false => Err(Http3Error::connection(
            code::QPACK_ENCODER_STREAM_ERROR,
            "the dynamic table has capacity 0, nothing may be inserted",
        )),
    }
}

/// Checks the instructions that a peer sends on its decoder stream (§4.4): we never refer to a dynamic table, so it
/// may only cancel streams. An instruction may be cut; the next bytes complete it.
#[derive(Clone, Copy, Debug, Default)]
pub struct DecoderInstructions {
    /// A stream ID that is coming: its value so far, and where the next bits go.
    stream: Option<(u64, u32)>,
}

impl DecoderInstructions {
    /// # Errors
    /// For a section acknowledgement, an insert count increment, or a stream that cannot exist.
    pub fn handle_data(&mut self, input: &[u8]) -> Result<(), Http3Error> {
        for &byte in input {
            let stream = match self.stream.take() {
                Some((value, shift)) => {
                    let bits = u64::from(byte & 0x7f);
                    // Ten bytes hold any stream ID; more of them are only zeros, or too much.
                    if shift > 63
                        || value.saturating_add(bits << shift) > varint::MAX
                        || bits << shift >> shift != bits
                    {
                        return Err(Http3Error::connection(
                            code::QPACK_DECODER_STREAM_ERROR,
                            "a stream is cancelled that cannot exist",
                        ));
                    }
                    (byte & 0x80 != 0).then_some((value + (bits << shift), shift + 7))
                }
                None if byte & 0xc0 == 0x40 => (byte & 0x3f == 0x3f).then_some((0x3f, 0)),
                None => {
                    return Err(Http3Error::connection(
                        code::QPACK_DECODER_STREAM_ERROR,
                        "no section here ever used the dynamic table",
                    ));
                }
            };
            self.stream = stream;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fields(section: &[u8], max: usize) -> Result<Vec<(String, String)>, DecodeError> {
        let mut found = Vec::new();
        decode(section, max, |name, value| {
            found.push((String::from_utf8_lossy(name).into(), String::from_utf8_lossy(value).into()));
            Ok(())
        })?;
        Ok(found)
    }

    #[test]
    fn what_is_encoded_is_decoded() {
        let long = "x".repeat(5000);
        let sent = [
            (":status", "200"),
            (":status", "299"),
            ("content-type", "text/event-stream"),
            ("x-request-id", "abc-123"),
            ("x-utf8", "naïve"),
            ("x-long", &long),
            ("x-empty", ""),
        ];
        let mut encoder = Encoder::default();
        for (name, value) in sent {
            encoder.field(name, value.as_bytes());
        }
        let found = fields(&encoder.finish(), 1 << 16).unwrap();
        assert!(found.iter().zip(sent).all(|(a, b)| (a.0.as_str(), a.1.as_str()) == b));
        assert_eq!(found.len(), sent.len());
    }

    #[test]
    fn the_literal_example_of_rfc_9204_appendix_b1() {
        let section =
            [0x00, 0x00, 0x51, 0x0b, 0x2f, 0x69, 0x6e, 0x64, 0x65, 0x78, 0x2e, 0x68, 0x74, 0x6d, 0x6c];
        assert_eq!(fields(&section, 1024).unwrap(), [(":path".to_owned(), "/index.html".to_owned())]);
    }

    #[test]
    fn anything_dynamic_is_refused() {
        for bad in [
            &[0x02, 0x00, 0x80][..], // required insert count above 0
            &[0, 0, 0x80],           // indexed, dynamic
            &[0, 0, 0x10],           // indexed, post-base
            &[0, 0, 0x40, 0x01, b'x'],
            &[0, 0, 0x00, 0x01, b'x'],
            &[0, 0, 0xff, 0x24], // static index 99
        ] {
            assert!(matches!(fields(bad, 1024), Err(DecodeError::Http3(_))), "{bad:?}");
        }
    }

    #[test]
    fn every_truncation_is_an_error_and_never_a_panic() {
        let mut encoder = Encoder::default();
        encoder
            .field(":path", b"/v1/chat/completions")
            .field("x-name", b"some value")
            .field(":method", b"POST");
        let section = encoder.finish();
        assert!(fields(&section, 1024).is_ok());
        for cut in 0..section.len() - 1 {
            let whole = fields(&section[..cut], 1024);
            assert!(whole.is_err() || whole.unwrap().len() < 3);
        }
        for noise in 0..=255u8 {
            let _ = fields(&[0, 0, noise, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, noise], 1024);
        }
    }

    #[test]
    fn a_small_section_cannot_become_a_large_one() {
        // 500 indexed fields in 502 bytes would decode to more than 16,000.
        let mut bomb = vec![0, 0];
        bomb.extend_from_slice(&[0xd1; 500]);
        assert_eq!(fields(&bomb, 16 * 1024), Err(DecodeError::TooLarge));
        let mut encoder = Encoder::default();
        encoder.field("x", "0".repeat(20_000).as_bytes());
        let section = encoder.finish();
        assert!(section.len() < 16 * 1024);
        assert_eq!(fields(&section, 16 * 1024), Err(DecodeError::TooLarge));
    }

    #[test]
    fn the_size_limit_is_exact() {
        let mut encoder = Encoder::default();
        encoder.field("x-name", b"1234");
        let section = encoder.finish();
        assert!(fields(&section, 42).is_ok());
        assert_eq!(fields(&section, 41), Err(DecodeError::TooLarge));
    }

    #[test]
    fn the_other_sides_streams_may_say_only_what_needs_no_table() {
        assert!(handle_encoder_instructions(&[0x20, 0x20]).is_ok());
        for bad in [&[0x3f, 0xe1, 0x1f][..], &[0xc1, 0x01, b'a'], &[0x41, b'a', 0x01, b'b'], &[0x00]] {
            assert_eq!(handle_encoder_instructions(bad).unwrap_err().code, code::QPACK_ENCODER_STREAM_ERROR);
        }
        let mut decoder = DecoderInstructions::default();
        assert!(
            decoder.handle_data(&[0x44, 0x7f]).is_ok() && decoder.handle_data(&[0x81, 0x01, 0x40]).is_ok()
        );
        for bad in [0x80, 0x00, 0x01] {
            assert!(DecoderInstructions::default().handle_data(&[bad]).is_err());
        }
    }

    #[test]
    fn a_stream_that_cannot_exist_is_not_cancelled() {
        let cancel = |stream: u64| {
            let (mut bytes, mut rest) = (vec![0x7f], stream - 0x3f);
            while rest >= 0x80 {
                bytes.push(rest as u8 | 0x80);
                rest >>= 7;
            }
            bytes.push(rest as u8);
            bytes
        };
        for (stream, is_legal) in [(63, true), (1 << 40, true), (varint::MAX, true), (1 << 62, false)] {
            let whole = DecoderInstructions::default().handle_data(&cancel(stream));
            let mut decoder = DecoderInstructions::default();
            let by_bytes = cancel(stream).iter().try_for_each(|&byte| decoder.handle_data(&[byte]));
            assert_eq!((whole.is_ok(), by_bytes.is_ok()), (is_legal, is_legal), "{stream}");
        }
        let endless = [&[0x7f][..], &[0x80; 40]].concat();
        let error = DecoderInstructions::default().handle_data(&endless).unwrap_err();
        assert_eq!(error.code, code::QPACK_DECODER_STREAM_ERROR);
        assert!(
            DecoderInstructions::default().handle_data(&[[0x7f].as_slice(), &[0xff; 10]].concat()).is_err()
        );
    }

    #[test]
    fn a_base_below_zero_is_refused() {
        for base in [0x80, 0x81, 0xff] {
            assert!(matches!(fields(&[0, base, 0, 0xc1], 1024), Err(DecodeError::Http3(_))), "{base:x}");
        }
        assert!(fields(&[0, 0x7e, 0xc1], 1024).is_ok());
    }
}
