//! What travels between brokers, store, bucket and clients, and what the network does to it.

use super::{Checked, Object, World};
use crate::etcd::TierCommit;
use millpond_core::replica::{
    Acks, Appended, Assignment, Input, Live, Placed, Proposal, Push, PushReply, Refusal, Token,
};
use millpond_log::{Batch, BrokerId, TimestampMs};

/// What travels. Every message may be late, and those between brokers and clients lost, repeated or reordered.
// A few dozen exist at a time; their size does not matter.
#[allow(clippy::large_enum_variant)]
#[derive(Clone, Debug)]
pub(crate) enum Msg {
    View { to: BrokerId, at: u64, assignment: Assignment },
    Push { to: BrokerId, push: Push },
    Reply { to: BrokerId, reply: PushReply },
    Propose { from: Live, proposal: Proposal },
    Proposed { to: Live, proposal: Proposal, written: bool, at: u64, after: Assignment },
    Control { seen: Assignment },
    Put { from: Live, object: u64, gc_epoch: u64, batches: Vec<Placed> },
    PutDone { to: Live, object: u64 },
    Tier { commit: Box<TierCommit> },
    TierDone { to: Live, object: u64 },
    Delete { object: u64 },
    Produce { to: BrokerId, client: usize, batch: Batch },
    Answer { client: usize, sequence: i32, result: Result<Appended, Refusal> },
}

/// The connection a message of the replication travels on.
fn way(message: &Msg) -> Option<(bool, BrokerId, BrokerId)> {
    match message {
        Msg::Push { to, push } => Some((true, push.head.leader.rid.broker, *to)),
        Msg::Reply { to, reply } => Some((false, reply.rid.broker, *to)),
        _ => None,
    }
}

impl World {
    pub(super) fn deliver_one(&mut self, faults: bool) -> Checked {
        if self.wire.is_empty() {
            return Ok(());
        }
        let mut at = self.rng.below(self.wire.len());
        // A connection keeps its order; a new one may overtake what is left of the old.
        if (!faults || self.rng.per_mille(900))
            && let Some(way) = way(&self.wire[at])
        {
            at = self.wire.iter().position(|other| self::way(other) == Some(way)).expect("it is on the wire itself");
        }
        let message = self.wire.remove(at);
        if faults && self.lossy(&message) {
            match self.rng.below(100) {
                0..4 => return Ok(()),
                4..8 => self.wire.push(message.clone()),
                _ => {}
            }
        }
        self.deliver(message)
    }

    /// Whether the network may lose or repeat a message. A store's request is sent once for each sending, and may be lost too.
    pub(super) fn lossy(&self, message: &Msg) -> bool {
        !matches!(message, Msg::Delete { .. } | Msg::Put { .. } | Msg::Tier { .. })
    }

    pub(super) fn deliver(&mut self, message: Msg) -> Checked {
        match message {
            Msg::View { to, at, assignment } => self.see(self.index(to), at, assignment),
            Msg::Push { to, push } => {
                let (from, to) = (self.index(push.head.leader.rid.broker), self.index(to));
                if self.cut[from][to] { Ok(()) } else { self.step(to, Input::Push(push)) }
            }
            Msg::Reply { to, reply } => {
                let (from, to) = (self.index(reply.rid.broker), self.index(to));
                if self.cut[from][to] { Ok(()) } else { self.step(to, Input::Reply(reply)) }
            }
            Msg::Propose { from, proposal } => {
                let written = self.etcd.propose(&from, &proposal);
                let after = self.etcd.assignment();
                self.wire.push(Msg::Proposed { to: from, proposal, written, at: self.etcd.revision, after });
                Ok(())
            }
            Msg::Proposed { to, proposal, written, at, after } => {
                let Some(node) = self.running_as(&to) else { return Ok(()) };
                self.see(node, at, after)?;
                self.proposed(node, &proposal, written)
            }
            Msg::Control { seen } => {
                self.etcd.control(&seen);
                Ok(())
            }
            Msg::Put { from, object, gc_epoch, batches } => {
                self.bucket.insert(object, Object { gc_epoch, batches });
                self.wire.push(Msg::PutDone { to: from, object });
                Ok(())
            }
            Msg::PutDone { to, object } => self.stored(to, object),
            Msg::Tier { commit } => {
                let written = self.etcd.tier(&commit);
                if written {
                    self.check_tiered()?;
                }
                self.wire.push(Msg::TierDone { to: commit.leader, object: commit.entry.object });
                Ok(())
            }
            Msg::TierDone { to, object } => self.tier_done(to, object),
            Msg::Delete { object } => {
                self.bucket.remove(&object);
                Ok(())
            }
            Msg::Produce { to, client, batch } => self.admit(to, client, batch),
            Msg::Answer { client, sequence, result } => {
                self.clients[client].answered(sequence, &result);
                Ok(())
            }
        }
    }

    pub(super) fn running_as(&self, live: &Live) -> Option<usize> {
        let node = self.index(live.rid.broker);
        let running = self.nodes[node].running.as_ref()?;
        (running.inc == Some(live.inc) && self.nodes[node].wal_gen == live.rid.wal_gen).then_some(node)
    }

    /// What a broker knows of the store never goes back (rule Z2).
    pub(super) fn see(&mut self, node: usize, at: u64, assignment: Assignment) -> Checked {
        let Some(running) = &mut self.nodes[node].running else { return Ok(()) };
        if at < running.seen {
            return Ok(());
        }
        running.seen = at;
        self.step(node, Input::Assigned(assignment))
    }

    pub(super) fn proposed(&mut self, node: usize, proposal: &Proposal, written: bool) -> Checked {
        let running = self.nodes[node].running.as_mut().expect("it runs");
        if running.proposal.as_ref() == Some(proposal) {
            running.proposal = None;
            if !written {
                return self.step(node, Input::ProposalFailed { base: proposal.base });
            }
        }
        Ok(())
    }

    pub(super) fn admit(&mut self, to: BrokerId, client: usize, batch: Batch) -> Checked {
        let node = self.index(to);
        if self.nodes[node].running.is_none() {
            return Ok(());
        }
        let token = Token(self.next_token);
        self.next_token += 1;
        let sequence = batch.producer().map_or(-1, |stamp| stamp.base_sequence);
        self.tokens.insert(token.0, (client, sequence));
        let acks = if sequence < 0 { Acks::Leader } else { Acks::All };
        self.step(node, Input::Produce { token, batch, latest: TimestampMs(1), acks })
    }
}
