//! What the handler says to the driver of its exchange.
//!
//! In: commands, by a bounded channel. Out: the next one; and, while the driver is busy with one, whether the handler
//! gave up.

use headrace_core::{Error, Kind};
use tokio::sync::mpsc;

use crate::exchange::Command;
use crate::gone::Gone;
use crate::reply::Reply;

/// How many commands of one exchange may wait; a handler awaits each before the next, so two are many.
pub const COMMAND_QUEUE: usize = 4;

/// The driver's end of the channel.
pub struct Inbox {
    commands: mpsc::Receiver<Command>,
    /// Calls that wait to hear that the client is gone; at most [`COMMAND_QUEUE`].
    gone_waiters: Vec<Reply<Gone>>,
}

impl Inbox {
    pub fn new(commands: mpsc::Receiver<Command>) -> Self {
        Self { commands, gone_waiters: Vec::new() }
    }

    /// The next command; `None` when the handler's end was dropped.
    pub async fn next(&mut self) -> Option<Command> {
        self.commands.recv().await
    }

    /// Resolves when the handler gives up; other commands that come meanwhile are out of turn, and refused.
    /// Cancel-safe.
    pub async fn abandoned(&mut self) {
        while let Some(command) = self.commands.recv().await {
            match command {
                Command::Reset { .. } => return,
                Command::Gone(reply) => self.keep_waiter(reply),
                other => refuse(other),
            }
        }
    }

    pub fn answer_waiters(&mut self, gone: Gone) {
        for waiter in self.gone_waiters.drain(..) {
            waiter.send(Ok(gone));
        }
    }

    pub fn keep_waiter(&mut self, reply: Reply<Gone>) {
        if self.gone_waiters.len() < COMMAND_QUEUE {
            self.gone_waiters.push(reply);
        } else {
            reply.send(Err(Error::new(
                Kind::Misuse,
                "gone() is awaited too many times at once; await it once",
            )));
        }
    }
}

fn refuse(command: Command) {
    fn busy<T>(reply: Reply<T>) {
        reply.send(Err(Error::new(
            Kind::Misuse,
            "another call on this exchange is still running; await it first",
        )));
    }
    match command {
        Command::Body(reply) => busy(reply),
        Command::Respond { reply, .. }
        | Command::Send { reply, .. }
        | Command::Finish { reply, .. }
        | Command::Answer { reply, .. } => busy(reply),
        Command::Relay { reply, .. } | Command::Replay { reply, .. } => busy(reply),
        Command::Gone(reply) => busy(reply),
        Command::Reset { .. } => {}
    }
}
