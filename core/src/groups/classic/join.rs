//! The join phase of a classic group: members come, until all are there or time is up; then a generation begins.

use super::{ClassicGroup, Member, Scope, State, Timer, metadata, refuse};
use crate::groups::step::{Answer, Join, JoinRefused, Joined, JoinedMember, Token};
use crate::records::groups::ClassicMemberRecord;
use millpond_log::ErrorCode;
use std::collections::BTreeMap;
use std::sync::Arc;

/// How often at most is looked whether one of a group's static members has come, when none of them had, in milliseconds.
const ABSENT_LOOK_MS: u32 = 1_000;

impl ClassicGroup {
    /// A member joins, for the first time or again.
    pub(in crate::groups) fn join(&mut self, cx: &mut Scope<'_>, token: Token, request: Join) {
        if let Err(code) = self.try_join(cx, token, &request) {
            let given = code == ErrorCode::MemberIdRequired;
            let member = if given { request.fresh } else { request.member };
            cx.answer(token, Answer::Join(Err(JoinRefused { code, member })));
        }
    }

    fn try_join(&mut self, cx: &mut Scope<'_>, token: Token, request: &Join) -> Result<(), ErrorCode> {
        let id = &request.member;
        if !self.has_room(cx, id) {
            self.promised.remove(id);
            self.remove(cx, id, ErrorCode::GroupMaxSizeReached);
            return Err(ErrorCode::GroupMaxSizeReached);
        }
        if !self.supports(request) {
            return Err(ErrorCode::InconsistentGroupProtocol);
        }
        if !id.is_empty() {
            return self.join_known(cx, token, request);
        }
        let holder = request.instance.as_ref().and_then(|instance| self.statics.get(instance)).cloned();
        match holder {
            Some(old) => self.replace(cx, token, request, &old),
            None if request.instance.is_none() && request.known_id_required => {
                self.promised.insert(request.fresh.clone());
                cx.after(cx.session(&request.fresh), request.session_timeout_ms);
                return Err(ErrorCode::MemberIdRequired);
            }
            None => self.add(cx, token, request, request.fresh.clone()),
        }
        Ok(())
    }

    fn has_room(&self, cx: &Scope<'_>, id: &Arc<str>) -> bool {
        let room = self.members.len() < cx.limits.members_max;
        match self.state {
            State::Empty => true,
            State::Stable | State::Completing => room || self.members.contains_key(id),
            // Of members that were there before, those that come first stay.
            State::Gathering { .. } | State::Preparing => {
                let joined = self.members.values().filter(|member| member.joining.is_some()).count();
                let waits = self.members.get(id).is_some_and(|member| member.joining.is_some());
                waits || joined < cx.limits.members_max
            }
        }
    }

    /// Whether the member knows a protocol that all others know.
    fn supports(&self, request: &Join) -> bool {
        if self.is_empty() {
            return !request.protocol_type.is_empty() && !request.protocols.is_empty();
        }
        let everybody_knows = |name: &String| {
            self.members.values().all(|member| member.record.protocols.iter().any(|known| known.name == *name))
        };
        self.record.protocol_type.as_ref() == Some(&request.protocol_type)
            && request.protocols.iter().any(|protocol| everybody_knows(&protocol.name))
    }

    fn join_known(&mut self, cx: &mut Scope<'_>, token: Token, request: &Join) -> Result<(), ErrorCode> {
        let id = &request.member;
        if request.instance.is_none() && self.promised.contains(id) {
            self.add(cx, token, request, id.clone());
            return Ok(());
        }
        self.check_member(id, request.instance.as_ref())?;
        let same = self.members[id].record.protocols == request.protocols;
        let leads = self.record.leader.as_deref() == Some(&**id);
        match self.state {
            State::Completing if same => self.answer_join(cx, id, token, leads),
            State::Stable if same && !leads => self.answer_join(cx, id, token, false),
            State::Completing | State::Stable => {
                self.update(cx, token, request, id);
                self.rebalance(cx);
            }
            State::Gathering { .. } | State::Preparing => {
                self.update(cx, token, request, id);
                self.complete_if_all_joined(cx);
            }
            State::Empty => return Err(ErrorCode::UnknownMemberId),
        }
        Ok(())
    }

    fn add(&mut self, cx: &mut Scope<'_>, token: Token, request: &Join, id: Arc<str>) {
        self.promised.remove(&id);
        if self.members.is_empty() {
            self.record.protocol_type = Some(request.protocol_type.clone());
        }
        if self.record.leader.is_none() {
            self.record.leader = Some(id.to_string());
        }
        if let Some(instance) = &request.instance {
            self.statics.insert(instance.clone(), id.clone());
        }
        if let State::Gathering { grown, .. } = &mut self.state {
            *grown = true;
        }
        let record = ClassicMemberRecord {
            instance: request.instance.clone(),
            client: request.client.clone(),
            ..ClassicMemberRecord::default()
        };
        self.members.insert(id.clone(), Member { record, new: true, brings: true, ..Member::default() });
        self.update(cx, token, request, &id);
        // A client that gave the request up meanwhile is not waited for any longer than this.
        cx.after(cx.session(&id), cx.limits.new_member_join_timeout_ms);
        match self.state {
            State::Empty | State::Completing | State::Stable => self.rebalance(cx),
            State::Gathering { .. } | State::Preparing => self.complete_if_all_joined(cx),
        }
    }

    /// Takes over what a member says, and lets it wait.
    fn update(&mut self, cx: &mut Scope<'_>, token: Token, request: &Join, id: &Arc<str>) {
        let member = self.members.get_mut(id).expect("only members are updated");
        member.record.protocols.clone_from(&request.protocols);
        member.record.session_timeout_ms = request.session_timeout_ms;
        member.record.rebalance_timeout_ms = request.rebalance_timeout_ms;
        if let Some(earlier) = member.joining.replace(token) {
            let refused = JoinRefused { code: ErrorCode::RebalanceInProgress, member: id.clone() };
            cx.answer(earlier, Answer::Join(Err(refused)));
        }
    }

    /// A new process takes a static identity over. Where nothing changes for the others, they do not notice (KIP-345).
    fn replace(&mut self, cx: &mut Scope<'_>, token: Token, request: &Join, old: &Arc<str>) {
        let id = request.fresh.clone();
        let mut member = self.members.remove(old).expect("static identities belong to members");
        cx.timers.cancel(&cx.session(old));
        refuse(cx, &member, old, ErrorCode::FencedInstanceId);
        (member.joining, member.syncing) = (None, None);
        let leader = self.record.leader.clone();
        if leader.as_deref() == Some(&**old) {
            self.record.leader = Some(id.to_string());
        }
        self.statics.extend(request.instance.clone().map(|instance| (instance, id.clone())));
        if self.unsynced.remove(old) {
            self.unsynced.insert(id.clone());
        }
        self.members.insert(id.clone(), member);
        self.update(cx, token, request, &id);
        self.touch(cx, &id);
        match self.state {
            State::Stable if self.select_protocol() == self.record.protocol => {
                self.members.get_mut(&id).expect("it was put there").joining = None;
                self.save(cx);
                let leads = self.record.leader.as_deref() == Some(&*id);
                let skip_assignment = leads && request.may_skip_assignment;
                let mut joined = self.joined(&id, skip_assignment);
                joined.skip_assignment = skip_assignment;
                if !request.may_skip_assignment {
                    // It must not take itself for the leader, who would have to assign.
                    joined.leader = leader.map(|leader| leader.as_str().into());
                }
                cx.answer(token, Answer::Join(Ok(joined)));
            }
            State::Stable | State::Completing => self.rebalance(cx),
            State::Gathering { .. } | State::Preparing | State::Empty => self.complete_if_all_joined(cx),
        }
    }

    /// Begins a join phase: all members have to come again.
    pub(super) fn rebalance(&mut self, cx: &mut Scope<'_>) {
        if matches!(self.state, State::Completing) {
            for id in self.members.keys().cloned().collect::<Vec<Arc<str>>>() {
                let member = self.members.get_mut(&id).expect("it is a member");
                member.record.assignment.clear();
                if let Some(token) = member.syncing.take() {
                    cx.answer(token, Answer::Sync(Err(ErrorCode::RebalanceInProgress)));
                    // Its session may have ended while it waited; it has one again, so that nobody waits for a dead member.
                    self.touch(cx, &id);
                }
            }
        }
        self.unsynced.clear();
        cx.timers.cancel(&Timer::Sync(cx.group.clone()));
        if self.is_empty() {
            let delay = cx.limits.initial_rebalance_delay_ms;
            self.state = State::Gathering { left_ms: self.rebalance_timeout_ms().saturating_sub(delay), grown: false };
            cx.after(Timer::Join(cx.group.clone()), delay);
            return;
        }
        self.state = State::Preparing;
        if self.all_joined() {
            self.complete_join(cx);
        } else {
            cx.after(Timer::Join(cx.group.clone()), self.rebalance_timeout_ms());
        }
    }

    /// While members gather, more are waited for although all are there.
    fn complete_if_all_joined(&mut self, cx: &mut Scope<'_>) {
        if matches!(self.state, State::Preparing) && self.all_joined() {
            self.complete_join(cx);
        }
    }

    /// The join phase has lasted long enough, or goes on as long as members keep coming to a new group.
    pub(super) fn end_join(&mut self, cx: &mut Scope<'_>) {
        match self.state {
            State::Gathering { left_ms, grown: true } if left_ms > 0 => {
                let delay = cx.limits.initial_rebalance_delay_ms.min(left_ms);
                self.state = State::Gathering { left_ms: left_ms - delay, grown: false };
                cx.after(Timer::Join(cx.group.clone()), delay);
            }
            State::Gathering { .. } | State::Preparing => self.complete_join(cx),
            State::Empty | State::Completing | State::Stable => {}
        }
    }

    /// Ends the join phase: a generation begins with those that came, and with static members, who may come yet.
    pub(super) fn complete_join(&mut self, cx: &mut Scope<'_>) {
        cx.timers.cancel(&Timer::Join(cx.group.clone()));
        let absent = |(_, member): &(&Arc<str>, &Member)| member.joining.is_none() && member.record.instance.is_none();
        let absent: Vec<Arc<str>> = self.members.iter().filter(absent).map(|(id, _)| id.clone()).collect();
        for id in absent {
            self.remove(cx, &id, ErrorCode::UnknownMemberId);
        }
        if !self.members.is_empty() && !self.elect() {
            // Only static members, and none of them came: until their sessions end there is nobody to assign.
            self.state = State::Preparing;
            // Whoever has no time to join would have it end again at once, without end.
            cx.after(Timer::Join(cx.group.clone()), self.rebalance_timeout_ms().max(ABSENT_LOOK_MS));
            return;
        }
        self.record.generation += 1;
        self.record.protocol = self.select_protocol();
        self.unsynced.clear();
        if self.members.is_empty() {
            self.state = State::Empty;
            self.record.leader = None;
            self.record.emptied_at_ms = Some(cx.now.wall_ms);
            self.subscribed = self.subscriptions();
            self.save(cx);
            return;
        }
        self.state = State::Completing;
        self.record.emptied_at_ms = None;
        self.subscribed = self.subscriptions();
        for id in self.members.keys().cloned().collect::<Vec<Arc<str>>>() {
            let leads = self.record.leader.as_deref() == Some(&*id);
            let member = self.members.get_mut(&id).expect("it is a member");
            member.new = false;
            if let Some(token) = member.joining.take() {
                self.answer_join(cx, &id, token, leads);
            }
            self.touch(cx, &id);
            self.unsynced.insert(id);
        }
        cx.after(Timer::Sync(cx.group.clone()), self.rebalance_timeout_ms());
    }

    /// Sees to it that the leader is one who came. Whether there is one.
    fn elect(&mut self) -> bool {
        let came = |id: &str| self.members.get(id).is_some_and(|member| member.joining.is_some());
        if self.record.leader.as_deref().is_some_and(came) {
            return true;
        }
        let first = self.members.iter().find(|(_, member)| member.joining.is_some());
        self.record.leader = first.map(|(id, _)| id.to_string());
        self.record.leader.is_some()
    }

    /// The protocol that all know and most prefer; of several the first by name. None without members.
    pub(super) fn select_protocol(&self) -> Option<String> {
        let mut known: BTreeMap<&str, usize> = BTreeMap::new();
        for protocol in self.members.values().flat_map(|member| &member.record.protocols) {
            *known.entry(&protocol.name).or_default() += 1;
        }
        let everybody_knows = |name: &&str| known[*name] >= self.members.len();
        let mut votes: BTreeMap<&str, usize> = BTreeMap::new();
        for member in self.members.values() {
            let mut names = member.record.protocols.iter().map(|protocol| protocol.name.as_str());
            *votes.entry(names.find(everybody_knows)?).or_default() += 1;
        }
        votes.into_iter().rev().max_by_key(|(_, count)| *count).map(|(name, _)| name.to_owned())
    }

    fn answer_join(&self, cx: &mut Scope<'_>, id: &Arc<str>, token: Token, with_members: bool) {
        cx.answer(token, Answer::Join(Ok(self.joined(id, with_members))));
    }

    fn joined(&self, id: &Arc<str>, with_members: bool) -> Joined {
        let protocol = self.record.protocol.as_deref().unwrap_or_default();
        let members = self.members.iter().filter(|_| with_members).map(|(id, member)| JoinedMember {
            id: id.clone(),
            instance: member.record.instance.clone(),
            metadata: metadata(&member.record, protocol).to_vec(),
        });
        Joined {
            member: id.clone(),
            generation: self.record.generation,
            protocol_type: self.record.protocol_type.clone(),
            protocol: self.record.protocol.clone(),
            leader: self.record.leader.as_deref().map(Arc::from),
            members: members.collect(),
            skip_assignment: false,
        }
    }
}
