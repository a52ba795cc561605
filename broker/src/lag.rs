//! How far a group lags behind what is written: offsets of one moment, as its coordinator has them, and ends that were read after them.

use crate::api::{ApiError, Isolation, PartitionStatus, TopicRef};
use crate::broker::Broker;
use crate::catalog::Topic;
use crate::clock;
use crate::partitions::ends::{End, EndWanted};
use millpond_core::groups::{Answer, Description, Fetch, Members, Request};
use millpond_log::{BrokerId, Offset, PartitionId, TimestampMs};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// How long leaders may take to say where their logs end.
const ENDS_WITHIN: Duration = Duration::from_secs(5);

/// One partition of a group: one that it has committed an offset of, or that a member owns.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PartitionLag {
    pub(crate) partition: PartitionId,
    /// The topic's name; `None` if it is not there any more.
    pub(crate) topic: Option<String>,
    /// Who owns it, in a group whose coordinator assigns.
    pub(crate) member: Option<Arc<str>>,
    /// The next offset to read, as it was committed.
    pub(crate) offset: Option<Offset>,
    /// `None` if no leader said it.
    pub(crate) log_start: Option<Offset>,
    /// The end of what the group may read. `None` if no leader said it.
    pub(crate) end: Option<Offset>,
    pub(crate) lag: Lag,
}

/// How far one partition lags. `None` where that is not known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Lag {
    /// Offsets from the committed one to the end.
    pub(crate) offsets: Option<u64>,
    /// For how long the first of them has waited, in milliseconds; 0 if there is none.
    pub(crate) waited_ms: Option<u64>,
}

/// The lag of `offset` behind `end`, at `now`.
fn lag_of(offset: Option<Offset>, end: Option<Offset>, appended: Option<TimestampMs>, now: TimestampMs) -> Lag {
    let (Some(offset), Some(end)) = (offset, end) else { return Lag::default() };
    // A committed offset lies beyond the end only after an unclean election (rule O4), or for readers of what is stable.
    let offsets = end.0.saturating_sub(offset.0);
    let waited = |appended: TimestampMs| u64::try_from(now.0.saturating_sub(appended.0)).unwrap_or(0);
    let waited_ms = if offsets == 0 { Some(0) } else { appended.map(waited) };
    Lag { offsets: Some(offsets), waited_ms }
}

/// Who owns which partitions.
fn owners(description: Description) -> BTreeMap<PartitionId, Arc<str>> {
    let Members::Consumer { members, .. } = description.members else { return BTreeMap::new() };
    let owned = members.into_iter().flat_map(|(member, (record, _))| {
        record.assigned.into_keys().map(move |partition| (partition, Arc::clone(&member)))
    });
    owned.collect()
}

impl Broker {
    /// How far a group lags, by partition.
    ///
    /// # Errors
    /// `GROUP_ID_NOT_FOUND`; as `ask_group`.
    pub(crate) async fn group_lag(&self, group: &str, isolation: Isolation) -> Result<Vec<PartitionLag>, ApiError> {
        let refused = |code| ApiError::new(code, format!("there is no group `{group}`"));
        let owners = match self.ask_group(group, Request::Describe(group.into())).await? {
            Answer::Describe(described) => owners(described.map_err(refused)?),
            other => unreachable!("a description is answered by one, not by {other:?}"),
        };
        let fetch = Fetch { group: group.into(), member: None, partitions: None, require_stable: false };
        let fetched = match self.ask_group(group, Request::Fetch(fetch)).await? {
            Answer::Fetch(fetched) => fetched.map_err(refused)?,
            other => unreachable!("offsets are answered by offsets, not by {other:?}"),
        };
        let committed = fetched.into_iter().filter_map(|(partition, found)| Some((partition, found.ok()??.offset)));
        let mut offsets: BTreeMap<PartitionId, Option<Offset>> =
            owners.keys().map(|partition| (*partition, None)).collect();
        offsets.extend(committed.map(|(partition, offset)| (partition, Some(offset))));
        // After the offsets: what was read cannot lie beyond.
        let ends = self.ends(&offsets).await;
        let now = clock::wall();
        let lag = |(partition, offset): (PartitionId, Option<Offset>)| {
            let found: Option<&End> = ends.get(&partition);
            let end = found.map(|end| match isolation {
                Isolation::ReadUncommitted => end.high_watermark,
                Isolation::ReadCommitted => end.last_stable,
            });
            PartitionLag {
                partition,
                topic: self.inner().catalog.by_id(partition.topic).map(|topic| topic.record.name.to_string()),
                member: owners.get(&partition).cloned(),
                offset,
                log_start: found.map(|end| end.log_start),
                end,
                lag: lag_of(offset, end, found.and_then(|end| end.appended), now),
            }
        };
        Ok(offsets.into_iter().map(lag).collect())
    }

    /// Where the logs of these topics stand, or of all if none is named, as their leaders say. Partitions whose leader did not answer in time, or
    /// that have none, are not in it.
    ///
    /// # Errors
    /// `UNKNOWN_TOPIC_OR_PARTITION`.
    pub(crate) async fn partition_states(
        &self,
        topics: &[TopicRef],
    ) -> Result<BTreeMap<PartitionId, PartitionStatus>, ApiError> {
        self.counted("DescribePartitions", self.find_partition_states(topics).await)
    }

    async fn find_partition_states(
        &self,
        topics: &[TopicRef],
    ) -> Result<BTreeMap<PartitionId, PartitionStatus>, ApiError> {
        let tables = self.inner().catalog.tables();
        let topics: Vec<Arc<Topic>> = match topics {
            [] => tables.topics().cloned().collect(),
            some => some.iter().map(|topic| self.inner().catalog.topic(topic)).collect::<Result<_, ApiError>>()?,
        };
        let partitions = topics.iter().flat_map(|topic| &topic.partitions);
        let ends = self.ends(&partitions.map(|partition| (partition.id, None)).collect()).await;
        Ok(ends.iter().map(|(partition, end)| (*partition, PartitionStatus::from(end))).collect())
    }

    /// Where partitions end, as their leaders say: one call to each of these.
    async fn ends(&self, offsets: &BTreeMap<PartitionId, Option<Offset>>) -> BTreeMap<PartitionId, End> {
        let mut wanted: BTreeMap<BrokerId, Vec<EndWanted>> = BTreeMap::new();
        for (partition, offset) in offsets {
            let topic = self.inner().catalog.by_id(partition.topic);
            let handle = topic.as_ref().and_then(|topic| topic.partitions.get(partition.index as usize));
            let Some(leader) = handle.and_then(|handle| handle.placement.leader) else { continue };
            let position = offset.unwrap_or_default();
            wanted.entry(leader).or_default().push(EndWanted { partition: *partition, position });
        }
        self.inner().peers.ask_ends(wanted, ENDS_WITHIN).await
    }
}

impl From<&End> for PartitionStatus {
    fn from(end: &End) -> PartitionStatus {
        PartitionStatus {
            log_start: end.log_start,
            tiered_end: end.tiered_end,
            high_watermark: end.high_watermark,
            log_end: end.log_end,
            tail_bytes: end.tail_bytes,
            tiered_bytes: end.tiered_bytes,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lag_is_never_negative_and_not_made_up() {
        let check = |offset: Option<u64>, end: Option<u64>, appended: Option<i64>, expected| {
            let lag = lag_of(offset.map(Offset), end.map(Offset), appended.map(TimestampMs), TimestampMs(10_000));
            assert_eq!((lag.offsets, lag.waited_ms), expected, "{offset:?} {end:?} {appended:?}");
        };
        check(Some(3), Some(10), Some(4_000), (Some(7), Some(6_000)));
        check(Some(10), Some(10), None, (Some(0), Some(0)));
        check(Some(12), Some(10), None, (Some(0), Some(0)));
        check(Some(3), Some(10), None, (Some(7), None));
        check(Some(3), Some(10), Some(11_000), (Some(7), Some(0)));
        check(None, Some(10), Some(4_000), (None, None));
        check(Some(3), None, None, (None, None));
    }
}
