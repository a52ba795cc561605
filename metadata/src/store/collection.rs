//! The garbage collector's state: the gc epoch and the log of dropped objects (rules G1, G2). What to delete is decided elsewhere.

use super::transition::{Guard, Transition};
use super::{Outcome, Session, Store, StoreError, Versioned, codec};
use crate::keys::{Key, Space};
use crate::kv::{Revision, Write};
use millpond_core::records::DropRecord;
use millpond_log::{PartitionId, TimestampMs};
use std::time::Duration;

/// The gc epoch, as read.
pub type GcEpoch = Versioned<u64>;

/// How a bump ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bumped {
    /// The epoch is `epoch` now.
    To {
        /// The new epoch.
        epoch: u64,
        /// The revision that wrote it: orphans are looked for at this revision or later (rule G2).
        revision: Revision,
    },
    /// The last bump is less than a period ago; nothing was written.
    TooEarly,
    /// Nothing was bumped, or it is not known, for this reason.
    Not(Outcome),
}

/// Objects dropped in one transaction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Dropped {
    /// The gc epoch of the drop. They may be deleted from gc epoch `gc_epoch + 2` on, after the readers' grace.
    pub gc_epoch: u64,
    /// The partition that named them.
    pub partition: PartitionId,
    /// Which drop of the partition.
    pub seq: u64,
    /// What was dropped.
    pub record: Versioned<DropRecord>,
}

impl Store {
    /// The gc epoch.
    ///
    /// # Errors
    /// `Damaged`: there is none, though founding a cluster writes it. Others as all reads.
    pub async fn gc_epoch(&self) -> Result<GcEpoch, StoreError> {
        let key = self.keys.encode(&Key::GcEpoch);
        let Some(found) = self.read_bytes(&Key::GcEpoch).await? else {
            let reason = "not there; the cluster was not founded".to_owned();
            return Err(StoreError::Damaged { key: String::from_utf8_lossy(&key).into_owned(), reason });
        };
        Ok(Versioned { value: codec::read_gc_epoch(&key, &found.value)?, revision: found.revision })
    }

    /// Raises the gc epoch by one, unless the last bump was less than `period` before `now` (rule G1).
    ///
    /// `now` is wall-clock time. A last bump that lies further ahead than a period came from a wrong clock and does not
    /// hold back: bumping early costs an upload at most, never an object that is needed.
    ///
    /// # Errors
    /// As all reads.
    pub async fn bump_gc_epoch(
        &self,
        actor: &Session,
        now: TimestampMs,
        period: Duration,
    ) -> Result<Bumped, StoreError> {
        let seen = self.gc_epoch().await?;
        let bumped_key = self.keys.encode(&Key::GcBumped);
        let bumped = self.read_bytes(&Key::GcBumped).await?;
        let period_ms = i64::try_from(period.as_millis()).unwrap_or(i64::MAX);
        if let Some(bumped) = &bumped {
            let last: i64 = codec::text(&bumped_key, &bumped.value)?;
            if now.0.saturating_sub(last).saturating_abs() < period_ms {
                return Ok(Bumped::TooEarly);
            }
        }
        let epoch = seen.value + 1;
        let key = self.keys.encode(&Key::GcEpoch);
        let bump = Transition {
            guards: vec![
                self.own_session(actor),
                Guard::unmoved(key.clone(), seen.revision),
                Guard::unmoved(bumped_key.clone(), bumped.map_or(Revision::ABSENT, |bumped| bumped.revision)),
            ],
            writes: vec![Write::put(key, codec::gc_epoch(epoch)), Write::put(bumped_key, now.0.to_string())],
            // Another broker's bump has the same value; each is somebody's own (rule G2), so it proves nothing.
            proof: None,
        };
        Ok(match self.run(bump).await?.into() {
            Outcome::Committed { revision } => Bumped::To { epoch, revision },
            other => Bumped::Not(other),
        })
    }

    /// What was dropped at gc epochs below `before`, oldest epoch first.
    ///
    /// # Errors
    /// As all reads.
    pub async fn drops_before(&self, before: u64) -> Result<Vec<Dropped>, StoreError> {
        let (_, listed) = self.list_records::<DropRecord>(&Space::DropsBefore(before)).await?;
        let dropped = |(key, record)| match key {
            Key::GcDrop { gc_epoch, partition, seq } => Some(Dropped { gc_epoch, partition, seq, record }),
            _ => None,
        };
        Ok(listed.into_iter().filter_map(dropped).collect())
    }

    /// Strikes drops off the log after their objects were deleted; the answers are in order.
    ///
    /// # Errors
    /// Per drop: `Unavailable`.
    pub async fn forget_drops(&self, actor: &Session, dropped: &[Dropped]) -> Vec<Result<Outcome, StoreError>> {
        let forget = |drop: &Dropped| {
            let key = Key::GcDrop { gc_epoch: drop.gc_epoch, partition: drop.partition, seq: drop.seq };
            let key = self.keys.encode(&key);
            Transition {
                guards: vec![self.own_session(actor), Guard::unmoved(key.clone(), drop.record.revision)],
                writes: vec![Write::delete(&key)],
                proof: None,
            }
        };
        let answers = self.run_batched(dropped.iter().map(forget).collect()).await;
        answers.into_iter().map(|answer| answer.map(Outcome::from)).collect()
    }
}
