//! A classic group as it comes out of a consumer group, and as it goes into one (the on-line migration of KIP-848).

use super::{ClassicGroup, ErrorCode, Member, Scope, State, Timer, refuse};
use crate::groups::consumer::Upgraded;
use crate::groups::embedded::CONSUMER;
use crate::records::groups::ClassicMemberRecord;
use std::collections::BTreeMap;
use std::sync::Arc;

impl ClassicGroup {
    /// A group of members who spoke the classic protocol in a consumer group. They rebalance at once: nobody but the coordinator
    /// assigned them so far.
    pub(in crate::groups) fn downgraded(
        cx: &mut Scope<'_>,
        epoch: i32,
        members: BTreeMap<Arc<str>, ClassicMemberRecord>,
    ) -> ClassicGroup {
        let mut group = ClassicGroup::after(epoch);
        group.record.protocol_type = Some(CONSUMER.to_owned());
        for (id, record) in members {
            group.statics.extend(record.instance.clone().map(|instance| (instance, id.clone())));
            group.members.insert(id, Member { record, ..Member::default() });
        }
        group.record.leader = group.members.keys().next().map(|id| id.to_string());
        group.record.protocol = group.select_protocol();
        group.subscribed = group.subscriptions();
        group.state = State::Stable;
        group.save(cx);
        for id in group.members.keys() {
            group.touch(cx, id);
        }
        group.rebalance(cx);
        group
    }

    /// Whether a consumer of the other kind may join: all members are consumers too, and there is room.
    pub(in crate::groups) fn may_upgrade(&self, cx: &Scope<'_>, instance: Option<&String>) -> Result<(), ErrorCode> {
        let replaces = instance.is_some_and(|instance| self.statics.contains_key(instance));
        if !self.is_of_consumers() {
            Err(ErrorCode::GroupIdNotFound)
        } else if self.members.len() >= cx.limits.members_max && !replaces {
            Err(ErrorCode::GroupMaxSizeReached)
        } else {
            Ok(())
        }
    }

    /// The members as they go into a consumer group.
    pub(in crate::groups) fn upgrading<'a>(&'a self) -> impl Iterator<Item = Upgraded<'a>> {
        let protocol = self.record.protocol.as_deref();
        let upgraded = move |(id, member): (&Arc<str>, &'a Member)| Upgraded {
            id: id.clone(),
            record: &member.record,
            protocol,
            brings: member.brings,
        };
        self.members.iter().map(upgraded)
    }

    /// Lets nobody wait any more, and forgets what was persisted of the members: they go on in a group of another kind.
    pub(in crate::groups) fn dissolve(self, cx: &mut Scope<'_>) {
        for id in &self.promised {
            cx.timers.cancel(&cx.session(id));
        }
        for timer in [Timer::Join, Timer::Sync] {
            cx.timers.cancel(&timer(cx.group.clone()));
        }
        for (id, member) in &self.members {
            refuse(cx, member, id, ErrorCode::RebalanceInProgress);
        }
        self.delete_pieces(cx);
    }
}
