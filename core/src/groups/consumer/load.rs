//! A consumer group as it is after its shard was loaded: what is persisted, and a target and sessions made anew.

use super::{ConsumerGroup, Member, Saved, Scope, Timer, saved};
use crate::records::groups::{ConsumerRecord, MemberRecord, MemberState};
use millpond_log::PartitionId;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

impl ConsumerGroup {
    /// Reads a group back. Its members get a fresh session each.
    pub(in crate::groups) fn load(
        cx: &mut Scope<'_>,
        record: ConsumerRecord,
        members: BTreeMap<Arc<str>, Saved>,
    ) -> ConsumerGroup {
        let mut group = ConsumerGroup { record, ..ConsumerGroup::default() };
        let mut strays = Vec::new();
        for (id, saved) in members {
            let Some(record) = saved.whole(cx, &id) else { continue };
            let pieces = record.pieces;
            // A change that was cut short may leave a group that is behind its members.
            group.record.epoch = group.record.epoch.max(record.epoch);
            if !group.adopt(&id, record) {
                strays.push((id, pieces));
            }
        }
        group.resolve(cx, None);
        for id in group.members.keys().cloned().collect::<Vec<Arc<str>>>() {
            group.time(cx, &id);
        }
        group.target_epoch = group.record.epoch;
        if !group.is_at_rest(cx) {
            // The target that was being worked towards is gone, so a new one gets an epoch of its own.
            group.raise_epoch(cx);
        }
        for (id, pieces) in strays {
            saved::forget(cx, &id, pieces);
        }
        group
    }

    /// Takes a member in, with what it owns as its target. Refuses one that owns what another does (rule S20): it has to join anew.
    pub(super) fn adopt(&mut self, id: &Arc<str>, record: MemberRecord) -> bool {
        let held = || record.assigned.keys().chain(record.revoking.keys());
        let taken = record.instance.as_ref().is_some_and(|instance| self.statics.contains_key(instance));
        if taken || held().any(|partition| self.owners.contains_key(partition)) {
            return false;
        }
        self.owners.extend(held().map(|&partition| (partition, id.clone())));
        self.statics.extend(record.instance.clone().map(|instance| (instance, id.clone())));
        self.target.insert(id.clone(), record.assigned.keys().copied().collect());
        self.members.insert(id.clone(), Member { record, ..Member::default() });
        true
    }

    fn time(&mut self, cx: &mut Scope<'_>, id: &Arc<str>) {
        let member = self.members.get_mut(id).expect("it was adopted");
        let classic = member.record.classic.as_ref();
        cx.after(cx.session(id), classic.map_or(cx.times.session_timeout_ms, |classic| classic.session_timeout_ms));
        if member.record.state == MemberState::Unrevoked && classic.is_none() {
            member.revoking_since = Some(member.record.epoch);
            cx.after(Timer::Revocation(cx.group.clone(), id.clone()), member.record.rebalance_timeout_ms);
        }
    }

    /// Whether what members own is a whole target of the group's epoch.
    fn is_at_rest(&self, cx: &Scope<'_>) -> bool {
        let still =
            |member: &Member| member.record.state == MemberState::Stable && member.record.epoch == self.record.epoch;
        let topics: BTreeSet<_> = self.members.values().flat_map(|member| &member.subscribed).collect();
        let all = topics
            .into_iter()
            .flat_map(|&topic| (0..cx.topics.partitions(topic)).map(move |index| PartitionId { topic, index }));
        self.members.values().all(still) && all.eq(self.owners.keys().copied())
    }
}
