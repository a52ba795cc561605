//! A shard: the task that owns the replicas of some partitions and carries what they decide to the WAL, to waiters and to readers.
//!
//! Level by level: it drains all messages, steps the replicas, hands one group to the WAL and publishes once. It decides nothing.

use super::links::{Answer, LinkMsg, Pushed};
use super::messages::{
    Closed, Ending, Open, Produce, ProduceReply, Proposed, Rebuild, Rebuilt, Services, ShardMsg, ShardSender, Verify,
    Wanted,
};
use super::open;
use super::slot::Slot;
use crate::api::{ApiError, InTransaction};
use crate::clock;
use crate::refusals::{given_up, not_leader};
use crate::telemetry::TracedTails;
use crate::wal::{Wal, WalAppender, WalEvent, WalPermit, WalRecord};
use millpond_core::replica::{
    Appended, Cursor, Fault, Input, Mark, Now, Output, Placed, Refusal, Token, Unverified, Verified,
};
use millpond_log::manifest::ManifestRoot;
use millpond_log::{BrokerId, ErrorCode, Incarnation, Offset, PartitionId};
use slab::Slab;
use std::collections::{BTreeSet, HashMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::mpsc::{UnboundedReceiver, WeakUnboundedSender, unbounded_channel};
use tokio::sync::{OwnedSemaphorePermit, oneshot};

/// Messages taken from the queue at one wake-up, so that one group of the WAL stays of moderate size.
const DRAIN_MAX: usize = 512;

/// How often high watermarks are noted in the WAL. They may lag (rule R10): the note only bounds what damage could hide (rule W4).
const HW_NOTE_INTERVAL: Duration = Duration::from_secs(5);

/// How often leaders look for followers that lag (rule I6): a fraction of the time they may lag.
const TICK_INTERVAL: Duration = Duration::from_secs(1);

/// What became durable together, and the memory it held until then.
struct Group {
    ticket: u64,
    marks: Vec<(PartitionId, Mark)>,
    memory: Vec<OwnedSemaphorePermit>,
}

pub(crate) struct Shard {
    inbox: UnboundedReceiver<ShardMsg>,
    wal: Wal,
    traced: Arc<TracedTails>,
    appender: WalAppender,
    wal_events: UnboundedReceiver<WalEvent>,
    /// The broker's incarnation, for replicas that are opened later.
    session: Option<Incarnation>,
    slots: HashMap<PartitionId, Slot>,
    replies: Slab<ProduceReply>,
    /// Answers that wait until readers see what they tell of.
    to_answer: Vec<(ProduceReply, Result<Appended, ApiError>)>,
    unsynced: VecDeque<Group>,
    records: Vec<WalRecord>,
    room: Vec<WalPermit>,
    marks: Vec<(PartitionId, Mark)>,
    /// The newest of any replica that was ever here.
    newest_mark: Mark,
    memory: Vec<OwnedSemaphorePermit>,
    services: Services,
    /// What links are told once the WAL has what they will read.
    to_links: Vec<(BrokerId, LinkMsg)>,
    /// What is asked for once the WAL has what it will be read from.
    to_rebuild: Vec<(PartitionId, Wanted)>,
    /// Counts what was asked to be read again.
    tickets: u64,
    /// Its own queue, where what it asked for comes back.
    own: WeakUnboundedSender<ShardMsg>,
    started: Instant,
    /// A replica found an invariant broken (rule B6).
    fault: Option<String>,
    outputs: Vec<Output>,
    /// The batch that the step under way handed back (rule X3).
    handed_back: Option<Unverified>,
    to_publish: Vec<PartitionId>,
    /// Partitions with batches that need wait no longer.
    to_release: Vec<PartitionId>,
    /// Brokers to which no way leads.
    unreachable: BTreeSet<BrokerId>,
    /// Partitions that began to be pushed to one of those.
    to_tell: Vec<(PartitionId, BrokerId)>,
    /// Partitions that are to be closed.
    to_close: Vec<PartitionId>,
}

/// Starts a shard. It ends, with `Err` and the reason, when the WAL fails (rule W2); with `Ok` when every sender is gone.
pub(crate) fn spawn(
    wal: Wal,
    traced: Arc<TracedTails>,
    services: Services,
) -> (ShardSender, tokio::task::JoinHandle<Result<(), String>>) {
    let (sender, inbox) = unbounded_channel();
    let (events, wal_events) = unbounded_channel();
    let shard = Shard {
        inbox,
        appender: wal.appender(events),
        wal,
        traced,
        wal_events,
        session: None,
        slots: HashMap::new(),
        replies: Slab::new(),
        to_answer: Vec::new(),
        unsynced: VecDeque::new(),
        records: Vec::new(),
        room: Vec::new(),
        marks: Vec::new(),
        newest_mark: Mark(0),
        memory: Vec::new(),
        services,
        to_links: Vec::new(),
        to_rebuild: Vec::new(),
        tickets: 0,
        own: sender.downgrade(),
        started: clock::monotonic(),
        fault: None,
        outputs: Vec::new(),
        handed_back: None,
        to_publish: Vec::new(),
        to_release: Vec::new(),
        unreachable: BTreeSet::new(),
        to_tell: Vec::new(),
        to_close: Vec::new(),
    };
    (sender, tokio::spawn(shard.run()))
}

impl Shard {
    async fn run(mut self) -> Result<(), String> {
        let ended = self.work().await;
        // What was decided before the end is still told.
        self.publish();
        self.answer();
        ended
    }

    async fn work(&mut self) -> Result<(), String> {
        let mut messages = Vec::with_capacity(DRAIN_MAX);
        let mut note = tokio::time::interval(HW_NOTE_INTERVAL);
        note.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let mut tick = tokio::time::interval(TICK_INTERVAL);
        tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                // What is durable is told first: it frees memory and answers waiters.
                biased;
                Some(event) = self.wal_events.recv() => self.on_wal(event)?,
                count = self.inbox.recv_many(&mut messages, DRAIN_MAX) => {
                    if count == 0 {
                        return Ok(());
                    }
                    messages.drain(..).for_each(|message| self.on_message(message));
                }
                _ = note.tick() => self.note_high_watermarks(),
                _ = tick.tick() => self.tick(),
            }
            while let Ok(event) = self.wal_events.try_recv() {
                self.on_wal(event)?;
            }
            if let Some(fault) = self.fault.take() {
                return Err(fault);
            }
            self.release();
            self.tell_unreachable();
            self.hand_to_wal();
            self.publish();
            self.answer();
            self.ask();
            self.close_settled();
        }
    }

    fn on_message(&mut self, message: ShardMsg) {
        match message {
            ShardMsg::Session(inc) => self.on_session(inc),
            ShardMsg::Produce(produce) => self.on_produce(produce),
            ShardMsg::Push(pushed) => self.on_push(*pushed),
            ShardMsg::Open(open) => self.on_open(*open),
            ShardMsg::Close { partition, done } => self.on_close(partition, done),
            ShardMsg::Rebuilt(rebuilt) => self.on_rebuilt(*rebuilt),
            ShardMsg::Step { partition, input } => self.step(partition, input),
            ShardMsg::Reach { broker, reachable } => self.on_reach(broker, reachable),
            ShardMsg::Holds { partitions, reply } => {
                let holds = |partition: &PartitionId| Some((*partition, self.slots.get(partition)?.holds()));
                // Who asked may have waited long enough.
                let _ = reply.send(partitions.iter().filter_map(holds).collect());
            }
            ShardMsg::Ends(asked) => asked.answer(&self.wal, |id| Some(self.slots.get(&id)?.view.borrow().clone())),
            ShardMsg::Stand { partition, stands } => {
                if let Some(slot) = self.slots.get_mut(&partition) {
                    slot.stands = stands;
                }
            }
            ShardMsg::Producers { partition, reply } => {
                let found = self.slots.get(&partition).map(|slot| slot.replica.producers().summaries().collect());
                // Who asked may have waited long enough.
                let _ = reply.send(found.ok_or_else(not_leader));
            }
            ShardMsg::Manifest { partition, root } => self.on_manifest(partition, root),
            ShardMsg::OfficeManifest { partition, office, root } => {
                let ManifestRoot { log_start, tiered_end, epoch, .. } = *root;
                self.on_manifest(partition, root);
                // It proves the log start, be it news or not.
                self.step(partition, Input::OfficeManifest { office, log_start, tiered_end, epoch });
            }
            ShardMsg::OpenTransactions(asked) => asked.answer(|id| Some(&self.slots.get(&id)?.replica)),
            ShardMsg::EndTransaction(ending) => self.on_end_transaction(ending),
            ShardMsg::Verified { partition, verified, refused } => self.on_verified(partition, verified, refused),
            ShardMsg::Leave { partition, leaves } => self.on_leave(partition, leaves),
            ShardMsg::Drop { partition } => self.on_drop(partition),
            ShardMsg::Fault { partition, fault } => self.on_fault(partition, fault),
        }
    }

    fn on_session(&mut self, inc: Option<Incarnation>) {
        self.session = inc;
        let held: Vec<PartitionId> =
            self.slots.iter().filter(|(_, slot)| !slot.is_withdrawn()).map(|(id, _)| *id).collect();
        held.into_iter().for_each(|partition| self.step(partition, Input::Session(inc)));
    }

    /// A replica that is to be given up acknowledges nothing, until it is said to stay.
    fn on_leave(&mut self, partition: PartitionId, leaves: bool) {
        let Some(slot) = self.slots.get_mut(&partition) else { return };
        slot.leaves = leaves;
        let session = if slot.is_withdrawn() { None } else { self.session };
        self.step(partition, Input::Session(session));
    }

    fn on_reach(&mut self, broker: BrokerId, reachable: bool) {
        if reachable {
            // Leaders hear it from the broker itself.
            self.unreachable.remove(&broker);
        } else if self.unreachable.insert(broker) {
            let pushed = self.slots.iter().filter(|(_, slot)| slot.followers.contains(&broker));
            self.to_tell.extend(pushed.map(|(partition, _)| (*partition, broker)));
        }
    }

    fn tell_unreachable(&mut self) {
        for (partition, broker) in std::mem::take(&mut self.to_tell) {
            if self.unreachable.contains(&broker) {
                self.step(partition, Input::Unreachable(broker));
            }
        }
    }

    fn on_produce(&mut self, produce: Produce) {
        let Some(slot) = self.slots.get_mut(&produce.partition) else {
            let gone = ApiError::new(ErrorCode::NotLeaderOrFollower, "this broker holds no replica of the partition");
            // The requester may have gone away; there is nobody else to tell.
            let _ = produce.reply.send(Err(gone));
            return;
        };
        // Rule E9: it waits, with what it holds, and is then told who leads; or appended here, in its turn.
        if slot.replica.hands_over_to().is_some() || !slot.held.is_empty() {
            return slot.held.push(produce);
        }
        self.append(produce);
    }

    /// Goes on with what waited for a transfer that has ended.
    fn release(&mut self) {
        for partition in std::mem::take(&mut self.to_release) {
            let Some(slot) = self.slots.get_mut(&partition) else { continue };
            std::mem::take(&mut slot.held).into_iter().for_each(|produce| self.append(produce));
        }
    }

    fn append(&mut self, produce: Produce) {
        // Rule X3: it may be known that a transaction of this producer has the partition, not that this batch was written for it.
        if produce.transaction.as_ref().is_some_and(InTransaction::is_given_up) {
            return self.to_answer.push((produce.reply, Err(given_up())));
        }
        let Produce { partition, batch, latest, acks, behind, transaction, mut room, memory, reply, spans } = produce;
        let token = Token(self.replies.insert(reply) as u64);
        let input = Input::Produce { token, batch, latest, acks, behind };
        let written_before = self.marks.len();
        spans.append.in_scope(|| self.step(partition, input));
        if let Some(unverified) = self.handed_back.take() {
            let Unverified { producer, epoch, verification, token, batch, latest, acks } = unverified;
            let reply = self.take_reply(token);
            let epoch_per_transaction =
                transaction.as_ref().is_some_and(|transaction| transaction.epoch_per_transaction);
            let asked = Verified { producer, epoch, verification, epoch_per_transaction };
            let produce = Produce { partition, batch, latest, acks, behind, transaction, room, memory, reply, spans };
            return self.keep(asked, produce);
        }
        drop(spans.append);
        if self.marks.len() > written_before {
            if let Some(WalRecord::Batch { batch, .. }) = self.records.last() {
                self.traced.remember(partition, batch.base_offset(), &spans.produce);
            }
            room.trace(tracing::debug_span!(parent: &spans.produce, "wal"));
            self.room.push(room);
            self.memory.push(memory);
        }
    }

    /// Rule X3: nothing of a transaction goes before its first batch is verified.
    fn keep(&mut self, verified: Verified, produce: Produce) {
        let (partition, Some(transaction)) = (produce.partition, produce.transaction.clone()) else {
            let nameless = "a transactional batch has to name its transactional id";
            return self.to_answer.push((produce.reply, Err(ApiError::new(ErrorCode::InvalidRequest, nameless))));
        };
        let Some(slot) = self.slots.get_mut(&partition) else { return };
        if !slot.unverified.keep(&verified, produce) {
            return;
        }
        // Nobody asks any more when the broker ends.
        if let Some(shard) = self.own.upgrade() {
            let _ = self.services.verifications.send(Verify { partition, shard, transaction, verified });
        }
    }

    fn on_verified(&mut self, partition: PartitionId, verified: Verified, refused: Option<ApiError>) {
        let Some(slot) = self.slots.get_mut(&partition) else { return };
        let mut waited = slot.unverified.take(&verified);
        if let Some(refused) = refused {
            return self.refuse(partition, waited, &refused);
        }
        // What a transfer holds back came later, and stays behind.
        waited.append(&mut slot.held);
        self.step(partition, Input::Verified(verified));
        waited.into_iter().for_each(|produce| self.on_produce(produce));
    }

    /// Answers what waited for a coordinator. Rule P6: what comes again is not overtaken.
    fn refuse(&mut self, partition: PartitionId, waited: Vec<Produce>, refused: &ApiError) {
        for produce in waited {
            if let Some(write) = produce.batch.producer_write().filter(|_| refused.code.retriable()) {
                self.step(partition, Input::Refused(write));
            }
            self.to_answer.push((produce.reply, Err(refused.clone())));
        }
    }

    fn on_end_transaction(&mut self, ending: Ending) {
        // Rule X3: what waited for a transfer that has ended came before the marker. So it is appended, or verified, before it, or dropped
        // at it.
        self.release();
        let Ending { partition, office, marker, first, room, reply } = ending;
        let leads = |slot: &Slot| slot.replica.leading().is_some_and(|(record, _)| record.epoch == office);
        let Some(slot) = self.slots.get_mut(&partition).filter(|slot| leads(slot)) else {
            // Rule X5: it may have been under way for long, and another copy of it be done.
            return self.to_answer.push((reply, Err(not_leader())));
        };
        if first.is_some_and(|first| !open::is_open(&slot.replica, marker.producer, first)) {
            return self.to_answer.push((reply, Err(open::not_open())));
        }
        let ended = slot.unverified.take_ended(&marker);
        self.to_answer.extend(ended.into_iter().map(|produce| (produce.reply, Err(given_up()))));
        let token = Token(self.replies.insert(reply) as u64);
        let written_before = self.marks.len();
        self.step(partition, Input::EndTransaction { token, marker });
        if self.marks.len() > written_before {
            self.room.push(room);
        }
    }

    fn take_reply(&mut self, token: Token) -> ProduceReply {
        self.replies.remove(usize::try_from(token.0).expect("tokens are slab keys"))
    }

    fn on_push(&mut self, pushed: Pushed) {
        let Pushed { partition, push, room, memory, answers } = pushed;
        let Some(slot) = self.slots.get_mut(&partition).filter(|slot| slot.takes_pushes()) else {
            // A stream that is gone pushes again when it is back.
            let _ = answers.send(Answer::Unknown { partition, nonce: push.nonce });
            return;
        };
        let newer = slot.answers.turn_to(&push, answers);
        let written_before = self.marks.len();
        self.step(partition, Input::Push(push));
        if let (Some(newer), Some(slot)) = (newer, self.slots.get_mut(&partition)) {
            slot.answers = newer;
        }
        if self.marks.len() > written_before {
            self.room.extend(room);
            self.memory.extend(memory);
        }
    }

    fn on_open(&mut self, open: Open) {
        let (partition, reset_at) = (open.partition, open.reset_at);
        let mut slot = Slot::new(open, self.newest_mark);
        let reset = reset_at.map(|at| {
            let mark = slot.replica.start_over();
            (WalRecord::Reset { partition, at, prefix_hash: slot.replica.prefix_hash() }, mark)
        });
        // What another has acknowledged would be gone (rule S5).
        assert!(self.slots.insert(partition, slot).is_none(), "a replica that is open is not opened");
        if let Some((record, mark)) = reset {
            self.write(record, partition, mark);
        }
        self.to_publish.push(partition);
        self.step(partition, Input::Session(self.session));
    }

    fn on_close(&mut self, partition: PartitionId, done: oneshot::Sender<Closed>) {
        // Whoever waits for a commit is told that it will not be seen here.
        self.step(partition, Input::Session(None));
        if let Some(slot) = self.slots.get_mut(&partition) {
            slot.closing = Some(done);
            self.to_close.push(partition);
        }
    }

    /// Closes what is to be closed and has nothing on its way to the disk.
    fn close_settled(&mut self) {
        let settled = |slots: &HashMap<PartitionId, Slot>, partition: &PartitionId| {
            slots.get(partition).is_none_or(|slot| slot.replica.is_settled())
        };
        let due: Vec<PartitionId> = self.to_close.extract_if(.., |id| settled(&self.slots, id)).collect();
        for partition in due {
            let Some(Slot { replica, view, closing: Some(done), .. }) = self.slots.remove(&partition) else { continue };
            let (hw, known_committed) = (replica.visible().hw, replica.known_committed());
            // Whoever asked may be gone, with the broker.
            let _ = done.send(Closed { view, hw, known_committed });
        }
    }

    fn on_drop(&mut self, partition: PartitionId) {
        // Whoever waits for a commit is told that it will not be seen here.
        self.step(partition, Input::Session(None));
        self.to_close.retain(|closing| *closing != partition);
        // Frames of a replica that was not opened go too.
        if self.slots.remove(&partition).is_some() || self.wal.bounds(partition).is_some() {
            self.records.push(WalRecord::Drop { partition });
        }
    }

    fn on_rebuilt(&mut self, rebuilt: Rebuilt) {
        let Rebuilt { partition, ticket, input, root } = rebuilt;
        let Some(slot) = self.slots.get_mut(&partition) else { return };
        if slot.rebuilding.as_ref().is_none_or(|(open, _)| *open != ticket) {
            return;
        }
        slot.rebuilding = None;
        if root.seq >= slot.manifest.seq {
            slot.manifest = root;
        }
        self.step(partition, input);
    }

    fn on_manifest(&mut self, partition: PartitionId, root: Arc<ManifestRoot>) {
        let Some(slot) = self.slots.get_mut(&partition).filter(|slot| slot.manifest.seq <= root.seq) else { return };
        let ManifestRoot { log_start, tiered_end, epoch, .. } = *root;
        let input = Input::Manifest { log_start, tiered_end, epoch };
        slot.replica.forget_aborted(root.tiered_end);
        slot.manifest = root;
        self.carry_out(partition, Output::Publish);
        // A follower hears of it from its leader, once it has shown to hold the leader's log so far (rules R10, T6).
        if self.slots[&partition].replica.leading().is_some() {
            self.step(partition, input);
        }
    }

    fn on_wal(&mut self, event: WalEvent) -> Result<(), String> {
        let durable = match event {
            WalEvent::Synced { ticket } => ticket,
            WalEvent::Poisoned { reason } => return Err(reason),
        };
        while let Some(group) = self.unsynced.pop_front_if(|group| group.ticket <= durable) {
            for (partition, mark) in group.marks {
                self.step(partition, Input::Durable(mark));
            }
            drop(group.memory);
        }
        Ok(())
    }

    /// Leaders that have to look at the time do, and manifests are asked for where much waits to be forgotten.
    fn tick(&mut self) {
        let due: Vec<PartitionId> =
            self.slots.iter_mut().filter_map(|(id, slot)| slot.wants_manifest().then_some(*id)).collect();
        due.into_iter().for_each(|partition| self.ask_for_manifest(partition, Wanted::Newest));
        let due = self.slots.iter().filter(|(_, slot)| slot.replica.wants_ticks());
        let due: Vec<PartitionId> = due.map(|(id, _)| *id).collect();
        due.into_iter().for_each(|partition| self.step(partition, Input::Tick));
    }

    /// Asks for a manifest that leaves the log as it is.
    fn ask_for_manifest(&self, partition: PartitionId, wanted: Wanted) {
        let (Some(slot), Some(shard)) = (self.slots.get(&partition), self.own.upgrade()) else { return };
        let asker = Arc::downgrade(&slot.here);
        // Nobody reads manifests any more when the broker ends.
        let _ = self.services.rebuilds.send(Rebuild { partition, shard, wanted, ticket: 0, asker });
    }

    fn now(&self) -> Now {
        let since = clock::monotonic().duration_since(self.started);
        Now {
            wall: clock::wall(),
            mono_ms: u64::try_from(since.as_millis()).expect("a broker runs for less than an age"),
        }
    }

    /// Steps one replica and carries out what it decides. A replica that is gone by now has nothing to decide.
    fn step(&mut self, partition: PartitionId, input: Input) {
        let now = self.now();
        let Some(slot) = self.slots.get_mut(&partition) else { return };
        slot.replica.step(now, input, &mut self.outputs);
        let mut outputs = std::mem::take(&mut self.outputs);
        for output in outputs.drain(..) {
            self.carry_out(partition, output);
        }
        self.outputs = outputs;
        self.tell_followers(partition);
        let Some(slot) = self.slots.get_mut(&partition) else { return };
        if !slot.held.is_empty() && slot.replica.hands_over_to().is_none() {
            self.to_release.push(partition);
        }
        let office = slot.replica.leading().map(|(record, _)| record.epoch);
        let deposed = slot.unverified.take_deposed(office);
        self.refuse(partition, deposed, &not_leader());
    }

    /// What a leader says beside its batches, and where its log ends, is told to the links whenever it moved.
    fn tell_followers(&mut self, partition: PartitionId) {
        let Some(slot) = self.slots.get_mut(&partition) else { return };
        if slot.followers.is_empty() {
            return;
        }
        let Some(head) = slot.replica.push_head() else { return };
        let end = slot.replica.visible().end;
        if slot.told.replace((head, end)) != Some((head, end)) {
            let moved = LinkMsg::Moved { partition, head, end };
            self.to_links.extend(slot.followers.iter().map(|follower| (*follower, moved)));
        }
    }

    fn follow(&mut self, partition: PartitionId, cursor: Cursor) {
        let Some(slot) = self.slots.get_mut(&partition) else { return };
        // A leader that stepped down in the same step follows nobody; the end of it comes next.
        let Some(head) = slot.replica.push_head() else { return };
        let end = slot.replica.visible().end;
        if !slot.followers.contains(&cursor.to) {
            slot.followers.push(cursor.to);
        }
        if self.unreachable.contains(&cursor.to) {
            self.to_tell.push((partition, cursor.to));
        }
        self.to_links.push((cursor.to, LinkMsg::Follow { partition, cursor, head, end }));
    }

    fn unfollow(&mut self, partition: PartitionId, follower: BrokerId) {
        let Some(slot) = self.slots.get_mut(&partition) else { return };
        slot.followers.retain(|known| *known != follower);
        if slot.followers.is_empty() {
            slot.told = None;
        }
        self.to_links.push((follower, LinkMsg::Unfollow { partition }));
    }

    fn carry_out(&mut self, partition: PartitionId, output: Output) {
        match output {
            Output::PersistEpoch { epoch, mark } => {
                self.write(WalRecord::EpochSeen { partition, epoch }, partition, mark)
            }
            Output::Append { placed, mark } => {
                let Placed { batch, append_time, latest, prefix_hash } = placed;
                self.write(WalRecord::Batch { partition, batch, append_time, latest, prefix_hash }, partition, mark);
            }
            Output::Truncate { to, mark } => {
                self.note_cut(partition, to);
                self.write(WalRecord::Truncate { partition, to }, partition, mark);
                self.to_rebuild.push((partition, Wanted::StateAt(to)));
            }
            Output::Reset { at, prefix_hash, mark } => {
                self.note_cut(partition, at);
                self.write(WalRecord::Reset { partition, at, prefix_hash }, partition, mark);
            }
            Output::Answer { token, result } => {
                let reply = self.take_reply(token);
                self.to_answer.push((reply, result.map_err(refused)));
            }
            Output::Verify(unverified) => self.handed_back = Some(unverified),
            Output::Propose(proposal) => {
                // Nobody carries proposals any more when the broker ends.
                if let Some(shard) = self.own.upgrade() {
                    let _ = self.services.proposals.send(Proposed { partition, shard, proposal });
                }
            }
            Output::Trim { to } => self.wal.trim(partition, to),
            Output::Publish => {
                let Some(slot) = self.slots.get_mut(&partition) else { return };
                if !std::mem::replace(&mut slot.publish, true) {
                    self.to_publish.push(partition);
                }
            }
            Output::Fault(fault) => self.on_fault(partition, fault),
            Output::Follow(cursor) => self.follow(partition, cursor),
            Output::Unfollow(follower) => self.unfollow(partition, follower),
            Output::Reply { reply, .. } => {
                if let Some(slot) = self.slots.get(&partition) {
                    slot.answers.say(Answer::Said { partition, reply });
                }
            }
            Output::Install => self.to_rebuild.push((partition, Wanted::Manifest)),
            Output::ReadForOffice { office } => self.ask_for_manifest(partition, Wanted::ForOffice(office)),
        }
    }

    /// The leader's log decides what was there beyond a cut.
    fn note_cut(&mut self, partition: PartitionId, to: Offset) {
        if let Some(slot) = self.slots.get_mut(&partition) {
            slot.known_end = slot.known_end.min(to);
        }
    }

    fn on_fault(&mut self, partition: PartitionId, fault: Fault) {
        tracing::error!(%partition, %fault, "an invariant is broken; this broker ends (rule B6)");
        self.fault = Some(format!("{partition}: {fault}"));
    }

    fn write(&mut self, record: WalRecord, partition: PartitionId, mark: Mark) {
        self.records.push(record);
        self.newest_mark = self.newest_mark.max(mark);
        self.marks.push((partition, mark));
    }

    fn hand_to_wal(&mut self) {
        if self.records.is_empty() {
            return;
        }
        let ticket = self.appender.append(std::mem::take(&mut self.records), std::mem::take(&mut self.room));
        self.unsynced.push_back(Group {
            ticket,
            marks: std::mem::take(&mut self.marks),
            memory: std::mem::take(&mut self.memory),
        });
    }

    fn publish(&mut self) {
        for partition in self.to_publish.drain(..) {
            // A replica dropped since has no readers.
            let Some(slot) = self.slots.get_mut(&partition) else { continue };
            slot.publish = false;
            let view = slot.look();
            slot.view.send_replace(view);
        }
    }

    /// Answers produces. Whoever is told that a record is written finds it when it looks next, so views come first.
    fn answer(&mut self) {
        for (reply, result) in self.to_answer.drain(..) {
            // The requester may have gone away; the append stands all the same.
            let _ = reply.send(result);
        }
    }

    /// Tells links and asks for logs to be read, now that the WAL holds what they read.
    fn ask(&mut self) {
        for (follower, message) in self.to_links.drain(..) {
            self.services.links.send(follower, message);
        }
        for (partition, wanted) in self.to_rebuild.drain(..) {
            let (Some(slot), Some(shard)) = (self.slots.get_mut(&partition), self.own.upgrade()) else { continue };
            self.tickets += 1;
            let (ticket, waits) = (self.tickets, Arc::new(()));
            let asker = Arc::downgrade(&waits);
            slot.rebuilding = Some((ticket, waits));
            // Nobody reads logs any more when the broker ends.
            let _ = self.services.rebuilds.send(Rebuild { partition, shard, wanted, ticket, asker });
        }
    }

    /// Notes high watermarks that moved (rule R10: what is noted is durable already).
    fn note_high_watermarks(&mut self) {
        for (partition, slot) in &mut self.slots {
            let hw = slot.replica.hw_to_persist();
            if hw > slot.hw_noted {
                slot.hw_noted = hw;
                self.records.push(WalRecord::HighWatermark { partition: *partition, hw });
            }
        }
    }
}

fn refused(refusal: Refusal) -> ApiError {
    let error = ApiError::new(refusal.code(), refusal.to_string());
    if matches!(refusal, Refusal::Deposed { .. }) { error.in_doubt() } else { error }
}
