//! A consumer group: the coordinator assigns, members are told by their heartbeats (KIP-848).
//!
//! What a member owns is persisted with it; the target is not, since it can be computed again from that. A partition has one owner
//! (rules O2 and S20): it is given on only after the member said that it does not own it any more, or was removed.

mod classic_members;
mod load;
mod reconcile;
mod saved;

pub(super) use classic_members::Upgraded;
pub(super) use saved::Saved;

use super::assign::{Assignee, Assignor, Target};
use super::scope::Scope;
use super::settings::GroupTimes;
use super::step::{
    Beat, Commit, Description, GroupLimits, GroupState, Heartbeat, JOIN_EPOCH, LEAVE_EPOCH, LEAVE_STATIC_EPOCH, Listed,
    Members,
};
use super::timers::Timer;
use crate::records::groups::{ConsumerRecord, GroupRecord, Held, MemberRecord, MemberState, Record, RecordPart};
use millpond_log::{ErrorCode, PartitionId, TopicId};
use reconcile::{Goal, Said};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// A consumer group.
#[derive(Clone, Debug, Default)]
pub(super) struct ConsumerGroup {
    record: ConsumerRecord,
    members: BTreeMap<Arc<str>, Member>,
    /// The member that has each static identity.
    statics: BTreeMap<String, Arc<str>>,
    /// Ids that were given out to classic members that have to come back with them. Not persisted.
    promised: BTreeSet<Arc<str>>,
    /// What each member is to own, as of `target_epoch`.
    target: Target,
    target_epoch: i32,
    assignor: Assignor,
    /// Who owns each partition, or has still to give it up.
    owners: BTreeMap<PartitionId, Arc<str>>,
    /// The image of topics that subscriptions were resolved with.
    topics_version: u64,
}

#[derive(Clone, Debug, Default)]
struct Member {
    record: MemberRecord,
    /// The topics it subscribes to, of those that are there.
    subscribed: BTreeSet<TopicId>,
    /// Whether it has said that it owns what it was given. Until then it is told again: it may not have known the topic yet.
    confirmed: bool,
    /// The epoch in which it was told to give partitions up.
    revoking_since: Option<i32>,
    /// The highest number of a commit that came of it, since it joined. Not persisted: what is sent to one owner of the shard, and given
    /// up, comes to no other.
    last_commit: u64,
}

/// How a heartbeat fits what is known of its sender.
enum Admission {
    /// A new member.
    New,
    /// A new member with the static identity of one that is gone.
    Replaces(Arc<str>),
    /// A member in its present epoch: what it says it owns counts.
    Present,
    /// A member that missed an answer, or starts again: it is told anew, and what it says may be out of date.
    Behind,
}

/// What a member of the group may commit.
pub(super) enum MayCommit<'a> {
    /// Offsets of all partitions.
    All,
    /// The member is behind by an epoch: only what it owned in that epoch and still does.
    Owned(&'a MemberRecord, i32),
}

impl MayCommit<'_> {
    pub(super) fn check(&self, partition: PartitionId) -> Result<(), ErrorCode> {
        let MayCommit::Owned(member, epoch) = self else { return Ok(()) };
        let held = member.assigned.get(&partition).or_else(|| member.revoking.get(&partition));
        if held.is_some_and(|since| since <= epoch) { Ok(()) } else { Err(ErrorCode::StaleMemberEpoch) }
    }
}

impl ConsumerGroup {
    /// An empty group whose epochs are above those it had as a group of another kind.
    pub(super) fn after(epoch: i32) -> ConsumerGroup {
        ConsumerGroup { record: ConsumerRecord { epoch, ..ConsumerRecord::default() }, ..ConsumerGroup::default() }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.members.is_empty()
    }

    pub(super) fn epoch(&self) -> i32 {
        self.record.epoch
    }

    /// Whether any member subscribes to the topic.
    pub(super) fn subscribes(&self, topic: TopicId) -> bool {
        self.members.values().any(|member| member.subscribed.contains(&topic))
    }

    /// Since when an offset that was committed then is not needed any more; none while it is.
    pub(super) fn unneeded_since(&self, topic: TopicId, committed_at_ms: i64) -> Option<i64> {
        let emptied = || self.record.emptied_at_ms.map_or(committed_at_ms, |at| at.max(committed_at_ms));
        (!self.subscribes(topic)).then(emptied)
    }

    /// Persists what members share.
    pub(super) fn save(&self, cx: &mut Scope<'_>) {
        cx.put(RecordPart::Group, Record::Group(GroupRecord::Consumer(self.record.clone())));
    }

    /// A member lives, joins or leaves. The request was checked.
    pub(super) fn heartbeat(&mut self, cx: &mut Scope<'_>, request: Heartbeat) -> Result<Beat, ErrorCode> {
        if matches!(request.epoch, LEAVE_EPOCH | LEAVE_STATIC_EPOCH) {
            return self.leave(cx, &request);
        }
        let admission = self.admit(cx, &request)?;
        let id = request.member.clone();
        let mut before = self.members.get(&id).map_or_else(MemberRecord::default, |member| member.record.clone());
        if let Admission::Replaces(old) = &admission {
            before = MemberRecord::default();
            self.replace(cx, old, &id);
        }
        self.members.entry(id.clone()).or_default();
        let resubscribed = self.update(&request) || matches!(admission, Admission::New);
        let said = match (&admission, &request.owned) {
            (Admission::New | Admission::Replaces(_), Some(owned)) => Said::Joins(owned),
            (Admission::Present, Some(owned)) => Said::Owns(owned),
            _ => Said::Nothing,
        };
        self.settle(cx, &id, resubscribed, said);
        self.persist(cx, &id, &before);
        let member = self.members.get_mut(&id).expect("it was admitted");
        if request.epoch == JOIN_EPOCH {
            // A process that begins counts anew.
            member.last_commit = 0;
        }
        if let Said::Owns(owned) | Said::Joins(owned) = said {
            member.confirmed |= owned.iter().eq(member.record.assigned.keys());
        }
        cx.after(cx.session(&id), cx.times.session_timeout_ms);
        if before.classic.is_some() {
            cx.timers.cancel(&Timer::Rejoin(cx.group.clone(), id.clone()));
            cx.timers.cancel(&Timer::Resync(cx.group.clone(), id.clone()));
        }
        let full = request.owned.is_some() && request.rebalance_timeout_ms.is_some();
        let tell = full || request.epoch != member.record.epoch || !member.confirmed;
        Ok(Beat {
            member: id,
            epoch: member.record.epoch,
            heartbeat_interval_ms: cx.times.heartbeat_interval_ms,
            session_timeout_ms: cx.times.session_timeout_ms,
            assignment: tell.then(|| member.record.assigned.keys().copied().collect()),
        })
    }

    fn admit(&self, cx: &Scope<'_>, request: &Heartbeat) -> Result<Admission, ErrorCode> {
        let joins = request.epoch == JOIN_EPOCH;
        if let Some(instance) = &request.instance {
            match self.statics.get(instance) {
                Some(holder) if *holder != request.member => {
                    let holder_record = &self.members[holder].record;
                    return if !joins {
                        Err(ErrorCode::FencedInstanceId)
                    } else if holder_record.classic.is_none() && holder_record.epoch != LEAVE_STATIC_EPOCH {
                        Err(ErrorCode::UnreleasedInstanceId)
                    } else {
                        Ok(Admission::Replaces(holder.clone()))
                    };
                }
                None if !joins => return Err(ErrorCode::UnknownMemberId),
                Some(_) | None => {}
            }
        }
        let Some(member) = self.members.get(&request.member) else {
            return match joins {
                false => Err(ErrorCode::UnknownMemberId),
                true if self.members.len() >= cx.limits.members_max => Err(ErrorCode::GroupMaxSizeReached),
                true => Ok(Admission::New),
            };
        };
        let record = &member.record;
        let held = |partition| record.assigned.contains_key(partition) || record.revoking.contains_key(partition);
        let may_have_missed = request.epoch == record.previous_epoch
            && request.owned.as_ref().is_some_and(|owned| owned.iter().all(held));
        if request.epoch == record.epoch {
            Ok(Admission::Present)
        } else if joins || may_have_missed {
            Ok(Admission::Behind)
        } else {
            Err(ErrorCode::FencedMemberEpoch)
        }
    }

    /// Takes over what the member says of itself. Whether it subscribes to something else now.
    fn update(&mut self, request: &Heartbeat) -> bool {
        let member = self.members.get_mut(&request.member).expect("it was admitted");
        let record = &mut member.record;
        if request.instance.is_some() && request.instance != record.instance {
            if let Some(old) = std::mem::replace(&mut record.instance, request.instance.clone()) {
                self.statics.remove(&old);
            }
            self.statics.extend(request.instance.clone().map(|instance| (instance, request.member.clone())));
        }
        if record.epoch == LEAVE_STATIC_EPOCH {
            (record.epoch, record.previous_epoch) = (JOIN_EPOCH, JOIN_EPOCH);
        }
        if request.rack.is_some() {
            record.rack.clone_from(&request.rack);
        }
        if request.assignor.is_some() {
            record.assignor.clone_from(&request.assignor);
        }
        record.rebalance_timeout_ms = request.rebalance_timeout_ms.unwrap_or(record.rebalance_timeout_ms);
        record.client.clone_from(&request.client);
        record.classic = None;
        let topics = request.topics.as_ref().filter(|topics| **topics != record.topics).cloned();
        let regex = request.regex.clone().map(|regex| Some(regex).filter(|regex| !regex.is_empty()));
        let regex = regex.filter(|regex| *regex != record.regex);
        let resubscribed = topics.is_some() || regex.is_some();
        record.topics = topics.unwrap_or_else(|| std::mem::take(&mut record.topics));
        record.regex = regex.unwrap_or_else(|| record.regex.take());
        resubscribed
    }

    /// Brings the group up to date with topics and subscriptions, and the member towards the target.
    fn settle(&mut self, cx: &mut Scope<'_>, id: &Arc<str>, resubscribed: bool, said: Said<'_>) {
        if resubscribed || self.topics_version != cx.topics.version() {
            self.resolve(cx, Some(id));
            let subscribed: BTreeSet<&TopicId> = self.members.values().flat_map(|member| &member.subscribed).collect();
            let topics_hash = cx.topics.hash(subscribed);
            if resubscribed || topics_hash != self.record.topics_hash {
                self.record.topics_hash = topics_hash;
                self.raise_epoch(cx);
            }
        }
        self.retarget(cx);
        let nothing = BTreeSet::new();
        let goal = Goal { epoch: self.target_epoch, partitions: self.target.get(id).unwrap_or(&nothing) };
        let free = |partition| self.owners.get(&partition).is_none_or(|owner| owner == id);
        if let Some(next) = reconcile::advance(&self.members[id].record, goal, said, free) {
            self.enter(cx, id, next);
        }
    }

    /// Finds the topics that members subscribe to: of `changed` alone, unless the topics are others now or it is none.
    fn resolve(&mut self, cx: &mut Scope<'_>, changed: Option<&Arc<str>>) {
        let only = changed.filter(|_| self.topics_version == cx.topics.version());
        for (_, member) in self.members.iter_mut().filter(|(id, _)| only.is_none_or(|only| only == *id)) {
            member.subscribed = member.record.topics.iter().filter_map(|name| cx.topics.id(name)).collect();
            if let Some(regex) = &member.record.regex {
                member.subscribed.extend(cx.patterns.matching(regex, cx.topics));
            }
        }
        self.topics_version = cx.topics.version();
    }

    fn raise_epoch(&mut self, cx: &mut Scope<'_>) {
        self.record.epoch += 1;
        self.record.emptied_at_ms = self.members.is_empty().then_some(cx.now.wall_ms);
        self.save(cx);
    }

    /// Computes the target of the group's epoch, if there is none yet.
    fn retarget(&mut self, cx: &Scope<'_>) {
        if self.target_epoch == self.record.epoch {
            return;
        }
        let vote = |member: &Member| member.record.assignor.as_deref().and_then(Assignor::from_name);
        let votes: Vec<Assignor> = self.members.values().filter_map(vote).collect();
        let count = |assignor: &Assignor| votes.iter().filter(|vote| *vote == assignor).count();
        // Of those with most votes the first: `max_by_key` keeps the last.
        self.assignor = Assignor::ALL.into_iter().rev().max_by_key(count).unwrap_or_default();
        let members: Vec<Assignee<'_>> = self
            .members
            .iter()
            .map(|(id, member)| Assignee {
                id,
                instance: member.record.instance.as_deref(),
                rack: member.record.rack.as_deref(),
                topics: &member.subscribed,
                before: self.target.get(id),
            })
            .collect();
        self.target = self.assignor.assign(&members, cx.topics);
        self.target_epoch = self.record.epoch;
    }

    /// Lets a member own what `next` says, and nobody else.
    fn enter(&mut self, cx: &mut Scope<'_>, id: &Arc<str>, next: MemberRecord) {
        let member = self.members.get_mut(id).expect("only members are reconciled");
        let before = std::mem::replace(&mut member.record, next);
        let record = &member.record;
        if record.assigned != before.assigned {
            member.confirmed = false;
        }
        if record.state != MemberState::Unrevoked || record.classic.is_some() {
            member.revoking_since = None;
            cx.timers.cancel(&Timer::Revocation(cx.group.clone(), id.clone()));
        } else if member.revoking_since != Some(record.epoch) || record.revoking != before.revoking {
            member.revoking_since = Some(record.epoch);
            cx.after(Timer::Revocation(cx.group.clone(), id.clone()), record.rebalance_timeout_ms);
        }
        for partition in before.assigned.keys().chain(before.revoking.keys()) {
            if !record.assigned.contains_key(partition) && !record.revoking.contains_key(partition) {
                self.owners.remove(partition);
            }
        }
        for &partition in record.assigned.keys().chain(record.revoking.keys()) {
            let owner = self.owners.entry(partition).or_insert_with(|| id.clone());
            assert!(owner == id, "rule S20: {partition} belongs to {owner} and was given to {id}");
        }
    }

    fn persist(&mut self, cx: &mut Scope<'_>, id: &Arc<str>, before: &MemberRecord) {
        let record = &mut self.members.get_mut(id).expect("only members are persisted").record;
        if record != before {
            saved::save(cx, id, record);
        }
    }

    /// Lets a new member have all that the old one with the same static identity had.
    fn replace(&mut self, cx: &mut Scope<'_>, old: &Arc<str>, new: &Arc<str>) {
        let mut member = self.members.remove(old).expect("static identities belong to members");
        cancel_timers(cx, old);
        saved::forget(cx, old, std::mem::take(&mut member.record.pieces));
        for partition in member.record.assigned.keys().chain(member.record.revoking.keys()) {
            self.owners.insert(*partition, new.clone());
        }
        let instance = member.record.instance.clone().expect("it was found by its static identity");
        self.statics.insert(instance, new.clone());
        if let Some(target) = self.target.remove(old) {
            self.target.insert(new.clone(), target);
        }
        // The new process owns nothing, so nothing has to be given up.
        for partition in std::mem::take(&mut member.record.revoking).keys() {
            self.owners.remove(partition);
        }
        if member.record.state == MemberState::Unrevoked {
            member.record.state = MemberState::Unreleased;
        }
        (member.record.epoch, member.record.previous_epoch) = (JOIN_EPOCH, JOIN_EPOCH);
        (member.confirmed, member.revoking_since, member.last_commit) = (false, None, 0);
        self.members.insert(new.clone(), member);
    }

    fn leave(&mut self, cx: &mut Scope<'_>, request: &Heartbeat) -> Result<Beat, ErrorCode> {
        self.check_instance(&request.member, request.instance.as_ref())?;
        let (id, member) = self.members.get_key_value(&request.member).ok_or(ErrorCode::UnknownMemberId)?;
        let id = id.clone();
        if request.epoch == LEAVE_STATIC_EPOCH {
            // It keeps what it has until its session ends; what it was to give up is free.
            let before = member.record.clone();
            let mut next = MemberRecord { epoch: LEAVE_STATIC_EPOCH, revoking: Held::new(), ..before.clone() };
            if next.state == MemberState::Unrevoked {
                next.state = MemberState::Unreleased;
            }
            self.enter(cx, &id, next);
            self.persist(cx, &id, &before);
        } else {
            self.remove(cx, std::slice::from_ref(&id));
        }
        let GroupTimes { heartbeat_interval_ms, session_timeout_ms } = cx.times;
        Ok(Beat { member: id, epoch: request.epoch, heartbeat_interval_ms, session_timeout_ms, assignment: None })
    }

    /// Refuses a member whose static identity another has by now.
    fn check_instance(&self, member: &Arc<str>, instance: Option<&String>) -> Result<(), ErrorCode> {
        let Some(instance) = instance else { return Ok(()) };
        let holder = self.statics.get(instance).ok_or(ErrorCode::UnknownMemberId)?;
        if holder == member { Ok(()) } else { Err(ErrorCode::FencedInstanceId) }
    }

    /// Removes members; what they owned is free.
    fn remove(&mut self, cx: &mut Scope<'_>, ids: &[Arc<str>]) {
        let mut removed = Vec::new();
        for id in ids {
            let member = self.members.remove(id).expect("only members are removed");
            removed.push((id, member.record.pieces));
            cancel_timers(cx, id);
            self.target.remove(id);
            if let Some(instance) = &member.record.instance {
                self.statics.remove(instance);
            }
            for partition in member.record.assigned.keys().chain(member.record.revoking.keys()) {
                self.owners.remove(partition);
            }
        }
        // The group comes first: whoever loads only that finds members that are silent, and removes them again.
        self.raise_epoch(cx);
        for (id, pieces) in removed {
            saved::forget(cx, id, pieces);
        }
    }

    /// Something about a member was due.
    pub(super) fn expire(&mut self, cx: &mut Scope<'_>, timer: &Timer) {
        let id = match timer {
            Timer::Session(_, id) | Timer::Rejoin(_, id) | Timer::Resync(_, id) => id,
            Timer::Revocation(_, id) => {
                let member = self.members.get(id);
                if member.is_none_or(|member| member.revoking_since != Some(member.record.epoch)) {
                    return;
                }
                id
            }
            Timer::Join(_) | Timer::Sync(_) | Timer::Expiry => return,
        };
        if matches!(timer, Timer::Session(..)) {
            self.promised.remove(id);
        }
        if self.members.contains_key(id) {
            self.remove(cx, std::slice::from_ref(id));
        }
    }

    /// What whoever sends `commit` may commit.
    pub(super) fn may_commit(&self, commit: &Commit, transactional: bool) -> Result<MayCommit<'_>, ErrorCode> {
        let anonymous = commit.epoch < 0 && commit.member.is_empty() && commit.instance.is_none();
        if commit.epoch < 0 && (self.members.is_empty() || (transactional && anonymous)) {
            return Ok(MayCommit::All);
        }
        self.check_instance(&commit.member, commit.instance.as_ref())?;
        let member = self.members.get(&commit.member).ok_or(ErrorCode::UnknownMemberId)?;
        let record = &member.record;
        if commit.number.is_some_and(|number| number < member.last_commit) {
            Err(ErrorCode::StaleMemberEpoch)
        } else if commit.epoch == record.epoch {
            Ok(MayCommit::All)
        } else if record.classic.is_some() || transactional {
            Err(ErrorCode::IllegalGeneration)
        } else if commit.epoch > JOIN_EPOCH && commit.epoch < record.epoch {
            Ok(MayCommit::Owned(record, commit.epoch))
        } else {
            Err(ErrorCode::StaleMemberEpoch)
        }
    }

    /// A commit of a member was taken.
    pub(super) fn committed(&mut self, commit: &Commit) {
        if let (Some(member), Some(number)) = (self.members.get_mut(&commit.member), commit.number) {
            member.last_commit = number;
        }
    }

    /// Whether a member in this epoch may read offsets.
    pub(super) fn may_fetch(&self, member: &str, epoch: i32) -> Result<(), ErrorCode> {
        if epoch < 0 && member.is_empty() {
            return Ok(());
        }
        let member = self.members.get(member).ok_or(ErrorCode::UnknownMemberId)?;
        if member.record.epoch == epoch { Ok(()) } else { Err(ErrorCode::StaleMemberEpoch) }
    }

    pub(super) fn state(&self) -> GroupState {
        let reached = |member: &Member| {
            let record = &member.record;
            record.state == MemberState::Stable
                && matches!(record.epoch, e if e == self.target_epoch || e == LEAVE_STATIC_EPOCH)
        };
        if self.members.is_empty() {
            GroupState::Empty
        } else if self.target_epoch != self.record.epoch {
            GroupState::Assigning
        } else if self.members.values().all(reached) {
            GroupState::Stable
        } else {
            GroupState::Reconciling
        }
    }

    pub(super) fn describe(&self, group: &Arc<str>) -> Description {
        let member = |(id, member): (&Arc<str>, &Member)| {
            let target = self.target.get(id).cloned().unwrap_or_default();
            (id.clone(), (member.record.clone(), target))
        };
        Description {
            listed: self.list(group),
            epoch: self.record.epoch,
            members: Members::Consumer {
                target_epoch: self.target_epoch,
                assignor: self.assignor.name(),
                members: self.members.iter().map(member).collect(),
            },
        }
    }

    pub(super) fn list(&self, group: &Arc<str>) -> Listed {
        Listed { group: group.clone(), state: self.state(), consumer: true, protocol_type: "consumer".to_owned() }
    }

    /// All that is persisted of the group.
    pub(super) fn records(&self, limits: &GroupLimits) -> Vec<(RecordPart, Record)> {
        let group = (RecordPart::Group, Record::Group(GroupRecord::Consumer(self.record.clone())));
        let members = self.members.iter();
        let members = members.flat_map(|(id, member)| saved::records(id, &member.record, limits.member_bytes_max));
        std::iter::once(group).chain(members).collect()
    }
}

/// Refuses what contradicts itself.
pub(super) fn check(request: &Heartbeat) -> Result<(), ErrorCode> {
    let empty = |text: &Option<String>| text.as_ref().is_some_and(String::is_empty);
    let joins = request.epoch == JOIN_EPOCH;
    let owns = request.owned.as_ref().is_some_and(|owned| !owned.is_empty());
    let subscribes = request.topics.is_some() || request.regex.as_ref().is_some_and(|regex| !regex.is_empty());
    let wrong = request.group.is_empty()
        || request.member.is_empty()
        || empty(&request.instance)
        || empty(&request.rack)
        || request.epoch < LEAVE_STATIC_EPOCH
        || (request.epoch == LEAVE_STATIC_EPOCH && request.instance.is_none())
        || (joins && (request.rebalance_timeout_ms.is_none() || owns || !subscribes));
    if wrong {
        return Err(ErrorCode::InvalidRequest);
    }
    match request.assignor.as_deref().map(Assignor::from_name) {
        Some(None) => Err(ErrorCode::UnsupportedAssignor),
        Some(Some(_)) | None => Ok(()),
    }
}

fn cancel_timers(cx: &mut Scope<'_>, id: &Arc<str>) {
    let (group, id) = (cx.group.clone(), id.clone());
    for timer in [Timer::Session, Timer::Revocation, Timer::Rejoin, Timer::Resync] {
        cx.timers.cancel(&timer(group.clone(), id.clone()));
    }
}
