//! The promises of a lane, in virtual time.

use super::*;

const MS: u64 = 1_000_000;

fn plan() -> Plan {
    Plan { delay_ns: 10 * MS, queue_bytes: 1 << 20, ..Plan::default() }
}

fn lane(plan: Plan) -> Lane {
    Lane::new(Direction::Down, plan, 1, 0)
}

/// `count` packets of 1,200 bytes, one each `every_ns`.
fn run(lane: &mut Lane, count: u64, every_ns: u64) -> Vec<Verdict> {
    (0..count).map(|number| lane.decide(number * every_ns, 1200, true)).collect()
}

fn due(verdict: Verdict) -> Option<u64> {
    match verdict {
        Verdict::Deliver { due_ns } | Verdict::Duplicate { due_ns } => Some(due_ns),
        Verdict::Drop(_) => None,
    }
}

fn dropped(verdicts: &[Verdict], reason: Reason) -> Vec<usize> {
    let is_it = |verdict: &Verdict| *verdict == Verdict::Drop(reason);
    verdicts.iter().enumerate().filter(|(_, verdict)| is_it(verdict)).map(|(index, _)| index).collect()
}

#[test]
fn a_plain_link_only_delays() {
    let verdicts = run(&mut lane(plan()), 100, MS);
    for (number, verdict) in verdicts.into_iter().enumerate() {
        assert_eq!(verdict, Verdict::Deliver { due_ns: number as u64 * MS + 10 * MS });
    }
}

#[test]
fn losses_go_by_index_not_by_time_or_length() {
    let lossy = Plan { loss: Loss::new(0.1, 3.0).unwrap(), ..plan() };
    let calm = dropped(&run(&mut lane(lossy.clone()), 10_000, MS), Reason::Loss);
    let mut hasty = lane(Plan { jitter_ns: 5 * MS, duplicate: 0.2, ..lossy });
    let verdicts: Vec<_> = (0..10_000).map(|number| hasty.decide(number * 7, 100, false)).collect();
    assert_eq!(calm, dropped(&verdicts, Reason::Loss));
    assert!((700..1300).contains(&calm.len()), "{}", calm.len());
}

#[test]
fn directions_and_seeds_lose_different_packets() {
    let lossy = Plan { loss: Loss::new(0.1, 1.0).unwrap(), ..plan() };
    let lost = |direction, seed| {
        dropped(&run(&mut Lane::new(direction, lossy.clone(), seed, 0), 1000, MS), Reason::Loss)
    };
    assert_eq!(lost(Direction::Up, 1), lost(Direction::Up, 1));
    assert_ne!(lost(Direction::Up, 1), lost(Direction::Down, 1));
    assert_ne!(lost(Direction::Up, 1), lost(Direction::Up, 2));
}

#[test]
fn named_packets_are_dropped_and_no_others() {
    let verdicts = run(&mut lane(Plan { drops: vec![0, 7, 50], ..plan() }), 100, MS);
    assert_eq!(dropped(&verdicts, Reason::Named), [0, 7, 50]);
    assert_eq!(verdicts.iter().filter(|&&verdict| due(verdict).is_some()).count(), 97);
    let mut lane = lane(plan());
    lane.drop_next(2);
    assert_eq!(dropped(&run(&mut lane, 5, MS), Reason::Named), [0, 1]);
}

#[test]
fn jitter_varies_the_delay_and_never_reorders() {
    let verdicts = run(&mut lane(Plan { jitter_ns: 5 * MS, ..plan() }), 10_000, MS / 2);
    let times: Vec<u64> = verdicts.iter().filter_map(|&verdict| due(verdict)).collect();
    assert!(times.is_sorted());
    let delays: Vec<u64> = times.iter().enumerate().map(|(n, at)| at - n as u64 * MS / 2).collect();
    assert!(delays.iter().all(|delay| (5 * MS..=15 * MS).contains(delay)));
    let spread = delays.iter().max().unwrap() - delays.iter().min().unwrap();
    assert!(spread > 5 * MS, "{spread}");
}

#[test]
fn reordering_holds_a_share_back_and_the_rest_in_order() {
    let shuffled = Plan { reorder: 0.05, reorder_ns: 3 * MS, ..plan() };
    let verdicts = run(&mut lane(shuffled), 10_000, MS);
    let late = (0..10_000u64).filter(|&n| due(verdicts[n as usize]) == Some(n * MS + 13 * MS)).count();
    let on_time = (0..10_000u64).filter(|&n| due(verdicts[n as usize]) == Some(n * MS + 10 * MS)).count();
    assert_eq!(late + on_time, 10_000);
    assert!((400..600).contains(&late), "{late}");
}

#[test]
fn duplicates_come_at_their_share() {
    let verdicts = run(&mut lane(Plan { duplicate: 0.02, ..plan() }), 10_000, MS);
    let twice = verdicts.iter().filter(|verdict| matches!(verdict, Verdict::Duplicate { .. })).count();
    assert!((140..260).contains(&twice), "{twice}");
}

#[test]
fn an_outage_drops_what_comes_in_it_and_nothing_else() {
    let mut lane = lane(plan());
    lane.begin_outage(20 * MS, 30 * MS, false);
    assert_eq!(dropped(&run(&mut lane, 100, MS), Reason::Outage), (20..50).collect::<Vec<_>>());
}

#[test]
fn a_held_outage_delivers_late_and_in_order() {
    let mut lane = lane(plan());
    lane.begin_outage(20 * MS, 30 * MS, true);
    let times: Vec<u64> = run(&mut lane, 100, MS).into_iter().map(|verdict| due(verdict).unwrap()).collect();
    assert_eq!((times[19], times[20], times[49], times[50]), (29 * MS, 60 * MS, 60 * MS, 60 * MS));
    assert!(times.is_sorted());
}

#[test]
fn pauses_hold_packets_as_both_directions_have_them() {
    let pauses = Pauses::new(1000 * MS, 100 * MS, 150 * MS, 300 * MS);
    let paused = Plan { pauses, ..plan() };
    let (start, end) = pauses.unwrap().in_slot(1, 0);
    for direction in Direction::BOTH {
        let mut lane = Lane::new(direction, paused.clone(), 1, 5 * MS);
        assert_eq!(due(lane.decide(5 * MS + start, 100, true)), Some(5 * MS + end + 10 * MS));
    }
}

#[test]
fn udp_and_long_packets_can_be_blocked() {
    let mut lane = lane(Plan { is_udp_blocked: true, mtu: Some(1300), ..plan() });
    assert_eq!(lane.decide(0, 100, true), Verdict::Drop(Reason::UdpBlocked));
    assert_eq!(lane.decide(0, 1301, false), Verdict::Drop(Reason::Mtu));
    assert!(due(lane.decide(0, 1300, false)).is_some());
}

#[test]
fn a_lost_packet_uses_the_bottleneck_and_counts_as_lost_even_when_the_queue_is_full() {
    let narrow = Plan { rate: Rate::Bits(9_600_000), queue_bytes: 6000, ..plan() }; // 1,200 bytes each ms
    let mut all_lost = lane(Plan { loss: Loss::new(1.0, 1.0).unwrap(), ..narrow.clone() });
    assert_eq!(dropped(&run(&mut all_lost, 20, 0), Reason::Loss).len(), 20);
    all_lost.plan.loss = Loss::default();
    assert_eq!(all_lost.decide(0, 1200, true), Verdict::Drop(Reason::Queue));
    let verdicts = run(&mut lane(narrow), 20, 0);
    assert_eq!(dropped(&verdicts, Reason::Queue), (5..20).collect::<Vec<_>>());
    assert_eq!(due(verdicts[4]), Some(15 * MS));
}

#[test]
fn a_restart_repeats_every_verdict() {
    let wild = Plan {
        loss: Loss::new(0.05, 4.0).unwrap(),
        duplicate: 0.05,
        reorder: 0.05,
        reorder_ns: MS,
        jitter_ns: MS / 4,
        ..plan()
    };
    let mut lane = lane(wild);
    let first = run(&mut lane, 5000, MS);
    let base = 10_000 * MS;
    lane.restart(base);
    for (number, verdict) in first.into_iter().enumerate() {
        let again = lane.decide(base + number as u64 * MS, 1200, true);
        assert_eq!(due(again), due(verdict).map(|at| at + base));
        assert_eq!(std::mem::discriminant(&again), std::mem::discriminant(&verdict));
    }
}

#[test]
fn a_shorter_path_does_not_overtake_the_longer_one() {
    let mut lane = lane(Plan { delay_ns: 100 * MS, ..plan() });
    let before = due(lane.decide(0, 100, true));
    lane.set_plan(plan(), MS);
    assert_eq!(due(lane.decide(MS, 100, true)), before);
}
