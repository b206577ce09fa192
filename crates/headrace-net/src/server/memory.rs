//! The memory that all requests' bodies and all answers' queues share.
//!
//! In: how many bytes someone wants to keep. Out: whether there is room. What a [`Charge`] holds is given
//! back when it is dropped.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

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

    /// Keeps exactly `bytes`, if that is less than before or there is room; false when there is none.
    #[must_use]
    pub fn set(&mut self, bytes: usize) -> bool {
        if bytes >= self.bytes {
            return self.grow(bytes - self.bytes);
        }
        self.memory.used.fetch_sub(self.bytes - bytes, Ordering::Relaxed);
        self.bytes = bytes;
        true
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.memory.used.fetch_sub(self.bytes, Ordering::Relaxed);
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
        assert!(!b.set(41) && b.set(10) && a.grow(30));
        drop(a);
        assert_eq!(memory.used(), 10);
    }
}
