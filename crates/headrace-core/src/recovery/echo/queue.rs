//! Copies that wait for their time: one queue for each socket.
//!
//! In: datagrams that were sent, and after what time they are sent again. Out: copies that are due, earliest first.
//! Full means that no copy is made: an echo that is late helps nobody.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::{Duration, Instant};

/// What all connections of a socket may have waiting: 25 ms of 20,000 datagrams a second.
const MOST_COPIES: usize = 1024;
const MOST_BYTES: usize = 1024 * 1024;

/// A datagram, or a batch of them (GSO), that is sent again. `T`: where to, and how.
#[derive(Debug)]
pub struct Waiting<T> {
    pub how: T,
    pub bytes: Vec<u8>,
    /// When it is sent for the second and third time.
    again: [Option<Instant>; 2],
}

#[derive(Debug)]
struct Due<T> {
    at: Instant,
    number: u64,
    waiting: Waiting<T>,
}

impl<T> PartialEq for Due<T> {
    fn eq(&self, other: &Self) -> bool {
        self.number == other.number
    }
}

impl<T> Eq for Due<T> {}

impl<T> PartialOrd for Due<T> {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl<T> Ord for Due<T> {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.at, self.number).cmp(&(other.at, other.number))
    }
}

#[derive(Debug)]
pub struct Queue<T> {
    heap: BinaryHeap<Reverse<Due<T>>>,
    bytes: usize,
    number: u64,
}

impl<T> Default for Queue<T> {
    fn default() -> Self {
        Self { heap: BinaryHeap::new(), bytes: 0, number: 0 }
    }
}

impl<T> Queue<T> {
    /// Keeps a datagram that was sent now, and says whether there was room for it. `after`: ascending, up to three
    /// times.
    pub fn push(
        &mut self,
        now: Instant,
        how: T,
        bytes: &[u8],
        mut after: impl Iterator<Item = Duration>,
    ) -> bool {
        let Some(first) = after.next() else { return false };
        if self.heap.len() >= MOST_COPIES || self.bytes + bytes.len() > MOST_BYTES {
            return false;
        }
        let again = [after.next(), after.next()].map(|after| after.map(|after| now + after));
        self.bytes += bytes.len();
        self.insert(now + first, Waiting { how, bytes: bytes.to_vec(), again });
        true
    }

    fn insert(&mut self, at: Instant, waiting: Waiting<T>) {
        self.number += 1;
        self.heap.push(Reverse(Due { at, number: self.number, waiting }));
    }

    /// When [`Self::poll_copy`] has the next copy.
    pub fn next_due(&self) -> Option<Instant> {
        self.heap.peek().map(|Reverse(due)| due.at)
    }

    /// Gives the next copy that is due to `send`; false when no copy is due.
    pub fn poll_copy(&mut self, now: Instant, send: impl FnOnce(&Waiting<T>)) -> bool {
        if self.next_due().is_none_or(|at| at > now) {
            return false;
        }
        let Some(Reverse(Due { mut waiting, .. })) = self.heap.pop() else { return false };
        send(&waiting);
        match waiting.again.iter_mut().find_map(Option::take) {
            Some(at) => self.insert(at, waiting),
            None => self.bytes -= waiting.bytes.len(),
        }
        true
    }

    /// Drops the copies that nobody needs any more.
    pub fn forget(&mut self, is_moot: impl Fn(&[u8]) -> bool) {
        self.heap.retain(|Reverse(due)| !is_moot(&due.waiting.bytes));
        self.bytes = self.heap.iter().map(|Reverse(due)| due.waiting.bytes.len()).sum();
    }

    pub fn len(&self) -> usize {
        self.heap.len()
    }

    pub fn is_empty(&self) -> bool {
        self.heap.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn due(queue: &mut Queue<u8>, now: Instant) -> Vec<(u8, Vec<u8>)> {
        let mut all = Vec::new();
        while queue.poll_copy(now, |copy| all.push((copy.how, copy.bytes.clone()))) {}
        all
    }

    #[test]
    fn what_is_moot_is_forgotten_and_its_bytes_are_free() {
        let (began, mut queue) = (Instant::now(), Queue::default());
        assert!(queue.push(began, 1, b"moot", [MS * 5, MS * 25].into_iter()));
        assert!(queue.push(began, 2, b"kept", [MS * 5].into_iter()));
        queue.forget(|bytes| bytes == b"moot");
        assert_eq!(queue.bytes, 4);
        assert_eq!(due(&mut queue, began + MS * 30), [(2, b"kept".to_vec())]);
        assert!(queue.is_empty() && queue.bytes == 0);
    }

    #[test]
    fn each_copy_leaves_at_its_time() {
        let (began, mut queue) = (Instant::now(), Queue::default());
        assert!(queue.push(began, 1, b"one", [MS * 5, MS * 25, MS * 45].into_iter()));
        assert!(queue.push(began + MS, 2, b"two", [MS * 5].into_iter()));
        assert!(!queue.push(began, 3, b"three", [].into_iter()));
        assert_eq!(queue.next_due(), Some(began + MS * 5));
        assert_eq!(due(&mut queue, began + MS * 4), []);
        assert_eq!(due(&mut queue, began + MS * 6), [(1, b"one".to_vec()), (2, b"two".to_vec())]);
        assert_eq!(queue.next_due(), Some(began + MS * 25));
        assert_eq!(due(&mut queue, began + MS * 30), [(1, b"one".to_vec())]);
        assert_eq!(queue.next_due(), Some(began + MS * 45));
        assert_eq!(due(&mut queue, began + MS * 45), [(1, b"one".to_vec())]);
        assert!(queue.is_empty() && queue.bytes == 0);
    }

    #[test]
    fn a_full_queue_takes_no_more_and_empties() {
        let (began, mut queue) = (Instant::now(), Queue::default());
        let mut fill = |size: usize| {
            let kept = (0..5000).filter(|_| queue.push(began, 0, &vec![0; size], [MS].into_iter())).count();
            due(&mut queue, began + MS);
            assert_eq!((queue.len(), queue.bytes), (0, 0));
            kept
        };
        assert_eq!(fill(100), MOST_COPIES);
        assert_eq!(fill(10_000), MOST_BYTES / 10_000);
    }
}
