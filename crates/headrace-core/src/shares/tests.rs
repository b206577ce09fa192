//! Shares by example and by random schedules: who loses at the limit, and that the books always balance.

use super::*;

/// Things of owners, by their names; what was lost comes as names.
struct Table {
    shares: Shares<String>,
    turns: Turns,
    taken: HashMap<String, (Id, Arc<Mark>)>,
}

impl Table {
    fn new(limit: usize, reserve: usize) -> Self {
        Self { shares: Shares::new(limit, reserve), turns: Turns::default(), taken: HashMap::new() }
    }

    /// Takes a thing that waits for its peer.
    fn take(&mut self, owner: &Owner, name: &str) -> Result<Vec<String>, Full> {
        let lost = self.take_busy(owner, name)?;
        self.taken[name].1.wait();
        Ok(lost)
    }

    fn take_busy(&mut self, owner: &Owner, name: &str) -> Result<Vec<String>, Full> {
        self.take_sized(owner, 1, name)
    }

    fn take_sized(&mut self, owner: &Owner, size: usize, name: &str) -> Result<Vec<String>, Full> {
        let (mark, mut lost) = (Arc::new(Mark::new(&self.turns)), Vec::new());
        let id = self.shares.take(owner.clone(), size, mark.clone(), name.to_owned(), &mut lost)?;
        self.taken.insert(name.to_owned(), (id, mark));
        Ok(lost)
    }

    fn mark(&self, name: &str) -> &Mark {
        &self.taken[name].1
    }

    fn id(&self, name: &str) -> Id {
        self.taken[name].0
    }
}

fn block(last: u8) -> Owner {
    Owner::block([198, 51, last, 7].into(), 24, 48)
}

fn key(name: &str) -> Owner {
    Owner::Key(name.into())
}

#[test]
fn an_owner_is_a_block_of_addresses() {
    let of = |text: &str| Owner::block(text.parse().unwrap(), 24, 48);
    assert_eq!(of("192.0.2.1"), of("192.0.2.254"));
    assert_ne!(of("192.0.2.1"), of("192.0.3.1"));
    assert_eq!(of("::ffff:192.0.2.9"), of("192.0.2.1"));
    assert_eq!(of("2001:db8:7:1::1"), of("2001:db8:7:ffff::2"));
    assert_ne!(of("2001:db8:7::1"), of("2001:db8:8::1"));
    let exact = |text: &str| Owner::block(text.parse().unwrap(), 32, 128);
    assert_ne!(exact("192.0.2.1"), exact("192.0.2.2"));
    assert_eq!(Owner::block([1, 2, 3, 4].into(), 0, 0), Owner::block([9, 9, 9, 9].into(), 0, 0));
}

#[test]
fn the_largest_owner_loses_what_has_waited_longest() {
    let mut table = Table::new(5, 0);
    for name in ["a1", "a2", "a3"] {
        assert_eq!(table.take(&block(1), name), Ok(vec![]));
    }
    for name in ["b1", "b2"] {
        table.take(&block(2), name).unwrap();
    }
    table.mark("a1").go_on();
    assert_eq!(table.take(&block(3), "c1"), Ok(vec!["a2".to_owned()]));
    // It waits again, and so behind the others.
    table.mark("a1").wait();
    assert_eq!(table.take(&block(3), "c2"), Ok(vec!["a3".to_owned()]), "two hold two: the first of both");
    assert_eq!(table.take(&block(4), "d1"), Ok(vec!["b1".to_owned()]));
    assert_eq!(table.shares.held(), 5);
}

#[test]
fn a_newcomer_of_the_largest_owner_is_taken_in_while_something_of_it_waits() {
    let mut table = Table::new(3, 0);
    for name in ["1", "2", "3"] {
        table.take(&block(1), name).unwrap();
    }
    for number in 4..100 {
        let lost = table.take(&block(1), &number.to_string()).unwrap();
        assert_eq!(lost, [(number - 3).to_string()]);
    }
}

#[test]
fn a_byte_now_and_then_does_not_end_a_wait() {
    let mut table = Table::new(2, 0);
    table.take(&block(1), "first").unwrap();
    table.take(&block(1), "second").unwrap();
    table.mark("first").wait();
    assert_eq!(table.take(&block(1), "third"), Ok(vec!["first".to_owned()]));
}

#[test]
fn owners_below_the_newcomers_are_left_alone() {
    let mut table = Table::new(4, 0);
    for name in ["a1", "a2", "a3"] {
        table.take_busy(&block(1), name).unwrap();
        table.mark(name).note_served();
    }
    table.take(&block(2), "b1").unwrap();
    assert_eq!(table.take(&block(1), "a4"), Err(Full));
    assert_eq!(table.take(&block(3), "c1"), Ok(vec!["b1".to_owned()]), "it holds no less than nothing");
}

#[test]
fn what_is_served_is_never_lost_and_what_came_last_goes_before_it() {
    let mut table = Table::new(4, 0);
    for name in ["a1", "a2", "a3", "a4"] {
        table.take_busy(&block(1), name).unwrap();
    }
    table.mark("a4").note_served();
    assert_eq!(table.take_busy(&block(2), "b1"), Ok(vec!["a3".to_owned()]));
    assert_eq!(table.take_busy(&block(2), "b2"), Ok(vec!["a2".to_owned()]));
    assert_eq!(table.take_busy(&block(2), "b3"), Err(Full), "it would then hold more than the other");
    assert_eq!(table.take_busy(&block(3), "c1"), Ok(vec!["b2".to_owned()]), "two hold two: the last of both");
    assert_eq!(table.take_busy(&block(4), "d1"), Ok(vec!["a1".to_owned()]));
    assert_eq!(table.take_busy(&block(5), "e1"), Err(Full), "each has its share");
}

#[test]
fn what_waits_is_lost_before_what_works_whoever_holds_it() {
    let mut table = Table::new(4, 0);
    for name in ["a1", "a2", "a3"] {
        table.take_busy(&block(1), name).unwrap();
    }
    table.take(&block(2), "b1").unwrap();
    assert_eq!(table.take(&block(3), "c1"), Ok(vec!["b1".to_owned()]));
}

#[test]
fn known_owners_have_a_reserve() {
    let mut table = Table::new(4, 2);
    table.take_busy(&block(1), "a1").unwrap();
    table.take_busy(&block(2), "b1").unwrap();
    assert_eq!(table.take_busy(&block(3), "c1"), Err(Full));
    assert_eq!(table.take_busy(&Owner::Probes, "probe"), Ok(vec![]));
    assert_eq!(table.take_busy(&key("k"), "k1"), Ok(vec![]));
    // Who shows a key makes room among the unknown.
    let id = table.id("a1");
    table.shares.hand_over(id, key("k"));
    assert_eq!(table.shares.held_by(&key("k")), 2);
    table.mark("b1").wait();
    assert_eq!(table.take(&block(3), "c1"), Ok(vec!["b1".to_owned()]), "the limit of all is reached, too");
    assert_eq!(table.shares.held(), 4);
}

#[test]
fn while_the_known_hold_no_more_than_their_reserve_only_the_unknown_lose() {
    let mut table = Table::new(4, 2);
    for name in ["k1", "k2"] {
        table.take(&key("k"), name).unwrap();
    }
    for name in ["a1", "b1"] {
        table.take(&block(name.as_bytes()[0]), name).unwrap();
    }
    assert_eq!(table.take(&block(3), "c1"), Ok(vec!["a1".to_owned()]));
}

#[test]
fn what_grows_takes_from_others_and_who_cannot_have_all_takes_nothing() {
    let mut table = Table::new(100, 0);
    for name in ["a1", "a2"] {
        table.take_sized(&block(1), 30, name).unwrap();
        table.mark(name).wait();
    }
    table.take_sized(&block(2), 40, "b1").unwrap();
    table.mark("b1").note_served();
    let mut lost = Vec::new();
    table.shares.grow(table.id("b1"), 10, &mut lost).unwrap();
    assert_eq!((lost.as_slice(), table.shares.held()), (&["a1".to_owned()][..], 80));
    assert_eq!(table.shares.grow(table.id("b1"), 60, &mut lost), Err(Full));
    assert_eq!((lost.len(), table.shares.held_by(&block(1))), (1, 30));
    assert_eq!(table.shares.grow(table.id("a1"), 1, &mut lost), Err(Full), "it was lost");
    table.shares.shrink(table.id("b1"), 5);
    assert_eq!(table.shares.held(), 35);
}

#[test]
fn somebody_can_be_made_to_lose_though_there_is_room() {
    let mut table = Table::new(100, 0);
    table.take_busy(&block(1), "busy").unwrap();
    assert_eq!(table.shares.lose_one(&block(9)), None);
    table.take(&block(1), "waits").unwrap();
    assert_eq!(table.shares.lose_one(&block(9)), Some("waits".to_owned()));
}

#[test]
fn of_what_nobody_needs_an_owner_has_at_most_as_much_as_is_left() {
    let mut pool = Pool::new(100);
    assert!(pool.take(&block(1), 50) && !pool.take(&block(1), 1));
    assert!(pool.take(&block(2), 25) && !pool.take(&block(2), 1) && pool.take(&key("k"), 12));
    pool.give_back(&block(1), 50);
    assert_eq!((pool.held(), pool.take(&key("k"), 25), pool.take(&key("k"), 2)), (37, true, false));
    for owner in [block(1), block(2), key("k")] {
        pool.give_back(&owner, 1000);
    }
    assert_eq!((pool.held(), pool.by_owner.len()), (0, 0));
}

/// Sums hold and nobody above the others is spared, whatever happens.
#[test]
fn whatever_happens_the_sums_hold() {
    let mut table = Table::new(20, 4);
    let mut state = 1u64;
    let mut random = |below: u64| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % below
    };
    let mut alive = BTreeSet::new();
    for step in 0..5_000 {
        let name = step.to_string();
        let owner = match random(6) {
            0 => key("k"),
            1 => Owner::Probes,
            number => block(number as u8),
        };
        let some = alive.iter().nth(random(alive.len().max(1) as u64) as usize).cloned();
        match (random(8), some) {
            (0..=2, _) | (_, None) => {
                if let Ok(lost) = table.take_sized(&owner, random(3) as usize + 1, &name) {
                    lost.iter().for_each(|name| assert!(alive.remove(name)));
                    alive.insert(name);
                }
            }
            (3, Some(name)) => _ = table.mark(&name).wait(),
            (4, Some(name)) => _ = table.mark(&name).go_on(),
            (5, Some(name)) => table.shares.hand_over(table.id(&name), owner),
            (6, Some(name)) => {
                let mut lost = Vec::new();
                let _ = table.shares.grow(table.id(&name), random(4) as usize, &mut lost);
                lost.iter().for_each(|name| assert!(alive.remove(name)));
            }
            (_, Some(name)) => {
                table.shares.release(table.id(&name));
                alive.remove(&name);
            }
        }
        let shares = &table.shares;
        let sizes = || shares.accounts.values().map(|account| account.held);
        assert_eq!(shares.held, sizes().sum::<usize>());
        assert!(shares.held <= 20);
        assert_eq!(shares.owners.len(), alive.len());
        assert_eq!(shares.by_size.len(), shares.accounts.len());
        assert!(shares.by_size.iter().all(|(held, owner)| shares.accounts[owner].held == *held));
        let unknown = shares.accounts.iter().filter(|(owner, _)| !owner.is_known());
        assert_eq!(shares.unknown, unknown.map(|(_, account)| account.held).sum::<usize>());
    }
}
