//! SETTINGS (RFC 9114 §7.2.4).

use bytes::Bytes;
#[cfg(test)]
use bytes::BytesMut;

use super::code::{self, Http3Error};
use super::{frame, varint};

pub const QPACK_MAX_TABLE_CAPACITY: u64 = 0x1;
pub const MAX_FIELD_SECTION_SIZE: u64 = 0x6;
pub const QPACK_BLOCKED_STREAMS: u64 = 0x7;
/// A reserved identifier (§7.2.4.1): sent so that peers keep tolerating unknown ones.
const GREASE: u64 = 0x1f * 0x1d + 0x21;

/// What the other side said. What it did not say has its default.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Settings {
    /// The largest field section that it accepts, in bytes as §4.2.2 counts them; `None`: there is no limit.
    pub max_field_section_size: Option<u64>,
}

/// The frame that we send.
pub fn encode(max_field_section_size: u64) -> Bytes {
    let mut payload = Vec::with_capacity(32);
    for (id, value) in [
        (QPACK_MAX_TABLE_CAPACITY, 0),
        (QPACK_BLOCKED_STREAMS, 0),
        (MAX_FIELD_SECTION_SIZE, max_field_section_size),
        (GREASE, 0),
    ] {
        varint::encode(&mut payload, id);
        varint::encode(&mut payload, value);
    }
    frame::encode(frame::SETTINGS, &payload)
}

/// Reads a SETTINGS frame's payload.
///
/// # Errors
/// H3_SETTINGS_ERROR for a setting of HTTP/2 or one given twice, H3_FRAME_ERROR when it is cut.
pub fn decode(payload: &[u8]) -> Result<Settings, Http3Error> {
    let cut = Http3Error::connection(code::FRAME_ERROR, "SETTINGS is cut short");
    let (mut settings, mut seen, mut rest) = (Settings::default(), Vec::new(), payload);
    while !rest.is_empty() {
        let (id, size) = varint::decode(rest).ok_or(cut)?;
        let (value, more) = varint::decode(&rest[size..]).ok_or(cut)?;
        rest = &rest[size + more..];
        if seen.contains(&id) {
            return Err(Http3Error::connection(code::SETTINGS_ERROR, "a setting is given twice"));
        }
        seen.push(id);
        match id {
            0x0 | 0x2..=0x5 => {
                return Err(Http3Error::connection(code::SETTINGS_ERROR, "a setting of HTTP/2"));
            }
            MAX_FIELD_SECTION_SIZE => settings.max_field_section_size = Some(value),
            _ => {}
        }
    }
    Ok(settings)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_we_send_is_read_back() {
        let mut bytes = encode(32 * 1024);
        let mut decoder = frame::Decoder::new(frame::On::Control, 0);
        let Some(frame::Frame::Control { kind, payload }) = decoder.poll(&mut bytes).unwrap() else {
            panic!()
        };
        assert_eq!(kind, frame::SETTINGS);
        assert_eq!(decode(&payload).unwrap().max_field_section_size, Some(32 * 1024));
    }

    #[test]
    fn doubled_http2_and_cut_settings_are_errors() {
        let frame = |pairs: &[(u64, u64)]| {
            let mut out = BytesMut::new();
            for (id, value) in pairs {
                varint::encode(&mut out, *id);
                varint::encode(&mut out, *value);
            }
            out
        };
        for pairs in [&[(6, 1), (6, 2)][..], &[(33, 1), (33, 1)], &[(2, 0)], &[(3, 1)], &[(4, 1)], &[(5, 1)]]
        {
            assert_eq!(decode(&frame(pairs)).unwrap_err().code, code::SETTINGS_ERROR);
        }
        assert_eq!(decode(&[6]).unwrap_err().code, code::FRAME_ERROR);
        assert_eq!(decode(&[]).unwrap(), Settings::default());
    }
}
