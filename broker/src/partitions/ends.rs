//! Where a partition that is led here begins and ends, and since when what a reader has not read yet waits for it. Of what is at hand:
//! views, the WAL's index, the manifest's own entries. Reads no disk and no bucket, so that it can be asked of thousands at once.

use super::view::PartitionView;
use crate::wal::Wal;
use millpond_core::replica::Visible;
use millpond_log::manifest::ManifestRoot;
use millpond_log::{Offset, PartitionId, TimestampMs};
use std::sync::Arc;
use tokio::sync::oneshot;

/// What is asked of one partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct EndWanted {
    pub(crate) partition: PartitionId,
    /// The next offset that a reader will read.
    pub(crate) position: Offset,
}

/// What its leader answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct End {
    pub(crate) log_start: Offset,
    pub(crate) high_watermark: Offset,
    pub(crate) last_stable: Offset,
    pub(crate) tiered_end: Offset,
    pub(crate) log_end: Offset,
    /// In the leader's WAL.
    pub(crate) tail_bytes: u64,
    /// In object storage.
    pub(crate) tiered_bytes: u64,
    /// When the batch with the first record at or after the position was appended. Of a tiered one: when the last batch of its segment
    /// was, or of what an older manifest tells of, so that it may be later than it was, and never earlier. `None` if there is no such
    /// record, or it is not known.
    pub(crate) appended: Option<TimestampMs>,
}

/// A question about many partitions, and where the answer goes: those that are led here.
pub(crate) struct AskedEnds {
    pub(crate) wanted: Arc<[EndWanted]>,
    pub(crate) reply: oneshot::Sender<Vec<(PartitionId, End)>>,
}

impl AskedEnds {
    /// Answers from what `view` shows of the partitions that are here.
    pub(crate) fn answer(self, wal: &Wal, view: impl Fn(PartitionId) -> Option<PartitionView>) {
        let end = |wanted: &EndWanted| {
            let EndWanted { partition, position } = *wanted;
            let view = view(partition)?;
            let in_wal = |offset: Offset| {
                let entries = wal.entries(partition, offset, Offset(offset.0 + 1));
                entries.first().map(|entry| entry.append_time)
            };
            let tail_bytes = || wal.partition_bytes(partition);
            Some((partition, end_of(&view.visible, &view.manifest, position, in_wal, tail_bytes)?))
        };
        // Who asked may have waited long enough.
        let _ = self.reply.send(self.wanted.iter().filter_map(end).collect());
    }
}

/// The answer, from what is visible; `None` unless this replica leads and its bounds are proven (rules R11, F3). `in_wal` tells when the batch
/// with an offset was appended that the WAL holds.
fn end_of(
    visible: &Visible,
    manifest: &ManifestRoot,
    position: Offset,
    in_wal: impl FnOnce(Offset) -> Option<TimestampMs>,
    tail_bytes: impl FnOnce() -> u64,
) -> Option<End> {
    if !visible.leads || !visible.bounds_proven() {
        return None;
    }
    // What was deleted waits for nobody.
    let first = position.max(visible.log_start);
    let appended = match () {
        () if first >= visible.hw => None,
        () if first >= visible.tiered_end => in_wal(first),
        () => tiered(manifest, first),
    };
    let Visible { log_start, tiered_end, hw, lso, end, .. } = *visible;
    Some(End {
        log_start,
        high_watermark: hw,
        last_stable: lso,
        tiered_end,
        log_end: end,
        tail_bytes: tail_bytes(),
        tiered_bytes: manifest.size(),
        appended,
    })
}

fn tiered(manifest: &ManifestRoot, offset: Offset) -> Option<TimestampMs> {
    let rolled = manifest.rolled().iter().map(|rolled| (rolled.end, rolled.totals.max_append_time));
    let entries = manifest.entries().iter().map(|entry| (entry.end, entry.max_append_time));
    rolled.chain(entries).find(|(end, _)| *end > offset).map(|(_, appended)| appended)
}

#[cfg(test)]
mod tests {
    use super::*;
    use millpond_log::{LeaderEpoch, TopicId};

    fn visible() -> Visible {
        Visible {
            epoch: LeaderEpoch(3),
            leads: true,
            log_start: Offset(10),
            tiered_end: Offset(10),
            hw: Offset(50),
            lso: Offset(40),
            end: Offset(60),
            end_proven: true,
            start_proven: true,
        }
    }

    fn ask(visible: &Visible, position: u64) -> Option<End> {
        let manifest = ManifestRoot::new(PartitionId { topic: TopicId(1), index: 0 });
        let in_wal = |offset: Offset| Some(TimestampMs(1_000 + i64::try_from(offset.0).expect("small")));
        end_of(visible, &manifest, Offset(position), in_wal, || 77)
    }

    #[test]
    fn only_a_leader_whose_end_is_proven_says_where_it_ends() {
        assert!(ask(&visible(), 0).is_some());
        assert_eq!(ask(&Visible { leads: false, ..visible() }, 0), None);
        assert_eq!(ask(&Visible { end_proven: false, ..visible() }, 0), None, "rule R11");
        assert_eq!(ask(&Visible { start_proven: false, ..visible() }, 0), None, "rule F3");
    }

    #[test]
    fn a_leader_says_how_far_its_log_is_and_how_large() {
        let end = ask(&visible(), 0).expect("it leads");
        let offsets = [end.log_start, end.tiered_end, end.last_stable, end.high_watermark, end.log_end];
        assert_eq!(offsets.map(|offset| offset.0), [10, 10, 40, 50, 60]);
        assert_eq!((end.tail_bytes, end.tiered_bytes), (77, 0));
    }

    #[test]
    fn what_waits_begins_at_the_first_record_that_is_there_and_ends_with_what_is_committed() {
        let appended = |position| ask(&visible(), position).expect("it leads").appended.map(|time| time.0);
        assert_eq!(appended(20), Some(1_020));
        assert_eq!(appended(0), Some(1_010), "what was deleted waits for nobody");
        assert_eq!((appended(50), appended(55), appended(99)), (None, None, None), "nothing that is committed waits");
    }
}
