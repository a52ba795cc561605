//! A classic group: members join, one of them assigns, all fetch what it gave them (Kafka's JoinGroup and SyncGroup; KIP-345).
//!
//! What is persisted is the last generation that was assigned. Whoever loads a group in the middle of a rebalance finds that one, and its
//! members join again.

mod convert;
mod join;
mod saved;
mod sync;

use super::embedded::{CONSUMER, Subscription};
use super::scope::Scope;
use super::step::{Answer, Commit, Description, GroupState, JoinRefused, Listed, Members, Token};
use super::timers::Timer;
use crate::records::groups::{ClassicMemberRecord, ClassicRecord, Record, RecordPart};
use millpond_log::{ErrorCode, TopicId};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// A classic group.
#[derive(Clone, Debug, Default)]
pub(super) struct ClassicGroup {
    state: State,
    record: ClassicRecord,
    members: BTreeMap<Arc<str>, Member>,
    statics: BTreeMap<String, Arc<str>>,
    /// Ids that were given out to members that have to come back with them.
    promised: BTreeSet<Arc<str>>,
    /// Members that have not fetched what this generation gives them.
    unsynced: BTreeSet<Arc<str>>,
    /// Names of the topics that members subscribe to; none if they are no consumers, or say what nobody understands.
    subscribed: Option<BTreeSet<String>>,
    /// What is persisted.
    saved: Vec<(RecordPart, Record)>,
}

#[derive(Clone, Debug, Default)]
enum State {
    #[default]
    Empty,
    /// The first rebalance: members gather for a while. So long it may yet last, and whether one came since the last look.
    Gathering { left_ms: u32, grown: bool },
    /// Waits for all members to join.
    Preparing,
    /// Waits for the leader's assignment.
    Completing,
    /// Every member may have what it was given.
    Stable,
}

#[derive(Clone, Debug, Default)]
struct Member {
    record: ClassicMemberRecord,
    /// Its JoinGroup that waits.
    joining: Option<Token>,
    /// Its SyncGroup that waits.
    syncing: Option<Token>,
    /// It has not been part of a generation yet.
    new: bool,
    /// It has fetched no assignment yet: what it says that it owns, it had as another member that was removed.
    brings: bool,
}

impl ClassicGroup {
    /// An empty group whose generations are above the epochs it had as a group of another kind.
    pub(super) fn after(epoch: i32) -> ClassicGroup {
        ClassicGroup { record: ClassicRecord { generation: epoch, ..ClassicRecord::default() }, ..Default::default() }
    }

    pub(super) fn is_empty(&self) -> bool {
        matches!(self.state, State::Empty)
    }

    /// Whether nothing is there that anybody would miss.
    pub(super) fn is_void(&self) -> bool {
        self.is_empty() && self.promised.is_empty() && self.saved.is_empty()
    }

    pub(super) fn generation(&self) -> i32 {
        self.record.generation
    }

    fn is_joining(&self) -> bool {
        matches!(self.state, State::Gathering { .. } | State::Preparing)
    }

    fn is_of_consumers(&self) -> bool {
        self.record.protocol_type.as_deref() == Some(CONSUMER)
    }

    /// Refuses whoever is no member, or whose static identity another has by now.
    fn check_member(&self, member: &str, instance: Option<&String>) -> Result<(), ErrorCode> {
        if let Some(instance) = instance {
            let holder = self.statics.get(instance).ok_or(ErrorCode::UnknownMemberId)?;
            if **holder != *member {
                return Err(ErrorCode::FencedInstanceId);
            }
        }
        if self.members.contains_key(member) { Ok(()) } else { Err(ErrorCode::UnknownMemberId) }
    }

    /// How long a rebalance may take: as long as the slowest member asks for.
    fn rebalance_timeout_ms(&self) -> u32 {
        self.members.values().map(|member| member.record.rebalance_timeout_ms).max().unwrap_or(0)
    }

    fn all_joined(&self) -> bool {
        self.promised.is_empty() && self.members.values().all(|member| member.joining.is_some())
    }

    /// Gives a member its session anew.
    fn touch(&self, cx: &mut Scope<'_>, id: &Arc<str>) {
        cx.after(cx.session(id), self.members[id].record.session_timeout_ms);
    }

    /// Something about the group was due.
    pub(super) fn expire(&mut self, cx: &mut Scope<'_>, timer: &Timer) {
        match timer {
            Timer::Join(_) => self.end_join(cx),
            Timer::Sync(_) => self.end_sync(cx),
            Timer::Session(_, id) => self.end_session(cx, id),
            Timer::Revocation(..) | Timer::Rejoin(..) | Timer::Resync(..) | Timer::Expiry => {}
        }
    }

    fn end_session(&mut self, cx: &mut Scope<'_>, id: &Arc<str>) {
        if self.promised.remove(id) {
            if self.is_joining() && self.all_joined() {
                self.complete_join(cx);
            }
            return;
        }
        let Some(member) = self.members.get(id) else { return };
        // Who waits for an answer cannot heartbeat meanwhile; one that never was in a generation may be gone all the same.
        if member.new || (member.joining.is_none() && member.syncing.is_none()) {
            self.remove(cx, id, ErrorCode::UnknownMemberId);
            self.rebalance_without(cx);
        }
    }

    /// Takes a member out. Its requests that wait are refused.
    fn remove(&mut self, cx: &mut Scope<'_>, id: &Arc<str>, code: ErrorCode) {
        let Some(member) = self.members.remove(id) else { return };
        cx.timers.cancel(&cx.session(id));
        self.unsynced.remove(id);
        if let Some(instance) = &member.record.instance {
            self.statics.remove(instance);
        }
        if self.record.leader.as_deref() == Some(&**id) {
            self.record.leader = self.members.keys().next().map(|next| next.to_string());
        }
        refuse(cx, &member, id, code);
    }

    /// After members were taken out: those that are left rebalance, or go on without them at once.
    fn rebalance_without(&mut self, cx: &mut Scope<'_>) {
        match self.state {
            State::Stable | State::Completing => self.rebalance(cx),
            State::Preparing | State::Gathering { .. } if self.all_joined() => self.complete_join(cx),
            State::Empty | State::Preparing | State::Gathering { .. } => {}
        }
    }

    /// Whether whoever sends `commit` may commit. A member's session is renewed.
    pub(super) fn may_commit(&self, commit: &Commit, transactional: bool) -> Result<(), ErrorCode> {
        if commit.epoch < 0 && self.is_empty() {
            return Ok(());
        }
        if commit.epoch < 0 && commit.member.is_empty() && commit.instance.is_none() {
            // Producers of old say nothing of the group.
            return if transactional { Ok(()) } else { Err(ErrorCode::UnknownMemberId) };
        }
        self.check_member(&commit.member, commit.instance.as_ref())?;
        if commit.epoch != self.record.generation {
            Err(ErrorCode::IllegalGeneration)
        } else if !transactional && matches!(self.state, State::Completing) {
            Err(ErrorCode::RebalanceInProgress)
        } else {
            Ok(())
        }
    }

    /// A commit shows that its member lives.
    pub(super) fn committed(&self, cx: &mut Scope<'_>, member: &Arc<str>) {
        if self.members.contains_key(member) && !matches!(self.state, State::Completing) {
            self.touch(cx, member);
        }
    }

    /// Whether offsets of the topic are needed by members; unknown subscriptions need all.
    pub(super) fn subscribes(&self, cx: &Scope<'_>, topic: TopicId) -> bool {
        let name = cx.topics.get(topic).map(|topic| topic.name.as_str());
        match &self.subscribed {
            Some(subscribed) => name.is_some_and(|name| subscribed.contains(name)),
            None => self.is_of_consumers(),
        }
    }

    /// Whether some of its offsets may be deleted: nobody knows what members other than consumers need.
    pub(super) fn may_delete_offsets(&self) -> bool {
        self.is_empty() || self.is_of_consumers()
    }

    /// Since when an offset that was committed then is not needed any more; none while it is.
    pub(super) fn unneeded_since(&self, cx: &Scope<'_>, topic: TopicId, committed_at_ms: i64) -> Option<i64> {
        match self.state {
            State::Empty => Some(self.record.emptied_at_ms.map_or(committed_at_ms, |at| at.max(committed_at_ms))),
            State::Stable if self.is_of_consumers() && !self.subscribes(cx, topic) => Some(committed_at_ms),
            State::Stable | State::Gathering { .. } | State::Preparing | State::Completing => None,
        }
    }

    pub(super) fn list(&self, group: &Arc<str>) -> Listed {
        let state = match self.state {
            State::Empty => GroupState::Empty,
            State::Gathering { .. } | State::Preparing => GroupState::PreparingRebalance,
            State::Completing => GroupState::CompletingRebalance,
            State::Stable => GroupState::Stable,
        };
        let protocol_type = self.record.protocol_type.clone().unwrap_or_default();
        Listed { group: group.clone(), state, consumer: false, protocol_type }
    }

    pub(super) fn describe(&self, group: &Arc<str>) -> Description {
        let members = self.members.iter().map(|(id, member)| (id.clone(), member.record.clone())).collect();
        let protocol = self.record.protocol.clone();
        Description {
            listed: self.list(group),
            epoch: self.record.generation,
            members: Members::Classic { protocol, members },
        }
    }

    /// What members subscribe to, by the protocol that was chosen.
    fn subscriptions(&self) -> Option<BTreeSet<String>> {
        let protocol = self.record.protocol.as_ref().filter(|_| self.is_of_consumers());
        if self.members.is_empty() {
            return self.is_of_consumers().then(BTreeSet::new);
        }
        let mut topics = BTreeSet::new();
        for member in self.members.values() {
            topics.extend(Subscription::read(metadata(&member.record, protocol?))?.topics);
        }
        Some(topics)
    }
}

/// What a member tells an assignor.
fn metadata<'a>(record: &'a ClassicMemberRecord, protocol: &str) -> &'a [u8] {
    let named = record.protocols.iter().find(|known| known.name == protocol);
    named.map_or(&[], |known| &known.metadata)
}

/// Refuses what a member waits for.
fn refuse(cx: &mut Scope<'_>, member: &Member, id: &Arc<str>, code: ErrorCode) {
    if let Some(token) = member.joining {
        cx.answer(token, Answer::Join(Err(JoinRefused { code, member: id.clone() })));
    }
    if let Some(token) = member.syncing {
        cx.answer(token, Answer::Sync(Err(code)));
    }
}
