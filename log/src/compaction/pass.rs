//! What stays of each batch in one pass over the log, and what the pass has to know of the batches before it.
//!
//! Decides; writes nothing.

use super::{AbortedTxns, KeyOffsets};
use crate::batch::{Batch, BatchError, KeyedRecord};
use crate::ids::{Offset, ProducerId, TimestampMs};
use std::collections::HashSet;

/// One pass over a partition: what it rests on, and what goes along from group to group.
///
/// It is shown all batches from the log's first segment on, in order and once. After an error it is of no more use.
#[derive(Debug)]
pub struct Pass {
    keys: KeyOffsets,
    aborted: AbortedTxns,
    producers_last: HashSet<Offset>,
    now: TimestampMs,
    /// What tombstones and markers get that have none.
    horizon: TimestampMs,
    /// Producers with records left of the transaction that is not yet ended where the pass is.
    with_data: HashSet<ProducerId>,
    latest_horizon: Option<TimestampMs>,
    /// Keys whose newest record was come across.
    keys_met: u64,
    /// What the groups so far cover.
    covered: Option<(Offset, Offset)>,
}

/// What stays of a batch.
#[derive(Debug)]
pub(super) enum Stays {
    /// All of it, byte for byte.
    Whole {
        /// Largest timestamp of its records.
        latest: TimestampMs,
    },
    /// This.
    Part {
        /// The batch encoded anew.
        batch: Batch,
        /// Largest timestamp of its records.
        latest: TimestampMs,
    },
    /// No record.
    Nothing {
        /// Whether its header stays all the same.
        header: bool,
    },
}

impl Pass {
    /// A pass that takes out what `keys` say is not the newest of its key, and what is of `aborted`, the complete list of the aborted
    /// transactions that bear on the log from its first segment to the end of `keys`, which is at or below min(stable_end, tiered_end)
    /// (rule C2).
    ///
    /// `producers_last` are the base offsets of each producer's newest batch (`ProducerTable::last_batches` of the state at the end of the log).
    /// Tombstones and markers that get a horizon get `now` + `delete_retention_ms`; those go whose horizon is at or before `now`.
    #[must_use]
    pub fn new(
        keys: KeyOffsets,
        aborted: AbortedTxns,
        producers_last: impl IntoIterator<Item = Offset>,
        now: TimestampMs,
        delete_retention_ms: i64,
    ) -> Pass {
        Pass {
            keys,
            aborted,
            producers_last: producers_last.into_iter().collect(),
            now,
            horizon: TimestampMs(now.0.saturating_add(delete_retention_ms)),
            with_data: HashSet::new(),
            latest_horizon: None,
            keys_met: 0,
            covered: None,
        }
    }

    /// The keys it goes by.
    #[must_use]
    pub fn keys(&self) -> &KeyOffsets {
        &self.keys
    }

    /// The latest horizon of the tombstones and markers that were kept so far: a pass after it finds them all due.
    #[must_use]
    pub fn latest_horizon(&self) -> Option<TimestampMs> {
        self.latest_horizon
    }

    /// What stays of the next batch.
    pub(super) fn judge(&mut self, batch: &Batch) -> Result<Stays, BatchError> {
        if batch.is_control() {
            return self.judge_control(batch);
        }
        if batch.end_offset() > self.keys.end() {
            self.note_data(batch);
            return Ok(Stays::Whole { latest: batch.latest_timestamp()? });
        }
        if self.aborted.holds(batch) {
            return Ok(self.nothing(batch));
        }
        let Pass { keys, now, keys_met, .. } = self;
        let is_due = batch.delete_horizon().is_some_and(|horizon| horizon <= *now);
        let thinned = batch.thinned(self.horizon, |KeyedRecord { offset, key, is_tombstone }| {
            // Admission refuses records without a key; one from before the topic was compacted stays.
            let Some(key) = key else { return true };
            let newest = keys.newest(key);
            *keys_met += u64::from(newest == Some(offset));
            newest.is_none_or(|newest| newest <= offset) && !(is_tombstone && is_due)
        })?;
        if thinned.batch.record_count() == 0 {
            return Ok(self.nothing(batch));
        }
        if thinned.has_tombstones {
            self.latest_horizon = self.latest_horizon.max(thinned.batch.delete_horizon());
        }
        self.note_data(batch);
        let is_whole = thinned.removed == 0 && thinned.batch.delete_horizon() == batch.delete_horizon();
        let (batch, latest) = (thinned.batch, thinned.latest);
        Ok(if is_whole { Stays::Whole { latest } } else { Stays::Part { batch, latest } })
    }

    /// Markers have no keys: all those of one outcome would have the same.
    fn judge_control(&mut self, batch: &Batch) -> Result<Stays, BatchError> {
        let latest = batch.latest_timestamp()?;
        let whole = Ok(Stays::Whole { latest });
        if batch.record_count() == 0 {
            let is_clean = batch.end_offset() <= self.keys.end();
            return if is_clean { Ok(self.nothing(batch)) } else { whole };
        }
        // What is not understood ends nothing, and is another's to remove.
        let (Some(_), Some(stamp)) = (batch.end_marker().ok().flatten(), batch.producer()) else { return whole };
        let has_data = self.with_data.remove(&stamp.id);
        if has_data || batch.end_offset() > self.keys.end() {
            return whole;
        }
        match batch.delete_horizon() {
            Some(horizon) if horizon <= self.now => Ok(self.nothing(batch)),
            Some(horizon) => {
                self.latest_horizon = self.latest_horizon.max(Some(horizon));
                whole
            }
            None => {
                self.latest_horizon = self.latest_horizon.max(Some(self.horizon));
                Ok(Stays::Part { batch: batch.with_delete_horizon(self.horizon)?, latest })
            }
        }
    }

    /// A header stays of each producer's last batch, and of the last of all: the last stable offset may be its end for long, and a reader
    /// of committed records would not get there from before it.
    fn nothing(&self, batch: &Batch) -> Stays {
        let is_last = batch.end_offset() == self.keys.end();
        Stays::Nothing { header: is_last || self.producers_last.contains(&batch.base_offset()) }
    }

    /// A marker stays for as long as records of its transaction do.
    fn note_data(&mut self, batch: &Batch) {
        if let Some(stamp) = batch.producer().filter(|_| batch.is_transactional() && batch.record_count() > 0) {
            self.with_data.insert(stamp.id);
        }
    }

    /// Notes that a group covers `[base, end)`.
    ///
    /// Panics if it does not adjoin the one before, or if a key's newest record was not in the groups though they cover it (rule C3).
    pub(super) fn cover(&mut self, base: Offset, end: Offset) {
        let start = match self.covered {
            Some((start, covered)) => {
                assert_eq!(base, covered, "groups are gone over in order, and none is left out");
                start
            }
            None => base,
        };
        self.covered = Some((start, end));
        if start <= self.keys.from() && end >= self.keys.end() {
            assert_eq!(
                self.keys_met,
                self.keys.len() as u64,
                "rule C3: the newest record of each key is in the groups"
            );
        }
    }
}
