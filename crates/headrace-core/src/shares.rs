//! Who holds how much of something scarce, and who loses some of it when there is no more.
//!
//! In: things that are taken, grow, change hands and are given back, each with its owner; marks on things that wait
//! for their peer. Out: whether another one may be taken, and which one is lost for it. There is no clock: what
//! matters is who began to wait first.
//!
//! Rules, in prose:
//! * A newcomer is refused only when nothing may be lost for it.
//! * **The owner that holds most loses**, and of its things **the one that has waited longest for its peer**. Owners
//!   of which nothing waits are passed over, those that hold less than the newcomer's are left alone. A peer that
//!   sends or reads a byte now and then does not end a wait: only what was waited for does.
//! * Where nothing waits, the largest owner loses what it took last and has got nothing of yet, if it then still
//!   holds as much as the newcomer's. What is being served is never lost.
//! * A reserve is kept for known owners: the unknown together may hold the limit less the reserve, and where they
//!   are at that, only they lose.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Who holds things.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Owner {
    /// A block of addresses, by its first one: nobody has shown who is there.
    Block(IpAddr),
    /// Whoever has this API key, by its name.
    Key(Arc<str>),
    /// Probes of the gateway's health.
    Probes,
}

impl Owner {
    /// The block in which an address is. An IPv4 address that is written as an IPv6 address counts as what it is.
    pub fn block(address: IpAddr, ipv4_bits: u8, ipv6_bits: u8) -> Self {
        Self::Block(match address.to_canonical() {
            IpAddr::V4(v4) => {
                let mask = u32::MAX.checked_shl(32 - u32::from(ipv4_bits.min(32))).unwrap_or(0);
                IpAddr::V4((u32::from(v4) & mask).into())
            }
            IpAddr::V6(v6) => {
                let mask = u128::MAX.checked_shl(128 - u32::from(ipv6_bits.min(128))).unwrap_or(0);
                IpAddr::V6((u128::from(v6) & mask).into())
            }
        })
    }

    fn is_known(&self) -> bool {
        !matches!(self, Self::Block(_))
    }
}

/// Counts turns, so that things know who began to wait first. Shared by all that is compared.
#[derive(Clone, Debug, Default)]
pub struct Turns(Arc<AtomicU64>);

/// What the holder of a thing notes on it, from any thread and without a lock.
#[derive(Debug)]
pub struct Mark {
    turns: Turns,
    /// The turn at which it began to wait for its peer; 0 while it does not.
    waits_since: AtomicU64,
    /// Something was made for the peer: an answer has begun.
    is_served: AtomicBool,
}

impl Mark {
    /// Does not wait.
    pub fn new(turns: &Turns) -> Self {
        Self { turns: turns.clone(), waits_since: AtomicU64::new(0), is_served: AtomicBool::new(false) }
    }

    /// It waits for its peer from now on; a wait that goes on keeps its place. Whether it began now.
    pub fn wait(&self) -> bool {
        let begins = !self.is_waiting();
        if begins {
            self.waits_since.store(self.turns.0.fetch_add(1, Ordering::Relaxed) + 1, Ordering::Relaxed);
        }
        begins
    }

    /// What was waited for has come. Whether it waited.
    pub fn go_on(&self) -> bool {
        self.waits_since.swap(0, Ordering::Relaxed) != 0
    }

    pub fn is_waiting(&self) -> bool {
        self.waits_since.load(Ordering::Relaxed) != 0
    }

    pub fn note_served(&self) {
        self.is_served.store(true, Ordering::Relaxed);
    }
}

/// A thing that is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Id(u64);

struct Thing<H> {
    size: usize,
    mark: Arc<Mark>,
    /// By which its holder hears that it is lost.
    handle: H,
}

struct Account<H> {
    held: usize,
    things: BTreeMap<Id, Thing<H>>,
}

/// All things of one kind.
pub struct Shares<H> {
    limit: usize,
    /// Of the limit, what the unknown may not have.
    reserve: usize,
    held: usize,
    /// Of it, what belongs to owners that are not known.
    unknown: usize,
    accounts: HashMap<Owner, Account<H>>,
    /// The accounts by what they hold.
    by_size: BTreeSet<(usize, Owner)>,
    owners: HashMap<Id, Owner>,
    next: u64,
}

/// There is nothing that may be lost for a newcomer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Full;

impl<H: Clone> Shares<H> {
    /// `limit`, `reserve`: in the unit in which things are measured.
    pub fn new(limit: usize, reserve: usize) -> Self {
        Self {
            limit,
            reserve: reserve.min(limit),
            held: 0,
            unknown: 0,
            accounts: HashMap::new(),
            by_size: BTreeSet::new(),
            owners: HashMap::new(),
            next: 0,
        }
    }

    /// What all owners hold together.
    pub fn held(&self) -> usize {
        self.held
    }

    pub fn held_by(&self, owner: &Owner) -> usize {
        self.accounts.get(owner).map_or(0, |account| account.held)
    }

    /// Takes one thing, and adds to `lost` the handles of those that are lost for it.
    ///
    /// # Errors
    /// [`Full`]; nothing was taken, and nothing is lost.
    pub fn take(
        &mut self,
        owner: Owner,
        size: usize,
        mark: Arc<Mark>,
        handle: H,
        lost: &mut Vec<H>,
    ) -> Result<Id, Full> {
        self.make_room(&owner, size, None, lost)?;
        self.next += 1;
        let id = Id(self.next);
        self.put(owner, id, Thing { size, mark, handle });
        Ok(id)
    }

    /// Makes a thing larger. One that was lost does not grow.
    ///
    /// # Errors
    /// [`Full`]; it is as large as before.
    pub fn grow(&mut self, id: Id, more: usize, lost: &mut Vec<H>) -> Result<(), Full> {
        let Some(owner) = self.owners.get(&id).cloned() else { return Err(Full) };
        self.make_room(&owner, more, Some(id), lost)?;
        self.resize(id, |size| size + more);
        Ok(())
    }

    /// Makes a thing smaller; does nothing to one that was lost.
    pub fn shrink(&mut self, id: Id, size: usize) {
        self.resize(id, |before| before.min(size));
    }

    /// Gives a thing back; does nothing to one that was lost.
    pub fn release(&mut self, id: Id) {
        self.remove(id);
    }

    /// A thing belongs to somebody else from now on: its owner has shown who it is.
    pub fn hand_over(&mut self, id: Id, owner: Owner) {
        if self.owners.get(&id).is_some_and(|before| *before != owner)
            && let Some(thing) = self.remove(id)
        {
            self.put(owner, id, thing);
        }
    }

    /// Takes away the thing that a newcomer of this owner would be given, though there may be room.
    pub fn lose_one(&mut self, owner: &Owner) -> Option<H> {
        let loser = self.loser(owner, 1, false, None)?;
        self.remove(loser).map(|thing| thing.handle)
    }

    fn make_room(
        &mut self,
        owner: &Owner,
        more: usize,
        keep: Option<Id>,
        lost: &mut Vec<H>,
    ) -> Result<(), Full> {
        let mut losers = Vec::new();
        loop {
            let is_full = self.held + more > self.limit;
            let unknown_full = !owner.is_known() && self.unknown + more > self.limit - self.reserve;
            if !is_full && !unknown_full {
                break;
            }
            let Some(loser) = self.loser(owner, more, unknown_full, keep) else {
                // Who cannot have all it needs takes nothing from anybody.
                for (owner, id, thing) in losers.into_iter().rev() {
                    self.put(owner, id, thing);
                }
                return Err(Full);
            };
            if let Some(owner) = self.owners.get(&loser).cloned()
                && let Some(thing) = self.remove(loser)
            {
                losers.push((owner, loser, thing));
            }
        }
        lost.extend(losers.into_iter().map(|(_, _, thing): (_, _, Thing<H>)| thing.handle));
        Ok(())
    }

    /// Which thing is lost for one of this owner.
    fn loser(&self, newcomer: &Owner, more: usize, only_unknown: bool, keep: Option<Id>) -> Option<Id> {
        let own = self.held_by(newcomer);
        let since = |thing: &Thing<H>| thing.mark.waits_since.load(Ordering::Relaxed);
        let waiting = self.first_of_largest(own, only_unknown, keep, |_, id, thing| {
            Some((since(thing), id)).filter(|(since, _)| *since != 0)
        });
        let unserved = || {
            self.first_of_largest(own, only_unknown, keep, |held, id, thing| {
                let may_lose = since(thing) == 0 && !thing.mark.is_served.load(Ordering::Relaxed);
                let is_larger = held >= own + more + thing.size;
                // The last one is the first to go.
                (may_lose && is_larger).then_some((u64::MAX - id.0, id))
            })
        };
        waiting.or_else(unserved)
    }

    /// The thing that comes first by `rank`, of the owners that hold most and have one that is ranked. Owners that
    /// hold the same are looked at together.
    fn first_of_largest(
        &self,
        least: usize,
        only_unknown: bool,
        keep: Option<Id>,
        rank: impl Fn(usize, Id, &Thing<H>) -> Option<(u64, Id)>,
    ) -> Option<Id> {
        let mut found = None::<(usize, (u64, Id))>;
        for (held, owner) in self.by_size.iter().rev() {
            if *held < least || found.is_some_and(|(size, _)| size != *held) {
                break;
            }
            let Some(account) = self.accounts.get(owner).filter(|_| !only_unknown || !owner.is_known())
            else {
                continue;
            };
            let things = account.things.iter().filter(|(id, _)| Some(**id) != keep);
            let first = things.filter_map(|(id, thing)| rank(*held, *id, thing)).min();
            found =
                first.map(|first| (*held, first)).into_iter().chain(found).min_by_key(|(_, first)| *first);
        }
        found.map(|(_, (_, id))| id)
    }

    fn put(&mut self, owner: Owner, id: Id, thing: Thing<H>) {
        let size = thing.size;
        let account =
            self.accounts.entry(owner.clone()).or_insert(Account { held: 0, things: BTreeMap::new() });
        account.things.insert(id, thing);
        self.owners.insert(id, owner.clone());
        self.change(&owner, |held| held + size);
    }

    fn remove(&mut self, id: Id) -> Option<Thing<H>> {
        let owner = self.owners.remove(&id)?;
        let thing = self.accounts.get_mut(&owner)?.things.remove(&id)?;
        self.change(&owner, |held| held - thing.size);
        Some(thing)
    }

    fn resize(&mut self, id: Id, change: impl FnOnce(usize) -> usize) {
        let Some(owner) = self.owners.get(&id).cloned() else { return };
        let account = self.accounts.get_mut(&owner);
        let Some(thing) = account.and_then(|account| account.things.get_mut(&id)) else { return };
        let before = thing.size;
        thing.size = change(before);
        let after = thing.size;
        self.change(&owner, |held| held - before + after);
    }

    /// Keeps all sums; an account that holds nothing is forgotten.
    fn change(&mut self, owner: &Owner, change: impl FnOnce(usize) -> usize) {
        let Some(account) = self.accounts.get_mut(owner) else { return };
        let before = account.held;
        account.held = change(before);
        let (after, is_empty) = (account.held, account.things.is_empty());
        self.held = self.held - before + after;
        if !owner.is_known() {
            self.unknown = self.unknown - before + after;
        }
        self.by_size.remove(&(before, owner.clone()));
        if is_empty {
            self.accounts.remove(owner);
        } else {
            self.by_size.insert((after, owner.clone()));
        }
    }
}

/// Something that nobody needs and everybody likes to have more of: an owner may have as much as is left for others.
/// So one that takes all it can has half, two have a third each, and a newcomer always finds some.
#[derive(Debug)]
pub struct Pool {
    limit: usize,
    held: usize,
    by_owner: HashMap<Owner, usize>,
}

impl Pool {
    pub fn new(limit: usize) -> Self {
        Self { limit, held: 0, by_owner: HashMap::new() }
    }

    /// Whether the owner may have so much more, which it then has.
    pub fn take(&mut self, owner: &Owner, more: usize) -> bool {
        let held = self.by_owner.get(owner).copied().unwrap_or(0) + more;
        let is_granted = held <= self.limit - self.held;
        if is_granted {
            self.held += more;
            self.by_owner.insert(owner.clone(), held);
        }
        is_granted
    }

    /// Gives back what this owner took.
    pub fn give_back(&mut self, owner: &Owner, size: usize) {
        let Some(held) = self.by_owner.get_mut(owner) else { return };
        let size = size.min(*held);
        *held -= size;
        self.held -= size;
        if *held == 0 {
            self.by_owner.remove(owner);
        }
    }

    pub fn held(&self) -> usize {
        self.held
    }
}

#[cfg(test)]
mod tests;
