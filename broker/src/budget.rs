//! Bytes the broker may hold for requests and for answers under way, over all doors and connections; and how many connections.
//!
//! Whoever receives takes room before the bytes are there; whoever answers gives it back when they are sent. It knows no
//! protocol, and never takes room away from who holds it: that is the doors' affair, by their limits of time.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, TryAcquireError};

/// Requests up to this size have a part of the memory to themselves, so that claims of large ones do not keep them waiting.
/// Twice the largest batch a topic takes by default.
pub(crate) const SMALL_REQUEST_BYTES: usize = 2 << 20;

/// Room for a message of which nothing has arrived.
pub(crate) const FIRST_BYTES: usize = 8 << 10;

/// The second room for an arriving message is this part of its size, the third all of it. So a claim holds at most this many
/// times what was sent.
const SIZE_PARTS: usize = 16;

/// How long a message that holds room waits for more. Two that wait for each other's room do not wait for ever.
const GROWTH_PATIENCE: Duration = Duration::from_secs(10);

/// Least room a read takes: a default batch.
const READ_BYTES_MIN: usize = 1 << 20;

/// Refused clients of one door that are told why at once.
const TOLD_AT_ONCE: usize = 16;

/// Parts of the answers' memory that one answer may take: one.
const ANSWER_PARTS: usize = 8;

/// Lists that are made at once. Each is work for a processor, and waits for nothing but room.
const LISTS_AT_ONCE: usize = 16;

/// What sessions may hold is this part of the answers' memory, beside it.
const SESSION_PARTS: usize = 4;

/// What the doors may hold. Cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct Budget {
    /// For requests up to `SMALL_REQUEST_BYTES`.
    pub(crate) small_requests: Pool,
    /// For larger ones.
    pub(crate) large_requests: Pool,
    /// For batches that were read, and for answers of other kinds that are more than a few bytes, until they are sent.
    pub(crate) answers: Pool,
    /// Places for lists that are being made: how large one is shows when it is there, and only then takes room of the answers.
    pub(crate) lists: Pool,
    /// For what sessions of readers remember of their partitions.
    pub(crate) sessions: Pool,
}

/// A number of bytes to be held at once.
#[derive(Clone, Debug)]
pub(crate) struct Pool {
    free: Arc<Semaphore>,
    bytes: usize,
}

/// Bytes held; given back when dropped. The default holds none.
#[derive(Debug, Default)]
pub(crate) struct Held(Option<OwnedSemaphorePermit>);

impl Budget {
    /// One half of `request_bytes` is for small requests, the other for large ones.
    pub(crate) fn new(request_bytes: usize, answer_bytes: usize) -> Budget {
        let half = request_bytes / 2;
        Budget {
            small_requests: Pool::new(half),
            large_requests: Pool::new(half),
            answers: Pool::new(answer_bytes),
            lists: Pool::new(LISTS_AT_ONCE),
            sessions: Pool::new(answer_bytes / SESSION_PARTS),
        }
    }

    /// What requests hold now, in bytes.
    pub(crate) fn requests_held(&self) -> usize {
        self.small_requests.held() + self.large_requests.held()
    }

    /// The memory that a request of `size` bytes is taken from.
    pub(crate) fn requests(&self, size: usize) -> &Pool {
        if size <= SMALL_REQUEST_BYTES { &self.small_requests } else { &self.large_requests }
    }
}

impl Pool {
    pub(crate) fn new(bytes: usize) -> Pool {
        let bytes = bytes.min(Semaphore::MAX_PERMITS).min(u32::MAX as usize);
        Pool { free: Arc::new(Semaphore::new(bytes)), bytes }
    }

    /// All of it, in bytes.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// What is held of it now, in bytes.
    pub(crate) fn held(&self) -> usize {
        self.bytes - self.free.available_permits()
    }

    /// Whether less than an eighth is free: who holds room and makes no progress keeps others from theirs.
    pub(crate) fn is_short(&self) -> bool {
        self.free.available_permits() < self.bytes / 8
    }

    /// Takes `bytes`, or all there is if that is less, in the order of the calls. Cancel safe.
    pub(crate) async fn take(&self, bytes: usize) -> Held {
        let permits = self.permits(bytes);
        Held(Some(Arc::clone(&self.free).acquire_many_owned(permits).await.expect("it is never closed")))
    }

    /// Takes `bytes`, or all there is if that is less, if they are free now.
    pub(crate) fn try_take(&self, bytes: usize) -> Option<Held> {
        match Arc::clone(&self.free).try_acquire_many_owned(self.permits(bytes)) {
            Ok(permit) => Some(Held(Some(permit))),
            Err(TryAcquireError::NoPermits) => None,
            Err(TryAcquireError::Closed) => unreachable!("it is never closed"),
        }
    }

    fn permits(&self, bytes: usize) -> u32 {
        u32::try_from(bytes.min(self.bytes)).expect("a pool is at most u32::MAX bytes")
    }

    /// Takes room to read into: `wanted` bytes or fewer, as much as there is, so that a full pool makes answers small before it
    /// makes them wait. Cancel safe.
    pub(crate) async fn take_for_read(&self, wanted: usize) -> Held {
        let mut bytes = wanted.min(self.bytes / ANSWER_PARTS);
        loop {
            if let Some(held) = self.try_take(bytes) {
                return held;
            }
            if bytes <= READ_BYTES_MIN {
                return self.take(bytes).await;
            }
            bytes = READ_BYTES_MIN.max(bytes / 2);
        }
    }
}

impl Held {
    /// How much, in bytes.
    pub(crate) fn bytes(&self) -> usize {
        self.0.as_ref().map_or(0, OwnedSemaphorePermit::num_permits)
    }

    /// Gives back what is over `bytes`.
    pub(crate) fn shrink(&mut self, bytes: usize) {
        let excess = self.bytes().saturating_sub(bytes);
        if let Some(permit) = &mut self.0 {
            drop(permit.split(excess));
        }
    }

    /// Adds what `other` holds, of the same pool.
    pub(crate) fn merge(&mut self, other: Held) {
        match (&mut self.0, other.0) {
            (Some(permit), Some(other)) => permit.merge(other),
            (held @ None, other) => *held = other,
            (Some(_), None) => {}
        }
    }
}

/// No room came for a message that is half here.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the broker's memory for requests stayed full; retry later")]
pub(crate) struct Crowded;

/// How fast a message has to arrive, while it is waited for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pace {
    /// Time for a message of no size.
    pub(crate) grace: Duration,
    /// For each of so many bytes, a second more.
    pub(crate) bytes_per_second: usize,
    /// While memory is short, what counts is how much arrives in each such time...
    pub(crate) window: Duration,
    /// ...which has to be so much.
    pub(crate) window_bytes: usize,
}

impl Pace {
    /// Slower than any link that carries such requests on purpose; and while others wait, than a mobile one.
    pub(crate) const DEFAULT: Pace = Pace {
        grace: Duration::from_secs(30),
        bytes_per_second: 1 << 20,
        window: Duration::from_secs(3),
        window_bytes: 384 << 10,
    };

    fn allows(self, size: usize) -> Duration {
        self.grace + Duration::from_secs((size / self.bytes_per_second) as u64)
    }
}

/// A message arrives too slowly to be waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a message stopped in its middle")]
pub(crate) struct TooSlow;

/// Room for one message while it arrives: at first `FIRST_BYTES`, then a small part of its size, then all of it. So a claim holds
/// next to nothing before it is followed by bytes, and those that wait for their room hold little of others'.
#[derive(Debug)]
pub(crate) struct Arriving {
    pool: Pool,
    /// Bytes the message claims.
    size: usize,
    held: Held,
    room: usize,
    pace: Pace,
    /// Time that the peer was waited for; that for room is not its fault.
    waited: Duration,
    /// `waited` and what was here when the window began.
    window: (Duration, usize),
}

impl Arriving {
    /// Waits for the first room. It holds nothing meanwhile, so it may wait as long as it takes. Cancel safe.
    pub(crate) async fn begin(budget: &Budget, size: usize, pace: Pace) -> Arriving {
        let pool = budget.requests(size).clone();
        let room = size.min(FIRST_BYTES);
        let held = pool.take(room).await;
        Arriving { pool, size, held, room, pace, waited: Duration::ZERO, window: (Duration::ZERO, 0) }
    }

    /// Bytes of the message there is room for.
    pub(crate) fn room(&self) -> usize {
        self.room
    }

    /// Makes the next larger room.
    ///
    /// # Errors
    /// None came free in time.
    pub(crate) async fn grow(&mut self) -> Result<(), Crowded> {
        let part = self.size / SIZE_PARTS;
        let room = if self.room < part { part } else { self.size };
        self.hold(room).await?;
        self.room = room;
        Ok(())
    }

    /// Holds `bytes` in all, whatever the message's size: its decoded form may be larger.
    ///
    /// # Errors
    /// They did not come free in time.
    pub(crate) async fn hold(&mut self, bytes: usize) -> Result<(), Crowded> {
        let lacks = bytes.min(self.pool.bytes).saturating_sub(self.held.bytes());
        if lacks > 0 {
            let more = tokio::time::timeout(GROWTH_PATIENCE, self.pool.take(lacks)).await;
            self.held.merge(more.map_err(|_| Crowded)?);
        }
        Ok(())
    }

    /// How long to wait for more of it before telling `waited`.
    pub(crate) fn patience(&self) -> Duration {
        self.pace.window.min(self.pace.allows(self.size).saturating_sub(self.waited))
    }

    /// Notes for how long the peer was waited for, and how much is here by now.
    ///
    /// # Errors
    /// It is not worth waiting longer.
    pub(crate) fn waited(&mut self, time: Duration, arrived: usize) -> Result<(), TooSlow> {
        self.waited += time;
        let mut crawls = false;
        let (began, had) = self.window;
        if self.waited - began >= self.pace.window {
            crawls = arrived - had < self.pace.window_bytes && self.pool.is_short();
            self.window = (self.waited, arrived);
        }
        if crawls || self.waited >= self.pace.allows(self.size) { Err(TooSlow) } else { Ok(()) }
    }

    /// The message is here: what it holds until it is answered.
    pub(crate) fn arrived(self) -> Held {
        self.held
    }
}

/// Counts the connections of one door, up to a bound. Cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct Connections {
    door: &'static str,
    places: Pool,
    refused: Arc<AtomicU64>,
    /// Refused clients that are being told so.
    telling: Pool,
}

/// Connections of each door.
#[derive(Clone, Debug)]
pub(crate) struct Doors {
    pub(crate) grpc: Connections,
    pub(crate) kafka: Connections,
    pub(crate) http: Connections,
    /// Of the internal door: those on which nobody has proven himself yet.
    pub(crate) strangers: Connections,
}

impl Connections {
    /// At most `max` at once.
    pub(crate) fn new(door: &'static str, max: usize) -> Connections {
        Connections { door, places: Pool::new(max), refused: Arc::default(), telling: Pool::new(TOLD_AT_ONCE) }
    }

    /// A place for one more, kept until dropped; `None` when all are taken.
    pub(crate) fn enter(&self, peer: SocketAddr) -> Option<Held> {
        let place = self.places.try_take(1);
        // A flood of clients does not become a flood of lines.
        if place.is_none() && (self.refused.fetch_add(1, Ordering::Relaxed) + 1).is_power_of_two() {
            let (door, max) = (self.door, self.places.bytes());
            tracing::warn!(door, max, %peer, "refused a connection, there being as many as may be; see millpond_connections_refused");
        }
        place
    }

    /// Connections that are open.
    pub(crate) fn open(&self) -> usize {
        self.places.held()
    }

    /// Clients there was no place for.
    pub(crate) fn refused(&self) -> u64 {
        self.refused.load(Ordering::Relaxed)
    }

    /// A place for telling a client that it was refused; `None` when there are too many of them to be polite.
    pub(crate) fn tell(&self) -> Option<Held> {
        self.telling.try_take(1)
    }
}

impl Doors {
    /// At most `max` connections for each, and so many strangers at the internal door.
    pub(crate) fn new(max: usize, strangers_max: usize) -> Doors {
        let door = |name| Connections::new(name, max);
        let strangers = Connections::new("internal", strangers_max);
        Doors { grpc: door("gRPC"), kafka: door("Kafka"), http: door("HTTP"), strangers }
    }

    /// Each with the name of its door in metrics.
    pub(crate) fn named(&self) -> [(&'static str, &Connections); 4] {
        [("grpc", &self.grpc), ("kafka", &self.kafka), ("http", &self.http), ("internal", &self.strangers)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::FutureExt;

    const MIB: usize = 1 << 20;

    async fn begin(budget: &Budget, size: usize) -> Arriving {
        Arriving::begin(budget, size, Pace::DEFAULT).await
    }

    #[tokio::test]
    async fn claims_hold_what_was_sent_and_small_requests_pass_large_ones() {
        let budget = Budget::new(16 * MIB, MIB);
        let mut large = begin(&budget, 8 * MIB).await;
        assert_eq!((large.room(), budget.large_requests.held()), (FIRST_BYTES, FIRST_BYTES), "a claim alone");
        large.grow().await.expect("there is room");
        assert_eq!(budget.large_requests.held(), MIB / 2);
        large.grow().await.expect("there is room");
        assert_eq!(budget.large_requests.held(), 8 * MIB, "all of the large requests' memory");
        let mut other = begin(&budget, 8 * MIB).boxed();
        assert!((&mut other).now_or_never().is_none(), "waits, holding nothing");
        assert_eq!(begin(&budget, SMALL_REQUEST_BYTES).await.room(), FIRST_BYTES);
        drop(large.arrived());
        assert_eq!(other.await.room(), FIRST_BYTES);
    }

    #[tokio::test]
    async fn what_a_message_holds_is_given_back_with_it() {
        let budget = Budget::new(16 * MIB, MIB);
        let mut message = begin(&budget, 100).await;
        message.hold(800).await.expect("there is room");
        let mut held = message.arrived();
        held.merge(Held::default());
        assert_eq!((held.bytes(), budget.requests_held()), (800, 800));
        drop(held);
        assert_eq!(budget.requests_held(), 0);
    }

    #[tokio::test]
    async fn who_crawls_is_let_go_sooner_while_memory_is_short() {
        let budget = Budget::new(4 * MIB, MIB);
        let second = Duration::from_secs(1);
        let mut message = begin(&budget, MIB).await;
        let kib = 1 << 10;
        assert_eq!(message.waited(4 * second, kib), Ok(()), "nobody else needs the room");
        let all = budget.small_requests.take(2 * MIB - FIRST_BYTES).await;
        assert_eq!(message.waited(2 * second, kib), Ok(()), "3 s are not over");
        assert_eq!(message.waited(second, 385 * kib), Ok(()), "fast enough");
        assert_eq!(message.waited(3 * second, 768 * kib), Err(TooSlow));
        drop(all);
        assert_eq!(message.waited(3 * second, 768 * kib), Ok(()));
        assert_eq!(message.waited(18 * second, MIB - 1), Err(TooSlow), "30 s, and 1 s for each MiB");
        assert!(begin(&budget, 0).await.patience() <= 3 * second, "looks whether memory is short");
    }

    #[tokio::test]
    async fn a_full_pool_makes_answers_small_and_then_makes_them_wait() {
        let pool = Pool::new(16 * MIB);
        let mut taken = Vec::new();
        for expected in [2, 2, 2, 2, 2, 2, 2] {
            let held = pool.take_for_read(100 * MIB).await;
            assert_eq!(held.bytes(), expected * MIB, "one part at most");
            taken.push(held);
        }
        taken[0].shrink(MIB / 2);
        let most = pool.take(2 * MIB).await;
        let less = pool.take_for_read(2 * MIB).await;
        assert_eq!(less.bytes(), MIB, "less than was wanted");
        let half = pool.take_for_read(MIB / 2).await;
        assert!(pool.take_for_read(MIB).now_or_never().is_none(), "nothing is left");
        assert!(pool.is_short());
        drop((most, less, half));
        assert_eq!(pool.take_for_read(MIB).await.bytes(), MIB);
        drop(taken);
        assert_eq!(pool.held(), 0);
    }

    #[test]
    fn connections_are_counted_until_they_end() {
        let doors = Doors::new(2, 1);
        let enter = || doors.kafka.enter(SocketAddr::from(([127, 0, 0, 1], 1)));
        let (one, _two) = (enter(), enter());
        assert!(one.is_some() && enter().is_none());
        drop(one);
        assert_eq!((doors.kafka.open(), doors.kafka.refused(), doors.grpc.open()), (1, 1, 0));
        assert!(enter().is_some());
    }
}
