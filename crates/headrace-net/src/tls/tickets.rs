//! Session tickets of the server: what lets a client come back with early data (0-RTT).
//!
//! In: secrets of sessions, each under a key that rustls chose at random. Out: each of them once, and not after
//! its time. One store serves all workers of the process, so a ticket works at any of them, and only once among
//! them: a first flight that somebody sends again finds its ticket gone, and its early data is not read
//! (RFC 8446 §8.1).

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustls::server::StoresServerSessions;

/// How many locks the store has; a handshake takes one of them.
const SHARDS: usize = 16;

/// A bounded store; the oldest tickets make room for new ones.
#[derive(Debug)]
pub struct Tickets {
    shards: Vec<Mutex<Shard>>,
    most_per_shard: usize,
    lifetime: Duration,
    /// Tickets that were shown and are not known, or no longer: used before, forgotten, or another process's.
    pub unknown: AtomicU64,
}

#[derive(Debug, Default)]
struct Shard {
    sessions: HashMap<Vec<u8>, Session>,
    /// The keys by age; those that were taken meanwhile are skipped.
    order: VecDeque<(Vec<u8>, Instant)>,
}

#[derive(Debug)]
struct Session {
    secret: Vec<u8>,
    made: Instant,
}

impl Tickets {
    /// `most`: how many tickets are kept at one time.
    pub fn new(most: usize, lifetime: Duration) -> Self {
        Self {
            shards: (0..SHARDS).map(|_| Mutex::default()).collect(),
            most_per_shard: most.div_ceil(SHARDS),
            lifetime,
            unknown: AtomicU64::new(0),
        }
    }

    fn with_shard<T>(&self, key: &[u8], use_it: impl FnOnce(&mut Shard) -> T) -> T {
        let number = key.last().map_or(0, |&byte| usize::from(byte)) % SHARDS;
        use_it(&mut self.shards[number].lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Shard {
    /// Forgets the oldest until fewer than `most` are left, and all that are too old.
    fn make_room(&mut self, most: usize, lifetime: Duration, now: Instant) {
        while let Some((key, made)) = self.order.front() {
            let is_gone = self.sessions.get(key).is_none_or(|session| session.made != *made);
            let is_old = now.duration_since(*made) >= lifetime;
            // The queue is bounded, too: entries of tickets that were taken must not pile up behind one that stays.
            if !is_gone && !is_old && self.sessions.len() < most && self.order.len() < 2 * most {
                return;
            }
            if !is_gone {
                self.sessions.remove(key);
            }
            self.order.pop_front();
        }
    }
}

impl StoresServerSessions for Tickets {
    fn put(&self, key: Vec<u8>, secret: Vec<u8>) -> bool {
        let now = Instant::now();
        self.with_shard(&key.clone(), |shard| {
            shard.make_room(self.most_per_shard, self.lifetime, now);
            shard.order.push_back((key.clone(), now));
            shard.sessions.insert(key, Session { secret, made: now });
        });
        true
    }

    /// TLS 1.2 asks for sessions by this; it is not served here.
    fn get(&self, _: &[u8]) -> Option<Vec<u8>> {
        None
    }

    fn take(&self, key: &[u8]) -> Option<Vec<u8>> {
        let found = self.with_shard(key, |shard| shard.sessions.remove(key));
        let found = found.filter(|session| session.made.elapsed() < self.lifetime);
        if found.is_none() {
            self.unknown.fetch_add(1, Ordering::Relaxed);
        }
        found.map(|session| session.secret)
    }

    fn can_cache(&self) -> bool {
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: Duration = Duration::from_secs(3600);

    #[test]
    fn a_ticket_is_good_once() {
        let tickets = Tickets::new(100, HOUR);
        tickets.put(vec![1], vec![7]);
        assert_eq!(tickets.take(&[1]), Some(vec![7]));
        assert_eq!(tickets.take(&[1]), None);
        assert_eq!(tickets.unknown.load(Ordering::Relaxed), 1);
    }

    #[test]
    fn the_oldest_make_room() {
        let tickets = Tickets::new(2 * SHARDS, HOUR);
        for number in 0..5u8 {
            tickets.put(vec![number, 0], vec![number]);
        }
        let left: Vec<_> = (0..5u8).filter(|&number| tickets.take(&[number, 0]).is_some()).collect();
        assert_eq!(left, [3, 4]);
    }

    #[test]
    fn memory_is_bounded_whatever_is_taken() {
        let tickets = Tickets::new(2 * SHARDS, HOUR);
        for number in 0..10_000u16 {
            let key = vec![number as u8, (number >> 8) as u8, 0];
            tickets.put(key.clone(), vec![0]);
            if number > 0 {
                tickets.take(&key);
            }
        }
        tickets.with_shard(&[0], |shard| {
            assert!(shard.order.len() <= 5 && shard.sessions.len() <= 2, "{}", shard.order.len());
        });
    }

    #[test]
    fn an_old_ticket_is_none() {
        let tickets = Tickets::new(100, Duration::ZERO);
        tickets.put(vec![1], vec![7]);
        assert_eq!(tickets.take(&[1]), None);
    }
}
