//! A shard: its groups by name, what is due in them, and the one way in for everything that happens to them.
//!
//! What happens inside a group is decided by its kind. Here it is decided which kind a group is.

mod ends;
mod kinds;
mod load;

use super::bounds::GROUP_NAME_BYTES_MAX;
use super::classic::ClassicGroup;
use super::consumer::ConsumerGroup;
use super::offsets::{Confirmed, Offsets};
use super::patterns::Patterns;
use super::scope::Scope;
use super::settings::{GroupOverrides, GroupRules};
use super::step::{
    Answer, Change, Commit, Description, Fetch, Fetched, Members, Now, Request, Step, Token, TxnCommit, TxnEnd,
};
use super::timers::{Timer, Timers};
use super::topics::Topics;
use crate::records::groups::{Record, RecordKey};
use ends::Ends;
pub use load::MisplacedRecord;
use millpond_log::{CoordinatorEpoch, ErrorCode, PartitionId, ProducerId, TopicId};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Offsets that one tick looks at for expiry. The rest waits for the next, so that no step takes long.
const EXPIRY_OFFSETS_PER_TICK: usize = 10_000;

/// The groups of one shard, of which this is the only owner.
///
/// Every step changes the state at once and says what is to be persisted. There is no undo: whoever cannot persist it drops the
/// shard, and the next owner loads it.
#[derive(Clone, Debug)]
pub struct Shard {
    rules: GroupRules,
    topics: Arc<Topics>,
    patterns: Patterns,
    timers: Timers,
    groups: BTreeMap<Arc<str>, Group>,
    /// Groups that may have offsets waiting for the end of a producer's transaction.
    open: BTreeMap<ProducerId, BTreeSet<Arc<str>>>,
    ends: Ends,
    /// The group that the search for expired offsets goes on after.
    expiry_after: Option<Arc<str>>,
}

#[derive(Clone, Debug, Default)]
struct Group {
    kind: Kind,
    offsets: Offsets,
}

#[derive(Clone, Debug, Default)]
enum Kind {
    /// Only offsets: of consumers that assign themselves, or of a group that was emptied.
    #[default]
    Simple,
    Consumer(ConsumerGroup),
    Classic(ClassicGroup),
}

impl Shard {
    /// When `tick` is to be called, in milliseconds of the steady clock; none as long as nothing is due.
    #[must_use]
    pub fn next_deadline(&self) -> Option<u64> {
        self.timers.next()
    }

    /// Takes a request. Its answer is in this step, or in a later one if it has to wait.
    pub fn step(&mut self, now: Now, token: Token, request: Request) -> Step {
        let mut step = Step::default();
        let to = &mut step;
        if request.group().is_some_and(|group| group.len() > GROUP_NAME_BYTES_MAX) {
            step.answers.extend(request.refused(ErrorCode::InvalidGroupId).map(|refused| (token, refused)));
            return step;
        }
        let answer = match request {
            Request::Join(request) => {
                self.join(now, to, token, request);
                None
            }
            Request::Sync(request) => {
                self.sync(now, to, token, request);
                None
            }
            Request::Heartbeat(request) => Some(Answer::Heartbeat(self.heartbeat(now, to, request))),
            Request::ClassicHeartbeat(who) => Some(Answer::ClassicHeartbeat(self.classic_heartbeat(now, to, &who))),
            Request::Leave(request) => Some(Answer::Leave(self.leave(now, to, &request))),
            Request::Commit(request) => Some(Answer::Commit(self.commit(now, to, request))),
            Request::Verification => Some(Answer::Verification(self.ends.now())),
            Request::EndTxn(end) => {
                self.end_txn(now, to, end);
                Some(Answer::EndTxn)
            }
            Request::TxnCommit(request) => Some(Answer::Commit(self.txn_commit(now, to, request))),
            Request::Fetch(request) => Some(Answer::Fetch(self.fetch(request))),
            Request::DeleteOffsets { group, partitions } => {
                Some(Answer::DeleteOffsets(self.delete_offsets(now, to, &group, partitions)))
            }
            Request::Delete(group) => Some(Answer::Delete(self.delete(now, to, &group))),
            Request::Describe(group) => Some(Answer::Describe(self.describe(&group))),
            Request::List => Some(Answer::List(self.groups.iter().map(|(name, group)| group.list(name)).collect())),
        };
        step.answers.extend(answer.map(|answer| (token, answer)));
        step
    }

    /// Does what is due.
    pub fn tick(&mut self, now: Now) -> Step {
        let mut step = Step::default();
        while let Some(timer) = self.timers.due(now.steady_ms) {
            let group = match &timer {
                Timer::Expiry => {
                    self.expire_offsets(now, &mut step);
                    continue;
                }
                Timer::Session(group, _)
                | Timer::Revocation(group, _)
                | Timer::Rejoin(group, _)
                | Timer::Resync(group, _)
                | Timer::Join(group)
                | Timer::Sync(group) => group.clone(),
            };
            self.enter(now, &mut step, &group, |cx, group| match &mut group.kind {
                Kind::Consumer(consumer) => consumer.expire(cx, &timer),
                Kind::Classic(classic) => classic.expire(cx, &timer),
                Kind::Simple => {}
            });
        }
        step
    }

    /// Takes the topics as they are now. Groups notice as their members heartbeat. An older image changes nothing.
    pub fn set_topics(&mut self, topics: Arc<Topics>) {
        if topics.version() > self.topics.version() {
            self.topics = topics;
        }
    }

    /// Takes what is set on groups, by name, as it is now: all of it. It holds from each member's next heartbeat on.
    pub fn set_overrides(&mut self, overrides: Arc<BTreeMap<Arc<str>, GroupOverrides>>) {
        self.rules.overrides = overrides;
    }

    /// Forgets all offsets of a topic whose tombstone was seen (rule K6). The topics of `set_topics` are without it already.
    pub fn topic_deleted(&mut self, now: Now, topic: TopicId) -> Step {
        let mut step = Step::default();
        for name in self.groups.keys().cloned().collect::<Vec<Arc<str>>>() {
            self.enter(now, &mut step, &name, |cx, group| group.offsets.delete_topics(cx, |gone| gone == topic));
        }
        step
    }

    /// The same, of an owner of this epoch: what an earlier one verified is void (rule X3).
    #[must_use]
    pub fn in_office(mut self, epoch: CoordinatorEpoch) -> Shard {
        self.ends = Ends::after(u64::from(epoch.0) << 32);
        self
    }

    fn end_txn(&mut self, now: Now, step: &mut Step, end: TxnEnd) {
        self.ends.add(end.producer);
        for name in self.open.remove(&end.producer).unwrap_or_default() {
            let waits = self.enter(now, step, &name, |cx, group| {
                group.offsets.end(cx, end);
                group.offsets.has_pending_of(end.producer)
            });
            if waits {
                self.open.entry(end.producer).or_default().insert(name);
            }
        }
    }

    /// All that is persisted of the shard.
    #[must_use]
    pub fn records(&self) -> BTreeMap<RecordKey, Record> {
        let records = self.groups.iter().flat_map(|(name, group)| {
            let kind = match &group.kind {
                Kind::Simple => Vec::new(),
                Kind::Consumer(consumer) => consumer.records(&self.rules.limits),
                Kind::Classic(classic) => classic.records(),
            };
            let records = kind.into_iter().chain(group.offsets.records());
            records.map(|(part, record)| (RecordKey { group: name.clone(), part }, record))
        });
        records.collect()
    }

    fn commit(
        &mut self,
        now: Now,
        step: &mut Step,
        mut request: Commit,
    ) -> Result<Vec<Result<(), ErrorCode>>, ErrorCode> {
        let name = self.committing(&request)?;
        self.enter(now, step, &name, |cx, Group { kind, offsets }| {
            let may = kind.may_commit(&request, false)?;
            if let Kind::Classic(classic) = &*kind {
                classic.committed(cx, &request.member);
            }
            let expires_at_ms = request.retention_ms.map(|retention| cx.now.wall_ms.saturating_add(retention));
            let to_commit = std::mem::take(&mut request.offsets);
            let results = offsets.commit(cx, to_commit, expires_at_ms, |partition| may.check(partition));
            if let Kind::Consumer(consumer) = kind {
                consumer.committed(&request);
            }
            Ok(results)
        })
    }

    fn txn_commit(
        &mut self,
        now: Now,
        step: &mut Step,
        request: TxnCommit,
    ) -> Result<Vec<Result<(), ErrorCode>>, ErrorCode> {
        let TxnCommit { commit, producer, producer_epoch: epoch, verified, coordinator } = request;
        if self.ends.missed(verified, producer) {
            return Err(ErrorCode::InvalidTxnState);
        }
        let name = self.committing(&commit).map_err(|_| ErrorCode::IllegalGeneration)?;
        let results = self.enter(now, step, &name, |cx, Group { kind, offsets }| {
            kind.may_commit(&commit, true)?;
            offsets.add_pending(cx, Confirmed { producer, epoch, coordinator }, commit.offsets)
        })?;
        self.open.entry(producer).or_default().insert(name);
        Ok(results)
    }

    /// The group that is committed to. A consumer that is no member makes a group by its first commit.
    fn committing(&self, request: &Commit) -> Result<Arc<str>, ErrorCode> {
        if request.group.is_empty() {
            Err(ErrorCode::InvalidGroupId)
        } else if request.epoch >= 0 && !self.groups.contains_key(&request.group) {
            Err(ErrorCode::GroupIdNotFound)
        } else {
            Ok(request.group.clone())
        }
    }

    fn fetch(&self, request: Fetch) -> Result<Vec<Fetched>, ErrorCode> {
        let Some(group) = self.groups.get(&request.group) else {
            // Nothing was ever committed there, which is a fact and no error.
            return Ok(Offsets::default().fetch(request.partitions, false));
        };
        if let (Some((member, epoch)), Kind::Consumer(consumer)) = (&request.member, &group.kind) {
            consumer.may_fetch(member, *epoch)?;
        }
        Ok(group.offsets.fetch(request.partitions, request.require_stable))
    }

    fn delete_offsets(
        &mut self,
        now: Now,
        step: &mut Step,
        name: &Arc<str>,
        partitions: Vec<PartitionId>,
    ) -> Result<Vec<Result<(), ErrorCode>>, ErrorCode> {
        if !self.groups.contains_key(name) {
            return Err(ErrorCode::GroupIdNotFound);
        }
        self.enter(now, step, name, |cx, Group { kind, offsets }| {
            if matches!(kind, Kind::Classic(classic) if !classic.may_delete_offsets()) {
                return Err(ErrorCode::NonEmptyGroup);
            }
            let needed = |partition: &PartitionId| kind.subscribes(cx, partition.topic);
            let (needed, unneeded): (Vec<PartitionId>, Vec<PartitionId>) = partitions.iter().partition(|p| needed(p));
            offsets.delete(cx, unneeded);
            let result = |partition| match needed.contains(partition) {
                true => Err(ErrorCode::GroupSubscribedToTopic),
                false => Ok(()),
            };
            Ok(partitions.iter().map(result).collect())
        })
    }

    fn delete(&mut self, now: Now, step: &mut Step, name: &Arc<str>) -> Result<(), ErrorCode> {
        if !self.groups.contains_key(name) {
            return Err(ErrorCode::GroupIdNotFound);
        }
        self.enter(now, step, name, |cx, group| {
            if !group.kind.is_empty() {
                return Err(ErrorCode::NonEmptyGroup);
            }
            group.clear(cx);
            Ok(())
        })
    }

    pub(super) fn describe(&self, name: &Arc<str>) -> Result<Description, ErrorCode> {
        let group = self.groups.get(name).ok_or(ErrorCode::GroupIdNotFound)?;
        Ok(match &group.kind {
            Kind::Consumer(consumer) => consumer.describe(name),
            Kind::Classic(classic) => classic.describe(name),
            Kind::Simple => Description {
                listed: group.list(name),
                epoch: 0,
                members: Members::Classic { protocol: None, members: BTreeMap::new() },
            },
        })
    }

    /// Looks at some groups for offsets that expired, and for groups that nothing is left of.
    fn expire_offsets(&mut self, now: Now, step: &mut Step) {
        let after = self.expiry_after.take();
        let later = self.groups.range::<Arc<str>, _>((
            after.as_ref().map_or(std::ops::Bound::Unbounded, std::ops::Bound::Excluded),
            std::ops::Bound::Unbounded,
        ));
        let mut names = Vec::new();
        let mut budget = EXPIRY_OFFSETS_PER_TICK;
        for (name, group) in later {
            if budget == 0 {
                self.expiry_after = names.last().cloned();
                break;
            }
            names.push(name.clone());
            budget = budget.saturating_sub(1 + group.offsets.count());
        }
        for name in names {
            self.enter(now, step, &name, |cx, Group { kind, offsets }| {
                offsets.expire(cx, |cx, topic, committed| kind.unneeded_since(cx, topic, committed.committed_at_ms));
                if kind.is_empty() && offsets.is_empty() {
                    std::mem::take(kind).delete(cx);
                }
            });
        }
        let wait = if self.expiry_after.is_some() { 1 } else { self.rules.limits.expiry_interval_ms };
        self.timers.set(Timer::Expiry, now.steady_ms.saturating_add(wait.into()));
    }

    /// Lets `decide` at one group, which is there from then on only if it holds something.
    fn enter<T>(
        &mut self,
        now: Now,
        step: &mut Step,
        name: &Arc<str>,
        decide: impl FnOnce(&mut Scope<'_>, &mut Group) -> T,
    ) -> T {
        let Shard { rules, topics, patterns, timers, groups, .. } = self;
        let group = groups.entry(name.clone()).or_default();
        let (limits, times) = (&rules.limits, rules.times(name));
        let mut cx = Scope { now, limits, times, topics, patterns, timers, step, group: name };
        let decided = decide(&mut cx, group);
        group.settle_kind(&mut cx);
        if matches!(group.kind, Kind::Simple) && group.offsets.is_empty() {
            groups.remove(name);
        }
        decided
    }
}

/// Applies changes to records, as a store does.
pub fn apply(records: &mut BTreeMap<RecordKey, Record>, changes: Vec<Change>) {
    for Change { key, record } in changes {
        match record {
            Some(record) => records.insert(key, record),
            None => records.remove(&key),
        };
    }
}
