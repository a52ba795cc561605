//! The range assignor: of each topic, every subscriber gets a contiguous range, in the order of the members. Racks do not count, as in
//! the one of Kafka 4.3 brokers: topics that are read together have the same ranges wherever their replicas are.

use super::{Assignee, Target, subscribed};
use crate::groups::topics::Topics;
use millpond_log::PartitionId;

/// Assigns by ranges. The first subscribers get one partition more where the division leaves a remainder.
pub(super) fn assign(members: &[Assignee<'_>], topics: &Topics) -> Target {
    let mut target: Target = members.iter().map(|member| (member.id.clone(), Default::default())).collect();
    let mut ordered: Vec<&Assignee<'_>> = members.iter().collect();
    // Static members come first and by instance, so that a restart under another id changes nothing.
    ordered.sort_by_key(|member| (member.instance.is_none(), member.instance, member.id));
    for &topic in subscribed(members) {
        let subscribers: Vec<&&Assignee<'_>> = ordered.iter().filter(|member| member.topics.contains(&topic)).collect();
        let count = u32::try_from(subscribers.len()).expect("members are counted in 32 bits");
        let (quota, extra) = (topics.partitions(topic) / count, topics.partitions(topic) % count);
        let mut start = 0;
        for (rank, member) in (0..).zip(subscribers) {
            let end = start + quota + u32::from(rank < extra);
            let owned = target.get_mut(member.id).expect("every member is in the target");
            owned.extend((start..end).map(|index| PartitionId { topic, index }));
            start = end;
        }
    }
    target
}
