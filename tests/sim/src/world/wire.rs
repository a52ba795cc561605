//! What travels between brokers, store, bucket and clients, and what the network does to it.

use super::{Checked, World};
use crate::etcd::{Image, Txn};
use bytes::Bytes;
use millpond_core::replica::{
    Acks, Appended, Assignment, Input, Live, Proposal, Push, PushReply, Refusal, Token, Transfer,
};
use millpond_core::tiering::Outcome;
use millpond_log::object_key::ObjectKey;
use millpond_log::{Batch, BrokerId, PartitionId, ProducerId, TimestampMs};
use std::rc::Rc;

/// What travels. Every message may be late, lost, repeated or reordered, as its kind allows.
// A few dozen exist at a time; their size does not matter.
#[allow(clippy::large_enum_variant)]
#[derive(Clone, Debug)]
pub(super) enum Msg {
    Watch {
        to: BrokerId,
        image: Rc<Image>,
    },
    Push {
        to: BrokerId,
        partition: PartitionId,
        push: Push,
    },
    Reply {
        to: BrokerId,
        partition: PartitionId,
        reply: PushReply,
    },
    /// A transaction on its way to the store, and its answer with what the partition's record is then.
    Txn {
        id: u64,
        from: Live,
        txn: Rc<Txn>,
    },
    Done {
        id: u64,
        to: Live,
        txn: Rc<Txn>,
        outcome: Outcome,
        after: Option<Assignment>,
    },
    Wish {
        to: BrokerId,
        partition: PartitionId,
        wish: Transfer,
    },
    Put {
        from: Live,
        partition: PartitionId,
        key: ObjectKey,
        bytes: Bytes,
    },
    /// What the bucket says that it keeps; `None` for an error.
    PutDone {
        to: Live,
        partition: PartitionId,
        key: ObjectKey,
        kept: Option<(usize, u32)>,
    },
    Delete {
        key: ObjectKey,
    },
    Produce {
        to: BrokerId,
        client: usize,
        batch: Batch,
    },
    Answer {
        client: usize,
        producer: ProducerId,
        sequence: i32,
        result: Result<Appended, Refusal>,
    },
}

/// The connection a message of the replication travels on.
fn way(message: &Msg) -> Option<(bool, BrokerId, BrokerId)> {
    match message {
        Msg::Push { to, push, .. } => Some((true, push.head.leader.rid.broker, *to)),
        Msg::Reply { to, reply, .. } => Some((false, reply.rid.broker, *to)),
        _ => None,
    }
}

impl World {
    /// Some messages arrive: few while things go wrong, so that what is under way grows old.
    pub(super) fn deliver_some(&mut self, faults: bool) -> Result<bool, String> {
        let count = if faults { 1 + self.net.below(3) } else { (1 + self.wire.len() / 2).min(24) };
        for _ in 0..count {
            self.deliver_one(faults)?;
            self.check()?;
        }
        Ok(true)
    }

    /// Something arrives, or is lost.
    pub(super) fn deliver_one(&mut self, faults: bool) -> Result<bool, String> {
        if faults && !self.late.is_empty() && self.net.per_mille(15) {
            let at = self.net.below(self.late.len());
            let message = self.late.swap_remove(at);
            self.deliver(message, faults)?;
            return Ok(true);
        }
        if self.wire.is_empty() {
            return Ok(false);
        }
        // What was sent first mostly arrives first; a healthy network keeps the order of everything.
        let mut at = match faults {
            true => self.net.below(self.wire.len()).min(self.net.below(self.wire.len())).min(self.net.below(8)),
            false => 0,
        };
        // A connection keeps its order; a new one may overtake what is left of the old.
        if (!faults || !self.net.per_mille(self.weather.overtaking))
            && let Some(way) = way(&self.wire[at])
        {
            at = self.wire.iter().position(|other| self::way(other) == Some(way)).expect("it is on the wire itself");
        }
        // A paused broker takes nothing in; what was sent to it waits.
        if self.receiver(&self.wire[at]).is_some_and(|node| self.is_paused(node)) {
            let waits = self.wire.remove(at);
            self.wire.push(waits);
            return Ok(false);
        }
        let message = self.wire.remove(at);
        // A watch tells everything, in its order; it may only stand still.
        let watches = matches!(message, Msg::Watch { .. });
        if faults && !watches && self.net.per_mille(self.weather.late) {
            self.late.push(message);
            return Ok(true);
        }
        // Requests of the bucket are sent once for each sending, and have failures of their own.
        if faults && !watches && !matches!(message, Msg::Delete { .. } | Msg::Put { .. }) {
            if self.net.per_mille(self.weather.lost) {
                return Ok(true);
            }
            if self.net.per_mille(self.weather.doubled) {
                let again = if self.net.per_mille(500) { &mut self.wire } else { &mut self.late };
                again.push(message.clone());
            }
        }
        self.deliver(message, faults)?;
        Ok(true)
    }

    /// The broker a message is for.
    fn receiver(&self, message: &Msg) -> Option<usize> {
        let broker = match message {
            Msg::Watch { to, .. }
            | Msg::Push { to, .. }
            | Msg::Reply { to, .. }
            | Msg::Wish { to, .. }
            | Msg::Produce { to, .. } => *to,
            Msg::Done { to, .. } | Msg::PutDone { to, .. } => to.rid.broker,
            Msg::Txn { .. } | Msg::Put { .. } | Msg::Delete { .. } | Msg::Answer { .. } => return None,
        };
        Some(self.index(broker))
    }

    fn deliver(&mut self, message: Msg, faults: bool) -> Checked {
        match message {
            Msg::Watch { to, image } => {
                let node = self.index(to);
                if !self.cut_off.contains(&node) {
                    return self.see(node, image);
                }
                // It goes on from what was seen, once it can.
                if let Some(running) = &mut self.nodes[node].running {
                    running.told = running.image.revision;
                }
                Ok(())
            }
            Msg::Push { to, partition, push } => {
                let (from, to) = (self.index(push.head.leader.rid.broker), self.index(to));
                // A full disk takes no batches: the stream stands still until there is room (rule W7).
                let refused = !push.batches.is_empty() && self.nodes[to].full_until > self.now_ms;
                let leaves =
                    self.nodes[to].running.as_ref().is_some_and(|running| running.leaving.contains_key(&partition));
                if refused || leaves || self.cut.contains(&(from, to)) {
                    return Ok(());
                }
                self.step(to, partition, Input::Push(push))
            }
            Msg::Reply { to, partition, reply } => {
                let (from, to) = (self.index(reply.rid.broker), self.index(to));
                if self.cut.contains(&(from, to)) { Ok(()) } else { self.take_reply(to, partition, reply) }
            }
            Msg::Txn { id, from, txn } => self.run_txn(id, from, txn),
            Msg::Done { id, to, txn, outcome, after } => {
                let node = self.index(to.rid.broker);
                let answers = self.nodes[node].live() == Some(to) && !self.cut_off.contains(&node);
                if answers { self.txn_done(node, id, &txn, outcome, after) } else { Ok(()) }
            }
            Msg::Wish { to, partition, wish } => self.step(self.index(to), partition, Input::Transfer(wish)),
            Msg::Put { from, partition, key, bytes } => {
                self.put(from, partition, key, &bytes, faults);
                Ok(())
            }
            Msg::PutDone { to, partition, key, kept } => {
                let node = self.index(to.rid.broker);
                if self.nodes[node].live() == Some(to) { self.put_done(node, partition, key, kept) } else { Ok(()) }
            }
            Msg::Delete { key } => {
                self.bucket.0.remove(&key);
                Ok(())
            }
            Msg::Produce { to, client, batch } => self.admit(to, client, batch),
            Msg::Answer { client, producer, sequence, result } => {
                if self.clients[client].producer() == producer {
                    self.clients[client].answered(sequence, &result);
                }
                Ok(())
            }
        }
    }

    /// Rule R8: an answer of another epoch counts for nothing.
    fn take_reply(&mut self, node: usize, partition: PartitionId, reply: PushReply) -> Checked {
        let counts = |world: &World| {
            let replica = &world.nodes[node].slot(partition)?.replica;
            let counted = replica.counted().find(|(rid, _)| *rid == reply.rid);
            Some((replica.visible().epoch, counted.map(|(_, end)| end)))
        };
        let before = counts(self);
        self.step(node, partition, Input::Reply(reply))?;
        if let (Some((epoch, counted)), Some((_, now))) = (before, counts(self))
            && epoch != reply.epoch
            && now > counted
        {
            return Err(format!(
                "R8 the leader of {partition} in epoch {epoch} counts an answer of epoch {}",
                reply.epoch
            ));
        }
        Ok(())
    }

    /// Sends a transaction, if the store can be reached.
    pub(super) fn send_txn(&mut self, node: usize, txn: Rc<Txn>) -> u64 {
        let id = self.next_id;
        self.next_id += 1;
        if let Some(from) = self.nodes[node].live()
            && !self.cut_off.contains(&node)
        {
            self.wire.push(Msg::Txn { id, from, txn });
        }
        id
    }

    fn run_txn(&mut self, id: u64, from: Live, txn: Rc<Txn>) -> Checked {
        let partition = match &*txn {
            Txn::Control { .. } => None,
            Txn::Record { partition, .. } | Txn::Unclean { partition, .. } => Some(*partition),
            Txn::Tier(change) => Some(change.partition),
        };
        // What a process that was killed meanwhile will find on its disk is not known yet: its unclean election got lost.
        let winner = self.index(from.rid.broker);
        if matches!(*txn, Txn::Unclean { .. }) && self.nodes[winner].live() != Some(from) {
            return Ok(());
        }
        let before = partition.map(|partition| self.etcd.roots[&partition].0.clone());
        let outcome = self.etcd.run(&from, &txn)?;
        if self.tell {
            println!("{:>8}   store: {txn:?} of {from:?}: {outcome:?}", self.now_ms);
        }
        if let (Txn::Tier(_), Some(partition), Some(before)) = (&*txn, partition, before) {
            self.check_tiered(partition, &before)?;
        }
        if let (Txn::Unclean { partition, .. }, Outcome::Committed(_)) = (&*txn, outcome) {
            self.forget_the_past(winner, *partition);
        }
        let after = partition.and_then(|partition| self.etcd.look().assignment(partition));
        self.wire.push(Msg::Done { id, to: from, txn, outcome, after });
        Ok(())
    }

    /// What a leader wants changed in its partition's record.
    pub(super) fn propose(&mut self, node: usize, partition: PartitionId, proposal: &Proposal) {
        self.send_txn(node, Rc::new(Txn::of(partition, proposal)));
    }

    fn txn_done(&mut self, node: usize, id: u64, txn: &Txn, outcome: Outcome, after: Option<Assignment>) -> Checked {
        match txn {
            Txn::Control { .. } => {
                self.took_control(node, outcome);
                Ok(())
            }
            Txn::Record { partition, base, next, .. } => {
                self.record_written(node, *partition, next, outcome);
                let slot = self.nodes[node].slot_mut(*partition);
                let proposed = slot.as_ref().and_then(|slot| slot.proposal.as_ref());
                if !proposed.is_some_and(|proposal| proposal.base == *base && proposal.record == *next) {
                    return Ok(());
                }
                // The session is gone, and this office with it.
                if outcome == Outcome::Fenced {
                    return Ok(());
                }
                if let Some(slot) = slot {
                    slot.proposal = None;
                }
                // What holds now is told first, with who is alive as far as is known here; then what never will.
                if let Some(after) = after {
                    let running = self.nodes[node].running.as_ref().expect("it answers");
                    let live = running.image.live(&after.record);
                    self.step(node, *partition, Input::Assigned(Assignment { live, ..after }))?;
                }
                if matches!(outcome, Outcome::Committed(_)) {
                    return Ok(());
                }
                self.step(node, *partition, Input::ProposalFailed { base: *base })
            }
            // The winner hears of its office at once; so does whoever was not elected hear who was.
            Txn::Unclean { partition, .. } => match after {
                Some(after) => {
                    let running = self.nodes[node].running.as_ref().expect("it answers");
                    let live = running.image.live(&after.record);
                    self.step(node, *partition, Input::Assigned(Assignment { live, ..after }))
                }
                None => Ok(()),
            },
            Txn::Tier(change) => self.tier_done(node, id, change.partition, outcome),
        }
    }

    fn admit(&mut self, to: BrokerId, client: usize, batch: Batch) -> Checked {
        let (node, partition) = (self.index(to), self.clients[client].partition);
        // A full disk refuses before an offset is given out (rule W7); the client tries again.
        if self.nodes[node].slot(partition).is_none() || self.nodes[node].full_until > self.now_ms {
            return Ok(());
        }
        let token = Token(self.next_id);
        self.next_id += 1;
        let stamp = batch.producer().expect("every batch has a producer");
        self.tokens.insert(token.0, (client, stamp.id, stamp.base_sequence));
        let acks = Acks::All;
        self.step(node, partition, Input::Produce { token, batch, latest: TimestampMs(1), acks, behind: None })
    }
}
