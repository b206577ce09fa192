//! What of a server is scarce, and what connections and exchanges hold of it.
//!
//! In: places that are asked for, marks of those that wait for their client. Out: places, or a refusal; and, to who held
//! one, that it is lost to somebody else. Who loses is decided in `headrace_core::shares`; this file keeps one table
//! for each scarce thing, for all workers, and wakes the losers. It must not know what a connection or an exchange is.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use headrace_core::shares::{Full, Id, Mark, Owner, Pool, Shares, Turns};
use headrace_core::{Error, Kind};
use tokio::sync::Notify;

use crate::config::Limits;

/// How somebody hears that what was held is lost.
#[derive(Debug, Default)]
pub struct Loss {
    is_lost: AtomicBool,
    lost: Notify,
}

impl Loss {
    fn tell(&self) {
        self.is_lost.store(true, Ordering::Relaxed);
        self.lost.notify_one();
    }

    pub fn is_lost(&self) -> bool {
        self.is_lost.load(Ordering::Relaxed)
    }

    /// Resolves once it is lost. One task may wait at a time. Cancel-safe.
    pub async fn lost(&self) {
        while !self.is_lost() {
            self.lost.notified().await;
        }
    }
}

/// One kind of scarce thing.
#[derive(Clone)]
pub struct Table {
    shares: Arc<Mutex<Shares<Arc<Loss>>>>,
    turns: Turns,
    /// Things of all tables that were lost to somebody else.
    displaced: Arc<AtomicU64>,
}

impl Table {
    fn new(limit: usize, reserve: usize, turns: &Turns, displaced: &Arc<AtomicU64>) -> Self {
        let shares = Arc::new(Mutex::new(Shares::new(limit, reserve)));
        Self { shares, turns: turns.clone(), displaced: displaced.clone() }
    }

    fn tell(&self, lost: &[Arc<Loss>]) {
        self.displaced.fetch_add(lost.len() as u64, Ordering::Relaxed);
        lost.iter().for_each(|loss| loss.tell());
    }

    /// A place that waits for its peer from the beginning.
    ///
    /// # Errors
    /// [`Full`]: nobody could be made to lose one.
    pub fn take_waiting(&self, owner: Owner) -> Result<Place, Full> {
        let mark = Arc::new(Mark::new(&self.turns));
        mark.wait();
        self.take(owner, 1, mark, Arc::default())
    }

    fn take(&self, owner: Owner, size: usize, mark: Arc<Mark>, loss: Arc<Loss>) -> Result<Place, Full> {
        let mut lost = Vec::new();
        let taken = self.lock().take(owner, size, mark, loss.clone(), &mut lost);
        self.tell(&lost);
        Ok(Place { table: self.clone(), id: taken?, loss })
    }

    /// Makes the owner that holds most lose one, where something waits.
    pub fn lose_one(&self, owner: &Owner) -> bool {
        let lost = self.lock().lose_one(owner);
        self.tell(lost.as_slice());
        lost.is_some()
    }

    pub fn held(&self) -> usize {
        self.lock().held()
    }

    fn lock(&self) -> MutexGuard<'_, Shares<Arc<Loss>>> {
        self.shares.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One thing that is held, given back when dropped.
pub struct Place {
    table: Table,
    id: Id,
    pub loss: Arc<Loss>,
}

impl Place {
    fn hand_over(&self, owner: Owner) {
        self.table.lock().hand_over(self.id, owner);
    }

    fn grow(&self, more: usize) -> Result<(), Full> {
        let mut lost = Vec::new();
        let grown = self.table.lock().grow(self.id, more, &mut lost);
        self.table.tell(&lost);
        grown
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.table.lock().release(self.id);
    }
}

/// One table for each scarce thing; who waits longest is comparable between all of them.
pub struct Tables {
    turns: Turns,
    pub tcp_handshakes: Table,
    pub quic_handshakes: Table,
    pub connections: Table,
    /// Requests over HTTP/3 whose head has not come whole.
    pub heads: Table,
    pub exchanges: Table,
    /// Bytes of requests' bodies.
    pub bodies: Table,
    /// Bytes by which what is sent to clients may grow beyond what every connection has.
    growth: Mutex<Pool>,
    displaced: Arc<AtomicU64>,
    ipv4_bits: u8,
    ipv6_bits: u8,
}

impl Tables {
    pub fn new(limits: &Limits) -> Self {
        let turns = Turns::default();
        let reserve = |limit: usize| limit / 100 * usize::from(limits.reserve_percent);
        let displaced = Arc::default();
        let table = |limit, reserve| Table::new(limit, reserve, &turns, &displaced);
        Self {
            tcp_handshakes: table(limits.max_handshakes, 0),
            quic_handshakes: table(limits.max_handshakes, 0),
            connections: table(limits.max_connections, reserve(limits.max_connections)),
            heads: table(limits.max_waiting_heads, 0),
            exchanges: table(limits.max_exchanges, reserve(limits.max_exchanges)),
            bodies: table(limits.max_buffered_bytes, reserve(limits.max_buffered_bytes)),
            growth: Mutex::new(Pool::new(limits.max_unread_bytes)),
            displaced: displaced.clone(),
            turns: turns.clone(),
            ipv4_bits: limits.ipv4_block_bits,
            ipv6_bits: limits.ipv6_block_bits,
        }
    }

    /// Bytes by which what is sent to clients has grown.
    pub fn grown(&self) -> usize {
        lock(&self.growth).held()
    }

    /// How many things were lost to somebody else, at a limit.
    pub fn displaced(&self) -> u64 {
        self.displaced.load(Ordering::Relaxed)
    }

    /// Whose somebody is who has only an address.
    pub fn block(&self, address: std::net::IpAddr) -> Owner {
        Owner::block(address, self.ipv4_bits, self.ipv6_bits)
    }
}

/// One connection's place, and whether anything on it does not wait for the client.
pub struct ConnectionShare {
    tables: Arc<Tables>,
    owner: Mutex<Owner>,
    /// Exchanges that do not wait for the client.
    busy: AtomicUsize,
    mark: Arc<Mark>,
    pub loss: Arc<Loss>,
    place: Mutex<Option<Place>>,
}

impl ConnectionShare {
    /// Of a connection that may still be shaking hands: it has no place among the connections yet.
    pub fn new(tables: Arc<Tables>, owner: Owner) -> Arc<Self> {
        let mark = Arc::new(Mark::new(&tables.turns));
        mark.wait();
        // It waits for its client, or it has somebody's answer.
        mark.note_served();
        Arc::new(Self {
            tables,
            owner: Mutex::new(owner),
            busy: AtomicUsize::new(0),
            mark,
            loss: Arc::default(),
            place: Mutex::default(),
        })
    }

    /// Takes its place.
    ///
    /// # Errors
    /// [`Full`].
    pub fn place(&self) -> Result<(), Full> {
        let taken = self.tables.connections.take(self.owner(), 1, self.mark.clone(), self.loss.clone())?;
        *lock(&self.place) = Some(taken);
        Ok(())
    }

    pub fn owner(&self) -> Owner {
        lock(&self.owner).clone()
    }

    /// Whether its owner may have so many more bytes on the way to clients, which it then has.
    pub fn take_growth(&self, owner: &Owner, bytes: usize) -> bool {
        lock(&self.tables.growth).take(owner, bytes)
    }

    pub fn give_growth_back(&self, owner: &Owner, bytes: usize) {
        lock(&self.tables.growth).give_back(owner, bytes);
    }

    fn hand_over(&self, owner: Owner) {
        *lock(&self.owner) = owner.clone();
        if let Some(place) = &*lock(&self.place) {
            place.hand_over(owner);
        }
    }

    fn begin(&self) {
        self.busy.fetch_add(1, Ordering::Relaxed);
        self.mark.go_on();
    }

    fn end(&self) {
        if self.busy.fetch_sub(1, Ordering::Relaxed) == 1 {
            self.mark.wait();
        }
    }
}

/// What one exchange holds: a place, and room for the request's body.
pub struct ExchangeShare {
    pub connection: Arc<ConnectionShare>,
    mark: Arc<Mark>,
    loss: Arc<Loss>,
    place: Place,
    body: Mutex<Option<Place>>,
}

impl ExchangeShare {
    /// # Errors
    /// [`Full`].
    pub fn take(connection: &Arc<ConnectionShare>, owner: Owner) -> Result<Arc<Self>, Full> {
        let tables = &connection.tables;
        let (mark, loss) = (Arc::new(Mark::new(&tables.turns)), Arc::<Loss>::default());
        let place = tables.exchanges.take(owner, 1, mark.clone(), loss.clone())?;
        connection.begin();
        Ok(Arc::new(Self { connection: connection.clone(), mark, loss, place, body: Mutex::default() }))
    }

    /// It waits for its client from now on.
    pub fn wait(&self) {
        if self.mark.wait() {
            self.connection.end();
        }
    }

    /// What it waited for has come.
    pub fn go_on(&self) {
        // Asked for each token: looking is cheaper than changing.
        if self.mark.is_waiting() && self.mark.go_on() {
            self.connection.begin();
        }
    }

    /// The client gets its answer.
    pub fn note_served(&self) {
        self.mark.note_served();
    }

    /// It, its body and its connection belong to this owner from now on.
    pub fn own(&self, owner: &Owner) {
        self.place.hand_over(owner.clone());
        if let Some(body) = &*lock(&self.body) {
            body.hand_over(owner.clone());
        }
        self.connection.hand_over(owner.clone());
    }

    /// Resolves when its place is lost to somebody else.
    pub async fn lost(&self) {
        self.loss.lost().await;
    }

    pub fn is_lost(&self) -> bool {
        self.loss.is_lost()
    }

    /// Makes room for more of the body.
    ///
    /// # Errors
    /// [`Kind::Overloaded`].
    pub fn grow_body(&self, more: usize) -> Result<(), Error> {
        let full = |Full| Error::new(Kind::Overloaded, "limits.max_buffered_bytes is reached");
        let mut body = lock(&self.body);
        if let Some(place) = &*body {
            return place.grow(more).map_err(full);
        }
        let (owner, bodies) = (self.connection.owner(), &self.connection.tables.bodies);
        let place = bodies.take(owner, more, self.mark.clone(), self.loss.clone()).map_err(full)?;
        *body = Some(place);
        Ok(())
    }

    fn release_body(&self) {
        lock(&self.body).take();
    }
}

impl Drop for ExchangeShare {
    fn drop(&mut self) {
        if !self.mark.is_waiting() {
            self.connection.end();
        }
    }
}

/// A whole body of a request, and the room that it takes.
pub struct KeptBody {
    pub bytes: Bytes,
    share: Option<Arc<ExchangeShare>>,
}

impl KeptBody {
    /// Takes over the room that the body has of the share.
    pub fn new(bytes: Bytes, share: Arc<ExchangeShare>) -> Self {
        Self { bytes, share: Some(share) }
    }

    /// Bytes that are counted elsewhere.
    pub fn uncharged(bytes: Bytes) -> Self {
        Self { bytes, share: None }
    }
}

impl Drop for KeptBody {
    fn drop(&mut self) {
        if let Some(share) = &self.share {
            share.release_body();
        }
    }
}

/// Resolves when a count, of what comes from somebody, has stood still for so long.
pub async fn silence(count: impl Fn() -> u64, limit: Duration) {
    let (mut last, mut since) = (count(), Instant::now());
    while since.elapsed() < limit {
        tokio::time::sleep(limit / 8).await;
        let now = count();
        if now != last {
            (last, since) = (now, Instant::now());
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
