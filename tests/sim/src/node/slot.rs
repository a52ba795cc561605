//! One replica as its broker holds it: the state machines of `core`, and what stands between them and the world.

use crate::bucket::{self, Bucket};
use crate::log::{Log, Record};
use bytes::Bytes;
use millpond_core::flush::FlushRule;
use millpond_core::loss::{self, Meeting, Seam};
use millpond_core::replica::{EndState, Input, Installed, Mark, Placed, Proposal, Push, Recovered, Replica};
use millpond_core::rules::{Rule, Rules};
use millpond_core::tiering::{Change, TailSummary, TierRules, TierSettings, Tiering};
use millpond_log::batch::TimestampType;
use millpond_log::epochs::LeaderEpochs;
use millpond_log::manifest::{ManifestRoot, SegmentEntry};
use millpond_log::object_key::ObjectKey;
use millpond_log::producers::ProducerTable;
use millpond_log::{BrokerId, LeaderEpoch, Offset, Rid};
use std::collections::BTreeMap;
use std::sync::Arc;

/// How long a follower may lag, in simulated milliseconds.
const LAG_TIME_MS: u64 = 1_500;

/// Small segments, soon due.
const SETTINGS: TierSettings = TierSettings { rule: FlushRule { bytes: 700, age_ms: 250 }, retention_ms: 1 };

pub(crate) struct Slot {
    pub(crate) replica: Replica,
    /// The log as the process sees it: what was handed to the WAL, synced or not.
    pub(crate) log: Log,
    pub(crate) cursors: BTreeMap<BrokerId, SimCursor>,
    /// What is proposed and not resolved (rule K5).
    pub(crate) proposal: Option<Proposal>,
    /// A truncation waits for its replay, or a manifest was asked for.
    pub(crate) rebuild: Option<Rebuild>,
    /// The manifest was asked for, for the office of this epoch (rule F3).
    pub(crate) office_read: Option<LeaderEpoch>,
    pub(crate) tiering: Tiering,
    pub(crate) errand: Errand,
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
    pub(super) nonce: u64,
    pub(crate) next: Offset,
    pub(super) prev_epoch: Option<LeaderEpoch>,
}

/// What of the manifest is under way.
#[derive(Debug, Default)]
pub(crate) enum Errand {
    #[default]
    None,
    Upload(Box<Upload>),
    /// Sent under this number.
    Commit(u64, Box<Change>),
}

/// An object on its way up.
#[derive(Debug)]
pub(crate) struct Upload {
    pub(crate) key: ObjectKey,
    pub(crate) bytes: Bytes,
    pub(crate) entry: SegmentEntry,
    pub(crate) producers: ProducerTable,
}

/// What a replica is opened from.
pub(crate) struct Opening<'a> {
    pub(crate) rid: Rid,
    pub(crate) root: &'a ManifestRoot,
    /// Revision of the root.
    pub(crate) revision: u64,
    /// What recovery found of it, if anything.
    pub(crate) in_wal: Option<Log>,
    /// The epoch of a partition that nobody may lead any more (rule B4).
    pub(crate) lost: Option<LeaderEpoch>,
    /// It holds all that was committed (S5).
    pub(crate) complete: bool,
    /// Those of the replicas that were open before.
    pub(crate) marks: Mark,
    pub(crate) rules: Rules,
}

impl Slot {
    /// Assembles a replica from what WAL and manifest hold, as a broker does (rules R1, P4, R12, S9). The second is what the WAL
    /// has to be told.
    pub(crate) fn open(opening: Opening<'_>, bucket: &Bucket) -> Result<(Slot, Option<(Record, Mark)>), String> {
        let Opening { rid, root, revision, in_wal, lost, complete, marks, rules } = opening;
        let (partition, tiered_end) = (root.partition, root.tiered_end);
        let mut epochs = bucket::epochs(root);
        let tiered = bucket.state(root)?;
        let known = in_wal.is_some();
        let mut log = in_wal.unwrap_or_default();
        if log.start > tiered_end {
            return Err(format!(
                "S9 gap: {partition} on {rid} begins at {}, the manifest ends at {tiered_end}",
                log.start
            ));
        }
        let meeting = loss::meet(&seam(&log, root, &epochs));
        if known && complete && meeting == Meeting::Diverged {
            return Err(format!("S5/S6 {partition} on {rid} is in sync and not what is tiered up to {tiered_end}"));
        }
        let reset = Record::Reset { at: tiered_end, prefix_hash: tiered.prefix_hash };
        let reset = (!known || meeting != Meeting::Continues).then_some(reset);
        if let Some(reset) = &reset {
            log.apply(reset);
        }
        let hw = if lost.is_some() { tiered_end } else { log.hw };
        let mut at_end = tiered.clone();
        replay(&mut at_end, &mut epochs, &log, log.end());
        let newest = epochs.last().map_or(LeaderEpoch(0), |last| last.epoch).max(root.epoch);
        let newest = newest.max(lost.unwrap_or_default());
        let epoch_seen = if rules.uphold(Rule::EpochPersisted) { log.epoch_seen.max(newest) } else { newest };
        let mut replica = Replica::new(Recovered {
            rid,
            epoch_seen,
            log_start: root.log_start,
            tiered_end,
            hw: hw.min(at_end.end),
            at_end,
            epochs,
            timestamp_type: TimestampType::CreateTime,
            lag_time_ms: LAG_TIME_MS,
            rules,
        });
        let tier_rules = TierRules {
            committed_only: rules.uphold(Rule::TierCommitted),
            commit_before_trim: rules.uphold(Rule::TrimAfterCommit),
            collect_by_epoch: rules.uphold(Rule::ObjectsExpire),
        };
        replica.begin_marks_behind(marks);
        let reset = reset.map(|reset| (reset, replica.start_over()));
        let exposed = replica.visible().hw;
        let root = Arc::new(root.clone());
        let slot = Slot {
            replica,
            log,
            cursors: BTreeMap::new(),
            proposal: None,
            rebuild: None,
            office_read: None,
            tiering: Tiering::new(root, revision, tiered.producers, SETTINGS, tier_rules),
            errand: Errand::None,
            exposed,
        };
        Ok((slot, reset))
    }

    pub(super) fn push(&mut self, to: BrokerId, batches_max: usize) -> Option<Result<Push, Input>> {
        let head = self.replica.push_head()?;
        let (log, cursor) = (&self.log, self.cursors.get_mut(&to)?);
        if cursor.next < log.start {
            return Some(Err(Input::CursorTrimmed { nonce: cursor.nonce, to, start: log.start }));
        }
        let at = log.at(cursor.next);
        let batches: Vec<Placed> = log.batches[at..].iter().take(batches_max).cloned().collect();
        let push = Push {
            head,
            nonce: cursor.nonce,
            start: log.start,
            prev_offset: cursor.next,
            prev_epoch: cursor.prev_epoch,
            batches,
        };
        if let Some(last) = push.batches.last() {
            (cursor.next, cursor.prev_epoch) = (last.batch.end_offset(), Some(last.batch.leader_epoch()));
        }
        Some(Ok(push))
    }

    /// What a truncation or a wish for the manifest is answered with (rules R7, R12). `root` is read linearizably.
    pub(crate) fn rebuilt(&mut self, root: &ManifestRoot, bucket: &Bucket) -> Result<Option<Input>, String> {
        let Some(wanted) = self.rebuild.take() else { return Ok(None) };
        let mut at_end = bucket.state(root)?;
        let mut epochs = bucket::epochs(root);
        Ok(Some(match wanted {
            Rebuild::Truncated(to) if root.tiered_end <= to => {
                replay(&mut at_end, &mut epochs, &self.log, to);
                Input::Rebuilt(at_end)
            }
            Rebuild::Truncated(_) | Rebuild::Install => {
                Input::Installed(Installed { log_start: root.log_start, at_end, epochs })
            }
        }))
    }

    /// What the WAL holds from one offset to another, in brief (rule T1).
    pub(crate) fn summary(log: &Log, from: Offset, to: Offset, bytes_max: u64) -> Option<TailSummary> {
        let whole = |placed: &&Placed| placed.batch.end_offset() <= to;
        let mut batches = log.batches[log.at(from)..].iter().take_while(whole);
        let first = batches.next().filter(|first| first.batch.base_offset() == from)?;
        let (end, bytes) = (first.batch.end_offset(), first.batch.size() as u64);
        let mut summary = TailSummary { end, bytes, oldest: first.append_time, more: false };
        for placed in batches {
            let bytes = summary.bytes + placed.batch.size() as u64;
            if bytes > bytes_max {
                summary.more = true;
                break;
            }
            (summary.end, summary.bytes) = (placed.batch.end_offset(), bytes);
        }
        Some(summary)
    }
}

/// How the log in the WAL meets the one in object storage (rule R12).
fn seam(log: &Log, root: &ManifestRoot, epochs: &LeaderEpochs) -> Seam {
    let tiered_end = root.tiered_end;
    let last = Offset(tiered_end.0.saturating_sub(1));
    Seam {
        start: log.start,
        end: log.end(),
        epoch: log.batches.get(log.containing(last.max(log.start))).map(|placed| placed.batch.leader_epoch()),
        tiered_end,
        tiered_epoch: if tiered_end > Offset(0) { epochs.epoch_at(last) } else { None },
        hash: log.hash_at(tiered_end),
        tiered_hash: EndState::tiered(root, ProducerTable::default()).prefix_hash,
    }
}

/// Replays the log up to `to` onto the state at the manifest's end (rule P2).
fn replay(at_end: &mut EndState, epochs: &mut LeaderEpochs, log: &Log, to: Offset) {
    for placed in &log.batches[log.at(at_end.end)..] {
        if placed.batch.end_offset() > to {
            break;
        }
        epochs.append(placed.batch.leader_epoch(), placed.batch.base_offset());
        at_end.absorb(&placed.batch, placed.append_time);
    }
}
