//! What parses the bytes of peers, each as a function that takes any bytes.
//!
//! In: bytes of libFuzzer's, or of the corpora. Out: nothing, or a panic, where a promise is broken: nothing panics or
//! runs without end, what is kept is bounded, and bytes mean the same however they are cut into packets. The first byte
//! of an input says how the others are cut.

mod answers;
mod http3;
mod json;
mod streams;

pub use answers::http1;
pub use http3::{frames, qpack};
pub use json::body;
pub use streams::{ndjson, sse};

/// A target, by name.
pub type Target = fn(&[u8]);

/// All of them; each is a binary in `targets/`, and a folder in `corpus/`.
pub const TARGETS: [(&str, Target); 6] = [
    ("frames", frames),
    ("qpack", qpack),
    ("http1", http1),
    ("sse", sse),
    ("ndjson", ndjson),
    ("body", body),
];

/// The bytes behind the first one, and the pieces in which they come by that byte.
fn pieces(data: &[u8]) -> Option<(&[u8], Vec<&[u8]>)> {
    let (&seed, rest) = data.split_first()?;
    let (mut pieces, mut left, mut state) = (Vec::new(), rest, u32::from(seed) | 1);
    while !left.is_empty() {
        // A few bytes at a time, now and then many: what matters is where a number or a line is cut.
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        let most = if state >> 29 == 0 { 200 } else { 5 };
        let size = 1 + (state >> 16) as usize % most;
        let (piece, others) = left.split_at(size.min(left.len()));
        pieces.push(piece);
        left = others;
    }
    Some((rest, pieces))
}
