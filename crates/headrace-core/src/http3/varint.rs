//! Variable-length integers (RFC 9000 §16).

use bytes::BufMut;

pub const MAX: u64 = (1 << 62) - 1;

/// The integer at the front of `input`, and its length in bytes; `None` when more bytes are needed.
pub fn decode(input: &[u8]) -> Option<(u64, usize)> {
    let first = *input.first()?;
    let length = 1usize << (first >> 6);
    let bytes = input.get(..length)?;
    let value = bytes[1..].iter().fold(u64::from(first & 0x3f), |value, &byte| value << 8 | u64::from(byte));
    Some((value, length))
}

/// Writes `value` in as few bytes as it needs. Values above [`MAX`] do not exist in QUIC and are clamped.
pub fn encode(out: &mut impl BufMut, value: u64) {
    match value.min(MAX) {
        small @ 0..0x40 => out.put_u8(small as u8),
        value @ 0x40..0x4000 => out.put_u16(0x4000 | value as u16),
        value @ 0x4000..0x4000_0000 => out.put_u32(0x8000_0000 | value as u32),
        value => out.put_u64(0xc000_0000_0000_0000 | value),
    }
}

/// How many bytes `encode` writes.
pub fn size(value: u64) -> usize {
    match value {
        0..0x40 => 1,
        0x40..0x4000 => 2,
        0x4000..0x4000_0000 => 4,
        _ => 8,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_examples_of_rfc_9000_appendix_a() {
        for (bytes, value) in [
            (&[0xc2, 0x19, 0x7c, 0x5e, 0xff, 0x14, 0xe8, 0x8c][..], 151_288_809_941_952_652),
            (&[0x9d, 0x7f, 0x3e, 0x7d], 494_878_333),
            (&[0x7b, 0xbd], 15_293),
            (&[0x25], 37),
            (&[0x40, 0x25], 37),
        ] {
            assert_eq!(decode(bytes), Some((value, bytes.len())));
            assert_eq!(decode(&bytes[..bytes.len() - 1]), None);
        }
    }

    #[test]
    fn what_is_written_is_read_back() {
        for value in [0, 1, 63, 64, 16_383, 16_384, 1_073_741_823, 1_073_741_824, MAX] {
            let mut out = Vec::new();
            encode(&mut out, value);
            assert_eq!((decode(&out), out.len()), (Some((value, size(value))), size(value)));
        }
    }
}
