//! Which kind a group is, and how it becomes another: by who joins it, and by who is left (the on-line migration of KIP-848).
//!
//! The order of changes when the kind changes: members in their new form, the group's record, members in their old form. So whoever loads
//! a prefix finds one of both kinds whole, and sweeps the rest.

use super::{ClassicGroup, ConsumerGroup, Group, Kind, Now, Shard, Step, Token};
use crate::groups::bounds;
use crate::groups::consumer::{self, MayCommit};
use crate::groups::scope::Scope;
use crate::groups::step::{
    Answer, Beat, ClassicHeartbeat, Commit, GroupState, Heartbeat, JOIN_EPOCH, Join, JoinRefused, Leave, Listed,
    SyncGroup,
};
use crate::records::groups::RecordPart;
use millpond_log::{ErrorCode, TopicId};
use std::sync::Arc;

impl Shard {
    pub(super) fn heartbeat(&mut self, now: Now, step: &mut Step, request: Heartbeat) -> Result<Beat, ErrorCode> {
        consumer::check(&request)?;
        if bounds::heartbeat_is_too_large(&request) {
            return Err(ErrorCode::InvalidRequest);
        }
        let name = request.group.clone();
        self.enter(now, step, &name, |cx, group| {
            if request.regex.as_deref().is_some_and(|regex| !cx.patterns.check(regex)) {
                return Err(ErrorCode::InvalidRegularExpression);
            }
            let joins = request.epoch == JOIN_EPOCH;
            match &mut group.kind {
                Kind::Consumer(consumer) => return consumer.heartbeat(cx, request),
                Kind::Simple | Kind::Classic(_) if !joins => return Err(ErrorCode::UnknownMemberId),
                Kind::Simple => {}
                Kind::Classic(classic) if classic.is_empty() => {}
                Kind::Classic(_) => group.upgrade(cx, request.instance.as_ref())?,
            }
            if let Kind::Consumer(consumer) = &mut group.kind {
                return consumer.heartbeat(cx, request);
            }
            let mut consumer = ConsumerGroup::after(group.epoch());
            let beat = consumer.heartbeat(cx, request)?;
            if let Kind::Classic(classic) = std::mem::replace(&mut group.kind, Kind::Consumer(consumer)) {
                classic.dissolve(cx);
            }
            Ok(beat)
        })
    }

    pub(super) fn join(&mut self, now: Now, step: &mut Step, token: Token, request: Join) {
        let (least_ms, most_ms) = self.rules.limits.classic_session_timeout_ms;
        let mut refuse = |code| {
            let refused = JoinRefused { code, member: request.member.clone() };
            step.answers.push((token, Answer::Join(Err(refused))));
        };
        if request.group.is_empty() {
            return refuse(ErrorCode::InvalidGroupId);
        }
        if !(least_ms..=most_ms).contains(&request.session_timeout_ms) {
            return refuse(ErrorCode::InvalidSessionTimeout);
        }
        if bounds::join_is_too_large(&request) {
            return refuse(ErrorCode::MessageTooLarge);
        }
        let live = self.groups.get(&request.group).is_some_and(|group| match &group.kind {
            Kind::Simple => false,
            Kind::Consumer(consumer) => !consumer.is_empty(),
            Kind::Classic(_) => true,
        });
        if !live && !request.member.is_empty() {
            return refuse(ErrorCode::UnknownMemberId);
        }
        if !live && (request.protocol_type.is_empty() || request.protocols.is_empty()) {
            return refuse(ErrorCode::InconsistentGroupProtocol);
        }
        let name = request.group.clone();
        self.enter(now, step, &name, |cx, group| {
            if !live {
                let mut classic = ClassicGroup::after(group.epoch());
                if matches!(group.kind, Kind::Consumer(_)) {
                    classic.save(cx);
                }
                group.kind = Kind::Classic(classic);
            }
            match &mut group.kind {
                Kind::Consumer(consumer) => consumer.join(cx, token, request),
                Kind::Classic(classic) => classic.join(cx, token, request),
                Kind::Simple => unreachable!("it has just become a classic group"),
            }
        });
    }

    pub(super) fn sync(&mut self, now: Now, step: &mut Step, token: Token, request: SyncGroup) {
        if bounds::sync_is_too_large(&request) {
            return step.answers.push((token, Answer::Sync(Err(ErrorCode::MessageTooLarge))));
        }
        let name = request.who.group.clone();
        self.enter(now, step, &name, |cx, group| match &mut group.kind {
            Kind::Classic(classic) => classic.sync(cx, token, request),
            Kind::Consumer(consumer) => {
                let synced = consumer.sync(cx, request);
                cx.answer(token, Answer::Sync(synced));
            }
            Kind::Simple => cx.answer(token, Answer::Sync(Err(ErrorCode::UnknownMemberId))),
        });
    }

    pub(super) fn classic_heartbeat(
        &mut self,
        now: Now,
        step: &mut Step,
        who: &ClassicHeartbeat,
    ) -> Result<(), ErrorCode> {
        self.enter(now, step, &who.group, |cx, group| match &mut group.kind {
            Kind::Classic(classic) => classic.heartbeat(cx, who),
            Kind::Consumer(consumer) => consumer.classic_heartbeat(cx, who),
            Kind::Simple => Err(ErrorCode::UnknownMemberId),
        })
    }

    pub(super) fn leave(
        &mut self,
        now: Now,
        step: &mut Step,
        request: &Leave,
    ) -> Result<Vec<Result<(), ErrorCode>>, ErrorCode> {
        self.enter(now, step, &request.group, |cx, group| match &mut group.kind {
            Kind::Classic(classic) => Ok(classic.leave(cx, request)),
            Kind::Consumer(consumer) => Ok(consumer.classic_leave(cx, request)),
            Kind::Simple => Err(ErrorCode::UnknownMemberId),
        })
    }
}

impl Group {
    /// Group epoch or generation.
    fn epoch(&self) -> i32 {
        match &self.kind {
            Kind::Simple => 0,
            Kind::Consumer(consumer) => consumer.epoch(),
            Kind::Classic(classic) => classic.generation(),
        }
    }

    /// Makes a consumer group of a classic one whose members are consumers.
    fn upgrade(&mut self, cx: &mut Scope<'_>, instance: Option<&String>) -> Result<(), ErrorCode> {
        let Kind::Classic(classic) = &self.kind else { return Ok(()) };
        classic.may_upgrade(cx, instance)?;
        let consumer = ConsumerGroup::upgraded(cx, classic.generation(), classic.upgrading());
        let consumer = consumer.ok_or(ErrorCode::GroupIdNotFound)?;
        consumer.save(cx);
        if let Kind::Classic(classic) = std::mem::replace(&mut self.kind, Kind::Consumer(consumer)) {
            classic.dissolve(cx);
        }
        Ok(())
    }

    /// Makes a classic group of a consumer group that only classic members are left of, and forgets a group that nothing is left of.
    pub(super) fn settle_kind(&mut self, cx: &mut Scope<'_>) {
        match &self.kind {
            Kind::Consumer(consumer) if consumer.is_all_classic() => {
                let members = consumer.downgraded(cx.topics);
                let epoch = consumer.epoch();
                let Kind::Consumer(consumer) = std::mem::take(&mut self.kind) else { return };
                // Before the members are timed as those of another kind.
                consumer.stop(cx);
                self.kind = Kind::Classic(ClassicGroup::downgraded(cx, epoch, members));
                consumer.dissolve(cx);
            }
            Kind::Classic(classic) if classic.is_void() => self.kind = Kind::Simple,
            Kind::Simple | Kind::Consumer(_) | Kind::Classic(_) => {}
        }
    }

    pub(super) fn list(&self, name: &Arc<str>) -> Listed {
        match &self.kind {
            Kind::Consumer(consumer) => consumer.list(name),
            Kind::Classic(classic) => classic.list(name),
            Kind::Simple => {
                let (group, protocol_type) = (name.clone(), String::new());
                Listed { group, state: GroupState::Empty, consumer: false, protocol_type }
            }
        }
    }

    /// Forgets everything.
    pub(super) fn clear(&mut self, cx: &mut Scope<'_>) {
        self.offsets.delete_topics(cx, |_| true);
        std::mem::take(&mut self.kind).delete(cx);
    }
}

impl Kind {
    pub(super) fn is_empty(&self) -> bool {
        match self {
            Kind::Simple => true,
            Kind::Consumer(consumer) => consumer.is_empty(),
            Kind::Classic(classic) => classic.is_empty(),
        }
    }

    pub(super) fn subscribes(&self, cx: &Scope<'_>, topic: TopicId) -> bool {
        match self {
            Kind::Simple => false,
            Kind::Consumer(consumer) => consumer.subscribes(topic),
            Kind::Classic(classic) => !classic.is_empty() && classic.subscribes(cx, topic),
        }
    }

    pub(super) fn may_commit(&self, commit: &Commit, transactional: bool) -> Result<MayCommit<'_>, ErrorCode> {
        match self {
            Kind::Simple if commit.epoch < 0 => Ok(MayCommit::All),
            Kind::Simple => Err(ErrorCode::UnknownMemberId),
            Kind::Consumer(consumer) => consumer.may_commit(commit, transactional),
            Kind::Classic(classic) => classic.may_commit(commit, transactional).map(|()| MayCommit::All),
        }
    }

    /// Since when an offset is not needed any more (KIP-211): since the group emptied, or since it was committed if nobody subscribes
    /// to the topic. None while it is needed.
    pub(super) fn unneeded_since(&self, cx: &Scope<'_>, topic: TopicId, committed_at_ms: i64) -> Option<i64> {
        match self {
            Kind::Simple => Some(committed_at_ms),
            Kind::Consumer(consumer) => consumer.unneeded_since(topic, committed_at_ms),
            Kind::Classic(classic) => classic.unneeded_since(cx, topic, committed_at_ms),
        }
    }

    /// Forgets a group without members.
    pub(super) fn delete(self, cx: &mut Scope<'_>) {
        match self {
            Kind::Simple => {}
            Kind::Consumer(_) => cx.delete(RecordPart::Group),
            Kind::Classic(classic) => classic.delete(cx),
        }
    }
}
