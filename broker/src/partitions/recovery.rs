//! Assembles a replica from what its WAL and its manifest hold (rules R1, P4, W3a, S9). Decides nothing but whether the two fit.

use crate::tiered::{Tiered, TieredError};
use crate::wal::{RecoveredPartition, Wal};
use millpond_core::loss::{self, Meeting, Seam};
use millpond_core::replica::{EndState, Installed, Recovered, Replica};
use millpond_core::rules::Rules;
use millpond_log::batch::TimestampType;
use millpond_log::epochs::LeaderEpochs;
use millpond_log::limits::REPLICA_LAG_TIME_MS;
use millpond_log::manifest::{ManifestRoot, ManifestView};
use millpond_log::producers::ProducerTable;
use millpond_log::{LeaderEpoch, Offset, PartitionId, Rid};

/// A replica as it was found.
pub(crate) struct Found {
    pub(crate) replica: Replica,
    /// Producer state at the tiered end, where the next segment begins (rule T4).
    pub(crate) producers_tiered: ProducerTable,
    /// The WAL holds nothing that follows the manifest: its log starts here.
    pub(crate) reset_at: Option<Offset>,
    /// How far its log is known to have reached: beyond its end if something was lost.
    pub(crate) known_end: Offset,
}

/// Why a replica cannot be used. Its partition stays without this replica; nothing is deleted (rule K6).
#[derive(Debug, thiserror::Error)]
pub(crate) enum RecoveryError {
    /// S9: somebody trimmed what was not uploaded, or the metadata is older than the disk.
    #[error(
        "{partition}: the WAL begins at offset {start} but object storage ends at {tiered_end}: offsets between are missing"
    )]
    Gap { partition: PartitionId, start: Offset, tiered_end: Offset },
    /// S5, S6: the replica is in sync by its record, and not equal.
    #[error(
        "{partition}: the log in the WAL up to offset {tiered_end}, where object storage ends, is not the one there"
    )]
    OtherHistory { partition: PartitionId, tiered_end: Offset },
    #[error("{partition}: the producer snapshot at offset {at} is unreadable: {reason}")]
    Producers { partition: PartitionId, at: Offset, reason: &'static str },
    #[error("{partition}: leader epochs of manifest and WAL contradict each other")]
    Epochs { partition: PartitionId },
    /// The object store; try again.
    #[error("{partition}: the manifest could not be followed")]
    Tiered {
        partition: PartitionId,
        #[source]
        source: TieredError,
    },
}

/// Where a replica is read from.
#[derive(Clone, Copy)]
pub(crate) struct Sources<'a> {
    pub(crate) root: &'a ManifestRoot,
    /// What recovery found of it, if anything.
    pub(crate) in_wal: Option<&'a RecoveredPartition>,
    /// The epoch of a partition that nobody may lead any more (rule B4): this disk is not in sync with it.
    pub(crate) lost: Option<LeaderEpoch>,
    /// It is in sync, or was when too few were left (rule E2): it holds everything committed (S5).
    pub(crate) complete: bool,
    pub(crate) wal: &'a Wal,
    pub(crate) tiered: &'a Tiered,
}

/// Assembles the replica of `root.partition`.
pub(crate) async fn assemble(
    rid: Rid,
    sources: Sources<'_>,
    timestamp_type: TimestampType,
) -> Result<Found, RecoveryError> {
    let Sources { root, in_wal, lost, complete, wal, tiered } = sources;
    let partition = root.partition;
    let failed = |source| RecoveryError::Tiered { partition, source };
    let tiered_end = root.tiered_end;
    let mut view = ManifestView::new(root.clone());
    let epochs = tiered.ask(&mut view, ManifestView::epochs).await.map_err(failed)?;
    let mut epochs = LeaderEpochs::from_entries(epochs).ok_or(RecoveryError::Epochs { partition })?;
    if let Some(held) = in_wal.filter(|held| held.start > tiered_end) {
        return Err(RecoveryError::Gap { partition, start: held.start, tiered_end });
    }
    // What ends below the manifest is all in object storage (rule R12), and so is what another history replaced.
    let meeting = in_wal.map(|held| loss::meet(&seam(held, wal, root, &epochs)));
    if complete && meeting == Some(Meeting::Diverged) {
        // S5, S6: what holds everything committed never contradicts the manifest.
        return Err(RecoveryError::OtherHistory { partition, tiered_end });
    }
    let held = in_wal.filter(|_| meeting == Some(Meeting::Continues));
    let (end, hw) = held.map_or((tiered_end, tiered_end), |held| (held.end, held.hw));
    // What a log of another history held says nothing about this one.
    let of_this = in_wal.filter(|_| meeting != Some(Meeting::Diverged));
    let known_end = of_this.map_or(end, |held| held.known_end.max(end));
    // Of a lost log only what is in object storage is known to stand (rule F4).
    let hw = if lost.is_some() { tiered_end } else { hw };
    let mut at_end = tiered_state(sources).await?;
    let producers_tiered = at_end.producers.clone();
    if let Some(held) = held.filter(|held| held.end > tiered_end) {
        at_end.prefix_hash = held.prefix_hash.expect("a log that reaches past its start ends with a batch");
    }
    for entry in wal.entries(partition, tiered_end, end) {
        if epochs.last().is_some_and(|last| last.epoch > entry.leader_epoch) {
            return Err(RecoveryError::Epochs { partition });
        }
        epochs.append(entry.leader_epoch, entry.base);
        at_end.replay(entry.producer, entry.record_count, entry.base..entry.end, entry.append_time);
    }
    at_end.end = end;
    let newest_epoch = epochs.last().map_or(LeaderEpoch(0), |last| last.epoch).max(root.epoch);
    let newest_epoch = newest_epoch.max(lost.unwrap_or_default());
    let replica = Replica::new(Recovered {
        rid,
        epoch_seen: in_wal.map_or(newest_epoch, |held| held.epoch_seen.max(newest_epoch)),
        log_start: root.log_start,
        tiered_end,
        hw,
        at_end,
        epochs,
        timestamp_type,
        lag_time_ms: REPLICA_LAG_TIME_MS,
        rules: Rules::ALL,
    });
    Ok(Found { replica, producers_tiered, reset_at: held.is_none().then_some(tiered_end), known_end })
}

/// State at the tiered end, as the newest segment and its entry keep it (rules T4, R12, S6).
async fn tiered_state(sources: Sources<'_>) -> Result<EndState, RecoveryError> {
    let Sources { root, tiered, .. } = sources;
    let (partition, end) = (root.partition, root.tiered_end);
    let Some(newest) = root.newest() else { return Ok(EndState::tiered(root, ProducerTable::default())) };
    let snapshot = tiered.producers(partition, newest).await;
    let snapshot = snapshot.map_err(|source| RecoveryError::Tiered { partition, source })?;
    let producers =
        ProducerTable::decode(&snapshot).map_err(|reason| RecoveryError::Producers { partition, at: end, reason })?;
    Ok(EndState::tiered(root, producers))
}

/// State at `end`, to which the log in the WAL was truncated (rule R7): the tiered state, and what follows it replayed.
pub(crate) async fn state_at(sources: Sources<'_>, end: Offset) -> Result<EndState, RecoveryError> {
    let Sources { root, wal, .. } = sources;
    let mut state = tiered_state(sources).await?;
    for entry in wal.entries(root.partition, root.tiered_end, end) {
        state.replay(entry.producer, entry.record_count, entry.base..entry.end, entry.append_time);
    }
    if let Some(prefix_hash) = wal.prefix_hash_at(root.partition, end) {
        state.prefix_hash = prefix_hash;
    }
    state.end = end;
    Ok(state)
}

/// What the manifest holds, for a replica that shares nothing with its leader's WAL (rule R12).
pub(crate) async fn installed(sources: Sources<'_>) -> Result<Installed, RecoveryError> {
    let Sources { root, tiered, .. } = sources;
    let partition = root.partition;
    let epochs = tiered.ask(&mut ManifestView::new(root.clone()), ManifestView::epochs).await;
    let epochs = epochs.map_err(|source| RecoveryError::Tiered { partition, source })?;
    let epochs = LeaderEpochs::from_entries(epochs).ok_or(RecoveryError::Epochs { partition })?;
    Ok(Installed { log_start: root.log_start, at_end: tiered_state(sources).await?, epochs })
}

/// How the log in the WAL meets the one in object storage.
fn seam(held: &RecoveredPartition, wal: &Wal, root: &ManifestRoot, epochs: &LeaderEpochs) -> Seam {
    let tiered_end = root.tiered_end;
    let last = Offset(tiered_end.0.saturating_sub(1));
    let from = last.max(held.start);
    Seam {
        start: held.start,
        end: held.end,
        epoch: wal.entries(held.partition, from, held.end).first().map(|entry| entry.leader_epoch),
        tiered_end,
        tiered_epoch: if tiered_end > Offset(0) { epochs.epoch_at(last) } else { None },
        hash: wal.prefix_hash_at(held.partition, tiered_end),
        tiered_hash: EndState::tiered(root, ProducerTable::default()).prefix_hash,
    }
}
