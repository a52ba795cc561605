//! Members of a consumer group that speak the classic protocol: the coordinator assigns, and tells them through joins and syncs.
//!
//! Their generation is their member epoch. They learn by their heartbeats that something has changed, and join again.

use super::{ConsumerGroup, Member, Said, Scope, Timer, saved};
use crate::groups::bounds;
use crate::groups::embedded::{self, ByName, CONSUMER, Subscription};
use crate::groups::step::{
    Answer, ClassicHeartbeat, JOIN_EPOCH, Join, JoinRefused, Joined, Leave, SyncGroup, Synced, Token,
};
use crate::groups::topics::Topics;
use crate::records::groups::{
    ClassicMember, ClassicMemberRecord, ConsumerRecord, Held, MemberRecord, MemberState, Protocol,
};
use millpond_log::{ErrorCode, PartitionId};
use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// A member of a classic group, as it becomes one of a consumer group.
pub(in crate::groups) struct Upgraded<'a> {
    pub(in crate::groups) id: Arc<str>,
    pub(in crate::groups) record: &'a ClassicMemberRecord,
    /// The protocol of its generation.
    pub(in crate::groups) protocol: Option<&'a str>,
    /// What it says that it owns it had as another member that was removed.
    pub(in crate::groups) brings: bool,
}

impl ConsumerGroup {
    /// A member joins by the classic protocol. It is answered at once: nobody is waited for.
    pub(in crate::groups) fn join(&mut self, cx: &mut Scope<'_>, token: Token, request: Join) {
        let given = request.fresh.clone();
        let said = request.member.clone();
        let joined = self.try_join(cx, request);
        let refused = |code| {
            let member = if code == ErrorCode::MemberIdRequired { given } else { said };
            JoinRefused { code, member }
        };
        cx.answer(token, Answer::Join(joined.map_err(refused)));
    }

    fn try_join(&mut self, cx: &mut Scope<'_>, request: Join) -> Result<Joined, ErrorCode> {
        let unknown = request.member.is_empty();
        let id = if unknown { request.fresh.clone() } else { request.member.clone() };
        let holder = request.instance.as_ref().and_then(|instance| self.statics.get(instance)).cloned();
        let replaces = holder.clone().filter(|holder| *holder != id);
        if !self.members.contains_key(&id) && replaces.is_none() && self.members.len() >= cx.limits.members_max {
            return Err(ErrorCode::GroupMaxSizeReached);
        }
        if !self.supports(&request) {
            return Err(ErrorCode::InconsistentGroupProtocol);
        }
        if request.instance.is_none() && unknown && request.known_id_required {
            cx.after(cx.session(&id), request.session_timeout_ms);
            self.promised.insert(id);
            return Err(ErrorCode::MemberIdRequired);
        }
        if request.instance.is_some() && !unknown {
            self.check_instance(&id, request.instance.as_ref())?;
        }
        let first = request.protocols.first().ok_or(ErrorCode::InconsistentGroupProtocol)?;
        let subscription = Subscription::read(&first.metadata).ok_or(ErrorCode::InconsistentGroupProtocol)?;
        if !bounds::fits_consumer_group(&subscription) {
            return Err(ErrorCode::MessageTooLarge);
        }
        // What a member owns that was removed may be another's by now (rule S20). It hears of that here, and most drop everything then.
        // Some clients join anew and say that they own it still: what they bring is taken from them by their first sync.
        let owns = subscription.owned.values().any(|partitions| !partitions.is_empty());
        let known = unknown || self.promised.contains(&id) || self.members.contains_key(&id);
        if owns && !known && replaces.is_none() {
            return Err(ErrorCode::UnknownMemberId);
        }
        self.promised.remove(&id);
        let protocol = first.name.clone();
        let mut before = self.members.get(&id).map_or_else(MemberRecord::default, |member| member.record.clone());
        if let Some(old) = replaces {
            before = MemberRecord::default();
            self.replace(cx, &old, &id);
        }
        let new = !self.members.contains_key(&id);
        let timeout_ms = (request.session_timeout_ms, request.rebalance_timeout_ms);
        let owned = by_id(&subscription.owned, cx.topics);
        let resubscribed = self.update_classic(&id, request, subscription) || new;
        self.hold(cx, &id, &owned);
        self.settle(cx, &id, resubscribed, Said::Joins(&owned));
        self.persist(cx, &id, &before);
        cx.timers.cancel(&Timer::Rejoin(cx.group.clone(), id.clone()));
        cx.after(cx.session(&id), timeout_ms.0);
        cx.after(Timer::Resync(cx.group.clone(), id.clone()), timeout_ms.1);
        Ok(Joined {
            generation: self.members[&id].record.epoch,
            member: id,
            protocol_type: Some(CONSUMER.to_owned()),
            protocol: Some(protocol),
            leader: None,
            members: Vec::new(),
            skip_assignment: false,
        })
    }

    /// Whether the member knows an assignor that all classic members know: the group may become a classic one again.
    fn supports(&self, request: &Join) -> bool {
        let classic = || self.members.values().filter_map(|member| member.record.classic.as_ref());
        let everybody_knows = |name: &String| classic().all(|other| other.protocols.iter().any(|p| p.name == *name));
        request.protocol_type == CONSUMER && request.protocols.iter().any(|protocol| everybody_knows(&protocol.name))
    }

    fn update_classic(&mut self, id: &Arc<str>, request: Join, subscription: Subscription) -> bool {
        let member = self.members.entry(id.clone()).or_default();
        let record = &mut member.record;
        if record.instance.is_none()
            && let Some(instance) = request.instance
        {
            self.statics.insert(instance.clone(), id.clone());
            record.instance = Some(instance);
        }
        record.rack = subscription.rack.or_else(|| record.rack.take());
        record.client = request.client;
        record.rebalance_timeout_ms = request.rebalance_timeout_ms;
        record.classic =
            Some(ClassicMember { session_timeout_ms: request.session_timeout_ms, protocols: request.protocols });
        let resubscribed = record.topics != subscription.topics || record.regex.is_some();
        (record.topics, record.regex) = (subscription.topics, None);
        resubscribed
    }

    /// Lets nobody have what a member brings and nobody has, until it says that it has dropped it (rules O2 and S20): it may read on until
    /// its sync takes that from it.
    fn hold(&mut self, cx: &Scope<'_>, id: &Arc<str>, brought: &BTreeSet<PartitionId>) {
        let record = &mut self.members.get_mut(id).expect("it joins").record;
        for &partition in brought.iter().filter(|partition| cx.topics.holds(**partition)) {
            let Entry::Vacant(free) = self.owners.entry(partition) else { continue };
            free.insert(id.clone());
            if record.epoch <= JOIN_EPOCH {
                // It joins in an epoch that is over, and reaches the present one when it comes again without that.
                (record.epoch, record.previous_epoch) = (self.record.epoch, self.record.epoch);
            }
            record.revoking.insert(partition, record.epoch);
            record.state = MemberState::Unrevoked;
        }
    }

    /// A classic member fetches what it owns.
    pub(in crate::groups) fn sync(&mut self, cx: &mut Scope<'_>, request: SyncGroup) -> Result<Synced, ErrorCode> {
        let id = request.who.member.clone();
        let record = self.check_classic(&request.who)?;
        let classic = record.classic.as_ref().ok_or(ErrorCode::UnknownMemberId)?;
        let first = classic.protocols.first().ok_or(ErrorCode::InconsistentGroupProtocol)?;
        let other = |said: &Option<String>, known: &str| said.as_ref().is_some_and(|said| said != known);
        if other(&request.protocol_type, CONSUMER) || other(&request.protocol, &first.name) {
            return Err(ErrorCode::InconsistentGroupProtocol);
        }
        if self.record.epoch > record.epoch && record.state != MemberState::Unrevoked {
            self.await_rejoin(cx, &id);
            return Err(ErrorCode::RebalanceInProgress);
        }
        let synced = Synced {
            protocol_type: Some(CONSUMER.to_owned()),
            protocol: Some(first.name.clone()),
            assignment: assignment_of(record, &first.metadata, cx.topics),
        };
        let session_timeout_ms = classic.session_timeout_ms;
        cx.timers.cancel(&Timer::Resync(cx.group.clone(), id.clone()));
        cx.after(cx.session(&id), session_timeout_ms);
        Ok(synced)
    }

    /// A classic member lives. Whether it has to join again.
    pub(in crate::groups) fn classic_heartbeat(
        &mut self,
        cx: &mut Scope<'_>,
        who: &ClassicHeartbeat,
    ) -> Result<(), ErrorCode> {
        let record = self.check_classic(who)?;
        let classic = record.classic.as_ref().ok_or(ErrorCode::UnknownMemberId)?;
        cx.after(cx.session(&who.member), classic.session_timeout_ms);
        let waits = record.state == MemberState::Unreleased && self.waits_for_others(&who.member);
        let behind =
            record.epoch < self.record.epoch || self.topics_version != cx.topics.version() && self.is_stale(cx);
        if behind || (record.state != MemberState::Stable && !waits) {
            self.await_rejoin(cx, &who.member);
            return Err(ErrorCode::RebalanceInProgress);
        }
        Ok(())
    }

    /// Whether the topics are others than those that the group's epoch was raised for. Nobody else may heartbeat for long.
    fn is_stale(&self, cx: &mut Scope<'_>) -> bool {
        let mut subscribed = BTreeSet::new();
        for member in self.members.values() {
            subscribed.extend(member.record.topics.iter().filter_map(|name| cx.topics.id(name)));
            if let Some(regex) = &member.record.regex {
                subscribed.extend(cx.patterns.matching(regex, cx.topics));
            }
        }
        cx.topics.hash(&subscribed) != self.record.topics_hash
    }

    fn waits_for_others(&self, id: &Arc<str>) -> bool {
        let target = self.target.get(id);
        let mut owners = target.into_iter().flatten().filter_map(|partition| self.owners.get(partition));
        owners.any(|owner| owner != id)
    }

    fn await_rejoin(&self, cx: &mut Scope<'_>, id: &Arc<str>) {
        let at_ms = cx.now.steady_ms.saturating_add(self.members[id].record.rebalance_timeout_ms.into());
        cx.timers.set_if_absent(Timer::Rejoin(cx.group.clone(), id.clone()), at_ms);
    }

    /// Classic members leave, each by itself.
    pub(in crate::groups) fn classic_leave(
        &mut self,
        cx: &mut Scope<'_>,
        request: &Leave,
    ) -> Vec<Result<(), ErrorCode>> {
        let mut leaving: Vec<Arc<str>> = Vec::new();
        let mut leave = |(id, instance): &(Arc<str>, Option<String>)| {
            let id = match instance {
                Some(instance) if id.is_empty() => {
                    self.statics.get(instance).cloned().ok_or(ErrorCode::UnknownMemberId)?
                }
                _ => id.clone(),
            };
            self.check_instance(&id, instance.as_ref())?;
            let member = self.members.get(&id).filter(|member| member.record.classic.is_some());
            member.filter(|_| !leaving.contains(&id)).ok_or(ErrorCode::UnknownMemberId)?;
            leaving.push(id);
            Ok(())
        };
        let left = request.members.iter().map(&mut leave).collect();
        if !leaving.is_empty() {
            self.remove(cx, &leaving);
        }
        left
    }

    fn check_classic(&self, who: &ClassicHeartbeat) -> Result<&MemberRecord, ErrorCode> {
        self.check_instance(&who.member, who.instance.as_ref())?;
        let member = self.members.get(&who.member).filter(|member| member.record.classic.is_some());
        let record = &member.ok_or(ErrorCode::UnknownMemberId)?.record;
        if record.epoch == who.generation { Ok(record) } else { Err(ErrorCode::IllegalGeneration) }
    }

    /// Whether only classic members are left: then the group is to become a classic one.
    pub(in crate::groups) fn is_all_classic(&self) -> bool {
        !self.members.is_empty() && self.members.values().all(|member| member.record.classic.is_some())
    }

    /// The members as those of a classic group, with what they own.
    pub(in crate::groups) fn downgraded(&self, topics: &Topics) -> BTreeMap<Arc<str>, ClassicMemberRecord> {
        let member = |(id, Member { record, .. }): (&Arc<str>, &Member)| {
            let classic = record.classic.as_ref()?;
            let first: &Protocol = classic.protocols.first()?;
            let downgraded = ClassicMemberRecord {
                instance: record.instance.clone(),
                client: record.client.clone(),
                rebalance_timeout_ms: record.rebalance_timeout_ms,
                session_timeout_ms: classic.session_timeout_ms,
                protocols: classic.protocols.clone(),
                assignment: assignment_of(record, &first.metadata, topics),
            };
            Some((id.clone(), downgraded))
        };
        self.members.iter().filter_map(member).collect()
    }

    /// Stops everything that is timed for members, and for those that may become some.
    pub(in crate::groups) fn stop(&self, cx: &mut Scope<'_>) {
        for id in self.members.keys().chain(&self.promised) {
            super::cancel_timers(cx, id);
        }
    }

    /// Forgets the members: they go on in a group of another kind.
    pub(in crate::groups) fn dissolve(self, cx: &mut Scope<'_>) {
        for (id, member) in self.members {
            saved::forget(cx, &id, member.record.pieces);
        }
    }

    /// A consumer group of the members of a classic one, who own what their leader gave them. What else a member said that it owned as it
    /// joined (a cooperative one reads on meanwhile), it has still to give up (rules O2 and S20); so it has what it brings. None if something
    /// cannot be read, or does not fit.
    pub(in crate::groups) fn upgraded<'a>(
        cx: &mut Scope<'_>,
        generation: i32,
        members: impl Iterator<Item = Upgraded<'a>>,
    ) -> Option<ConsumerGroup> {
        let record = ConsumerRecord { epoch: generation, ..ConsumerRecord::default() };
        let mut group = ConsumerGroup { record, target_epoch: generation, ..ConsumerGroup::default() };
        let mut all = Vec::new();
        let mut owners: BTreeMap<PartitionId, Arc<str>> = BTreeMap::new();
        for Upgraded { id, record, protocol, brings } in members {
            let known = record.protocols.iter().find(|known| Some(known.name.as_str()) == protocol);
            let subscription = Subscription::read(&known.or(record.protocols.first())?.metadata)?;
            if !bounds::fits_consumer_group(&subscription) {
                return None;
            }
            let assigned = by_id(&embedded::read_assignment(&record.assignment)?, cx.topics);
            for partition in assigned {
                owners.entry(partition).or_insert_with(|| id.clone());
            }
            all.push((id, record, subscription, brings));
        }
        // Others may have been given since what these bring.
        all.sort_by_key(|(.., brings)| *brings);
        for (id, record, subscription, brings) in all {
            let mut held = |partitions: &mut dyn Iterator<Item = PartitionId>| -> Held {
                let free = partitions.filter(|partition| *owners.entry(*partition).or_insert_with(|| id.clone()) == id);
                free.map(|partition| (partition, generation)).collect()
            };
            let owned = by_id(&subscription.owned, cx.topics);
            let (assigned, revoking) = if record.assignment.is_empty() && !brings {
                // A generation without an assignment: it goes on with what it had.
                (held(&mut owned.into_iter()), Held::new())
            } else {
                let assigned = by_id(&embedded::read_assignment(&record.assignment)?, cx.topics);
                let revoking = held(&mut owned.difference(&assigned).copied());
                (held(&mut assigned.into_iter()), revoking)
            };
            let state = if revoking.is_empty() { MemberState::Stable } else { MemberState::Unrevoked };
            let upgraded = MemberRecord {
                instance: record.instance.clone(),
                rack: subscription.rack,
                client: record.client.clone(),
                rebalance_timeout_ms: record.rebalance_timeout_ms,
                topics: subscription.topics,
                classic: Some(ClassicMember {
                    session_timeout_ms: record.session_timeout_ms,
                    protocols: record.protocols.clone(),
                }),
                epoch: generation,
                previous_epoch: generation,
                state,
                assigned,
                revoking,
                ..MemberRecord::default()
            };
            group.adopt(&id, upgraded);
        }
        for (id, member) in &mut group.members {
            saved::save(cx, id, &mut member.record);
            let classic = member.record.classic.as_ref().expect("all of them are classic");
            cx.after(cx.session(id), classic.session_timeout_ms);
        }
        Some(group)
    }
}

/// Partitions of topics that are there.
fn by_id(named: &ByName, topics: &Topics) -> BTreeSet<PartitionId> {
    let known = named.iter().filter_map(|(name, indexes)| Some((topics.id(name)?, indexes)));
    known.flat_map(|(topic, indexes)| indexes.iter().map(move |&index| PartitionId { topic, index })).collect()
}

/// What a member owns, in the bytes that its assignor would have written for `subscription`.
fn assignment_of(record: &MemberRecord, subscription: &[u8], topics: &Topics) -> Vec<u8> {
    let mut named = ByName::new();
    for partition in record.assigned.keys() {
        if let Some(topic) = topics.get(partition.topic) {
            named.entry(topic.name.as_str().to_owned()).or_default().insert(partition.index);
        }
    }
    let version = Subscription::read(subscription).map_or(0, |subscription| subscription.version);
    embedded::write_assignment(&named, version)
}
