//! Transfer of leadership (rule E9): the leader stops admitting, waits until another holds all of its log, and has it elected.
//!
//! Safe like any election: who takes over is in the confirmed ISR, and nothing counts that it did not hold.

use super::isr::won;
use super::leader::Handover;
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

    /// Begins to hand over, unless the wish is out of date or cannot be met.
    pub(super) fn begin_handover(&mut self, now: Now, wish: Transfer) {
        let rid = self.rid;
        let Role::Leader(leading) = &mut self.role else { return };
        let Transfer { epoch, to, within_ms } = wish;
        let follows = leading.followers.get(&to.rid.broker);
        let in_sync = follows.is_some_and(|follower| (follower.rid, follower.inc) == (to.rid, to.inc))
            && leading.record.isr.contains(&to.rid);
        if leading.record.epoch != epoch || to.rid == rid || !in_sync || leading.handover.is_some() {
            return;
        }
        let (hurry_ms, until_ms) = (now.mono_ms + within_ms / 2, now.mono_ms + within_ms);
        leading.handover = Some(Handover { to, hurry_ms, until_ms });
    }

    /// Ends a transfer whose time is over, or whose heir is gone. An election that was proposed may still come to be: like every
    /// proposal it is resolved by a later revision alone (rule K5), and harmless, since the heir stays in the commit set (rule I3).
    pub(super) fn end_handover(&mut self, now: Now) {
        let Role::Leader(leading) = &mut self.role else { return };
        let Some(Handover { to, until_ms, .. }) = leading.handover else { return };
        let follows = leading.followers.get(&to.rid.broker);
        let stands = follows.is_some_and(|follower| (follower.rid, follower.inc) == (to.rid, to.inc))
            && leading.record.isr.contains(&to.rid);
        if now.mono_ms >= until_ms || !stands {
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
