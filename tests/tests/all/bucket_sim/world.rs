//! The world of one run: a client, a broker with one partition, its disk, its bucket, its metadata. One seed decides everything.

mod merges;

use super::bucket::{Answer, Bucket};
use super::checks;
use super::metadata::LateKv;
use super::wal::{Frame, Wal};
use bytes::Bytes;
use millpond_core::collection::{collectable, drops_due_below, orphans};
use millpond_core::flush::{self, FlushRule, Pressure, Tail};
use millpond_core::records::{Leader, PartitionRecord, SessionRecord};
use millpond_core::replica::{
    Acks, Assignment, EndState, Input, Live, Mark, Now, Output, Placed, Recovered, Replica, Token,
};
use millpond_core::rules::Rules;
use millpond_core::tail_segment::TailSegment;
use millpond_core::tiering::{Change, Look, Outcome, Settled, TierRules, TierSettings, Tiering};
use millpond_log::batch::{BatchBuilder, NewRecord, ProducerStamp, TimestampType};
use millpond_log::codec::Codec;
use millpond_log::epochs::LeaderEpochs;
use millpond_log::limits::REPLICA_LAG_TIME_MS;
use millpond_log::manifest::{Lookup, ManifestRoot, ManifestView, SegmentEntry};
use millpond_log::object_key::{GcEpoch, ObjectKey, PartitionObject};
use millpond_log::producers::ProducerTable;
use millpond_log::segment::{BuiltObject, SegmentIdentity};
use millpond_log::{
    Batch, BrokerId, Incarnation, LeaderEpoch, Lsn, Offset, PartitionId, ProducerEpoch, ProducerId, TimestampMs,
    TopicId, WalGen,
};
use millpond_metadata::keys::Keys;
use millpond_metadata::kv::Revision;
use millpond_metadata::store::{
    self, CreateOutcome, Dropped, Election, NewTopic, Placement, Registered, Registration, Session, Store, TierCommit,
    TierOutcome, Versioned,
};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

const PARTITION: PartitionId = PartitionId { topic: TopicId(7), index: 0 };
const STEPS: u32 = 600;
const PRODUCERS: u64 = 3;
const GC_PERIOD: Duration = Duration::from_secs(3600);

/// Objects that one change of the manifest drops at most: few, so that log starts move in steps.
const DROPPED_MAX: usize = 16;

/// How rough a run is.
#[derive(Clone, Copy, Debug)]
struct Weather {
    /// Draws of a fault are out of so many: 100 is rough.
    odds: u32,
    /// Of 100 steps, how many lose the session, and how many the power.
    crashes: u32,
    /// Segments of one batch or so, so that manifests roll; or of several.
    segment_bytes: u64,
}

impl Weather {
    fn of(seed: u64) -> Weather {
        match seed % 3 {
            0 => Weather { odds: 500, crashes: 0, segment_bytes: 1 },
            1 => Weather { odds: 200, crashes: 1, segment_bytes: 400 },
            _ => Weather { odds: 100, crashes: 2, segment_bytes: 900 },
        }
    }

    fn settings(self) -> TierSettings {
        TierSettings { rule: FlushRule { bytes: self.segment_bytes, age_ms: 5_000 }, retention_ms: 1 }
    }
}

/// What a run came to.
pub(super) struct Run {
    pub(super) trace: Vec<String>,
    pub(super) violation: Option<String>,
    pub(super) tally: Tally,
}

/// How often what happened: a run in which nothing goes wrong shows nothing.
#[derive(Debug, Default)]
pub(super) struct Tally {
    acked: u64,
    duplicates: u64,
    segments: u64,
    unknown: u64,
    late_puts: u64,
    crashes: u64,
    sessions_lost: u64,
    rereads: u64,
    fenced: u64,
    expired: u64,
    rolled: u64,
    advances: u64,
    merges: u64,
    dropped: u64,
    orphans: u64,
}

impl Tally {
    pub(super) fn add(&mut self, other: &Tally) {
        let Tally { acked, duplicates, segments, unknown, late_puts, crashes, .. } = other;
        self.acked += acked;
        self.duplicates += duplicates;
        self.segments += segments;
        self.unknown += unknown;
        self.late_puts += late_puts;
        self.crashes += crashes;
        self.sessions_lost += other.sessions_lost;
        self.rereads += other.rereads;
        self.fenced += other.fenced;
        self.expired += other.expired;
        self.rolled += other.rolled;
        self.advances += other.advances;
        self.merges += other.merges;
        self.dropped += other.dropped;
        self.orphans += other.orphans;
    }

    pub(super) fn check_that_everything_happened(&self) {
        for (what, count) in [
            ("acknowledged batches", self.acked),
            ("duplicates", self.duplicates),
            ("segments", self.segments),
            ("unknown transactions", self.unknown),
            ("late puts", self.late_puts),
            ("crashes", self.crashes),
            ("lost sessions", self.sessions_lost),
            ("roots read again", self.rereads),
            ("fenced commits", self.fenced),
            ("expired commits", self.expired),
            ("rolled manifests", self.rolled),
            ("moves of the log start", self.advances),
            ("merged segments", self.merges),
            ("dropped objects deleted", self.dropped),
            ("orphans deleted", self.orphans),
        ] {
            assert!(count > 0, "no {what} in any run: the simulation does not simulate them");
        }
    }
}

/// Runs one seed until its end or the first violation.
pub(super) fn run(seed: u64, rules: TierRules) -> Run {
    let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
    runtime.block_on(async {
        let mut world = World::found(seed, rules).await;
        let violation = world.live().await.err();
        let World { trace, mut tally, kv, bucket, .. } = world;
        tally.unknown = kv.unknown.load(Ordering::Relaxed);
        tally.late_puts = bucket.late_arrivals;
        Run { trace, violation, tally }
    })
}

/// What is on its way to the bucket or to the metadata.
enum Errand {
    None,
    Upload(Box<Upload>),
    Swap(Box<merges::Merged>),
    Commit(Box<Change>),
}

struct Upload {
    key: ObjectKey,
    object: BuiltObject,
    producers: ProducerTable,
}

/// Where a sweep of the bucket stands; any time may pass between its stages (rule G2).
enum Sweep {
    Idle,
    Listed { old: Vec<ObjectKey> },
    Judged { orphans: Vec<ObjectKey> },
    Dropping { due: Vec<Dropped> },
}

/// A producer, and the batch it has not been told about.
#[derive(Clone, Default)]
struct Client {
    next: i32,
    sent: Option<Batch>,
    /// Its request is open at the broker that runs now.
    waits: bool,
}

struct World {
    random: StdRng,
    rules: TierRules,
    weather: Weather,
    trace: Vec<String>,
    tally: Tally,
    bucket: Bucket,
    kv: Arc<LateKv>,
    store: Store,
    session: Session,
    wal: Wal,
    replica: Replica,
    /// What was handed to the WAL and is not durable yet: where the log ended then.
    marks: Vec<(Offset, Mark)>,
    tiering: Tiering,
    gc_epoch: GcEpoch,
    errand: Errand,
    sweep: Sweep,
    now_ms: u64,
    clients: BTreeMap<u64, Client>,
    tokens: BTreeMap<Token, u64>,
    next_token: u64,
    acked: BTreeMap<Offset, Batch>,
    /// Where each acknowledged sequence landed.
    landed: BTreeMap<(u64, i32), Offset>,
    /// The highest offset that was ever committed.
    committed: Offset,
    /// The root as last checked.
    seen: ManifestRoot,
}

type Checked = Result<(), String>;

impl World {
    async fn found(seed: u64, rules: TierRules) -> World {
        let weather = Weather::of(seed);
        let kv = Arc::new(LateKv::new(seed ^ 0x6b76, weather.odds));
        let store = Store::new(kv.clone(), Keys::for_cluster("sim"));
        store.init_cluster("sim").await.expect("nothing fails yet");
        let session = register(&store, Incarnation(0)).await;
        let leader = Leader { rid: session.rid, inc: session.inc };
        let placement = Placement {
            replicas: vec![session.rid.broker],
            isr: vec![session.rid],
            leader: Some(leader),
            min_isr: 1,
            absent: Vec::new(),
        };
        let topic = NewTopic {
            name: "t".parse().expect("valid"),
            id: PARTITION.topic,
            buried: Revision::ABSENT,
            replication_factor: 1,
            config: BTreeMap::new(),
            placements: vec![placement],
        };
        let created = store.create_topic(&session, &topic).await.expect("nothing fails yet");
        assert!(matches!(created, CreateOutcome::Created { .. }));
        let root = ManifestRoot::new(PARTITION);
        let tiering = Tiering::new(Arc::new(root.clone()), 0, ProducerTable::default(), weather.settings(), rules);
        let mut world = World {
            random: StdRng::seed_from_u64(seed),
            rules,
            weather,
            trace: Vec::new(),
            tally: Tally::default(),
            bucket: Bucket::new(seed ^ 0x6275, weather.odds),
            kv,
            store,
            session,
            wal: Wal::default(),
            replica: Replica::new(Recovered {
                rid: session.rid,
                epoch_seen: LeaderEpoch(0),
                log_start: Offset(0),
                tiered_end: Offset(0),
                hw: Offset(0),
                at_end: EndState::empty(),
                epochs: LeaderEpochs::default(),
                timestamp_type: TimestampType::CreateTime,
                lag_time_ms: REPLICA_LAG_TIME_MS,
                rules: Rules::ALL,
            }),
            marks: Vec::new(),
            tiering,
            gc_epoch: GcEpoch(0),
            errand: Errand::None,
            sweep: Sweep::Idle,
            now_ms: 1_000_000,
            clients: (1..=PRODUCERS).map(|id| (id, Client::default())).collect(),
            tokens: BTreeMap::new(),
            next_token: 0,
            acked: BTreeMap::new(),
            landed: BTreeMap::new(),
            committed: Offset(0),
            seen: root,
        };
        let record = world.record().await;
        world.lead(record);
        world.kv.set_faulty(true);
        world
    }

    async fn live(&mut self) -> Checked {
        for step in 0..STEPS {
            self.now_ms += self.random.random_range(1..400);
            let what = self.step().await?;
            self.trace.push(format!("{step} {what}"));
            self.check().await?;
            if step % 50 == 49 {
                self.check_history().await?;
            }
        }
        self.heal().await
    }

    async fn step(&mut self) -> Result<String, String> {
        let rough = self.weather.crashes;
        match self.random.random_range(0..100) {
            drawn if drawn < rough => self.lose_session().await,
            drawn if drawn < 2 * rough => self.crash().await,
            0..28 => self.produce(),
            28..48 => self.sync(),
            48..76 => self.tier().await,
            76..80 => self.settle().await,
            80..82 => self.advance(),
            82..85 => self.begin_merge(),
            85..92 => self.collect().await,
            92..94 => Ok(format!("late put {:?}", self.bucket.arrive())),
            94..98 => Ok(format!("late transaction {:?}", self.kv.arrive().await)),
            _ => {
                self.now_ms += 3_600_000;
                Ok("an hour passes".to_owned())
            }
        }
    }

    /// A client sends its next batch, or again the one it has not heard of, or one that was acknowledged long ago.
    fn produce(&mut self) -> Result<String, String> {
        let id = self.random.random_range(1..=PRODUCERS);
        let client = self.clients.get_mut(&id).expect("they are all there");
        let batch = match &client.sent {
            Some(batch) if !client.waits || self.random.random_bool(0.3) => batch.clone(),
            Some(_) => return Ok(format!("{id} waits")),
            None => {
                let count = self.random.random_range(1..4);
                let stamp = ProducerStamp { id: ProducerId(id), epoch: ProducerEpoch(0), base_sequence: client.next };
                let mut builder = BatchBuilder::new(Codec::None).producer(stamp);
                for number in 0..count {
                    let value = self.random.random::<[u8; 24]>();
                    let timestamp = TimestampMs(self.now_ms as i64 - number);
                    builder.push(NewRecord { timestamp, key: None, value: Some(&value), headers: &[] });
                }
                client.next += count as i32;
                builder.build()
            }
        };
        let again = client.sent.is_some();
        client.sent = Some(batch.clone());
        client.waits = true;
        self.tally.duplicates += u64::from(again);
        let token = Token(self.next_token);
        self.next_token += 1;
        self.tokens.insert(token, id);
        let latest = batch.latest_timestamp().expect("it is sound");
        self.replica_step(Input::Produce { token, batch, latest, acks: Acks::All, behind: None })?;
        Ok(format!("{id} produces{}, the log ends at {}", if again { " again" } else { "" }, self.wal.end()))
    }

    fn sync(&mut self) -> Result<String, String> {
        let count = self.random.random_range(0..=self.wal.unsynced());
        let end = self.wal.sync(count);
        self.tell_durable(end)?;
        Ok(format!("synced to {end}"))
    }

    /// What was handed to the WAL while the log ended at or below `end` is durable.
    fn tell_durable(&mut self, end: Offset) -> Checked {
        let count = self.marks.partition_point(|(written, _)| *written <= end);
        let newest = self.marks.drain(..count).next_back();
        newest.map_or(Ok(()), |(_, mark)| self.replica_step(Input::Durable(mark)))
    }

    fn replica_step(&mut self, input: Input) -> Checked {
        let mut outputs = Vec::new();
        let now = Now { wall: TimestampMs(self.now_ms as i64), mono_ms: self.now_ms };
        self.replica.step(now, input, &mut outputs);
        for output in outputs {
            match output {
                Output::PersistEpoch { epoch, mark } => {
                    self.wal.epoch_seen = epoch;
                    self.marks.push((self.wal.end(), mark));
                }
                Output::Append { placed, mark } => {
                    let Placed { batch, append_time, latest, prefix_hash } = placed;
                    self.marks.push((batch.end_offset(), mark));
                    self.wal.frames.push(Frame { batch, append_time, latest, prefix_hash });
                }
                Output::Answer { token, result } => {
                    let id = self.tokens.remove(&token).ok_or("a request was answered twice")?;
                    let Ok(appended) = result else { continue };
                    self.acknowledged(id, appended.base)?;
                }
                Output::Trim { to } => self.wal.trim(to),
                // Nobody else leads this partition, so nobody else moves its log start.
                Output::Publish | Output::ReadForOffice { .. } => {}
                Output::Fault(fault) => return Err(fault.to_string()),
                other => return Err(format!("a lone replica wants {other:?}")),
            }
        }
        self.committed = self.committed.max(self.replica.visible().hw);
        Ok(())
    }

    fn acknowledged(&mut self, id: u64, base: Offset) -> Checked {
        let client = self.clients.get_mut(&id).expect("they are all there");
        // A second answer to the same batch may come after the client went on.
        let Some(sent) = client.sent.clone() else { return Ok(()) };
        let sequence = sent.producer().expect("every batch has a producer").base_sequence;
        let end = base.plus(u64::from(sent.record_count()));
        if end > self.committed.max(self.replica.visible().hw) {
            return Err(format!("P3: sequence {sequence} of {id} was acknowledged at {base} before it was committed"));
        }
        if self.landed.insert((id, sequence), base).is_some_and(|before| before != base) {
            return Err(format!("S15: sequence {sequence} of {id} landed twice"));
        }
        let held = self.wal.frames.iter().find(|frame| frame.batch.base_offset() == base);
        if let Some(frame) = held {
            if frame.batch.records_bytes() != sent.records_bytes() {
                return Err(format!("S2: offset {base} holds another batch than the one acknowledged"));
            }
            self.acked.insert(base, frame.batch.clone());
            self.tally.acked += 1;
        }
        (client.sent, client.waits) = (None, false);
        Ok(())
    }

    /// The next stage of what is under way, or the beginning of something.
    async fn tier(&mut self) -> Result<String, String> {
        match std::mem::replace(&mut self.errand, Errand::None) {
            Errand::None => self.begin_upload(),
            Errand::Upload(upload) => self.upload(*upload),
            Errand::Swap(merged) => self.swap(*merged),
            Errand::Commit(change) => self.commit(*change).await,
        }
    }

    fn begin_upload(&mut self) -> Result<String, String> {
        let (wal, visible) = (&self.wal, self.replica.visible());
        let now = TimestampMs(self.now_ms as i64);
        let look = Look { mono_ms: self.now_ms, wall: now, pressure: Pressure::Calm };
        let tail: Option<Tail> =
            self.tiering.tail(look, &visible, |from, to, bytes_max| wal.summary(from, to, bytes_max));
        let forced: BTreeSet<PartitionId> = if self.random.random_bool(0.2) { [PARTITION].into() } else { [].into() };
        let planned = flush::plan(now, tail.as_slice(), &forced, Pressure::Calm);
        let Some(tail) = planned.first().map(|object| object.tails[0]) else {
            return Ok("nothing to upload".to_owned());
        };
        let epoch = self.tiering.begin_upload();
        let identity =
            SegmentIdentity { cluster: "sim".to_owned(), partition: PARTITION, topic_name: "t".to_owned(), epoch };
        let from = EndState::tiered(self.tiering.root(), self.tiering.producers().clone());
        let mut segment = TailSegment::new(identity, from, tail.end);
        for frame in self.wal.read(tail.tiered_end, tail.end) {
            segment.push(&frame.batch, frame.append_time, frame.latest).expect("the tail is whole");
        }
        let appended = self.wal.frames.iter().find(|frame| frame.batch.end_offset() == tail.end);
        if appended.is_some_and(|frame| frame.prefix_hash != segment.prefix_hash()) {
            return Err(format!("S6: the log up to {} is not the one that the manifest goes on from", tail.end));
        }
        let (segment, producers) = segment.finish();
        let random = self.random.random();
        let base = tail.tiered_end;
        let key =
            ObjectKey::Segment(PartitionObject { partition: PARTITION, gc_epoch: self.gc_epoch, epoch, base, random });
        self.errand = Errand::Upload(Box::new(Upload { key, object: BuiltObject::from(segment), producers }));
        Ok(format!("uploads {}..{}", tail.tiered_end, tail.end))
    }

    /// Rule T3: an unclear answer is settled by reading back.
    fn put(&mut self, key: ObjectKey, bytes: &Bytes) -> bool {
        match self.bucket.put(key, bytes.clone()) {
            Answer::Done => true,
            Answer::Unclear => self.bucket.get(&key) == Some(bytes),
        }
    }

    fn upload(&mut self, upload: Upload) -> Result<String, String> {
        let Upload { key, object, producers } = upload;
        let bytes: Bytes = object.parts.concat().into();
        if !self.put(key, &bytes) {
            self.tiering.upload_failed(self.now_ms, true, 0.5);
            return Ok("upload failed".to_owned());
        }
        let entry = SegmentEntry::new(key, object.length, object.segments[0].clone());
        let Some(mut change) = self.tiering.uploaded(entry, producers) else {
            return Ok("uploaded an orphan".to_owned());
        };
        let (random, gc_epoch) = (&mut self.random, self.gc_epoch);
        if let Some(plan) = change.root.roll(gc_epoch, || random.random()) {
            let mut written = true;
            for rolled in &plan.objects {
                written &= self.put(rolled.object, &rolled.bytes);
            }
            if written {
                self.tally.rolled += 1;
                change.objects_gc_epoch = change.objects_gc_epoch.min(Some(gc_epoch));
                change.root = plan.root;
            }
        }
        self.errand = Errand::Commit(Box::new(change));
        Ok(format!("uploaded {key}"))
    }

    async fn commit(&mut self, change: Change) -> Result<String, String> {
        let commit = TierCommit {
            partition: PARTITION,
            epoch: change.epoch,
            base: Revision(change.base),
            root: change.root.encode(),
            objects_gc_epoch: change.objects_gc_epoch.map(|epoch| epoch.0),
            dropped: change.dropped.iter().map(ObjectKey::to_string).collect(),
        };
        let answer = self.store.commit_tier(&self.session, &[commit]).await.remove(0);
        let outcome = match answer {
            Ok(TierOutcome::Committed { revision }) => Outcome::Committed(revision.0),
            Ok(TierOutcome::Conflict) => Outcome::Conflict,
            Ok(TierOutcome::Fenced) => Outcome::Fenced,
            Ok(TierOutcome::Expired) => Outcome::Expired,
            Ok(TierOutcome::Unknown) => Outcome::Unknown,
            Err(_) if change.sent => Outcome::Unknown,
            Err(_) => Outcome::Unsent,
        };
        self.tally.fenced += u64::from(outcome == Outcome::Fenced);
        if outcome == Outcome::Expired {
            self.tally.expired += 1;
            self.read_gc_epoch().await;
        }
        if matches!(outcome, Outcome::Committed(_)) {
            // Before the replica hears of it: it would not survive what it must not be told.
            self.check().await?;
            self.tally.segments += u64::from(change.producers.is_some());
            let merged = change.root.log_start == self.tiering.root().log_start && change.producers.is_none();
            self.tally.merges += u64::from(merged);
            self.tally.advances += u64::from(change.producers.is_none() && !merged);
        }
        if let Settled::Announce(root) = self.tiering.settled(change, outcome, self.now_ms, 0.5) {
            self.announce(&root)?;
        }
        Ok(format!("commit: {outcome:?}"))
    }

    fn announce(&mut self, root: &ManifestRoot) -> Checked {
        if root.tiered_end > self.replica.visible().hw {
            return Err(format!("S8: tiered up to {} above the high watermark", root.tiered_end));
        }
        let ManifestRoot { log_start, tiered_end, epoch, .. } = *root;
        self.replica_step(Input::Manifest { log_start, tiered_end, epoch })
    }

    /// Rules K5 and T8: what is not settled is sent again, what moved is read again.
    async fn settle(&mut self) -> Result<String, String> {
        if !matches!(self.errand, Errand::None) {
            return Ok("busy".to_owned());
        }
        if let Some(change) = self.tiering.unsettled(self.now_ms) {
            self.errand = Errand::Commit(Box::new(change));
            return Ok("sends again".to_owned());
        }
        if !self.tiering.wants_root(self.now_ms) {
            return Ok("nothing is open".to_owned());
        }
        self.tally.rereads += 1;
        let (root, base) = self.stored().await;
        let table = decode_producers(&root, &self.bucket)?;
        let news = self.tiering.reread(root, base, || table);
        let told = news.as_ref().map(|root| root.tiered_end);
        if let Some(root) = news {
            self.announce(&root)?;
        }
        Ok(format!("reads the root again: {told:?}"))
    }

    /// Retention or delete-records: the log start moves to some committed offset.
    fn advance(&mut self) -> Result<String, String> {
        let (start, hw) = (self.tiering.root().log_start, self.replica.visible().hw);
        if !matches!(self.errand, Errand::None) || !self.tiering.may_change(self.now_ms) || start >= hw {
            return Ok("the log start stays".to_owned());
        }
        let to = Offset(self.random.random_range(start.0 + 1..=hw.0));
        // Mostly a little, so that most of the log stays; in calm weather so little that manifests are rolled.
        let little = Offset(start.0 + if self.weather.crashes == 0 { 2 } else { 12 });
        let to = if self.weather.crashes == 0 || self.random.random_bool(0.8) { to.min(little) } else { to };
        let view = checks::follow(self.tiering.root(), &self.bucket)?;
        let dropped = view.dropped_by(to, DROPPED_MAX);
        let Lookup::Found(dropped) = dropped else { unreachable!("everything is loaded") };
        self.errand = Errand::Commit(Box::new(self.tiering.advance(&dropped)));
        Ok(format!("moves the log start from {start} to {} of {to}", dropped.to))
    }

    /// One stage of garbage collection (rules G1, G2).
    async fn collect(&mut self) -> Result<String, String> {
        match std::mem::replace(&mut self.sweep, Sweep::Idle) {
            Sweep::Idle => {
                let now = TimestampMs(self.now_ms as i64);
                // Whether it was bumped or not, the epoch that is read is what counts.
                let _ = self.store.bump_gc_epoch(&self.session, now, GC_PERIOD).await;
                self.read_gc_epoch().await;
                if self.random.random_bool(0.3) {
                    let due = self.store.drops_before(drops_due_below(self.gc_epoch).0).await;
                    let due = due.map_err(|error| error.to_string())?;
                    let said = format!("{} drops are due at {}", due.len(), self.gc_epoch);
                    self.sweep = Sweep::Dropping { due };
                    return Ok(said);
                }
                let old = collectable(self.bucket.list(), self.gc_epoch, self.rules);
                let said = format!("{} objects are old at {}", old.len(), self.gc_epoch);
                self.sweep = Sweep::Listed { old };
                Ok(said)
            }
            Sweep::Listed { old } => {
                let (root, _) = self.stored().await;
                let view = checks::follow(&root, &self.bucket)?;
                let Lookup::Found(references) = view.references() else { unreachable!("everything is loaded") };
                let orphans = orphans(old, &references);
                let said = format!("{} orphans", orphans.len());
                self.sweep = Sweep::Judged { orphans };
                Ok(said)
            }
            Sweep::Judged { orphans } => {
                let deleted = orphans.iter().filter(|key| self.bucket.delete(key)).count();
                self.tally.orphans += deleted as u64;
                Ok(format!("{deleted} orphans deleted"))
            }
            Sweep::Dropping { due } => {
                let mut deleted = 0;
                for object in due.iter().flat_map(|drop| &drop.record.value.objects) {
                    let key: ObjectKey = object.parse().map_err(|_| format!("`{object}` is no name"))?;
                    if self.bucket.get(&key).is_some() && !self.bucket.delete(&key) {
                        return Ok("a dropped object could not be deleted".to_owned());
                    }
                    deleted += 1;
                }
                self.tally.dropped += deleted;
                // What is not struck off is deleted again, which is harmless.
                let _ = self.store.forget_drops(&self.session, &due).await;
                Ok(format!("{deleted} dropped objects deleted"))
            }
        }
    }

    async fn read_gc_epoch(&mut self) {
        // Only sometimes: names may be older than the epoch, and then expire.
        if self.random.random_bool(0.6) {
            self.gc_epoch = GcEpoch(self.store.gc_epoch().await.expect("reads do not fail").value);
        }
    }

    /// Rule B3: all offices are lost; what is under way goes on and is fenced.
    async fn lose_session(&mut self) -> Result<String, String> {
        self.tally.sessions_lost += 1;
        self.tiering.resign();
        self.replica_step(Input::Session(None))?;
        self.tokens.clear();
        self.clients.values_mut().for_each(|client| client.waits = false);
        self.take_office().await?;
        Ok("lost its session".to_owned())
    }

    async fn take_office(&mut self) -> Checked {
        // Registration and election have suites of their own: here they only have to happen.
        self.kv.set_faulty(false);
        self.session = register(&self.store, self.session.inc).await;
        let seen = self.record().await;
        let mut next = seen.value.clone();
        next.leader = Some(Leader { rid: self.session.rid, inc: self.session.inc });
        next.epoch = LeaderEpoch(next.epoch.0 + 1);
        let election = Election::of(PARTITION, &seen, next.clone());
        let elected = self.store.elect(&self.session, None, &[election]).await.remove(0);
        let store::Outcome::Committed { revision } = elected.map_err(|error| error.to_string())? else {
            return Err("the election was not written".to_owned());
        };
        self.lead(Versioned { value: next, revision });
        self.kv.set_faulty(true);
        Ok(())
    }

    fn lead(&mut self, seen: Versioned<PartitionRecord>) {
        let (epoch, session) = (seen.value.epoch, self.session);
        let live = vec![Live { rid: session.rid, inc: session.inc }];
        let assignment = Assignment { record: seen.value, revision: seen.revision.0, live };
        for input in [Input::Session(Some(session.inc)), Input::Assigned(assignment)] {
            self.replica_step(input).expect("an election answers nobody");
        }
        self.tiering.lead(epoch);
    }

    /// The power goes; then the broker comes back with what disk, bucket and metadata hold.
    async fn crash(&mut self) -> Result<String, String> {
        self.tally.crashes += 1;
        let survivors = self.random.random_range(0..=self.wal.unsynced());
        self.wal.cut(survivors);
        self.marks.clear();
        self.tokens.clear();
        self.clients.values_mut().for_each(|client| client.waits = false);
        (self.errand, self.sweep) = (Errand::None, Sweep::Idle);
        self.gc_epoch = GcEpoch(self.store.gc_epoch().await.expect("reads do not fail").value);
        let (root, base) = self.stored().await;
        let (replica, tiering) = self.recover(root, base)?;
        (self.replica, self.tiering) = (replica, tiering);
        self.take_office().await?;
        self.check_history().await?;
        Ok(format!("crashed; the log ends at {}", self.wal.end()))
    }

    /// As the broker assembles a replica (rules R1, P4, S9).
    fn recover(&mut self, root: ManifestRoot, base: u64) -> Result<(Replica, Tiering), String> {
        let tiered_end = root.tiered_end;
        if self.wal.start > tiered_end && self.wal.end() > self.wal.start {
            return Err(format!("S9: the WAL begins at {} where {tiered_end} is tiered", self.wal.start));
        }
        if self.wal.end() < tiered_end {
            self.wal.reset(tiered_end);
        }
        let view: ManifestView = checks::follow(&root, &self.bucket)?;
        let Lookup::Found(epochs) = view.epochs() else { unreachable!("everything is loaded") };
        let mut epochs = LeaderEpochs::from_entries(epochs).ok_or("R1: epochs are out of order")?;
        let producers_tiered = decode_producers(&root, &self.bucket)?;
        let mut at_end = EndState::tiered(&root, producers_tiered.clone());
        if let Some(frame) = self.wal.frames.iter().find(|frame| frame.batch.end_offset() == tiered_end)
            && frame.prefix_hash != at_end.prefix_hash
        {
            return Err(format!("S6: the WAL up to {tiered_end} is not what is tiered"));
        }
        if let Some(last) = self.wal.frames.last().filter(|last| last.batch.end_offset() > tiered_end) {
            at_end.prefix_hash = last.prefix_hash;
        }
        for frame in self.wal.read(tiered_end, self.wal.end()) {
            let batch = &frame.batch;
            epochs.append(batch.leader_epoch(), batch.base_offset());
            let span = batch.base_offset()..batch.end_offset();
            at_end.replay(batch.producer_write(), batch.record_count(), span, frame.append_time);
        }
        let newest_epoch = epochs.last().map_or(LeaderEpoch(0), |last| last.epoch).max(root.epoch);
        let replica = Replica::new(Recovered {
            rid: self.session.rid,
            epoch_seen: self.wal.epoch_seen.max(newest_epoch),
            log_start: root.log_start,
            tiered_end,
            hw: tiered_end,
            at_end,
            epochs,
            timestamp_type: TimestampType::CreateTime,
            lag_time_ms: REPLICA_LAG_TIME_MS,
            rules: Rules::ALL,
        });
        let tiering = Tiering::new(Arc::new(root), base, producers_tiered, self.weather.settings(), self.rules);
        Ok((replica, tiering))
    }

    async fn record(&self) -> Versioned<PartitionRecord> {
        self.store.partition(PARTITION).await.expect("reads do not fail").expect("the topic was created")
    }

    /// The root as the metadata store has it.
    async fn stored(&self) -> (ManifestRoot, u64) {
        match self.store.tier_root(PARTITION).await.expect("reads do not fail") {
            None => (ManifestRoot::new(PARTITION), 0),
            Some(stored) => (ManifestRoot::decode(&stored.value).expect("it was encoded"), stored.revision.0),
        }
    }

    async fn check(&mut self) -> Checked {
        let (root, _) = self.stored().await;
        checks::invariants(&root, &self.seen, &self.wal, &self.bucket, self.committed)?;
        self.seen = root;
        Ok(())
    }

    async fn check_history(&mut self) -> Checked {
        let (root, _) = self.stored().await;
        let log = checks::read_everything(&root, &self.wal, &self.bucket)?;
        checks::history(&log, &self.acked, root.log_start)
    }

    /// The faults end: everything goes up (L6), everybody is answered (L3), nothing unreferenced is left (L7).
    async fn heal(&mut self) -> Checked {
        while self.bucket.arrive().is_some() {}
        while self.kv.arrive().await.is_some() {}
        self.kv.set_faulty(false);
        self.bucket.faulty = false;
        self.crash().await?;
        self.kv.set_faulty(false);
        self.wal.sync(self.wal.unsynced());
        let end = self.wal.end();
        self.tell_durable(end)?;
        self.now_ms += 60_000;
        for _ in 0..1000 {
            if self.tiering.root().tiered_end == self.replica.visible().hw {
                break;
            }
            self.now_ms += 30_000;
            self.tier().await?;
            if matches!(self.errand, Errand::None) {
                self.settle().await?;
            }
            self.check().await?;
        }
        if self.tiering.root().tiered_end < end {
            return Err(format!("L6: tiered up to {} of {end}", self.tiering.root().tiered_end));
        }
        self.collect_all().await?;
        self.check_history().await
    }

    async fn collect_all(&mut self) -> Checked {
        self.sweep = Sweep::Idle;
        for _ in 0..4 {
            self.now_ms += 3_600_000;
            let now = TimestampMs(self.now_ms as i64);
            self.store.bump_gc_epoch(&self.session, now, GC_PERIOD).await.map_err(|error| error.to_string())?;
        }
        self.gc_epoch = GcEpoch(self.store.gc_epoch().await.expect("reads do not fail").value);
        let old = collectable(self.bucket.list(), self.gc_epoch, self.rules);
        let (root, _) = self.stored().await;
        let view = checks::follow(&root, &self.bucket)?;
        let Lookup::Found(references) = view.references() else { unreachable!("everything is loaded") };
        for key in orphans(old, &references) {
            self.bucket.delete(&key);
        }
        self.check().await?;
        match self.bucket.list().into_iter().find(|key| !references.contains(key)) {
            None => Ok(()),
            Some(left) => Err(format!("L7: `{left}` is still there")),
        }
    }
}

fn decode_producers(root: &ManifestRoot, bucket: &Bucket) -> Result<ProducerTable, String> {
    match checks::producers(root, bucket)? {
        None => Ok(ProducerTable::default()),
        Some(bytes) => ProducerTable::decode(&bytes).map_err(|reason| format!("P5: {reason}")),
    }
}

async fn register(store: &Store, disk_inc: Incarnation) -> Session {
    let registration = Registration {
        broker: BrokerId(1),
        record: SessionRecord {
            wal_gen: WalGen(9),
            grpc: "127.0.0.1:1".to_owned(),
            kafka: "127.0.0.1:2".to_owned(),
            kafka_listeners: std::collections::BTreeMap::new(),
            http: "127.0.0.1:3".to_owned(),
            internal: None,
            rack: None,
        },
        disk_inc,
        durable_lsn: Lsn(0),
        ttl: Duration::from_secs(6),
    };
    match store.register_broker(&registration).await {
        Ok(Registered::Session(session)) => session,
        other => panic!("nothing fails while it registers: {other:?}"),
    }
}
