//! Transfer of leadership (rule E9): the leader stops admitting, waits until another holds all of its log, and has it elected.
//!
//! Safe like any election: who takes over is in the confirmed ISR, and nothing counts that it did not hold.

use super::isr::won;
use super::leader::{Handover, Leading, Wish};
use super::{Live, Now, Proposal, Replica, Role};
use millpond_log::{BrokerId, LeaderEpoch};

/// What a leader is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transfer {
    /// The epoch it leads in; a wish for another one is out of date.
    pub epoch: LeaderEpoch,
    /// Who is to lead: in sync, in this incarnation.
    pub to: Live,
    /// How long the leader may go without admitting, in milliseconds. Then it goes on leading.
    pub within_ms: u64,
}

impl Replica {
    /// Who this leader hands over to. Until that has ended, produce is refused with it as the leader: whoever can, waits.
    #[must_use]
    pub fn hands_over_to(&self) -> Option<BrokerId> {
        let Role::Leader(leading) = &self.role else { return None };
        leading.handover.map(|handover| handover.to.rid.broker)
    }

    /// Takes a wish, unless it is out of date or another transfer is under way. Whoever wished may have heard of an ISR that the leader
    /// itself has not seen confirmed yet: so a wish stands until it can be met, or its time is over.
    pub(super) fn take_wish(&mut self, now: Now, wish: Transfer) {
        let rid = self.rid;
        let Role::Leader(leading) = &mut self.role else { return };
        if leading.record.epoch == wish.epoch && wish.to.rid != rid && leading.handover.is_none() {
            leading.wish = Some(Wish { to: wish.to, until_ms: now.mono_ms + wish.within_ms });
        }
    }

    /// Begins to hand over once the heir is in sync.
    pub(super) fn begin_handover(&mut self, now: Now) {
        let Role::Leader(leading) = &mut self.role else { return };
        let Some(Wish { to, until_ms }) = leading.wish else { return };
        let over = now.mono_ms >= until_ms;
        if over || leading.may_inherit(to) {
            leading.wish = None;
        }
        if !over && leading.may_inherit(to) {
            let hurry_ms = now.mono_ms + (until_ms - now.mono_ms) / 2;
            leading.handover = Some(Handover { to, hurry_ms, until_ms });
        }
    }

    /// Ends a transfer whose time is over, or whose heir is gone. An election that was proposed may still come to be: like every
    /// proposal it is resolved by a later revision alone (rule K5), and harmless, since the heir stays in the commit set (rule I3).
    pub(super) fn end_handover(&mut self, now: Now) {
        let Role::Leader(leading) = &mut self.role else { return };
        let Some(Handover { to, until_ms, .. }) = leading.handover else { return };
        if now.mono_ms >= until_ms || !leading.may_inherit(to) {
            leading.handover = None;
        }
    }

    /// The election of the heir, once it holds the whole log, and whoever waits for a commit has been answered.
    pub(super) fn election_of_heir(&self, now: Now) -> Option<Proposal> {
        let Role::Leader(leading) = &self.role else { return None };
        let Handover { to, hurry_ms, .. } = leading.handover?;
        let end = self.at_end.end;
        let waits = self.hw < end && now.mono_ms < hurry_ms;
        if leading.pending.is_some() || waits || leading.matched(to.rid) < end {
            return None;
        }
        let own = Live { rid: self.rid, inc: self.inc? };
        let followers = leading.followers.values().map(|follower| Live { rid: follower.rid, inc: follower.inc });
        let live: Vec<Live> = std::iter::once(own).chain(followers).collect();
        let record = won(&leading.record, to, &live);
        Some(Proposal { base: leading.revision, record, joining: None, heir: Some(to) })
    }
}

impl Leading {
    /// Whether it is followed by this replica, in this incarnation, and in sync with it.
    fn may_inherit(&self, heir: Live) -> bool {
        let follows = self.followers.get(&heir.rid.broker);
        follows.is_some_and(|follower| (follower.rid, follower.inc) == (heir.rid, heir.inc))
            && self.record.isr.contains(&heir.rid)
    }
}
