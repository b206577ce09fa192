//! What a peer sends that moves nothing on: empty and unknown frames, frames of control without end, streams of unknown
//! types. Each is legal; a flood of them keeps a processor busy.
//!
//! In: how many there were. Out: the end of the connection, for a peer that sends too many. One budget for all streams
//! of a connection.

use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use headrace_core::budget::Budget;
use headrace_core::http3::{Http3Error, code};

/// The budget of one connection.
#[derive(Debug)]
pub struct Useless(Mutex<Budget>);

impl Useless {
    pub fn new(burst: u32, per_second: u32) -> Self {
        Self(Mutex::new(Budget::new(burst, per_second, Instant::now())))
    }

    /// # Errors
    /// The connection's end (RFC 9114 §8.1, H3_EXCESSIVE_LOAD), when there were too many.
    pub fn spend(&self, count: u64) -> Result<(), Http3Error> {
        let mut budget = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match budget.spend_many(count, Instant::now()) {
            true => Ok(()),
            false => {
                Err(Http3Error::connection(code::EXCESSIVE_LOAD, "too many frames that move nothing on"))
            }
        }
    }

    /// So many things left, each of which may bring frames of control about.
    pub fn earn(&self, count: u64) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).earn(count as f64);
    }
}
