//! Whether copies help on one path.
//!
//! In: what the path's packets do. Out: the copies of each datagram.
//!
//! | state | copies | it ends |
//! |---|---|---|
//! | fresh | near and far | after the beginning of `first`, and so many packets: watching |
//! | on | near; far too, when losses are many, come in bursts, or cannot be counted: packets are far apart | `hold` after the last loss: watching |
//! | watching | far alone: the next packet overtakes it, so that a loss shows, and is repaired all the same | after a while, and so many packets: off |
//! | off | none | – |
//!
//! Small packets that are far apart get a last copy too, while fresh, and when losses are many or come in bursts.
//!
//! A loss leads from each of these states to *on*. A loss shows in two ways: the transport declares it, or a packet is
//! acknowledged after one that was sent later: its copy came through, and the packet itself did not.
//!
//! No copies, whatever the state: while a queue stands on the path (the loss is congestion's, and copies would
//! add to it), for a flow that the window limits, and beyond the bound of extra bytes; and, unless it is always on,
//! on a path so short that a loss is repaired in time without.

use std::time::{Duration, Instant};

use super::memory::Known;
use super::{Copies, Mode, Settings};
use crate::recovery::delay::Delay;

/// From so many packets on, a path says something about itself.
const ENOUGH_PACKETS: u32 = 64;
const WATCHING: Duration = Duration::from_millis(3_500);
/// A copy of a sparse flow comes behind the next packets, but no later than this: a gap of 65 ms is still below what a
/// person sees.
const LATEST_COPY: Duration = Duration::from_millis(45);
/// Without a loss that the transport declared, copies stop for a moment, to see: packets that overtake each other
/// look like repaired losses.
const TRIAL_AFTER: Duration = Duration::from_secs(60);
const LONGEST_TRIAL: Duration = Duration::from_secs(960);
/// From this share on, losses are many.
const MANY: f32 = 0.02;
/// Over how many packets the share of losses is smoothed.
const MEMORY: f32 = 256.0;
/// From this share of losses with a lost neighbour on, losses come in bursts.
const BURSTS: f32 = 0.3;
/// A flow that was limited by its window at so many acknowledgements in a row is a bulk transfer.
const BULK: u8 = 8;
/// A queue of this length shows beside the jitter of a network.
const QUEUE: Duration = Duration::from_millis(15);
/// How long a client may wait with an acknowledgement (RFC 9000 §18.2), where packets are far apart.
const ACK_DELAY: Duration = Duration::from_millis(25);
/// A handshake on a path that works takes no longer.
const HANDSHAKE: Duration = Duration::from_millis(500);
/// Packets that were sent in a longer pause of copies had none.
const PAUSE: Duration = Duration::from_secs(1);
/// Over a shorter round trip a loss is repaired (RFC 9002 §6.2: a probe comes 25 ms after it) before it is seen.
const SHORT: Duration = Duration::from_millis(5);
const SPARSE: Duration = Duration::from_millis(10);
/// The tokens of one stream or two, in bytes. A third copy of larger packets would cost much, where that of a sparse
/// flow of one stream costs little.
const SMALL: u64 = 600;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    Fresh,
    On,
    Watching,
    Off,
}

/// One path of one connection.
#[derive(Clone, Debug)]
pub struct Path {
    settings: Settings,
    state: State,
    since: Instant,
    /// How many were sent in this state.
    packets: u32,
    began: Instant,
    known: Option<Known>,
    is_validated: bool,
    allowance: Allowance,
    delay: Delay,
    last_sent: Option<Instant>,
    spacing: Duration,
    /// When the newest packet was sent that is acknowledged; `.1`: by the acknowledgement that is being read.
    acked: (Option<Instant>, Option<Instant>),
    bulk: u8,
    last_loss: Option<Instant>,
    last_declared: Instant,
    trial_after: Duration,
    /// When the newest packet that was lost had been sent.
    last_lost_sent: Option<Instant>,
    share: f32,
    neighbours: f32,
    /// From when to when all packets were copied, and how long after them the last copy left.
    copied: Option<(Instant, Instant, Duration)>,
    pub counted: Counted,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counted {
    /// Losses that a copy repaired.
    pub repaired: u64,
    /// Copied packets that were declared lost while an acknowledgement of a copy could still come: some of them were
    /// sent again in vain.
    pub doubtful: u64,
}

/// Extra bytes: a token bucket of a quarter of a second.
#[derive(Clone, Copy, Debug)]
struct Allowance {
    bytes: u64,
    at: Instant,
}

impl Path {
    /// `is_validated`: the peer's address is known to be its own, as a server's always is to its client.
    pub fn new(settings: Settings, now: Instant, is_validated: bool) -> Self {
        Self {
            settings,
            state: if settings.mode == Mode::On { State::On } else { State::Fresh },
            since: now,
            packets: 0,
            began: now,
            known: None,
            is_validated,
            allowance: Allowance { bytes: settings.max_extra_bytes_per_s / 4, at: now },
            delay: Delay::default(),
            last_sent: None,
            spacing: Duration::ZERO,
            acked: (None, None),
            bulk: 0,
            last_loss: None,
            last_declared: now,
            trial_after: TRIAL_AFTER,
            last_lost_sent: None,
            share: 0.0,
            neighbours: 0.0,
            copied: None,
            counted: Counted::default(),
        }
    }

    pub fn state(&self) -> State {
        self.state
    }

    fn is_short(&self) -> bool {
        self.settings.mode == Mode::Auto && self.delay.base().is_some_and(|base| base < SHORT)
    }

    pub fn is_queueing(&self) -> bool {
        let slack = if self.spacing > SPARSE { ACK_DELAY } else { Duration::ZERO };
        self.delay.queue() > self.delay.base().unwrap_or_default().div_f32(4.0).max(QUEUE) + slack
    }

    /// What a connection before saw of this network.
    pub fn handle_known(&mut self, known: Known) {
        self.known = Some(known);
        if known.loses {
            self.last_loss.get_or_insert(self.since);
            if self.state == State::Fresh {
                self.state = State::On;
            }
        }
    }

    /// What to remember of this path's network; `None`: too little was seen.
    pub fn known(&self) -> Option<Known> {
        let loses = self.last_loss.is_some();
        (loses || self.state == State::Off)
            .then(|| Known { loses: loses && self.state != State::Off, in_bursts: self.is_bursty() })
    }

    /// A datagram (or a batch of them) leaves.
    pub fn handle_sent(&mut self, now: Instant, bytes: u64) -> Copies {
        self.step(now);
        self.packets = self.packets.saturating_add(1);
        if let Some(last) = self.last_sent.replace(now) {
            let apart = now.saturating_duration_since(last).min(Duration::from_secs(1));
            self.spacing = (self.spacing * 7 + apart) / 8;
        }
        let is_unvalidated = !self.is_validated;
        let mut copies = Copies { is_unvalidated, ..self.wanted() };
        if self.bulk >= BULK || self.is_queueing() || self.is_short() {
            return Copies { is_unvalidated, ..Copies::default() };
        }
        copies.near = copies.near.filter(|_| self.spend(now, bytes));
        copies.far = copies.far.filter(|_| self.spend(now, bytes));
        copies.last = copies.last.filter(|_| bytes <= SMALL && self.spend(now, bytes));
        self.note_copied(now, copies);
        copies
    }

    fn note_copied(&mut self, now: Instant, copies: Copies) {
        let Some(after) = copies.after().last() else { return };
        let (since, until, reach) = self.copied.unwrap_or((now, now, after));
        let since = if now > until + PAUSE { now } else { since };
        self.copied = Some((since, now, reach.max(after)));
    }

    fn wanted(&self) -> Copies {
        let Settings { near, far, .. } = self.settings;
        let (near, far) = (Some(self.near(near)), Some(far));
        match self.state {
            State::Off => Copies::default(),
            State::Watching => {
                let behind = (self.spacing + Duration::from_millis(2)).min(LATEST_COPY);
                Copies { far: far.map(|far| far.max(behind)), ..Copies::default() }
            }
            State::Fresh | State::On => {
                let last =
                    Some(LATEST_COPY).filter(|last| self.wants_last() && *last > far.unwrap_or_default());
                Copies { near, far: far.filter(|_| self.wants_far()), last, ..Copies::default() }
            }
        }
    }

    /// The time to the first copy. It is shorter on a short path: loss detection waits for an eighth of a round trip
    /// (RFC 9002 §6.1.2).
    fn near(&self, near: Duration) -> Duration {
        let eighth = self.delay.base().map_or(near, |base| base / 10);
        near.min(eighth.max(Duration::from_millis(2)))
    }

    fn wants_far(&self) -> bool {
        let is_known = self.known.is_some_and(|known| known.in_bursts);
        // Packets that are far apart hide their losses from us, and copies of them cost little.
        let is_blind = self.state == State::Fresh || self.spacing > SPARSE;
        is_known || is_blind || self.is_bursty()
    }

    /// A sparse flow has few packets between a datagram and its copies: one run of losses takes them all, unless the
    /// last comes behind the next two datagrams.
    fn wants_last(&self) -> bool {
        self.spacing > SPARSE && (self.state == State::Fresh || self.is_bursty())
    }

    /// Whether losses are many, or come together.
    fn is_bursty(&self) -> bool {
        self.share > MANY || self.neighbours > BURSTS
    }

    /// Whether so many extra bytes are allowed; they are spent then.
    fn spend(&mut self, now: Instant, bytes: u64) -> bool {
        let (rate, since) =
            (self.settings.max_extra_bytes_per_s, now.saturating_duration_since(self.allowance.at));
        let earned = (rate as f64 * since.as_secs_f64()) as u64;
        if earned > 0 {
            self.allowance = Allowance { bytes: (self.allowance.bytes + earned).min(rate / 4), at: now };
        }
        let is_allowed = self.allowance.bytes >= bytes;
        self.allowance.bytes -= if is_allowed { bytes } else { 0 };
        is_allowed
    }

    /// A packet is acknowledged.
    pub fn handle_acked(&mut self, now: Instant, sent: Instant) {
        self.is_validated = true;
        let (before, newest) = &mut self.acked;
        *newest = (*newest).max(Some(sent));
        let is_late = before.is_some_and(|before| sent < before);
        if is_late && !self.is_handshake(sent) && self.state != State::Off {
            self.counted.repaired += 1;
            self.note_loss(now, sent, 1);
        } else {
            self.share -= self.share / MEMORY;
        }
    }

    /// All packets of an acknowledgement have been handed in.
    pub fn handle_acks_end(&mut self, now: Instant, is_app_limited: bool) {
        let (before, newest) = self.acked;
        if let Some(newest) = newest.filter(|newest| Some(*newest) > before) {
            self.delay.handle_round_trip(now, now.saturating_duration_since(newest));
            self.acked = (Some(newest), None);
        }
        self.bulk = if is_app_limited { 0 } else { self.bulk.saturating_add(1) };
    }

    /// The transport declares packets lost, the newest of which was sent at `sent`.
    pub fn handle_lost(&mut self, now: Instant, sent: Instant, packets: u32) {
        if let Some((since, until, reach)) = self.copied
            && (since..=until).contains(&sent)
            && now <= sent + reach + self.delay.base().unwrap_or_default() * 2 + ACK_DELAY
        {
            self.counted.doubtful += u64::from(packets);
        }
        if packets > 0 && !self.is_queueing() && !self.is_handshake(sent) {
            self.last_declared = now;
            self.note_loss(now, sent, packets);
        }
    }

    /// Packets of a handshake have numbers of three kinds, which are acknowledged apart; and what comes before its
    /// keys is dropped, and counts as lost. Copies are sent then anyway.
    fn is_handshake(&self, sent: Instant) -> bool {
        sent < self.began + HANDSHAKE.max(self.delay.base().unwrap_or_default() * 2)
    }

    fn note_loss(&mut self, now: Instant, sent: Instant, packets: u32) {
        let near = (self.spacing * 2).max(Duration::from_millis(3));
        let is_neighbour = packets > 1
            || self.last_lost_sent.is_some_and(|last| sent.max(last).duration_since(sent.min(last)) <= near);
        self.neighbours += (f32::from(u8::from(is_neighbour)) - self.neighbours) / 4.0;
        self.share += (1.0 - self.share) * (packets.min(16) as f32) / MEMORY;
        self.last_lost_sent = Some(sent);
        self.last_loss = Some(now);
        if self.state != State::On {
            // Nobody knows yet how many: many, until the next packets say otherwise.
            self.share = self.share.max(MANY * 2.0);
            self.enter(State::On, now);
        }
    }

    fn step(&mut self, now: Instant) {
        let (settings, age) = (&self.settings, now.saturating_duration_since(self.since));
        if settings.mode == Mode::On || self.packets < ENOUGH_PACKETS {
            return;
        }
        let quiet = now.saturating_duration_since(self.last_loss.unwrap_or(self.since));
        match self.state {
            State::Fresh if age + WATCHING >= settings.first => self.enter(State::Watching, now),
            State::On if now.saturating_duration_since(self.last_declared) >= self.trial_after => {
                self.trial_after = (self.trial_after * 2).min(LONGEST_TRIAL);
                self.last_declared = now;
                self.enter(State::Off, now);
            }
            State::On if quiet >= settings.hold => self.enter(State::Watching, now),
            State::Watching if age >= WATCHING => self.enter(State::Off, now),
            _ => {}
        }
    }

    fn enter(&mut self, state: State, now: Instant) {
        (self.state, self.since, self.packets) = (state, now, 0);
    }
}

#[cfg(test)]
mod tests;
