//! DescribeLogDirs: what this broker's disk holds. A broker has one folder; what is in object storage is not counted, as Kafka does not.

use super::wire::{requests, responses};
use crate::Broker;
use crate::api::{LogDir, TailOnDisk};
use std::collections::{BTreeMap, BTreeSet};

requests! {
    /// Of which partitions; null for all.
    DescribeLogDirsRequest {
        topics: Option<Vec<LogDirTopic>> => ..,
    }
    /// One topic.
    LogDirTopic {
        name: String => ..,
        partitions: Vec<i32> => ..,
    }
}

responses! {
    /// The folder.
    DescribeLogDirsResponse {
        throttle_time_ms: i32 => ..,
        error_code: i16 => 3..,
        dirs: Vec<DescribedLogDir> => ..,
    }
    /// One folder, with the size of its disk.
    DescribedLogDir {
        error_code: i16 => ..,
        path: String => ..,
        topics: Vec<DescribedLogDirTopic> => ..,
        total_bytes: i64 = -1 => 4..,
        usable_bytes: i64 = -1 => 4..,
        is_cordoned: bool => 5..,
    }
    /// One topic.
    DescribedLogDirTopic {
        name: String => ..,
        partitions: Vec<DescribedTail> => ..,
    }
    /// One replica.
    DescribedTail {
        index: i32 => ..,
        size: i64 => ..,
        offset_lag: i64 => ..,
        is_future: bool => ..,
    }
}

/// Describes what is held here of the partitions asked for.
pub(super) async fn answer(broker: &Broker, request: DescribeLogDirsRequest) -> DescribeLogDirsResponse {
    let dir = described(broker.log_dir().await, request.topics);
    DescribeLogDirsResponse { dirs: vec![dir], ..Default::default() }
}

fn described(dir: LogDir, asked: Option<Vec<LogDirTopic>>) -> DescribedLogDir {
    let asked = asked.map(|topics| {
        let mut wanted: BTreeMap<String, BTreeSet<i32>> = BTreeMap::new();
        topics.into_iter().for_each(|topic| wanted.entry(topic.name).or_default().extend(topic.partitions));
        wanted
    });
    let mut topics: Vec<DescribedLogDirTopic> = Vec::new();
    for TailOnDisk { topic, partition, bytes, lag } in dir.tails {
        let index = partition.cast_signed();
        let wanted = |asked: &BTreeMap<String, BTreeSet<i32>>| {
            asked.get(&topic).is_some_and(|partitions| partitions.contains(&index))
        };
        if !asked.as_ref().is_none_or(wanted) {
            continue;
        }
        let tail = DescribedTail { index, size: signed(bytes), offset_lag: signed(lag), is_future: false };
        match topics.last_mut().filter(|last| last.name == topic) {
            Some(last) => last.partitions.push(tail),
            None => topics.push(DescribedLogDirTopic { name: topic, partitions: vec![tail] }),
        }
    }
    DescribedLogDir {
        path: dir.path,
        topics,
        total_bytes: dir.total_bytes.map_or(-1, signed),
        usable_bytes: dir.usable_bytes.map_or(-1, signed),
        ..Default::default()
    }
}

fn signed(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_names_the_replicas_that_are_asked_for() {
        let dir = || {
            let tail = |topic: &str, partition| TailOnDisk { topic: topic.to_owned(), partition, bytes: 10, lag: 2 };
            let tails = vec![tail("a", 0), tail("a", 2), tail("b", 1)];
            LogDir { path: "/data".to_owned(), total_bytes: Some(u64::MAX), usable_bytes: None, tails }
        };
        let listed = |asked: Option<&[(&str, &[i32])]>| -> Vec<(String, Vec<i32>)> {
            let topic = |(name, partitions): &(&str, &[i32])| LogDirTopic {
                name: (*name).to_owned(),
                partitions: partitions.to_vec(),
            };
            let topics = described(dir(), asked.map(|asked| asked.iter().map(topic).collect())).topics;
            let indexes = |topic: &DescribedLogDirTopic| topic.partitions.iter().map(|tail| tail.index).collect();
            topics.iter().map(|topic| (topic.name.clone(), indexes(topic))).collect()
        };
        let of = |name: &str, partitions: &[i32]| (name.to_owned(), partitions.to_vec());
        assert_eq!(listed(None), [of("a", &[0, 2]), of("b", &[1])]);
        assert_eq!(listed(Some(&[])), []);
        assert_eq!(listed(Some(&[("b", &[0, 1]), ("a", &[2]), ("c", &[0])])), [of("a", &[2]), of("b", &[1])]);
        let all = described(dir(), None);
        assert_eq!((all.path.as_str(), all.total_bytes, all.usable_bytes), ("/data", i64::MAX, -1));
        let tail = &all.topics[0].partitions[0];
        assert_eq!((tail.size, tail.offset_lag, tail.is_future), (10, 2, false));
    }
}
