//! The task of one shard: takes it, reads it back, serves it, and commits what it makes, one transaction at a time (rules O1, O3, K5).
//!
//! It alone touches the machine. No answer leaves, and nothing is done, before what it rests on is durable.

use super::machine::{Carry, Loaded, Machine, Made, MadeBy, Message, Office};
use super::queue::{Due, Queue, Then};
use super::world::World;
use super::{Directory, Standing};
use crate::clock;
use crate::metrics::CoordinatorMeters;
use crate::session::SessionHandle;
use futures::future::BoxFuture;
use millpond_core::groups::{Now, Token};
use millpond_metadata::store::{HeldShard, Outcome, Session, ShardBatch, Store, StoreError, Takeover};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::{Semaphore, mpsc, oneshot, watch};
use tokio_util::sync::CancellationToken;

/// Pause between tries while the metadata store cannot be used, or another owner stands.
const RETRY: Duration = Duration::from_millis(200);

/// How long a change that nobody waits for waits for others, with which it is one commit.
const LAZY: Duration = Duration::from_millis(100);

/// Requests that wait for a lane. Their bytes are under the doors' budget; the rest waits there.
const INBOX: usize = 256;

/// What a lane works with.
pub(super) struct Lane<M: Machine> {
    pub(super) shard: u32,
    pub(super) store: Store,
    /// The session that the shard is owned in.
    pub(super) session: Session,
    /// Tells whether that session was heard of lately.
    pub(super) handle: SessionHandle,
    pub(super) world: watch::Receiver<Arc<World>>,
    pub(super) directory: Directory<M>,
    pub(super) services: M::Services,
    pub(super) meters: CoordinatorMeters,
    /// Shards that are read back at the same time.
    pub(super) loads: Arc<Semaphore>,
    /// What the steady clock counts from.
    pub(super) started: Instant,
    /// The shard belongs elsewhere: finish, give it up, end.
    pub(super) give_up: CancellationToken,
    /// The session is lost (rule B3): end at once.
    pub(super) lost: CancellationToken,
}

/// A commit under way gives back what it holds, and whether it is durable.
type UnderWay<M> = BoxFuture<'static, (HeldShard, Following<M>, bool)>;

/// What follows from a commit.
type Following<M> = Then<<M as Machine>::Answer, <M as Machine>::Effect>;

/// A shard that takes requests.
struct Serving<M: Machine> {
    machine: M,
    queue: Queue<M::Answer, M::Effect>,
    carrier: M::Carrier,
    /// Taken along by the commit under way.
    held: Option<HeldShard>,
    under_way: Option<UnderWay<M>>,
    replies: BTreeMap<Token, oneshot::Sender<M::Answer>>,
    next_token: u64,
    /// When what waits for company goes alone; none if nothing does.
    lazy_until: Option<Instant>,
    /// The machine made what cannot be persisted: it takes nothing more.
    spoilt: bool,
    inbox: mpsc::Receiver<Message<M>>,
}

impl<M: Machine> Lane<M> {
    /// Lives as long as the shard is this broker's. Returns when it is not, or never came to be.
    pub(super) async fn run(mut self) {
        let lost = self.lost.clone();
        tokio::select! {
            () = lost.cancelled() => {}
            () = self.live() => {}
        }
        self.directory.set(self.shard, None);
    }

    async fn live(&mut self) {
        let Some(held) = self.take().await else { return };
        self.directory.set(self.shard, Some(Standing::Loading));
        let Some(loaded) = self.load(&held).await else {
            // The next life reads it anew.
            return tokio::time::sleep(RETRY).await;
        };
        let (sender, inbox) = mpsc::channel(INBOX);
        let (shard, epoch, give_up) = (self.shard, held.coord_epoch(), self.give_up.clone());
        let office = Office { shard, epoch, lane: sender.clone(), give_up };
        let mut serving = Serving {
            machine: loaded.machine,
            queue: Queue::default(),
            carrier: M::carrier(office, &self.services),
            held: Some(held),
            under_way: None,
            replies: BTreeMap::new(),
            next_token: 0,
            lazy_until: None,
            spoilt: false,
            inbox,
        };
        if loaded.made.is_too_large() {
            tracing::error!(kind = M::KIND.word(), shard, "what a shard was to be put right with cannot be persisted");
            return tokio::time::sleep(RETRY).await;
        }
        serving.queue.push(loaded.made);
        self.directory.set(self.shard, Some(Standing::Serving { epoch, lane: sender }));
        if let Some(held) = self.serve(serving).await {
            // If that is not settled, it is given back later.
            let released = self.store.release_shard(&self.session, &held).await;
            tracing::debug!(kind = M::KIND.word(), shard = self.shard, ?released, "a shard was given up");
        }
    }

    /// Gives up a shard that belongs elsewhere and that nobody serves here, but whose owner this broker is: a take that ended unsettled has
    /// arrived, a release has not, or what was taken could not be read. Tries once.
    pub(super) async fn give_back(self) {
        let try_once = async {
            // The lane before may have released it a moment ago.
            tokio::time::sleep(RETRY).await;
            let owner = self.world.borrow().owners.get(&(M::KIND, self.shard)).map(|(owner, _)| *owner);
            if owner == Some(self.session.rid.broker) {
                let released = self.store.disown_shard(&self.session, M::KIND, self.shard).await;
                tracing::debug!(kind = M::KIND.word(), shard = self.shard, ?released, "a shard was given back");
            }
        };
        tokio::select! {
            () = self.lost.cancelled() => {}
            () = try_once => {}
        }
    }

    /// Waits until the shard is this broker's; none if it belongs elsewhere by then.
    async fn take(&mut self) -> Option<HeldShard> {
        loop {
            match self.store.take_shard(&self.session, M::KIND, self.shard).await {
                Ok(Takeover::Taken(held)) => {
                    let epoch = held.coord_epoch();
                    tracing::info!(kind = M::KIND.word(), shard = self.shard, epoch, "a shard was taken");
                    return Some(held);
                }
                Ok(Takeover::Fenced) => {
                    // The keeper hears of it.
                    self.lost.cancelled().await;
                    return None;
                }
                Ok(Takeover::Owned(_) | Takeover::Again) | Err(StoreError::Unavailable(_)) => {}
                Err(error) => tracing::error!(%error, shard = self.shard, "a shard cannot be taken"),
            }
            tokio::select! {
                () = self.give_up.cancelled() => return None,
                () = tokio::time::sleep(RETRY) => {}
            }
        }
    }

    async fn load(&mut self, held: &HeldShard) -> Option<Loaded<M>> {
        let turns = Arc::clone(&self.loads);
        let _turn = turns.acquire_owned().await.expect("it is never closed");
        let began = clock::monotonic();
        let world = Arc::clone(&self.world.borrow_and_update());
        match M::load(&self.store, held, now_since(self.started), &world).await {
            Ok(loaded) => {
                let (took, records, bytes) = (clock::monotonic() - began, loaded.records, loaded.bytes);
                self.meters.loaded(M::KIND.word(), records, bytes, took);
                tracing::info!(
                    kind = M::KIND.word(),
                    shard = self.shard,
                    records,
                    bytes,
                    ?took,
                    "a shard was read back"
                );
                Some(loaded)
            }
            Err(error) => {
                tracing::error!(kind = M::KIND.word(), shard = self.shard, %error, "a shard cannot be read back");
                None
            }
        }
    }

    /// Serves until the shard is lost (`None`), or belongs elsewhere and all it made is durable.
    async fn serve(&mut self, mut serving: Serving<M>) -> Option<HeldShard> {
        let (give_up, mut leaving) = (self.give_up.clone(), false);
        loop {
            self.commit_next(&mut serving, leaving);
            if leaving && serving.under_way.is_none() {
                return serving.held;
            }
            if serving.spoilt && !leaving {
                give_up.cancel();
            }
            let due = serving.machine.next_deadline().map(|at_ms| self.started + Duration::from_millis(at_ms));
            tokio::select! {
                biased;
                (held, then, durable) = committed::<M>(&mut serving.under_way) => {
                    serving.under_way = None;
                    if !durable {
                        return None;
                    }
                    serving.held = Some(held);
                    serving.go_on(then);
                }
                () = give_up.cancelled(), if !leaving => {
                    leaving = true;
                    self.directory.set(self.shard, None);
                    // What waits in line was not begun.
                    serving.inbox.close();
                    while serving.inbox.try_recv().is_ok() {}
                }
                // Then it is late.
                () = until(serving.lazy_until), if serving.under_way.is_none() => {}
                () = until(due), if !leaving => {
                    let made = serving.machine.tick(self.now());
                    self.take_in(&mut serving, made, None);
                }
                Ok(()) = self.world.changed(), if !leaving => {
                    let world = Arc::clone(&self.world.borrow_and_update());
                    let made = serving.machine.look_around(self.now(), &world);
                    self.take_in(&mut serving, made, None);
                }
                Some(message) = serving.inbox.recv(), if !leaving => self.on_message(&mut serving, message),
            }
        }
    }

    fn on_message(&self, serving: &mut Serving<M>, message: Message<M>) {
        // Rule B5: this process may have stood still for long. Whoever asked is told by the end of the channel.
        if !self.handle.is_fresh() {
            return;
        }
        let token = Token(serving.next_token);
        serving.next_token += 1;
        serving.replies.insert(token, message.reply);
        let refusal = serving.machine.too_large(&message.request).map(|refusal| (token, refusal));
        let made: MadeBy<M> = serving.machine.step(self.now(), token, message.request);
        self.take_in(serving, made, refusal);
    }

    /// Takes what the machine made. Where that can never be persisted, whoever asked for it is refused, and what all others were promised
    /// is made durable; the machine, which is ahead of what it can persist, goes, and the shard is taken anew.
    fn take_in(&self, serving: &mut Serving<M>, made: MadeBy<M>, refusal: Option<(Token, M::Answer)>) {
        if serving.spoilt {
            return;
        }
        if !made.is_too_large() {
            return serving.queue.push(made);
        }
        tracing::error!(
            kind = M::KIND.word(),
            shard = self.shard,
            "a request was refused: no commit takes what it changes"
        );
        serving.spoilt = true;
        serving.queue.push(Made { answers: refusal.into_iter().collect(), ..Made::default() });
    }

    /// Says what waits for nothing, and begins the next commit, if none is under way.
    fn commit_next(&self, serving: &mut Serving<M>, leaving: bool) {
        while serving.under_way.is_none() {
            let now = clock::monotonic();
            let late = leaving || serving.lazy_until.is_some_and(|until| until <= now);
            let due = serving.queue.next(late);
            serving.lazy_until =
                serving.queue.is_lazy().then(|| serving.lazy_until.filter(|_| !late).unwrap_or(now + LAZY));
            let Some(Due { batch, commit: wanted, then }) = due else { return };
            if !wanted {
                serving.go_on(then);
                continue;
            }
            let held = serving.held.take().expect("no commit is under way");
            let (store, session, meters) = (self.store.clone(), self.session, self.meters.clone());
            serving.under_way = Some(Box::pin(async move {
                let (held, durable) = commit::<M>(&store, session, held, &batch, &meters).await;
                (held, then, durable)
            }));
        }
    }

    fn now(&self) -> Now {
        now_since(self.started)()
    }
}

/// Tells both clocks, of which the steady one counts from `started`.
fn now_since(started: Instant) -> impl Fn() -> Now + Send {
    move || {
        let steady = clock::monotonic().duration_since(started);
        let steady_ms = u64::try_from(steady.as_millis()).expect("a broker runs for less than an age");
        Now { steady_ms, wall_ms: clock::wall().0 }
    }
}

impl<M: Machine> Serving<M> {
    fn go_on(&mut self, then: Following<M>) {
        for (token, answer) in then.answers {
            if let Some(reply) = self.replies.remove(&token) {
                // Whoever asked may be gone.
                let _ = reply.send(answer);
            }
        }
        if !then.effects.is_empty() {
            self.carrier.begin(then.effects);
        }
    }
}

/// Commits a batch, however often it has to be sent (rule K5); false when the shard is lost.
async fn commit<M: Machine>(
    store: &Store,
    session: Session,
    mut held: HeldShard,
    batch: &ShardBatch,
    meters: &CoordinatorMeters,
) -> (HeldShard, bool) {
    let began = clock::monotonic();
    loop {
        match store.commit_shard(&session, &mut held, batch).await {
            Ok(Outcome::Committed { .. }) => {
                meters.committed(M::KIND.word(), batch.len() as u64, clock::monotonic() - began);
                return (held, true);
            }
            Ok(Outcome::Unknown) | Err(StoreError::Unavailable(_)) => tokio::time::sleep(RETRY).await,
            Ok(Outcome::Fenced | Outcome::Conflict) => {
                tracing::warn!(kind = M::KIND.word(), shard = held.shard(), "a shard was lost to another owner");
                return (held, false);
            }
            Err(error) => {
                tracing::error!(kind = M::KIND.word(), shard = held.shard(), %error, "a commit was refused; the shard is read anew");
                return (held, false);
            }
        }
    }
}

async fn committed<M: Machine>(under_way: &mut Option<UnderWay<M>>) -> (HeldShard, Following<M>, bool) {
    match under_way {
        Some(commit) => commit.await,
        None => std::future::pending().await,
    }
}

async fn until(due: Option<Instant>) {
    match due {
        Some(due) => tokio::time::sleep_until(due.into()).await,
        None => std::future::pending().await,
    }
}
