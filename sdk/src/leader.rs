//! Who leads a partition, as metadata and refusals name it. Plain data.

use millpond_log::{BrokerId, LeaderEpoch};

/// Who leads a partition, and where to reach it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Leader {
    pub(crate) broker: BrokerId,
    pub(crate) epoch: LeaderEpoch,
    pub(crate) address: String,
}
