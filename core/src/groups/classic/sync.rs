//! The sync phase of a classic group, and what members do between rebalances: heartbeat and leave.

use super::{ClassicGroup, Scope, State, Timer};
use crate::groups::step::{Answer, ClassicHeartbeat, Leave, SyncGroup, Synced, Token};
use millpond_log::ErrorCode;
use std::sync::Arc;

impl ClassicGroup {
    /// A member asks for what it was given; the leader brings what all are given.
    pub(in crate::groups) fn sync(&mut self, cx: &mut Scope<'_>, token: Token, request: SyncGroup) {
        if let Err(code) = self.try_sync(cx, token, request) {
            cx.answer(token, Answer::Sync(Err(code)));
        }
    }

    fn try_sync(&mut self, cx: &mut Scope<'_>, token: Token, mut request: SyncGroup) -> Result<(), ErrorCode> {
        self.check_generation(&request.who)?;
        let differs =
            |said: &Option<String>, known: &Option<String>| said.is_some() && known.is_some() && said != known;
        if differs(&request.protocol_type, &self.record.protocol_type)
            || differs(&request.protocol, &self.record.protocol)
        {
            return Err(ErrorCode::InconsistentGroupProtocol);
        }
        let id = request.who.member;
        match self.state {
            State::Empty => return Err(ErrorCode::UnknownMemberId),
            State::Gathering { .. } | State::Preparing => return Err(ErrorCode::RebalanceInProgress),
            State::Completing => {
                self.synced(cx, &id);
                let member = self.members.get_mut(&id).expect("it was checked");
                if let Some(earlier) = member.syncing.replace(token) {
                    cx.answer(earlier, Answer::Sync(Err(ErrorCode::RebalanceInProgress)));
                }
                if self.record.leader.as_deref() == Some(&*id) {
                    for (id, member) in &mut self.members {
                        member.record.assignment = request.assignments.remove(id).unwrap_or_default();
                    }
                    self.state = State::Stable;
                    self.save(cx);
                    self.hand_out(cx);
                }
            }
            State::Stable => {
                self.synced(cx, &id);
                self.answer_sync(cx, &id, token);
            }
        }
        Ok(())
    }

    /// Answers all that wait for their assignment.
    fn hand_out(&mut self, cx: &mut Scope<'_>) {
        for id in self.members.keys().cloned().collect::<Vec<Arc<str>>>() {
            let member = self.members.get_mut(&id).expect("it is a member");
            if let Some(token) = member.syncing.take() {
                self.answer_sync(cx, &id, token);
            }
        }
    }

    fn answer_sync(&mut self, cx: &mut Scope<'_>, id: &Arc<str>, token: Token) {
        self.touch(cx, id);
        self.members.get_mut(id).expect("it is a member").brings = false;
        let synced = Synced {
            protocol_type: self.record.protocol_type.clone(),
            protocol: self.record.protocol.clone(),
            assignment: self.members[id].record.assignment.clone(),
        };
        cx.answer(token, Answer::Sync(Ok(synced)));
    }

    fn synced(&mut self, cx: &mut Scope<'_>, id: &Arc<str>) {
        self.unsynced.remove(id);
        if self.unsynced.is_empty() {
            cx.timers.cancel(&Timer::Sync(cx.group.clone()));
        }
    }

    /// Members that did not ask for their assignment in time are gone.
    pub(super) fn end_sync(&mut self, cx: &mut Scope<'_>) {
        if matches!(self.state, State::Completing | State::Stable) && !self.unsynced.is_empty() {
            for id in std::mem::take(&mut self.unsynced) {
                self.remove(cx, &id, ErrorCode::UnknownMemberId);
            }
            self.rebalance(cx);
        }
    }

    /// A member lives. Whether it has to join again.
    pub(in crate::groups) fn heartbeat(&self, cx: &mut Scope<'_>, who: &ClassicHeartbeat) -> Result<(), ErrorCode> {
        self.check_generation(who)?;
        self.touch(cx, &who.member);
        if self.is_joining() { Err(ErrorCode::RebalanceInProgress) } else { Ok(()) }
    }

    fn check_generation(&self, who: &ClassicHeartbeat) -> Result<(), ErrorCode> {
        self.check_member(&who.member, who.instance.as_ref())?;
        if who.generation == self.record.generation { Ok(()) } else { Err(ErrorCode::IllegalGeneration) }
    }

    /// Members leave, each by itself; then the others go on.
    pub(in crate::groups) fn leave(&mut self, cx: &mut Scope<'_>, request: &Leave) -> Vec<Result<(), ErrorCode>> {
        let mut fewer = false;
        let mut leave = |(id, instance): &(Arc<str>, Option<String>)| {
            // Who was promised an id and has not come is no member yet: nobody has to join again without it.
            if self.promised.remove(id) {
                cx.timers.cancel(&cx.session(id));
                return Ok(());
            }
            let id = match instance {
                Some(instance) if id.is_empty() => {
                    self.statics.get(instance).cloned().ok_or(ErrorCode::UnknownMemberId)?
                }
                _ => id.clone(),
            };
            self.check_member(&id, instance.as_ref())?;
            self.remove(cx, &id, ErrorCode::UnknownMemberId);
            fewer = true;
            Ok(())
        };
        let left: Vec<Result<(), ErrorCode>> = request.members.iter().map(&mut leave).collect();
        if fewer {
            self.rebalance_without(cx);
        }
        left
    }
}
