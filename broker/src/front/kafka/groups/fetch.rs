//! OffsetFetch: how far groups have come. Nothing committed is -1, and no error (case G5); a coordinator that does not know is one.

use super::super::wire::{NO_TOPIC_ID, requests, responses};
use super::{ask, partition_id, topic_id};
use crate::Broker;
use millpond_core::groups::{self, Answer, Fetched, Topics};
use millpond_core::records::groups::Committed;
use millpond_log::{ErrorCode, PartitionId, TopicId};
use std::collections::BTreeMap;

/// First version whose answer has an error of its own.
const ERROR_SINCE: i16 = 2;

/// First version with several groups.
const GROUPS_SINCE: i16 = 8;

/// First version in which a member says who it is.
const MEMBER_SINCE: i16 = 9;

/// First version in which topics are named by their ids.
const IDS_SINCE: i16 = 10;

/// The offset of a partition that has none.
const NO_OFFSET: i64 = -1;

requests! {
    /// Of which groups, and which partitions.
    OffsetFetchRequest {
        group: String => ..=7,
        topics: Option<Vec<FetchTopic>> => ..=7,
        groups: Vec<FetchGroup> => 8..,
        require_stable: bool => 7..,
    }
    /// One group; all its partitions that have offsets, if none are named.
    FetchGroup {
        group: String => ..,
        member: Option<String> => 9..,
        epoch: i32 = -1 => 9..,
        topics: Option<Vec<FetchTopic>> => ..,
    }
    /// One topic.
    FetchTopic {
        name: String => ..=9,
        id: TopicId = NO_TOPIC_ID => 10..,
        partitions: Vec<i32> => ..,
    }
}

responses! {
    /// What was committed.
    OffsetFetchResponse {
        throttle_time_ms: i32 => 3..,
        topics: Vec<FetchedTopic> => ..=7,
        error_code: i16 => 2..=7,
        groups: Vec<FetchedGroup> => 8..,
    }
    /// By one group.
    FetchedGroup {
        group: String => ..,
        topics: Vec<FetchedTopic> => ..,
        error_code: i16 => ..,
    }
    /// In one topic.
    FetchedTopic {
        name: String => ..=9,
        id: TopicId = NO_TOPIC_ID => 10..,
        partitions: Vec<FetchedPartition> => ..,
    }
    /// In one partition.
    FetchedPartition {
        index: i32 => ..,
        offset: i64 = NO_OFFSET => ..,
        leader_epoch: i32 = -1 => 5..,
        metadata: Option<String> => ..,
        error_code: i16 => ..,
    }
}

/// Asks the coordinator of every group.
pub(in crate::front::kafka) async fn fetch(
    broker: &Broker,
    version: i16,
    request: OffsetFetchRequest,
) -> OffsetFetchResponse {
    let OffsetFetchRequest { group, topics, groups, require_stable } = request;
    let groups = match version >= GROUPS_SINCE {
        true => groups,
        false => vec![FetchGroup { group, topics, ..Default::default() }],
    };
    let known = broker.group_topics();
    let mut fetched = Vec::with_capacity(groups.len());
    for asked in groups {
        fetched.push(fetch_group(broker, version, &known, asked, require_stable).await);
    }
    if version >= GROUPS_SINCE {
        return OffsetFetchResponse { groups: fetched, ..Default::default() };
    }
    let FetchedGroup { topics, error_code, .. } = fetched.pop().expect("these versions ask of one group");
    OffsetFetchResponse { topics, error_code, ..Default::default() }
}

async fn fetch_group(
    broker: &Broker,
    version: i16,
    known: &Topics,
    asked: FetchGroup,
    require_stable: bool,
) -> FetchedGroup {
    let FetchGroup { group, member, epoch, topics } = asked;
    let by_id = version >= IDS_SINCE;
    let partitions =
        topics.as_ref().map(|topics| topics.iter().flat_map(|topic| ids_of(known, by_id, topic)).collect());
    let fetch = groups::Fetch {
        group: group.as_str().into(),
        member: (version >= MEMBER_SINCE).then(|| (member.as_deref().unwrap_or_default().into(), epoch)),
        partitions,
        require_stable,
    };
    let read = |answer| match answer {
        Answer::Fetch(fetched) => Some(fetched),
        _ => None,
    };
    let fetched = ask(broker, "OffsetFetch", &group, groups::Request::Fetch(fetch), read).await;
    let (topics, error_code) = match (topics, fetched) {
        (Some(topics), Ok(fetched)) => (in_order(known, by_id, topics, fetched), 0),
        (None, Ok(fetched)) => (all(known, fetched), 0),
        (Some(topics), Err(code)) if version < ERROR_SINCE => (refused(topics, code), 0),
        (_, Err(code)) => (Vec::new(), code.kafka()),
    };
    FetchedGroup { group, topics, error_code }
}

/// The partitions of a topic that can be asked for.
fn ids_of(known: &Topics, by_id: bool, topic: &FetchTopic) -> Vec<PartitionId> {
    let Ok(id) = topic_id(known, by_id, &topic.name, topic.id) else { return Vec::new() };
    topic.partitions.iter().filter_map(|&index| partition_id(id, index).ok()).collect()
}

/// The answer for what was asked, in that order.
fn in_order(known: &Topics, by_id: bool, asked: Vec<FetchTopic>, fetched: Vec<Fetched>) -> Vec<FetchedTopic> {
    let found: BTreeMap<PartitionId, Result<Option<Committed>, ErrorCode>> = fetched.into_iter().collect();
    let topic = |FetchTopic { name, id, partitions }: FetchTopic| {
        let topic = topic_id(known, by_id, &name, id);
        let partition = |index: i32| match topic {
            Ok(topic) => {
                let found = partition_id(topic, index).ok().and_then(|id| found.get(&id));
                fetched_partition(index, found.cloned().unwrap_or(Ok(None)))
            }
            // A name that nobody has yet is as good as a partition that nothing was committed in; an id is one that was.
            Err(ErrorCode::UnknownTopicId) => fetched_partition(index, Err(ErrorCode::UnknownTopicId)),
            Err(_) => fetched_partition(index, Ok(None)),
        };
        FetchedTopic { partitions: partitions.into_iter().map(partition).collect(), name, id }
    };
    asked.into_iter().map(topic).collect()
}

/// All that a group has, by topic; what is of topics that are being deleted is of no use to anybody.
fn all(known: &Topics, fetched: Vec<Fetched>) -> Vec<FetchedTopic> {
    let mut topics: BTreeMap<TopicId, Vec<FetchedPartition>> = BTreeMap::new();
    for (partition, found) in fetched {
        let found = fetched_partition(partition.index.cast_signed(), found);
        topics.entry(partition.topic).or_default().push(found);
    }
    let topic = |(id, partitions)| Some(FetchedTopic { name: known.get(id)?.name.to_string(), id, partitions });
    topics.into_iter().filter_map(topic).collect()
}

fn refused(asked: Vec<FetchTopic>, code: ErrorCode) -> Vec<FetchedTopic> {
    let topic = |FetchTopic { name, id, partitions }: FetchTopic| {
        let partitions = partitions.into_iter().map(|index| fetched_partition(index, Err(code))).collect();
        FetchedTopic { name, id, partitions }
    };
    asked.into_iter().map(topic).collect()
}

fn fetched_partition(index: i32, found: Result<Option<Committed>, ErrorCode>) -> FetchedPartition {
    let none = FetchedPartition { index, metadata: Some(String::new()), ..Default::default() };
    match found {
        Ok(None) => none,
        Ok(Some(committed)) => FetchedPartition {
            offset: committed.offset.0.cast_signed(),
            leader_epoch: committed.leader_epoch.map_or(-1, |epoch| epoch.0.cast_signed()),
            metadata: Some(committed.metadata),
            ..none
        },
        Err(code) => FetchedPartition { error_code: code.kafka(), ..none },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use millpond_core::groups::Topic;
    use millpond_log::{LeaderEpoch, Offset};

    fn known() -> Topics {
        let topic = |name: &str| Topic { name: name.parse().expect("a name"), racks: vec![Default::default(); 3] };
        Topics::new(1, [(TopicId(1), topic("a")), (TopicId(2), topic("b"))].into())
    }

    fn committed(offset: u64) -> Result<Option<Committed>, ErrorCode> {
        Ok(Some(Committed {
            offset: Offset(offset),
            leader_epoch: Some(LeaderEpoch(3)),
            metadata: "m".to_owned(),
            committed_at_ms: 1,
            expires_at_ms: None,
        }))
    }

    fn partition(topic: u128, index: u32) -> PartitionId {
        PartitionId { topic: TopicId(topic), index }
    }

    /// Index, offset and error of each partition, by topic.
    type Shown<'a> = Vec<(&'a str, Vec<(i32, i64, i16)>)>;

    fn shown(topics: &[FetchedTopic]) -> Shown<'_> {
        let partitions = |topic: &FetchedTopic| {
            topic.partitions.iter().map(|found| (found.index, found.offset, found.error_code)).collect()
        };
        topics.iter().map(|topic| (topic.name.as_str(), partitions(topic))).collect()
    }

    /// Case G5.
    #[test]
    fn what_was_not_committed_is_no_error_and_unknown_ids_are() {
        let ask = |name: &str, id: u128, partitions: &[i32]| FetchTopic {
            name: name.to_owned(),
            id: TopicId(id),
            partitions: partitions.to_vec(),
        };
        let fetched = vec![(partition(1, 2), committed(7)), (partition(1, 0), Ok(None))];
        let asked = vec![ask("nobody", 0, &[0]), ask("a", 0, &[2, 0, -1])];
        let answer = in_order(&known(), false, asked, fetched);
        assert_eq!(shown(&answer), [("nobody", vec![(0, -1, 0)]), ("a", vec![(2, 7, 0), (0, -1, 0), (-1, -1, 0)])]);
        let metadata: Vec<&str> = answer[1].partitions.iter().filter_map(|found| found.metadata.as_deref()).collect();
        assert_eq!((metadata, answer[1].partitions[0].leader_epoch), (vec!["m", "", ""], 3));
        let asked = vec![ask("", 9, &[0]), ask("", 2, &[1])];
        let answer = in_order(&known(), true, asked, vec![(partition(2, 1), Err(ErrorCode::UnstableOffsetCommit))]);
        assert_eq!(shown(&answer), [("", vec![(0, -1, 100)]), ("", vec![(1, -1, 88)])]);
    }

    #[test]
    fn all_offsets_are_told_by_topic_but_for_topics_that_go() {
        let fetched =
            vec![(partition(2, 0), committed(4)), (partition(9, 0), committed(5)), (partition(2, 1), committed(6))];
        assert_eq!(shown(&all(&known(), fetched)), [("b", vec![(0, 4, 0), (1, 6, 0)])]);
    }
}
