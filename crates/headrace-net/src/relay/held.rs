//! An answer that is not relayed at once, because another upstream may do better.
//!
//! In: an answer whose status the handler wants to hear of first. Out: what it said, as far as it is short and comes at
//! once, so that the client can still be told it when nobody does better.

use std::future::poll_fn;
use std::time::Duration;

use bytes::Bytes;
use headrace_core::fields;
use http::header::CONTENT_LENGTH;
use http::{HeaderMap, StatusCode};
use tokio::time::timeout;

use crate::upstream::{Answer, Progress, Target, Upstreams};

/// Answers of this kind are a few hundred bytes; a longer one is not kept.
const MAX_BYTES: usize = 64 * 1024;
/// How long one may take to come whole, while the client waits.
const PATIENCE: Duration = Duration::from_secs(1);

/// What a held answer said.
#[derive(Clone, Debug)]
pub struct Held {
    /// Without those of one connection, and without a length.
    pub headers: HeaderMap,
    /// `None`: it was too long, too slow, or broke off.
    pub body: Option<Bytes>,
}

/// Which statuses are held: ranges, both ends included.
pub type HeldStatuses = Vec<(u16, u16)>;

pub fn is_held(ranges: &HeldStatuses, status: StatusCode) -> bool {
    ranges.iter().any(|(first, last)| (*first..=*last).contains(&status.as_u16()))
}

/// Reads the answer to its end, and gives its connection back if that may be used again.
pub async fn read(mut answer: Answer, upstreams: &Upstreams, target: &Target) -> Held {
    let mut headers = std::mem::take(&mut answer.headers);
    fields::strip_hop_by_hop(&mut headers);
    headers.remove(CONTENT_LENGTH);
    let body = timeout(PATIENCE, read_body(&mut answer)).await.ok().flatten();
    if body.is_some() {
        answer.body.pool(upstreams, target);
    }
    Held { headers, body }
}

async fn read_body(answer: &mut Answer) -> Option<Bytes> {
    let mut whole = Vec::new();
    loop {
        match poll_fn(|cx| answer.body.poll(cx, |data| whole.extend_from_slice(data))).await.ok()? {
            Progress::Data if whole.len() > MAX_BYTES => return None,
            Progress::Data => {}
            Progress::Stopped(stopped) => return stopped.judge(false).is_ok().then(|| whole.into()),
        }
    }
}
