//! What the rules promise.

use super::*;

const MS: Duration = Duration::from_millis(1);
const TRIP: Duration = Duration::from_millis(60);
const SETTINGS: Settings = Settings {
    mode: Mode::Auto,
    near: Duration::from_millis(5),
    far: Duration::from_millis(25),
    max_extra_bytes_per_s: 1_000_000,
    first: Duration::from_secs(5),
    hold: Duration::from_secs(10),
};

/// A path on which a packet leaves every so often, and is acknowledged a round trip later.
struct Flow {
    path: Path,
    began: Instant,
    sent: u32,
    /// Extra bytes, of packets of 200.
    extra: u64,
    trip: Duration,
    every: Duration,
}

impl Flow {
    fn new(settings: Settings) -> Self {
        let began = Instant::now();
        Self { path: Path::new(settings, began, true), began, sent: 0, extra: 0, trip: TRIP, every: MS * 20 }
    }

    fn at(&self, packet: u32) -> Instant {
        self.began + self.every * packet
    }

    fn run(&mut self, packets: u32) -> Copies {
        let mut copies = Copies::default();
        for _ in 0..packets {
            let now = self.at(self.sent);
            copies = self.path.handle_sent(now, 200);
            self.extra += 200 * copies.after().count() as u64;
            self.path.handle_acked(now + self.trip, now);
            self.path.handle_acks_end(now + self.trip, true);
            self.sent += 1;
        }
        copies
    }

    fn lose(&mut self) {
        let sent = self.at(self.sent - 1);
        self.path.handle_lost(sent + TRIP, sent, 1);
    }
}

#[test]
fn a_path_without_losses_is_left_alone_after_its_first_seconds() {
    let mut flow = Flow::new(SETTINGS);
    let last = Some(LATEST_COPY);
    assert_eq!(flow.run(70), Copies { near: Some(MS * 5), far: Some(MS * 25), last, ..Copies::default() });
    assert_eq!(flow.run(100).near, None);
    assert_eq!(flow.path.state(), State::Watching);
    flow.run(82);
    let extra = flow.extra;
    assert_eq!(flow.path.state(), State::Off);
    flow.run(10_000);
    assert_eq!(flow.extra, extra);
}

#[test]
fn one_loss_brings_copies_and_time_without_losses_ends_them() {
    let mut flow = Flow::new(SETTINGS);
    flow.run(1_000);
    flow.lose();
    assert_eq!(flow.run(1).near, Some(MS * 5));
    flow.run(510);
    assert_eq!(flow.path.state(), State::Watching);
    let copies = flow.run(1);
    assert_eq!(copies.near, None);
    assert!(copies.far.unwrap() >= MS * 25);
    flow.run(180);
    assert_eq!(flow.path.state(), State::Off);
}

#[test]
fn a_packet_that_its_copy_repaired_counts_as_a_loss() {
    let mut flow = Flow::new(SETTINGS);
    flow.run(50);
    let early = flow.at(48) + MS;
    flow.path.handle_acked(flow.at(49) + TRIP + MS, early);
    flow.path.handle_acks_end(flow.at(49) + TRIP + MS, true);
    assert_eq!((flow.path.state(), flow.path.counted.repaired), (State::On, 1));
}

#[test]
fn bursts_get_a_later_copy_too() {
    let mut flow = Flow::new(SETTINGS);
    flow.every = MS * 2;
    flow.run(5_000);
    flow.lose();
    assert_eq!(flow.run(1).far, Some(MS * 25), "until more is known");
    assert_eq!(flow.run(300), Copies { near: Some(MS * 5), ..Copies::default() });
    for _ in 0..3 {
        flow.lose();
    }
    assert_eq!(flow.run(1).far, Some(MS * 25));
}

/// With the next packets between its copies, a run of losses does not take all of them.
#[test]
fn packets_that_are_far_apart_get_a_last_copy_when_losses_are_many() {
    for (every, last) in [(MS * 20, Some(LATEST_COPY)), (MS * 2, None)] {
        let mut flow = Flow::new(SETTINGS);
        flow.every = every;
        flow.run(5_000);
        flow.lose();
        assert_eq!(flow.run(1).last, last);
    }
    let mut flow = Flow::new(SETTINGS);
    flow.run(2_000);
    flow.lose();
    assert_eq!(flow.run(300).last, None, "losses are few");
}

#[test]
fn a_queue_ends_copies_and_its_losses_bring_none() {
    let mut flow = Flow::new(SETTINGS);
    flow.run(100);
    flow.trip = TRIP * 2;
    flow.run(20);
    assert!(flow.path.is_queueing() && flow.run(1).is_none());
    flow.run(1_000);
    flow.lose();
    assert_eq!(flow.path.state(), State::Off);
}

#[test]
fn extra_bytes_have_a_bound() {
    let mut flow = Flow::new(Settings { max_extra_bytes_per_s: 4_000, mode: Mode::On, ..SETTINGS });
    flow.run(5_000);
    assert!((390_000..=401_000).contains(&flow.extra), "{}", flow.extra);
}

#[test]
fn a_bulk_transfer_gets_no_copies() {
    let mut flow = Flow::new(SETTINGS);
    flow.run(50);
    for _ in 0..BULK {
        flow.path.handle_acks_end(flow.at(flow.sent), false);
    }
    assert!(flow.path.handle_sent(flow.at(flow.sent), 1200).is_none());
}

#[test]
fn an_address_is_valid_once_something_was_acknowledged() {
    let now = Instant::now();
    let mut path = Path::new(SETTINGS, now, false);
    assert!(path.handle_sent(now, 1200).is_unvalidated);
    path.handle_acked(now + TRIP, now);
    path.handle_acks_end(now + TRIP, true);
    assert!(!path.handle_sent(now + TRIP, 1200).is_unvalidated);
}

#[test]
fn a_network_that_is_known_to_lose_gets_copies_for_longer() {
    let mut flow = Flow::new(SETTINGS);
    flow.path.handle_known(Known { loses: true, in_bursts: true });
    assert_eq!(flow.run(450).far, Some(MS * 25));
    assert_eq!(flow.path.state(), State::On);
}

#[test]
fn packets_that_overtake_each_other_do_not_keep_copies_on_for_ever() {
    let mut flow = Flow::new(SETTINGS);
    flow.run(20);
    for _ in 0..4_000 {
        flow.run(1);
        let late = flow.at(flow.sent - 2) + MS;
        flow.path.handle_acked(flow.at(flow.sent), late);
    }
    assert_eq!(flow.path.state(), State::Off);
}

#[test]
fn a_short_path_repairs_itself() {
    for (mode, is_copied) in [(Mode::Auto, false), (Mode::On, true)] {
        let mut flow = Flow::new(Settings { mode, ..SETTINGS });
        flow.trip = MS * 2;
        assert!(!flow.run(1).is_none(), "before its length is known");
        flow.run(60);
        flow.lose();
        assert_eq!(!flow.run(1).is_none(), is_copied);
    }
}
