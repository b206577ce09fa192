//! What a client's frames over HTTP/2 are for (RFC 9113 §4.1, §6), as far as their headers tell.
//!
//! In: the bytes that a client sends, cut anywhere, beside whoever reads them for what they say. Out: how many frames
//! among them move nothing on, and how many streams they reset. Nothing is checked here, and nothing is kept but a
//! frame's header.

/// The client's connection preface (RFC 9113 §3.4).
const PREFACE: usize = 24;
const HEADER: usize = 9;

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const END_STREAM: u8 = 1;
const PADDED: u8 = 8;

/// A DATA frame with fewer bytes, which does not end its stream, costs more to read than it brings.
pub const SMALL_DATA: usize = 16;

/// What was among some bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Seen {
    /// Frames that move nothing on: PING, SETTINGS, PRIORITY, WINDOW_UPDATE, CONTINUATION, unknown ones, and DATA with
    /// (almost) nothing in it.
    pub useless: u64,
    pub resets: u64,
}

/// Reads the headers of a connection's frames.
#[derive(Debug)]
pub struct Headers {
    kept: [u8; HEADER],
    have: usize,
    /// Bytes until the next frame header.
    skip: usize,
    /// The first byte of this frame's payload says how long its padding is; of the frame, so many bytes are not data.
    padded: Option<usize>,
}

impl Default for Headers {
    fn default() -> Self {
        Self { kept: [0; HEADER], have: 0, skip: PREFACE, padded: None }
    }
}

impl Headers {
    /// Looks at bytes that came.
    pub fn handle_data(&mut self, mut input: &[u8]) -> Seen {
        let mut seen = Seen::default();
        while let Some(&first) = input.first() {
            if let Some(length) = self.padded.take() {
                seen.useless += u64::from(length.saturating_sub(1 + usize::from(first)) < SMALL_DATA);
            }
            if self.skip > 0 {
                let take = self.skip.min(input.len());
                self.skip -= take;
                input = &input[take..];
                continue;
            }
            let take = (HEADER - self.have).min(input.len());
            self.kept[self.have..self.have + take].copy_from_slice(&input[..take]);
            self.have += take;
            input = &input[take..];
            if self.have == HEADER {
                self.have = 0;
                self.begin(&mut seen);
            }
        }
        seen
    }

    fn begin(&mut self, seen: &mut Seen) {
        let [a, b, c, kind, flags, ..] = self.kept;
        let length = usize::from(a) << 16 | usize::from(b) << 8 | usize::from(c);
        self.skip = length;
        match kind {
            HEADERS => {}
            DATA if flags & END_STREAM != 0 => {}
            DATA if flags & PADDED != 0 && length > 0 => self.padded = Some(length),
            DATA => seen.useless += u64::from(length < SMALL_DATA),
            RST_STREAM => seen.resets += 1,
            _ => seen.useless += 1,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(kind: u8, flags: u8, payload: &[u8]) -> Vec<u8> {
        let mut frame = vec![0, (payload.len() >> 8) as u8, payload.len() as u8, kind, flags, 0, 0, 0, 1];
        frame.extend_from_slice(payload);
        frame
    }

    #[test]
    fn each_frame_is_what_it_is_however_it_is_cut() {
        let padded =
            |data: usize, padding: u8| [&[padding][..], &vec![0; data + usize::from(padding)]].concat();
        let rows = [
            (frame(DATA, 0, &[0; 1000]), 0, 0),
            (frame(DATA, 0, &[0; 15]), 1, 0),
            (frame(DATA, 0, b""), 1, 0),
            (frame(DATA, END_STREAM, b""), 0, 0),
            (frame(DATA, PADDED, &padded(0, 200)), 1, 0),
            (frame(DATA, PADDED, &padded(200, 3)), 0, 0),
            (frame(HEADERS, 5, &[0; 60]), 0, 0),
            (frame(2, 0, &[0; 5]), 1, 0),  // PRIORITY
            (frame(3, 0, &[0; 4]), 0, 1),  // RST_STREAM
            (frame(4, 0, b""), 1, 0),      // SETTINGS
            (frame(6, 0, &[0; 8]), 1, 0),  // PING
            (frame(8, 0, &[0; 4]), 1, 0),  // WINDOW_UPDATE
            (frame(9, 0, b""), 1, 0),      // CONTINUATION
            (frame(16, 0, &[0; 9]), 1, 0), // PRIORITY_UPDATE
            (frame(99, 0, b""), 1, 0),
        ];
        for (bytes, useless, resets) in &rows {
            let mut headers = Headers { skip: 0, ..Headers::default() };
            assert_eq!(headers.handle_data(bytes), Seen { useless: *useless, resets: *resets }, "{bytes:?}");
        }
        let all: Vec<u8> =
            std::iter::once(vec![0; PREFACE]).chain(rows.iter().map(|row| row.0.clone())).flatten().collect();
        for step in [1, 2, 5, 9, 10, 100, all.len()] {
            let (mut headers, mut sum) = (Headers::default(), Seen::default());
            for part in all.chunks(step) {
                let seen = headers.handle_data(part);
                sum = Seen { useless: sum.useless + seen.useless, resets: sum.resets + seen.resets };
            }
            assert_eq!(sum, Seen { useless: rows.iter().map(|row| row.1).sum(), resets: 1 }, "step {step}");
        }
    }
}
