//! The Huffman code of RFC 7541 Appendix B, which QPACK uses too.
//!
//! The code is canonical: the lengths alone determine it, so the lengths are all that is written down here.

/// The code length of each byte, and of the end-of-string symbol (256).
const LENGTHS: [u8; 257] = [
    13, 23, 28, 28, 28, 28, 28, 28, 28, 24, 30, 28, 28, 30, 28, 28, 28, 28, 28, 28, 28, 28, 30, 28, 28, 28,
    28, 28, 28, 28, 28, 28, 6, 10, 10, 12, 13, 6, 8, 11, 10, 10, 8, 11, 8, 6, 6, 6, 5, 5, 5, 6, 6, 6, 6, 6,
    6, 6, 7, 8, 15, 6, 12, 10, 13, 6, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 8, 7,
    8, 13, 19, 13, 14, 6, 15, 5, 6, 5, 6, 5, 6, 6, 6, 5, 7, 7, 6, 6, 6, 5, 6, 7, 6, 5, 5, 6, 7, 7, 7, 7, 7,
    15, 11, 14, 13, 28, 20, 22, 20, 20, 22, 22, 22, 23, 22, 23, 23, 23, 23, 23, 24, 23, 24, 24, 22, 23, 24,
    23, 23, 23, 23, 21, 22, 23, 22, 23, 23, 24, 22, 21, 20, 22, 22, 23, 23, 21, 23, 22, 22, 24, 21, 22, 23,
    23, 21, 21, 22, 21, 23, 22, 23, 23, 20, 22, 22, 22, 23, 22, 22, 23, 26, 26, 20, 19, 22, 23, 22, 25, 26,
    26, 26, 27, 27, 26, 24, 25, 19, 21, 26, 27, 27, 26, 27, 24, 21, 21, 26, 26, 28, 27, 27, 27, 20, 24, 20,
    21, 22, 21, 21, 23, 22, 22, 25, 25, 24, 24, 26, 23, 26, 27, 26, 26, 27, 27, 27, 27, 27, 28, 27, 27, 27,
    27, 27, 26, 30,
];

const LONGEST: usize = 30;
const END_OF_STRING: u16 = 256;

struct Code {
    /// The code word of each symbol, right-aligned.
    words: [u32; 257],
    /// The symbols, shortest code first, by value within one length.
    order: [u16; 257],
    /// For each length: the first code word of that length, and where its symbols start in `order`.
    first: [(u32, u16); LONGEST + 2],
}

static CODE: Code = build();

const fn build() -> Code {
    let mut code = Code { words: [0; 257], order: [0; 257], first: [(0, 0); LONGEST + 2] };
    let (mut word, mut placed, mut length) = (0u32, 0usize, 1usize);
    while length <= LONGEST {
        code.first[length] = (word, placed as u16);
        let mut symbol = 0;
        while symbol < 257 {
            if LENGTHS[symbol] as usize == length {
                code.words[symbol] = word;
                code.order[placed] = symbol as u16;
                word += 1;
                placed += 1;
            }
            symbol += 1;
        }
        word <<= 1;
        length += 1;
    }
    code.first[LONGEST + 1] = (word, placed as u16);
    code
}

/// How many bytes `encode` writes for `text`.
pub fn encoded_len(text: &[u8]) -> usize {
    text.iter().map(|&byte| LENGTHS[byte as usize] as usize).sum::<usize>().div_ceil(8)
}

pub fn encode(out: &mut Vec<u8>, text: &[u8]) {
    let (mut bits, mut count) = (0u64, 0u32);
    for &byte in text {
        let length = u32::from(LENGTHS[byte as usize]);
        bits = bits << length | u64::from(CODE.words[byte as usize]);
        count += length;
        while count >= 8 {
            count -= 8;
            out.push((bits >> count) as u8);
        }
    }
    if count > 0 {
        // Padding is the front of the end-of-string symbol: ones.
        out.push((bits << (8 - count)) as u8 | (0xff >> count));
    }
}

/// Decodes `input`, appending at most `room` bytes to `out`.
///
/// # Errors
/// [`Error::Malformed`] for an end-of-string symbol or bad padding (RFC 7541 §5.2), [`Error::TooLong`] when
/// there is more than `room`.
pub fn decode(input: &[u8], out: &mut Vec<u8>, room: usize) -> Result<(), Error> {
    let limit = out.len() + room;
    let (mut word, mut length) = (0u32, 0usize);
    for &byte in input {
        for shift in (0..8).rev() {
            word = word << 1 | u32::from(byte >> shift & 1);
            length += 1;
            let (first, start) = CODE.first[length];
            let count = CODE.first[length + 1].1 - start;
            if word >= first && word - first < u32::from(count) {
                let symbol = CODE.order[usize::from(start) + (word - first) as usize];
                if symbol == END_OF_STRING {
                    return Err(Error::Malformed);
                }
                if out.len() == limit {
                    return Err(Error::TooLong);
                }
                out.push(symbol as u8);
                (word, length) = (0, 0);
            } else if length == LONGEST {
                return Err(Error::Malformed);
            }
        }
    }
    // What is left must be padding: less than a byte, all ones.
    if length > 7 || word != (1 << length) - 1 { Err(Error::Malformed) } else { Ok(()) }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Error {
    Malformed,
    TooLong,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_examples_of_rfc_7541_appendix_c() {
        for (text, bytes) in [
            (
                "www.example.com",
                &[0xf1, 0xe3, 0xc2, 0xe5, 0xf2, 0x3a, 0x6b, 0xa0, 0xab, 0x90, 0xf4, 0xff][..],
            ),
            ("no-cache", &[0xa8, 0xeb, 0x10, 0x64, 0x9c, 0xbf]),
            ("custom-value", &[0x25, 0xa8, 0x49, 0xe9, 0x5b, 0xb8, 0xe8, 0xb4, 0xbf]),
        ] {
            let mut out = Vec::new();
            encode(&mut out, text.as_bytes());
            assert_eq!((out.as_slice(), encoded_len(text.as_bytes())), (bytes, bytes.len()));
            let mut back = Vec::new();
            decode(bytes, &mut back, 64).unwrap();
            assert_eq!(back, text.as_bytes());
        }
    }

    #[test]
    fn every_byte_comes_back() {
        let all: Vec<u8> = (0..=255).collect();
        let (mut out, mut back) = (Vec::new(), Vec::new());
        encode(&mut out, &all);
        decode(&out, &mut back, 256).unwrap();
        assert_eq!(back, all);
    }

    #[test]
    fn bad_padding_and_end_of_string_are_malformed() {
        for bad in [&[0x00u8][..], &[0xff], &[0xff, 0xff, 0xff, 0xff], &[0xf1, 0xe3, 0xc2, 0xe5, 0xf2, 0x00]]
        {
            assert_eq!(decode(bad, &mut Vec::new(), 64), Err(Error::Malformed), "{bad:?}");
        }
    }

    #[test]
    fn expansion_stops_at_its_room() {
        let mut packed = Vec::new();
        encode(&mut packed, &[b'0'; 1000]);
        let mut out = Vec::new();
        assert_eq!(decode(&packed, &mut out, 10), Err(Error::TooLong));
        assert_eq!(out.len(), 10);
    }
}
