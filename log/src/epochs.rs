//! The leader-epoch cache of a partition (rule R1): which epoch began at which offset, for the whole log.

use crate::ids::{LeaderEpoch, Offset};

/// Start of one epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EpochStart {
    /// The epoch.
    pub epoch: LeaderEpoch,
    /// Offset of its first record.
    pub start: Offset,
}

/// Epochs in order, each with its first offset. Both strictly increase... an epoch without records has no entry.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LeaderEpochs {
    starts: Vec<EpochStart>,
}

impl LeaderEpochs {
    /// Notes that the record at `start` was appended in `epoch`. No-op if the epoch is the newest already.
    ///
    /// Panics if `epoch` or `start` goes backwards.
    pub fn append(&mut self, epoch: LeaderEpoch, start: Offset) { let _ = (epoch, start); todo!() }
    /// Epoch of the record at `offset`, if the cache reaches back that far.
    #[must_use]
    pub fn epoch_at(&self, offset: Offset) -> Option<LeaderEpoch> { let _ = offset; todo!() }
    /// Newest epoch with a record.
    #[must_use]
    pub fn last(&self) -> Option<EpochStart> { self.starts.last().copied() }
    /// Largest epoch <= `epoch`, and where it ends (start of the next, or `log_end`): Kafka's OffsetForLeaderEpoch.
    #[must_use]
    pub fn end_of(&self, epoch: LeaderEpoch, log_end: Offset) -> Option<(LeaderEpoch, Offset)> { let _ = (epoch, log_end); todo!() }
    /// Forgets what lies at or after `end`.
    pub fn truncate(&mut self, end: Offset) { let _ = end; todo!() }
    /// The slice of epochs that cover `[from, to)`; the first entry's start is clipped to `from`.
    #[must_use]
    pub fn slice(&self, from: Offset, to: Offset) -> Vec<EpochStart> { let _ = (from, to); todo!() }
    /// All entries.
    #[must_use]
    pub fn entries(&self) -> &[EpochStart] { &self.starts }
    /// Rebuilds from entries.
    ///
    /// # Errors
    /// `None` if they are out of order.
    #[must_use]
    pub fn from_entries(starts: Vec<EpochStart>) -> Option<LeaderEpochs> { let _ = starts; todo!() }
}
