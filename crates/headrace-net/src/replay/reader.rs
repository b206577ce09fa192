//! One client that is told a recorded answer.
//!
//! In: a record that may still grow (`buffer.rs`). Out: its place among the readers, until it is dropped: the
//! generation ends with the last of them.

use std::sync::Arc;
use std::time::Instant;

use crate::gone::Gone;
use crate::replay::buffer::Buffer;

/// One reader, until it is dropped.
pub struct Reader {
    pub buffer: Arc<Buffer>,
    /// How it will have left when it is dropped.
    pub how: Gone,
    /// It came after the record had failed.
    pub is_late: bool,
}

impl Reader {
    /// Joins those that read this record.
    pub fn join(buffer: &Arc<Buffer>) -> Self {
        let mut state = buffer.lock();
        state.readers += 1;
        state.left = None;
        let is_late = state.has_failed();
        drop(state);
        Self { buffer: buffer.clone(), how: Gone::Stopped, is_late }
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        let mut state = self.buffer.lock();
        state.readers -= 1;
        if state.readers == 0 {
            state.left = Some((self.how, Instant::now()));
            state.wake_writer();
        }
    }
}
