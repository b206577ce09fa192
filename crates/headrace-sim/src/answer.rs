//! One answer, as it was asked for and as both sides saw it.
//!
//! In: what `answers.rs` notes. Out: how late each token was, and whether every promise was kept.

use std::time::Duration;

use quinn_proto::StreamId;

/// What is asked for.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    pub request_bytes: usize,
    pub tokens: usize,
    /// The bytes of each token: an SSE event of a chat completion, with the head of its DATA frame.
    pub token_bytes: usize,
    /// The time between two tokens; zero: a bulk transfer.
    pub every: Duration,
    /// The time from the request, when it is heard, to the first token.
    pub thinks: Duration,
}

impl Default for Shape {
    fn default() -> Self {
        let every = Duration::from_millis(20);
        Self { request_bytes: 300, tokens: 100, token_bytes: 190, every, thinks: Duration::ZERO }
    }
}

/// One answer, as both sides saw it. Times are virtual, since the simulation began.
#[derive(Debug)]
pub struct Answer {
    pub shape: Shape,
    /// The client's connection.
    pub connection: usize,
    pub asked_at: Duration,
    /// When the server had read the whole request.
    pub heard_at: Option<Duration>,
    /// Whether it was heard before the handshake was complete.
    pub was_early: bool,
    /// When the client had read each whole token.
    pub arrived_at: Vec<Duration>,
    /// When the client read FIN.
    pub ended_at: Option<Duration>,
    /// When the server learned that the answer is not wanted any more.
    pub stopped_at: Option<Duration>,
    /// The first promise that was broken: a wrong byte, a byte too many, an end too early, a lost connection.
    pub wrong: Option<String>,
    /// Whether the request was withdrawn before it left.
    pub is_withdrawn: bool,
    pub(crate) stream: Option<StreamId>,
    pub(crate) received: usize,
    pub(crate) server: Option<(usize, StreamId)>,
    pub(crate) written: usize,
    pub(crate) due: usize,
    pub(crate) is_finished: bool,
}

impl Answer {
    pub(crate) fn new(shape: Shape, connection: usize, asked_at: Duration) -> Self {
        Self {
            shape,
            connection,
            asked_at,
            heard_at: None,
            was_early: false,
            arrived_at: Vec::new(),
            ended_at: None,
            stopped_at: None,
            wrong: None,
            is_withdrawn: false,
            stream: None,
            received: 0,
            server: None,
            written: 0,
            due: 0,
            is_finished: false,
        }
    }

    /// When a token is due at the server.
    pub fn due_at(&self, token: usize) -> Option<Duration> {
        Some(self.heard_at? + self.shape.thinks + self.shape.every * token as u32)
    }

    /// Returns how much later each token arrived than on an ideal path with this one-way delay.
    pub fn lateness(&self, one_way: Duration) -> Vec<Duration> {
        let ideal = |token| self.due_at(token).map_or(Duration::ZERO, |due| due + one_way);
        self.arrived_at.iter().enumerate().map(|(token, at)| at.saturating_sub(ideal(token))).collect()
    }

    /// From the request to the first token.
    pub fn ttft(&self) -> Option<Duration> {
        Some(*self.arrived_at.first()? - self.asked_at)
    }

    /// Whether every token is there, and nothing else.
    pub fn is_whole(&self) -> bool {
        self.wrong.is_none() && self.ended_at.is_some() && self.arrived_at.len() == self.shape.tokens
    }

    /// Whether the server has written all of it.
    pub fn is_finished(&self) -> bool {
        self.is_finished
    }

    pub(crate) fn bytes(&self) -> usize {
        self.shape.tokens * self.shape.token_bytes
    }

    pub(crate) fn note_wrong(&mut self, what: String) {
        self.wrong.get_or_insert(what);
    }
}

/// The byte of an answer at an offset: answers differ, and neighbours do.
pub(crate) fn byte(answer: usize, offset: usize) -> u8 {
    (offset.wrapping_mul(167) ^ (offset >> 8).wrapping_mul(59) ^ answer.wrapping_mul(101)) as u8
}
