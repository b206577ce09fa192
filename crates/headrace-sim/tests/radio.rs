//! Tokens over a link that pauses.

use std::time::Duration;

use headrace_emulator::network::radio::Model;
use headrace_sim::radio::{Ride, ride};

const MS: Duration = Duration::from_millis(1);

/// Mahimahi's recording of AT&T's LTE, from which the model is made, makes tokens of eight streams up to 735 ms late.
#[test]
fn the_link_itself_makes_tokens_as_late_as_the_recording_does() {
    let model = Model::named("lte-driving").unwrap();
    let ridden = ride(&Ride::by_model(model, 1).unwrap(), 1).unwrap();
    let late = ridden.link_itself.late(0.99);
    assert!((MS * 500..MS * 1000).contains(&late), "{late:?}");
}

/// Packets that carry several tokens are a little smaller together than the tokens of the calculation.
#[test]
fn no_sender_is_much_earlier_than_the_link_allows() {
    for name in ["lte-driving", "train"] {
        let ridden = ride(&Ride::by_model(Model::named(name).unwrap(), 1).unwrap(), 1).unwrap();
        let (late, allowed) = (ridden.tokens.late(0.99), ridden.link_itself.late(0.99));
        assert!(late * 10 >= allowed * 9, "{name}: {late:?} of {allowed:?}");
    }
}
