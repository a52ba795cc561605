//! The metadata store as the replicas of one partition see it: one revision for all keys, sessions, compare-and-swap.

use millpond_core::election;
use millpond_core::records::PartitionRecord;
use millpond_core::replica::{Assignment, EndState, Live, Placed, Proposal};
use millpond_core::rules::{Rule, Rules};
use millpond_log::epochs::LeaderEpochs;
use millpond_log::{BrokerId, Incarnation, Offset, Rid, WalGen};
use std::collections::BTreeMap;

/// What a committed segment holds: its batches are in the bucket under `object`.
#[derive(Clone, Debug)]
pub(crate) struct Tiered {
    pub(crate) object: u64,
    pub(crate) base: Offset,
    pub(crate) gc_epoch: u64,
}

/// The manifest: `/t`.
#[derive(Clone, Debug)]
pub(crate) struct Manifest {
    pub(crate) revision: u64,
    pub(crate) log_start: Offset,
    pub(crate) entries: Vec<Tiered>,
    /// State at the tiered end, as the newest segment carries it.
    pub(crate) at_end: EndState,
    pub(crate) epochs: LeaderEpochs,
}

/// A commit of the manifest on its way (rule T5).
#[derive(Clone, Debug)]
pub(crate) struct TierCommit {
    pub(crate) base: u64,
    pub(crate) leader: Live,
    pub(crate) epoch: millpond_log::LeaderEpoch,
    pub(crate) entry: Tiered,
    pub(crate) batches: Vec<Placed>,
    pub(crate) log_start: Offset,
}

pub(crate) struct Etcd {
    pub(crate) revision: u64,
    pub(crate) record: PartitionRecord,
    pub(crate) record_revision: u64,
    pub(crate) sessions: BTreeMap<BrokerId, Live>,
    pub(crate) manifest: Manifest,
    pub(crate) gc_epoch: u64,
    pub(crate) elections: u64,
    /// Elections that leaders asked for (rule E9).
    pub(crate) transfers: u64,
    rules: Rules,
}

impl Etcd {
    pub(crate) fn new(record: PartitionRecord, rules: Rules) -> Etcd {
        let manifest = Manifest {
            revision: 1,
            log_start: Offset(0),
            entries: Vec::new(),
            at_end: EndState::empty(),
            epochs: LeaderEpochs::default(),
        };
        Etcd {
            revision: 1,
            record,
            record_revision: 1,
            sessions: BTreeMap::new(),
            manifest,
            gc_epoch: 2,
            elections: 0,
            transfers: 0,
            rules,
        }
    }

    pub(crate) fn assignment(&self) -> Assignment {
        let live = self.sessions.values().filter(|live| self.record.replicas.contains(&live.rid.broker));
        Assignment { record: self.record.clone(), revision: self.record_revision, live: live.copied().collect() }
    }

    /// Rule B1: the revision of the registration is the incarnation.
    pub(crate) fn register(&mut self, broker: BrokerId, wal_gen: WalGen) -> Incarnation {
        self.revision += 1;
        let inc = Incarnation(self.revision);
        self.sessions.insert(broker, Live { rid: Rid { broker, wal_gen }, inc });
        inc
    }

    pub(crate) fn end_session(&mut self, broker: BrokerId) {
        if self.sessions.remove(&broker).is_some() {
            self.revision += 1;
        }
    }

    fn alive(&self, live: &Live) -> bool {
        self.sessions.get(&live.rid.broker) == Some(live)
    }

    fn put_record(&mut self, record: PartitionRecord) {
        self.revision += 1;
        self.record_revision = self.revision;
        self.record = record;
    }

    /// A leader's transaction (rules K3, K4, I5, I6). Whether it was written.
    pub(crate) fn propose(&mut self, from: &Live, proposal: &Proposal) -> bool {
        let holds = proposal.base == self.record_revision
            && self.alive(from)
            && proposal.joining.is_none_or(|joining| self.alive(&joining))
            && proposal.heir.is_none_or(|heir| self.alive(&heir));
        if holds {
            self.transfers += u64::from(proposal.heir.is_some());
            self.elections += u64::from(proposal.heir.is_some());
            self.put_record(proposal.record.clone());
        }
        holds
    }

    /// TXN-ELECT and the controller's removal of the dead, decided on what was read (rules E3, E6).
    pub(crate) fn control(&mut self, seen: &Assignment) -> bool {
        if seen.revision != self.record_revision {
            return false;
        }
        let mut record = seen.record.clone();
        if election::vacant(&record, &seen.live) {
            let Some(next) = election::elect(&record, &seen.live, &BTreeMap::new(), self.rules) else { return false };
            let leader = next.leader.expect("an election has a winner");
            if !self.alive(&Live { rid: leader.rid, inc: leader.inc }) {
                return false;
            }
            self.elections += 1;
            self.put_record(next);
            return true;
        }
        if !self.rules.uphold(Rule::LeaderExpands) {
            record.isr = seen.live.iter().map(|live| live.rid).collect();
            self.put_record(record);
            return true;
        }
        let Some(next) = election::without_dead(&record, &seen.live) else { return false };
        self.put_record(next);
        true
    }

    /// TXN-LOSS (rule E7), decided on the record, the manifest and the sessions of all who may lead, as they were seen.
    pub(crate) fn give_up(
        &mut self,
        seen: &Assignment,
        sessions: &BTreeMap<BrokerId, Live>,
        manifest: u64,
        winner: Live,
    ) -> bool {
        let record = &seen.record;
        let mut complete = record.isr.iter().chain(&record.elr);
        let unmoved = complete.all(|rid| self.sessions.get(&rid.broker) == sessions.get(&rid.broker));
        let holds = seen.revision == self.record_revision && self.manifest.revision == manifest && self.alive(&winner);
        if holds && unmoved {
            self.elections += 1;
            self.put_record(election::won_unclean(record, winner));
        }
        holds && unmoved
    }

    /// TXN-TIER (rule T5). `None`: not written, and the manifest says why.
    pub(crate) fn tier(&mut self, commit: &TierCommit) -> bool {
        let leads = self.record.epoch == commit.epoch
            && self
                .record
                .leader
                .is_some_and(|leader| leader.rid == commit.leader.rid && leader.inc == commit.leader.inc)
            && self.alive(&commit.leader);
        let compared = self.manifest.revision == commit.base && leads || !self.rules.uphold(Rule::TierCompare);
        let fresh = self.gc_epoch < commit.entry.gc_epoch + 2 || !self.rules.uphold(Rule::ObjectsExpire);
        if !compared || !fresh {
            return false;
        }
        self.revision += 1;
        let manifest = &mut self.manifest;
        manifest.revision = self.revision;
        manifest.log_start = manifest.log_start.max(commit.log_start);
        for placed in &commit.batches {
            if placed.batch.base_offset() == manifest.at_end.end {
                manifest.epochs.append(placed.batch.leader_epoch(), placed.batch.base_offset());
                manifest.at_end.absorb(&placed.batch, placed.append_time);
            }
        }
        manifest.entries.push(commit.entry.clone());
        let (log_start, ends) =
            (manifest.log_start, manifest.entries.iter().skip(1).map(|entry| entry.base).collect::<Vec<_>>());
        let gone = ends.iter().take_while(|end| **end <= log_start).count();
        manifest.entries.drain(..gone);
        true
    }
}
