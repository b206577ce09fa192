//! The memory that the bodies of all requests share.
//!
//! In: how many bytes someone wants to keep. Out: whether there is room. What a [`Charge`] holds is given
//! back when it is dropped.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;

/// A counter with a limit.
#[derive(Clone, Debug)]
pub struct Memory {
    used: Arc<AtomicUsize>,
    limit: usize,
}

impl Memory {
    pub fn new(limit: usize) -> Self {
        Self { used: Arc::default(), limit }
    }

    pub fn used(&self) -> usize {
        self.used.load(Ordering::Relaxed)
    }

    pub fn charge(&self) -> Charge {
        Charge { memory: self.clone(), bytes: 0 }
    }
}

/// What one holder keeps.
#[derive(Debug)]
pub struct Charge {
    memory: Memory,
    bytes: usize,
}

impl Charge {
    /// Keeps `more` bytes; false, and nothing kept, when that would pass the limit.
    #[must_use]
    pub fn grow(&mut self, more: usize) -> bool {
        let used = self.memory.used.fetch_add(more, Ordering::Relaxed);
        if used + more > self.memory.limit {
            self.memory.used.fetch_sub(more, Ordering::Relaxed);
            return false;
        }
        self.bytes += more;
        true
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.memory.used.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

/// A whole body of a request, and what it holds of the shared memory.
pub struct KeptBody {
    pub bytes: Bytes,
    _charge: Option<Charge>,
}

impl KeptBody {
    pub fn new(bytes: Bytes, charge: Option<Charge>) -> Self {
        Self { bytes, _charge: charge }
    }

    /// Bytes that are counted elsewhere.
    pub fn uncharged(bytes: Bytes) -> Self {
        Self::new(bytes, None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_kept_is_bounded_and_given_back() {
        let memory = Memory::new(100);
        let (mut a, mut b) = (memory.charge(), memory.charge());
        assert!(a.grow(60) && !b.grow(41) && b.grow(40));
        assert_eq!(memory.used(), 100);
        drop(a);
        assert_eq!(memory.used(), 40);
        drop(KeptBody::new(Bytes::new(), Some(b)));
        assert_eq!(memory.used(), 0);
    }
}
