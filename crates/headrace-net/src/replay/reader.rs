//! One client that is told a recorded answer.
//!
//! In: a record that may still grow (`buffer.rs`). Out: its place among the readers, until it is dropped: the
//! generation ends with the last of them.

use std::sync::Arc;

use crate::gone::Gone;
use crate::replay::buffer::Buffer;

/// One reader, until it is dropped.
pub struct Reader {
    pub buffer: Arc<Buffer>,
    /// How it will have left when it is dropped.
    pub how: Gone,
    /// It came after the record had failed.
    pub is_late: bool,
    is_silent: bool,
}

impl Reader {
    /// Joins those that read this record.
    pub fn join(buffer: &Arc<Buffer>) -> Self {
        let mut state = buffer.lock();
        state.readers += 1;
        state.left = None;
        let is_late = state.has_failed();
        drop(state);
        Self { buffer: buffer.clone(), how: Gone::Stopped, is_late, is_silent: false }
    }

    /// Its client is suspect, or no more. The generation goes on for a while for clients that may come back; when one of
    /// them does, it reads on as if nothing had been.
    pub fn set_silent(&mut self, is_silent: bool) {
        if std::mem::replace(&mut self.is_silent, is_silent) == is_silent {
            return;
        }
        let mut state = self.buffer.lock();
        if is_silent {
            state.silent += 1;
            state.note_absence(Gone::Lost);
        } else {
            state.silent -= 1;
            state.left = None;
        }
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        let mut state = self.buffer.lock();
        state.readers -= 1;
        state.silent -= usize::from(self.is_silent);
        // Those who are left may come back, whatever this one did.
        let how = if state.readers > 0 { Gone::Lost } else { self.how };
        state.note_absence(how);
    }
}
