//! That traces are what the models say.

use super::*;
use crate::network::Trace;

const SECOND_MS: u64 = 1000;

/// Mbit/s of each step of 100 ms, in ascending order.
fn steps(trace: &[u64]) -> Vec<f64> {
    let (&length, opportunities) = trace.split_last().unwrap();
    let mut steps = vec![0.0; length.div_ceil(100) as usize];
    opportunities.iter().for_each(|at| steps[(at / 100) as usize] += OPPORTUNITY_BITS / 1e5);
    steps.sort_unstable_by(f64::total_cmp);
    steps
}

/// Pauses of more than 100 ms, the longest first.
fn pauses(trace: &[u64]) -> Vec<u64> {
    let gaps = trace.windows(2).map(|pair| pair[1] - pair[0]);
    let mut pauses: Vec<u64> = gaps.filter(|gap| *gap > 100).collect();
    pauses.sort_unstable_by(|a, b| b.cmp(a));
    pauses
}

fn each(mut check: impl FnMut(&Model, &Radio, &[Vec<u64>])) {
    for model in MODELS {
        for (direction, radio) in [(Direction::Up, &model.up), (Direction::Down, &model.down)] {
            let traces: Vec<_> = (1..6).map(|seed| model.trace(direction, seed, RECORDED_MS)).collect();
            check(model, radio, &traces);
        }
    }
}

#[test]
fn rates_have_the_quantiles_of_the_model() {
    each(|model, radio, traces| {
        let mut all: Vec<f64> = traces.iter().flat_map(|trace| steps(trace)).collect();
        all.sort_unstable_by(f64::total_cmp);
        for (rank, rate) in RANKS.into_iter().zip(radio.rates) {
            let found = all[(all.len() as f64 * rank) as usize];
            assert!(
                (found - rate).abs() <= 0.25 * rate + 0.5,
                "{} at {rank}: {found}, not {rate}",
                model.name
            );
        }
    });
}

#[test]
fn every_trace_has_the_pauses_of_the_model() {
    each(|model, radio, traces| {
        let (count, longest) = (radio.pauses[radio.pauses.len() - 1].0, radio.pauses[0].1);
        for trace in traces {
            let found = pauses(trace);
            // Where the rate is next to nothing, single opportunities are more than 100 ms apart.
            assert!(
                (count - 4.0..count * 1.5).contains(&(found.len() as f64)),
                "{}: {}",
                model.name,
                found.len()
            );
            let part = found[0] as f64 / longest;
            assert!((0.7..1.05).contains(&part), "{}: the longest is {}", model.name, found[0]);
        }
    });
}

#[test]
fn a_seed_is_a_trace_and_directions_are_drawn_apart() {
    let model = Model::named("lte-driving").unwrap();
    let trace = |seed| model.trace(Direction::Down, seed, RECORDED_MS);
    assert_eq!(trace(1), trace(1));
    assert_ne!(trace(1), trace(2));
    let alike = Model { up: model.down, ..*model };
    assert_ne!(alike.trace(Direction::Up, 1, RECORDED_MS), trace(1));
    assert_eq!(Model::named("nowhere"), None);
}

#[test]
fn a_trace_has_its_length_and_can_be_played() {
    for (seconds, pauses_at_least, pauses_at_most) in [(1, 0, 3), (30, 10, 25), (240, 110, 140)] {
        let trace = Model::named("lte-driving").unwrap().trace(Direction::Down, 7, seconds * SECOND_MS);
        assert_eq!(trace.last(), Some(&(seconds * SECOND_MS)));
        assert!(
            (pauses_at_least..=pauses_at_most).contains(&pauses(&trace).len()),
            "{}",
            pauses(&trace).len()
        );
        assert!(Trace::new(&trace).is_some());
    }
}

#[test]
fn a_link_that_never_pauses_can_be_said() {
    let radio = Radio { rates: [12.0; 5], wander: 0.0, pauses: &[] };
    let model = Model { name: "even", source: "", up: radio, down: radio };
    let trace = model.trace(Direction::Down, 1, SECOND_MS);
    assert!((950..=1100).contains(&trace.len()), "a packet every millisecond: {}", trace.len());
}
