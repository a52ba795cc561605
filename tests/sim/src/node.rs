//! One broker as far as one partition goes: it carries what `core::Replica` decides to a simulated disk, network and store.

use crate::disk::{Disk, Log, Record};
use crate::etcd::Manifest;
use millpond_core::loss::{self, Meeting, Seam};
use millpond_core::replica::{
    Appended, Cursor, EndState, Fault, Input, Installed, Live, Mark, Now, Output, Placed, Proposal, Push, PushReply,
    Recovered, Refusal, Replica, Token,
};
use millpond_core::rules::{Rule, Rules};
use millpond_log::batch::TimestampType;
use millpond_log::{BrokerId, Incarnation, LeaderEpoch, Offset, Rid, WalGen};
use std::collections::BTreeMap;

/// How long a follower may lag, in simulated milliseconds.
const LAG_TIME_MS: u64 = 1_500;

/// A broker, dead or alive.
pub(crate) struct Node {
    pub(crate) id: BrokerId,
    pub(crate) wal_gen: WalGen,
    pub(crate) disk: Disk,
    pub(crate) running: Option<Running>,
}

/// What lives in the process.
pub(crate) struct Running {
    pub(crate) replica: Replica,
    pub(crate) inc: Option<Incarnation>,
    /// Revision of the store that was seen.
    pub(crate) seen: u64,
    /// The log as the process sees it: what was handed to the WAL, synced or not.
    pub(crate) log: Log,
    pub(crate) cursors: BTreeMap<BrokerId, SimCursor>,
    pub(crate) proposal: Option<Proposal>,
    pub(crate) mark: Mark,
    /// A truncation waits for its replay, or a manifest was asked for.
    pub(crate) rebuild: Option<Rebuild>,
    pub(crate) upload: Option<Upload>,
    /// What a reader may have seen here.
    pub(crate) exposed: Offset,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rebuild {
    Truncated(Offset),
    Install,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct SimCursor {
    nonce: u64,
    pub(crate) next: Offset,
    prev_epoch: Option<LeaderEpoch>,
}

/// An upload of the leader.
#[derive(Clone, Debug)]
pub(crate) struct Upload {
    pub(crate) object: u64,
    pub(crate) gc_epoch: u64,
    pub(crate) base_revision: u64,
    pub(crate) batches: Vec<Placed>,
    pub(crate) stored: bool,
    pub(crate) sent: bool,
}

/// What a step asks of the world around the node.
// A handful exist at a time; their size does not matter.
#[allow(clippy::large_enum_variant)]
#[derive(Debug)]
pub(crate) enum Effect {
    Answer { token: Token, result: Result<Appended, Refusal> },
    Reply { to: BrokerId, reply: PushReply },
    Propose { from: Live, proposal: Proposal },
    Fault(Fault),
}

impl Node {
    pub(crate) fn rid(&self) -> Rid {
        Rid { broker: self.id, wal_gen: self.wal_gen }
    }

    /// Starts the process: recovers, syncs all that was found (rule W3a), assembles the replica (rule R12).
    pub(crate) fn start(&mut self, manifest: &Manifest, rules: Rules) -> Result<(), String> {
        self.disk.sync();
        let mut log = self.disk.synced.clone();
        let tiered_end = manifest.at_end.end;
        if log.start > tiered_end && log.end() > log.start {
            return Err(format!("S9 gap: {} begins at {}, the manifest ends at {tiered_end}", self.id, log.start));
        }
        let last = Offset(tiered_end.0.saturating_sub(1));
        let seam = Seam {
            start: log.start,
            end: log.end(),
            epoch: log.batches.get(log.containing(last.max(log.start))).map(|placed| placed.batch.leader_epoch()),
            tiered_end,
            tiered_epoch: if tiered_end > Offset(0) { manifest.epochs.epoch_at(last) } else { None },
            hash: log.hash_at(tiered_end),
            tiered_hash: manifest.at_end.prefix_hash,
        };
        let fits = loss::meet(&seam) == Meeting::Continues;
        if !fits {
            let reset = Record::Reset { at: tiered_end, prefix_hash: manifest.at_end.prefix_hash };
            self.disk.write(reset.clone());
            self.disk.sync();
            log.apply(reset);
        }
        let (at_end, epochs) = replay(manifest, &log, log.end());
        let newest = epochs.last().map_or(LeaderEpoch(0), |last| last.epoch);
        let seen = if rules.uphold(Rule::EpochPersisted) { log.epoch_seen.max(newest) } else { newest };
        let replica = Replica::new(Recovered {
            rid: self.rid(),
            epoch_seen: seen,
            log_start: manifest.log_start,
            tiered_end,
            hw: log.hw.min(log.end()),
            at_end,
            epochs,
            timestamp_type: TimestampType::CreateTime,
            lag_time_ms: LAG_TIME_MS,
            rules,
        });
        let exposed = replica.visible().hw;
        self.running = Some(Running {
            replica,
            inc: None,
            seen: 0,
            log,
            cursors: BTreeMap::new(),
            proposal: None,
            mark: Mark(0),
            rebuild: None,
            upload: None,
            exposed,
        });
        Ok(())
    }

    /// Steps the replica and carries out what concerns this node alone. Trims come back last, since what they take was exposed before.
    pub(crate) fn step(&mut self, now: Now, input: Input) -> (Vec<Effect>, Vec<Offset>) {
        let Some(running) = &mut self.running else { return (Vec::new(), Vec::new()) };
        let mut outputs = Vec::new();
        running.replica.step(now, input, &mut outputs);
        let (mut effects, mut trims) = (Vec::new(), Vec::new());
        let mut write = |log: &mut Log, record: Record| {
            log.apply(record.clone());
            self.disk.write(record);
        };
        for output in outputs {
            match output {
                Output::PersistEpoch { epoch, mark } => {
                    running.mark = mark;
                    write(&mut running.log, Record::Epoch(epoch));
                }
                Output::Append { placed, mark } => {
                    running.mark = mark;
                    write(&mut running.log, Record::Batch(placed));
                }
                Output::Truncate { to, mark } => {
                    running.mark = mark;
                    running.rebuild = Some(Rebuild::Truncated(to));
                    running.exposed = running.exposed.min(to);
                    write(&mut running.log, Record::Truncate(to));
                }
                Output::Reset { at, prefix_hash, mark } => {
                    running.mark = mark;
                    write(&mut running.log, Record::Reset { at, prefix_hash });
                    // What lies below is in the bucket, and was shown.
                    running.exposed = at;
                }
                Output::Install => running.rebuild = Some(Rebuild::Install),
                Output::Follow(Cursor { to, nonce, from, prev_epoch }) => {
                    running.cursors.insert(to, SimCursor { nonce, next: from, prev_epoch });
                }
                Output::Unfollow(to) => drop(running.cursors.remove(&to)),
                Output::Verify(_) => unreachable!("no client of this simulation has transactions"),
                Output::Answer { token, result } => effects.push(Effect::Answer { token, result }),
                Output::Reply { to, reply } => effects.push(Effect::Reply { to, reply }),
                Output::Propose(proposal) => {
                    running.proposal = Some(proposal.clone());
                    if let Some(inc) = running.inc {
                        let rid = Rid { broker: self.id, wal_gen: self.wal_gen };
                        effects.push(Effect::Propose { from: Live { rid, inc }, proposal });
                    }
                }
                Output::Trim { to } => trims.push(to),
                Output::Publish => {}
                Output::Fault(fault) => effects.push(Effect::Fault(fault)),
            }
        }
        (effects, trims)
    }

    pub(crate) fn trim(&mut self, to: Offset) {
        self.disk.synced.trim(to);
        if let Some(running) = &mut self.running {
            running.log.trim(to);
        }
    }

    /// Notes the high watermark in the WAL (rule R10).
    pub(crate) fn note_hw(&mut self) {
        let Some(running) = &mut self.running else { return };
        let hw = running.replica.hw_to_persist();
        running.log.apply(Record::HighWatermark(hw));
        self.disk.write(Record::HighWatermark(hw));
    }

    /// The next push to `to`, at most `batches_max` batches; `Err` with the input that tells that its cursor was trimmed.
    pub(crate) fn push(&mut self, to: BrokerId, batches_max: usize) -> Option<Result<Push, Input>> {
        let running = self.running.as_mut()?;
        let head = running.replica.push_head()?;
        let cursor = running.cursors.get_mut(&to)?;
        if cursor.next < running.log.start {
            return Some(Err(Input::CursorTrimmed { nonce: cursor.nonce, to, start: running.log.start }));
        }
        let at = running.log.at(cursor.next);
        let batches: Vec<Placed> = running.log.batches[at..].iter().take(batches_max).cloned().collect();
        let push = Push {
            head,
            nonce: cursor.nonce,
            start: running.log.start,
            prev_offset: cursor.next,
            prev_epoch: cursor.prev_epoch,
            batches,
        };
        if let Some(last) = push.batches.last() {
            (cursor.next, cursor.prev_epoch) = (last.batch.end_offset(), Some(last.batch.leader_epoch()));
        }
        Some(Ok(push))
    }

    /// What a truncation or a wish for the manifest is answered with (rules R7, R12).
    pub(crate) fn rebuild(&mut self, manifest: &Manifest) -> Option<Input> {
        let running = self.running.as_mut()?;
        let to = match running.rebuild.take()? {
            Rebuild::Truncated(to) if manifest.at_end.end <= to => to,
            Rebuild::Truncated(_) | Rebuild::Install => {
                let installed = Installed {
                    log_start: manifest.log_start,
                    at_end: manifest.at_end.clone(),
                    epochs: manifest.epochs.clone(),
                };
                return Some(Input::Installed(installed));
            }
        };
        Some(Input::Rebuilt(replay(manifest, &running.log, to).0))
    }
}

/// State at `to`: the manifest's, and the log replayed from there (rule P2).
fn replay(manifest: &Manifest, log: &Log, to: Offset) -> (EndState, millpond_log::epochs::LeaderEpochs) {
    let (mut at_end, mut epochs) = (manifest.at_end.clone(), manifest.epochs.clone());
    for placed in &log.batches[log.at(at_end.end)..] {
        if placed.batch.end_offset() > to {
            break;
        }
        epochs.append(placed.batch.leader_epoch(), placed.batch.base_offset());
        at_end.absorb(&placed.batch, placed.append_time);
    }
    (at_end, epochs)
}
