//! What the rules promise.

use super::*;

const MS: Duration = Duration::from_millis(1);
const TRIP: u32 = 60;

/// A flow that makes a packet of 1,000 bytes every 10 ms, over a path whose acknowledgements come a round trip later while
/// they come.
struct Flow {
    pace: Pace,
    now: Instant,
    waiting: u64,
}

impl Flow {
    /// It has flowed for two seconds.
    fn new() -> Self {
        let now = Instant::now();
        let mut flow = Self { pace: Pace::new(now), now, waiting: 0 };
        flow.send(TRIP / 10);
        flow.go_on(200, 1000);
        flow
    }

    /// Nothing is acknowledged.
    fn send(&mut self, packets: u32) {
        for _ in 0..packets {
            self.now += MS * 10;
            self.pace.handle_sent(self.now, 1000, false);
            self.waiting += 1000;
        }
    }

    /// For each packet that is sent, so many bytes are acknowledged.
    fn go_on(&mut self, packets: u32, bytes: u64) {
        for _ in 0..packets {
            self.send(1);
            self.acknowledge(bytes, bytes > 1000 || self.waiting > 30_000);
        }
    }

    fn acknowledge(&mut self, bytes: u64, is_queueing: bool) {
        let bytes = bytes.min(self.waiting);
        self.waiting -= bytes;
        let acked =
            Acked { bytes, in_flight: self.waiting, window: 40_000, is_app_limited: true, is_queueing };
        self.pace.handle_acked(self.now, acked);
    }

    fn room(&self) -> u64 {
        self.pace.allows().saturating_sub(self.waiting)
    }
}

#[test]
fn the_pace_is_what_the_application_makes() {
    let mut flow = Flow::new();
    assert!((95_000..=105_000).contains(&flow.pace.rate()), "{}", flow.pace.rate());
    for _ in 0..20 {
        flow.now += MS * 40;
        flow.go_on(1, 1000);
    }
    assert!((50_000..=90_000).contains(&flow.pace.rate()), "it is forgotten slowly: {}", flow.pace.rate());
}

#[test]
fn a_flow_goes_on_through_a_pause_until_nobody_can_be_there() {
    let mut flow = Flow::new();
    flow.send(750);
    assert!(flow.room() >= 1000, "7.5 s: {}", flow.room());
    flow.send(100);
    assert_eq!(flow.room(), 0, "8.5 s");
}

#[test]
fn what_waited_in_a_pause_does_not_stop_what_is_new_while_it_is_drained() {
    let mut flow = Flow::new();
    flow.send(300);
    for _ in 0..100 {
        flow.go_on(1, 3000);
        assert!(flow.room() >= 1000, "{} in flight", flow.waiting);
    }
}

#[test]
fn a_queue_that_grows_after_a_pause_leaves_the_window_alone() {
    let mut flow = Flow::new();
    flow.send(40);
    flow.go_on(140, 700);
    assert!(flow.room() > 0, "{} in flight", flow.waiting);
    flow.go_on(40, 700);
    assert_eq!(flow.pace.allows(), 0, "half a second of its pace: {}", flow.waiting);
    flow.go_on(100, 1500);
    assert!(flow.room() > 0, "it was drained");
}

#[test]
fn a_flow_that_sends_as_fast_as_it_can_gets_no_more_than_its_earlier_pace() {
    let mut flow = Flow::new();
    flow.send(40);
    let before = flow.waiting;
    for _ in 0..100 {
        flow.now += MS;
        while flow.room() >= 1000 {
            flow.pace.handle_sent(flow.now, 1000, true);
            flow.waiting += 1000;
        }
    }
    let sent = flow.waiting - before;
    assert!((45_000..=65_000).contains(&sent), "half a second of its pace at once, and little more: {sent}");
    assert!(flow.pace.rate() <= 105_000, "what was limited by something else is not its pace");
}

#[test]
fn what_was_lost_after_a_pause_shows_what_the_path_holds() {
    let mut flow = Flow::new();
    flow.send(400);
    let most = flow.waiting;
    flow.go_on(1, 3000);
    assert!(flow.pace.handle_lost(100_000, 40_000), "it was the pause");
    flow.waiting = 0;
    flow.acknowledge(0, false);
    let held = flow.pace.held.unwrap();
    assert!((most - 103_000..=most - 97_000).contains(&held), "{held} of {most}");
    flow.go_on(1, 1000);
    flow.send(400);
    assert_eq!(flow.pace.allows(), flow.pace.held.unwrap());
    flow.now += MS * 1000;
    flow.acknowledge(u64::MAX, true);
    flow.go_on(4000, 1000);
    assert!(flow.pace.held.unwrap() > most, "an eighth of what is acknowledged later");
}

#[test]
fn a_loss_in_a_queue_is_congestion() {
    let mut flow = Flow::new();
    flow.go_on(100, 700);
    assert!(!flow.pace.handle_lost(1000, 40_000));
    flow.pace.handle_congestion(20_000);
    assert!(flow.pace.allows() <= 20_000);
    assert!(!flow.pace.handle_lost(0, 40_000), "a router's mark is no pause");
}

#[test]
fn a_loss_within_the_window_is_never_put_down_to_a_pause() {
    let mut flow = Flow::new();
    flow.send(50);
    assert!(flow.pace.handle_lost(5_000, 40_000));
    assert!(!flow.pace.handle_lost(5_000, 400_000));
}

#[test]
fn without_a_pause_there_is_the_window_alone() {
    let mut flow = Flow::new();
    flow.go_on(200, 1000);
    assert_eq!(flow.pace.allows(), 0);
}
