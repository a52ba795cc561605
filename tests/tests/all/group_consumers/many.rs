//! A large group on three brokers: members join, are restarted and crash; their histories are checked, and that nobody waits for a
//! rebalance who has no part in it.
//!
//! `MILLPOND_GROUP_MEMBERS=100` asks for the size of the published figures (`tests/run group`); three partitions each.

use super::*;
use futures::StreamExt;
use millpond_sdk::{Consumer, ConsumerConfig, StartAt};
use millpond_tests::fleet::{Fleet, FleetOptions};
use std::sync::MutexGuard;
use std::sync::atomic::{AtomicUsize, Ordering};
use tokio::runtime::Runtime;
use tokio::task::JoinHandle;
use tokio::time::{Instant, MissedTickBehavior, interval};
use tokio_util::sync::CancellationToken;

const TOPIC: &str = "t";
/// Members of the suite's run.
const MEMBERS: usize = 20;
/// How much longer than without a rebalance a record may be on its way during one, in a partition that stays where it is. A group that
/// stops as a whole does so until its last member has heard of it: for a heartbeat's interval at least, and mostly for several.
const STOPS_AT_MOST: Duration = Duration::from_millis(500);
/// How often a record is written to each partition.
const TICK: Duration = Duration::from_millis(250);

/// Something that happened to a partition, as a member saw it.
#[derive(Clone, Debug)]
struct Event {
    /// Since the test began.
    at: Duration,
    member: usize,
    /// Another after each restart of the member.
    process: usize,
    partition: u32,
    what: What,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum What {
    /// The member reads it from here on.
    Begins(u64),
    /// The member has given it up, having committed this.
    GaveUp(u64),
    /// It is gone: the member crashed, or was told so.
    Gone,
}

/// What all members saw.
struct World {
    begun: Instant,
    events: Mutex<Vec<Event>>,
    processes: AtomicUsize,
    owners: watch::Sender<BTreeMap<u32, usize>>,
    delays: Mutex<Delays>,
}

/// How long records were on their way.
#[derive(Default)]
struct Delays {
    /// Only what was written since counts: what came before waited for an owner, perhaps.
    since: Duration,
    /// The longest of each partition.
    longest: BTreeMap<u32, Duration>,
    /// When the newest record was written that a member has read, of each partition.
    newest: BTreeMap<u32, Duration>,
    /// The longest to a reader that is in no group: what brokers and machine do by themselves.
    outside: Duration,
    /// When the newest record was written that this one has read, of each partition.
    newest_outside: BTreeMap<u32, Duration>,
}

impl Delays {
    /// How long records of a partition were on their way at most, or have been that nobody has read yet.
    fn of(&self, partition: u32, now: Duration) -> Duration {
        let read = self.longest.get(&partition).copied().unwrap_or_default();
        let last = self.newest.get(&partition).copied().unwrap_or_default();
        let is_behind = self.newest_outside.get(&partition).is_some_and(|there| *there > last);
        // The next one was written a tick after the last.
        let waiting = if is_behind { now.saturating_sub(last.max(self.since) + TICK) } else { Duration::ZERO };
        read.max(waiting)
    }
}

impl World {
    fn note(&self, (member, process): (usize, usize), partition: u32, what: What) {
        let at = self.begun.elapsed();
        self.events.lock().expect("no panic").push(Event { at, member, process, partition, what });
        self.owners.send_modify(|owners| match what {
            What::Begins(_) => drop(owners.insert(partition, member)),
            What::GaveUp(_) | What::Gone => drop(owners.remove(&partition)),
        });
    }

    fn delays(&self) -> MutexGuard<'_, Delays> {
        self.delays.lock().expect("no panic")
    }

    /// Waits until every partition is read, and each of `members` reads its share.
    async fn settles(&self, members: &BTreeSet<usize>, partitions: u32) {
        let share = partitions as usize / members.len();
        let is_settled = |owners: &BTreeMap<u32, usize>| {
            let of = |member: &usize| owners.values().filter(|owner| *owner == member).count();
            owners.len() == partitions as usize
                && members.iter().all(|member| (share..=share + 1).contains(&of(member)))
        };
        let mut owners = self.owners.subscribe();
        timeout(PATIENCE, owners.wait_for(is_settled)).await.expect("the group settles").expect("the sender lives");
    }
}

/// A member's ear, and where it is in what it reads.
#[derive(Clone)]
struct Ear {
    me: usize,
    process: usize,
    world: Arc<World>,
    next: Arc<Mutex<BTreeMap<u32, u64>>>,
}

impl Ear {
    fn next(&self) -> MutexGuard<'_, BTreeMap<u32, u64>> {
        self.next.lock().expect("no panic")
    }
}

impl RebalanceListener for Ear {
    async fn assigned(&mut self, assigned: &mut Assigned) {
        for partition in assigned.partitions() {
            let start = assigned.start(partition).expect("there is always a beginning").0;
            self.next().insert(partition.partition, start);
            self.world.note((self.me, self.process), partition.partition, What::Begins(start));
        }
    }

    async fn revoked(&mut self, revoked: &Revoked) {
        revoked.commit().await.expect("they are still held");
        for partition in revoked.partitions() {
            let next = self.next().remove(&partition.partition).expect("it was assigned");
            self.world.note((self.me, self.process), partition.partition, What::GaveUp(next));
        }
    }

    async fn lost(&mut self, lost: &[TopicPartition]) {
        for partition in lost {
            self.world.note((self.me, self.process), partition.partition, What::Gone);
        }
    }
}

/// A member in the runtime that is its process: all of it ends at once when that does.
struct Member {
    ear: Ear,
    runtime: Runtime,
    stop: CancellationToken,
    task: JoinHandle<()>,
}

impl Member {
    fn start(me: usize, bootstrap: &str, world: &Arc<World>) -> Member {
        let process = world.processes.fetch_add(1, Ordering::Relaxed);
        let ear = Ear { me, process, world: Arc::clone(world), next: Arc::default() };
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
        let (runtime, stop) = (runtime.expect("a runtime"), CancellationToken::new());
        let task = runtime.spawn(consume(ear.clone(), bootstrap.to_owned(), stop.clone()));
        Member { ear, runtime, stop, task }
    }

    /// Leaves in order.
    async fn close(self) {
        self.stop.cancel();
        self.task.await.expect("the member does not fail");
        self.runtime.shutdown_background();
    }

    /// Ends where it stands, like a process that is killed.
    fn crash(self) {
        self.runtime.shutdown_background();
        for partition in self.ear.next().keys() {
            self.ear.world.note((self.ear.me, self.ear.process), *partition, What::Gone);
        }
    }
}

/// Odd members have a static identity.
fn is_static(member: usize) -> bool {
    member % 2 == 1
}

async fn consume(ear: Ear, bootstrap: String, stop: CancellationToken) {
    let client = Client::connect(&bootstrap).await.expect("a broker is up");
    let instance = is_static(ear.me).then(|| format!("i-{}", ear.me));
    let config = GroupConfig { instance, ..GroupConfig::new("g") };
    let subscription = Subscription::topics([TOPIC]);
    let mut consumer = GroupConsumer::with_listener(&client, config, subscription, ear.clone()).expect("good settings");
    loop {
        let record = tokio::select! {
            // It is asked first: so it knows that what it gave last was taken in, and commits that when it is closed.
            biased;
            record = consumer.next() => record.expect("it does not end").expect("readers follow their leaders"),
            () = stop.cancelled() => break,
        };
        let written = written(record.value.as_ref());
        let delay = ear.world.begun.elapsed().saturating_sub(written);
        ear.next().insert(record.partition, record.offset.0 + 1);
        let mut delays = ear.world.delays();
        let newest = delays.newest.entry(record.partition).or_default();
        *newest = written.max(*newest);
        if written >= delays.since {
            let longest = delays.longest.entry(record.partition).or_default();
            *longest = delay.max(*longest);
        }
    }
    consumer.close().await.expect("the coordinator hears of it");
}

/// When a record was written, since the test began.
fn written(value: Option<&Bytes>) -> Duration {
    let text = std::str::from_utf8(value.expect("a value")).expect("text");
    Duration::from_micros(text.parse().expect("a number"))
}

/// Reads all partitions without a group.
async fn look_on(world: Arc<World>, bootstrap: String, partitions: u32, stop: CancellationToken) {
    let client = Client::connect(&bootstrap).await.expect("a broker is up");
    let mut consumer = Consumer::new(&client, ConsumerConfig::default());
    let all = (0..partitions).map(|partition| (TopicPartition::new(TOPIC, partition), StartAt::Latest));
    consumer.assign(all).await.expect("they are there");
    loop {
        let records = tokio::select! {
            records = consumer.poll(PATIENCE) => records.expect("readers follow their leaders"),
            () = stop.cancelled() => return,
        };
        let now = world.begun.elapsed();
        let mut delays = world.delays();
        for record in records {
            let written = written(record.value.as_ref());
            let newest = delays.newest_outside.entry(record.partition).or_default();
            *newest = written.max(*newest);
            if written >= delays.since {
                delays.outside = now.saturating_sub(written).max(delays.outside);
            }
        }
    }
}

/// Writes to each partition, evenly.
async fn write(client: Client, begun: Instant, partitions: u32, stop: CancellationToken) {
    let producer = Producer::new(&client, ProducerConfig::default()).expect("the settings are good");
    let mut tick = interval(TICK);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    while !stop.is_cancelled() {
        tick.tick().await;
        for partition in 0..partitions {
            let value = begun.elapsed().as_micros().to_string();
            let record = ProducerRecord::new(TOPIC).partition(partition).value(value);
            drop(producer.send(record).await.expect("it is taken"));
        }
    }
    producer.close().await;
}

/// A part of the run, and what it took.
struct Phase<'a> {
    world: &'a World,
    name: &'static str,
    begun: Instant,
    events: usize,
    before: BTreeMap<u32, usize>,
}

impl<'a> Phase<'a> {
    fn begin(world: &'a World, name: &'static str) -> Phase<'a> {
        let mut delays = world.delays();
        let (newest, newest_outside) = (std::mem::take(&mut delays.newest), std::mem::take(&mut delays.newest_outside));
        *delays = Delays { since: world.begun.elapsed(), newest, newest_outside, ..Delays::default() };
        drop(delays);
        let events = world.events.lock().expect("no panic").len();
        Phase { world, name, begun: Instant::now(), events, before: world.owners.borrow().clone() }
    }

    /// Prints how long it took, what moved, and how long records of what did not were on their way: not much longer than those to a reader
    /// outside of the group, or than `quiet`, as it was without a rebalance. Returns how many moved, and how long that was.
    fn end(self, quiet: Duration) -> (usize, Duration) {
        let took = self.begun.elapsed();
        let events = self.world.events.lock().expect("no panic")[self.events..].to_vec();
        let moved: BTreeSet<u32> = events.iter().map(|event| event.partition).collect();
        let delays = self.world.delays();
        let after = self.world.owners.borrow();
        let now = self.world.begun.elapsed();
        let of_others = after.keys().filter(|partition| !moved.contains(partition));
        let stayed = of_others.map(|partition| delays.of(*partition, now)).max().unwrap_or_default();
        for (partition, owner) in after.iter().filter(|(partition, _)| !moved.contains(partition)) {
            assert_eq!(self.before.get(partition), Some(owner), "what did not move has its owner");
        }
        println!(
            "{}: settled after {took:.2?}, {} of {} partitions moved, records of the others at most {stayed:.0?} on their way, {:.0?} outside of the group",
            self.name,
            moved.len(),
            after.len(),
            delays.outside
        );
        let undisturbed = quiet.max(delays.outside);
        assert!(
            stayed <= undisturbed + STOPS_AT_MOST,
            "{}: partitions that do not move stop for {stayed:.0?}, where nobody rebalances for {undisturbed:.0?}",
            self.name
        );
        (moved.len(), stayed)
    }
}

/// Rule S20 and rule O2, by what members saw: a partition has one reader at a time, who goes on where the one before stopped, and nothing
/// is taken from a member to be given back to it.
fn check(events: &[Event], partitions: u32) {
    for partition in 0..partitions {
        let mut before: Option<&Event> = None;
        for event in events.iter().filter(|event| event.partition == partition) {
            match (event.what, before.map(|before| (before.what, before.process))) {
                (What::Begins(_), None) => {}
                (What::Begins(at), Some((What::GaveUp(next), process))) => {
                    assert_eq!(at, next, "it goes on where the one before stopped: {before:?}, {event:?}");
                    assert!(process != event.process, "given back: {before:?}, {event:?}");
                }
                // Nothing was committed of what a member read that crashed, but by those before it.
                (What::Begins(_), Some((What::Gone, _))) => {}
                (What::GaveUp(_) | What::Gone, Some((What::Begins(_), process))) => {
                    assert_eq!(process, event.process, "{before:?}, {event:?}");
                }
                (_, _) => panic!("two readers at a time: {before:?}, then {event:?}"),
            }
            assert!(before.is_none_or(|before| before.at <= event.at), "noted as it happened");
            before = Some(event);
        }
    }
}

/// Rules O2 and S20.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_large_group_has_one_reader_a_partition_while_members_join_restart_and_crash() {
    let size: usize = std::env::var("MILLPOND_GROUP_MEMBERS").map_or(MEMBERS, |size| size.parse().expect("a number"));
    let partitions = u32::try_from(3 * size).expect("a few");
    let mut options = FleetOptions::new(3);
    let quick = ["--group-heartbeat-interval", "500ms", "--group-session-timeout", "10s"];
    options.arguments.extend(quick.map(str::to_owned));
    let fleet = Fleet::start(&options).await.expect("every machine has what it takes");
    let (client, bootstrap) = (fleet.connect().await, fleet.bootstrap());
    create(&client, TOPIC, partitions).await;
    let (begun, owners) = (Instant::now(), watch::channel(BTreeMap::new()).0);
    let world = Arc::new(World {
        begun,
        events: Mutex::default(),
        processes: AtomicUsize::new(0),
        owners,
        delays: Mutex::default(),
    });
    let stop = CancellationToken::new();
    let writing = tokio::spawn(write(client.clone(), begun, partitions, stop.clone()));
    let outside = std::thread::spawn({
        let (world, bootstrap, stop) = (Arc::clone(&world), bootstrap.clone(), stop.clone());
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        move || runtime.block_on(look_on(world, bootstrap, partitions, stop))
    });
    let everybody: BTreeSet<usize> = (0..size).collect();
    let (fixed, loose): (Vec<usize>, Vec<usize>) = everybody.iter().partition(|member| is_static(**member));
    let wave = size.div_ceil(10);
    println!("{size} members, {partitions} partitions, {wave} members at once where some are restarted");

    let phase = Phase::begin(&world, "all join");
    let mut members: BTreeMap<usize, Member> =
        everybody.iter().map(|me| (*me, Member::start(*me, &bootstrap, &world))).collect();
    world.settles(&everybody, partitions).await;
    // Nobody has anything yet that could stay.
    phase.end(Duration::MAX / 2);

    let phase = Phase::begin(&world, "calm");
    let mut tick = interval(TICK);
    for _ in 0..12 {
        tick.tick().await;
    }
    let (moved, quiet) = phase.end(Duration::MAX / 2);
    assert_eq!(moved, 0);

    for (name, restarted) in [("static members restarted", &fixed), ("members restarted", &loose)] {
        let mut others = BTreeSet::new();
        let first = world.events.lock().expect("no panic").len();
        let phase = Phase::begin(&world, name);
        for wave in restarted.chunks(wave) {
            // At once: a static member is back before its session ends.
            let closing = wave.iter().map(|me| members.remove(me).expect("it runs").close());
            futures::future::join_all(closing.collect::<Vec<_>>()).await;
            members.extend(wave.iter().map(|me| (*me, Member::start(*me, &bootstrap, &world))));
            world.settles(&everybody, partitions).await;
        }
        phase.end(quiet);
        others.extend(world.events.lock().expect("no panic")[first..].iter().map(|event| event.member));
        if name.starts_with("static") {
            assert_eq!(others.into_iter().collect::<Vec<usize>>(), fixed, "nobody else notices");
        }
    }

    let phase = Phase::begin(&world, "members crashed");
    let crashed: BTreeSet<usize> = loose.iter().copied().take(wave).collect();
    let left: BTreeSet<usize> = everybody.difference(&crashed).copied().collect();
    crashed.iter().for_each(|me| members.remove(me).expect("it runs").crash());
    world.settles(&left, partitions).await;
    let (moved, _) = phase.end(quiet);
    assert!(moved <= 2 * 3 * wave, "only what the crashed had has to move, and a little for balance: {moved}");

    let phase = Phase::begin(&world, "as many join");
    members.extend(crashed.iter().map(|me| (*me, Member::start(*me, &bootstrap, &world))));
    world.settles(&everybody, partitions).await;
    phase.end(quiet);

    futures::future::join_all(members.into_values().map(Member::close)).await;
    stop.cancel();
    writing.await.expect("writing goes on");
    tokio::task::spawn_blocking(|| outside.join())
        .await
        .expect("it is waited for")
        .expect("who looks on does not fail");
    check(&world.events.lock().expect("no panic"), partitions);
    fleet.stop().await;
}
