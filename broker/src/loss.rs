//! Partitions that nobody may lead any more (rule B4): why, what is lost, and what is said about it. Changes nothing.

use crate::api::{ApiError, DamagedPlace, PartitionLoss};
use crate::catalog::{PartitionHandle, Topic};
use crate::wal::{Damage, Recovered};
use millpond_log::{BrokerId, ErrorCode, Offset, PartitionId};
use std::ops::Range;

/// What this start found of its disk: it explains why replicas on it are other replicas now (rule K2).
pub(crate) struct DiskStory {
    /// Why the disk is not the one that registered last (rule B1a), if that is so.
    stale: Option<String>,
    /// Whether its WAL is another since this start.
    fresh: bool,
    /// Whether the WAL held nothing.
    empty: bool,
    damage: Vec<Damage>,
}

/// What is lost of a partition that was opened as lost.
pub(crate) struct Lost {
    /// From the end of the log to where it is known to have reached.
    pub(crate) offsets: Range<Offset>,
    /// Whether the WAL held anything of it.
    pub(crate) in_wal: bool,
}

impl DiskStory {
    pub(crate) fn new(recovered: &Recovered, stale: Option<String>) -> DiskStory {
        let empty = recovered.partitions.is_empty();
        DiskStory { stale, fresh: recovered.fresh, empty, damage: recovered.damage.clone() }
    }

    /// Why a partition is lost, and where the WAL is bad, if that is why.
    fn cause(&self, partition: PartitionId, in_wal: bool) -> (String, Option<DamagedPlace>) {
        let place =
            |damage: &Damage| DamagedPlace { file: damage.file.display().to_string(), position: damage.position };
        let names = |damage: &&Damage| damage.partitions.iter().any(|(lost, _)| *lost == partition);
        if let Some(named) = self.damage.iter().find(names) {
            return ("synced data in the WAL cannot be read back".to_owned(), Some(place(named)));
        }
        if let Some(reason) = &self.stale {
            return (format!("the data directory is not the one that served it last: {reason}"), None);
        }
        let first = self.damage.first().map(place);
        let cause = match (self.fresh, &first) {
            (true, Some(_)) if in_wal => "the WAL is damaged; no record of this partition is known to be missing",
            (true, Some(_)) => "the WAL is damaged, and nothing of this partition is left in it",
            (true, None) if self.empty => "the data directory was empty",
            (true, None) => "a write or sync of the WAL had failed",
            (false, _) => {
                "every replica that held all of it stood on a disk that was lost, replaced, restored or damaged"
            }
        };
        (cause.to_owned(), first.filter(|_| self.fresh))
    }

    /// What is lost of a partition that was opened as lost.
    pub(crate) fn loss(&self, partition: PartitionId, lost: &Lost) -> PartitionLoss {
        let (cause, place) = self.cause(partition, lost.in_wal);
        PartitionLoss { cause, place, end: lost.offsets.start, known_end: lost.offsets.end }
    }

    /// A partition is whole here again: whatever this disk lost of it was copied, or is not missed. Whether it was damaged.
    pub(crate) fn heal(&mut self, partition: PartitionId) -> bool {
        let before: usize = self.damage.iter().map(|damage| damage.partitions.len()).sum();
        self.damage.iter_mut().for_each(|damage| damage.partitions.retain(|(lost, _)| *lost != partition));
        self.damage.iter().map(|damage| damage.partitions.len()).sum::<usize>() < before
    }
}

impl PartitionLoss {
    /// What to tell whoever wants more of the partition than is in object storage.
    pub(crate) fn explain(&self, topic: &str, partition: u32) -> String {
        let place =
            self.place.as_ref().map_or(String::new(), |place| format!(" (`{}`, byte {})", place.file, place.position));
        let lost = match self.known_end.0.saturating_sub(self.end.0) {
            0 => format!("if anything was acknowledged from offset {} on, it is lost", self.end),
            count => format!(
                "the {count} offsets {} to {} are lost, with whatever came after them",
                self.end,
                self.known_end.0 - 1
            ),
        };
        format!(
            "{topic}:{partition} has no leader: {cause}{place}; {lost}; accept that with `{command}`",
            cause = self.cause,
            command = accept_command(topic, partition)
        )
    }
}

/// The command line that accepts a loss.
pub(crate) fn accept_command(topic: &str, partition: u32) -> String {
    format!("millpond partition accept-loss {topic}:{partition} --yes")
}

/// The command line that says that a broker's disk is gone for good.
pub(crate) fn give_up_command(broker: BrokerId) -> String {
    format!("millpond cluster forget {broker} --lost")
}

/// The refusal of what only a leader may do; `NOT_LEADER_OR_FOLLOWER` makes every client look for the leader again.
pub(crate) fn refusal(topic: &Topic, handle: &PartitionHandle, code: ErrorCode) -> Option<ApiError> {
    let loss = handle.loss.as_ref()?;
    Some(ApiError::new(code, loss.explain(topic.record.name.as_str(), handle.id.index)))
}

/// Says a loss in the log.
pub(crate) fn report(loss: &PartitionLoss, topic: &str, partition: PartitionId) {
    tracing::error!("{}", loss.explain(topic, partition.index));
}
