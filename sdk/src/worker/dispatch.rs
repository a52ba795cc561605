//! Which record may be worked on, and up to where a partition is done. Pure: it runs nothing.
//!
//! Records of one key of a partition are worked on in order, one at a time. A partition is done up to its lowest record that is not:
//! nothing above that is ever reported, so nothing that was not completed is committed.

use crate::record::CommitOffset;
use crate::record::{ConsumerRecord, TopicPartition};
use bytes::Bytes;
use millpond_log::Offset;
use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};

/// A record that is being worked on.
pub(super) type JobId = u64;

/// Records in one order. A record without a key is in none.
type Lane = (TopicPartition, Bytes);

/// The records in flight.
#[derive(Debug, Default)]
pub(super) struct Dispatcher {
    /// Records that may be worked on, the oldest first.
    ready: VecDeque<ConsumerRecord>,
    /// Records that wait for the one of their key that is ready or being worked on.
    behind: HashMap<Lane, VecDeque<ConsumerRecord>>,
    working: BTreeMap<JobId, Working>,
    jobs: JobId,
    progress: BTreeMap<TopicPartition, Progress>,
    records: usize,
    bytes: usize,
}

#[derive(Debug)]
struct Working {
    partition: TopicPartition,
    offset: Offset,
    key: Option<Bytes>,
    size: usize,
}

/// How far a partition is.
#[derive(Debug, Default)]
struct Progress {
    /// What was taken in and is above the lowest that is not done: where the group goes on after it, and whether it is done.
    open: BTreeMap<Offset, (CommitOffset, bool)>,
    /// Where the group goes on.
    done: Option<CommitOffset>,
    /// The highest record that was begun.
    begun: Option<Offset>,
}

impl Dispatcher {
    /// Takes a record in. Those of a partition come in order.
    pub(super) fn push(&mut self, record: ConsumerRecord) {
        let partition = record.topic_partition();
        let progress = self.progress.entry(partition.clone()).or_default();
        progress.open.insert(record.offset, (CommitOffset::after(&record), false));
        self.records += 1;
        self.bytes += record.payload_size();
        let Some(key) = record.key.clone() else { return self.ready.push_back(record) };
        match self.behind.entry((partition, key)) {
            std::collections::hash_map::Entry::Occupied(behind) => behind.into_mut().push_back(record),
            std::collections::hash_map::Entry::Vacant(place) => {
                place.insert(VecDeque::new());
                self.ready.push_back(record);
            }
        }
    }

    /// The next record to be worked on.
    pub(super) fn begin(&mut self) -> Option<(JobId, ConsumerRecord)> {
        let record = self.ready.pop_front()?;
        let job = self.jobs;
        self.jobs += 1;
        let working = Working {
            partition: record.topic_partition(),
            offset: record.offset,
            key: record.key.clone(),
            size: record.payload_size(),
        };
        if let Some(progress) = self.progress.get_mut(&working.partition) {
            progress.begun = progress.begun.max(Some(working.offset));
        }
        self.working.insert(job, working);
        Some((job, record))
    }

    /// A record is done. Nothing happens for one that was given up meanwhile.
    pub(super) fn finish(&mut self, job: JobId) {
        let Some(Working { partition, offset, key, size }) = self.working.remove(&job) else { return };
        self.left(1, size);
        if let Some(progress) = self.progress.get_mut(&partition) {
            progress.finish(offset);
        }
        let Some(key) = key else { return };
        let lane = (partition, key);
        match self.behind.get_mut(&lane).and_then(VecDeque::pop_front) {
            Some(next) => self.ready.push_back(next),
            None => drop(self.behind.remove(&lane)),
        }
    }

    /// A record could not be worked on: it stays undone, and what waits for it waits.
    pub(super) fn fail(&mut self, job: JobId) {
        if let Some(failed) = self.working.remove(&job) {
            self.left(1, failed.size);
        }
    }

    /// Begins nothing more of these partitions but what is below records that were begun: without it, those would be worked on again.
    pub(super) fn hold(&mut self, partitions: &BTreeSet<TopicPartition>) {
        let progress = &self.progress;
        let begun =
            |record: &ConsumerRecord| progress.get(&record.topic_partition()).and_then(|progress| progress.begun);
        let ends = partitions.clone();
        let goes = |record: &ConsumerRecord| {
            ends.contains(&record.topic_partition()) && begun(record).is_none_or(|begun| record.offset > begun)
        };
        let (records, bytes) = remove(&mut self.ready, &mut self.behind, goes);
        self.left(records, bytes);
    }

    /// Begins nothing more of these partitions. What is being worked on may go on.
    pub(super) fn discard(&mut self, partitions: &BTreeSet<TopicPartition>) {
        let goes = |record: &ConsumerRecord| partitions.contains(&record.topic_partition());
        let (records, bytes) = remove(&mut self.ready, &mut self.behind, goes);
        self.left(records, bytes);
    }

    /// Whether nothing of these partitions is worked on or waits for it.
    pub(super) fn is_idle(&self, partitions: &BTreeSet<TopicPartition>) -> bool {
        let waits = |record: &ConsumerRecord| partitions.contains(&record.topic_partition());
        !self.ready.iter().any(waits)
            && self.working(partitions).next().is_none()
            && !self.behind.values().flatten().any(waits)
    }

    /// The records of these partitions that are being worked on.
    pub(super) fn working<'a>(&'a self, partitions: &'a BTreeSet<TopicPartition>) -> impl Iterator<Item = JobId> + 'a {
        self.working.iter().filter(|(_, working)| partitions.contains(&working.partition)).map(|(job, _)| *job)
    }

    /// Forgets these partitions. What is still worked on of them counts for nothing.
    pub(super) fn forget(&mut self, partitions: &BTreeSet<TopicPartition>) {
        self.discard(partitions);
        for job in self.working(partitions).collect::<Vec<JobId>>() {
            let given_up = self.working.remove(&job).expect("it was just there");
            self.left(1, given_up.size);
        }
        self.behind.retain(|(partition, _), _| !partitions.contains(partition));
        self.progress.retain(|partition, _| !partitions.contains(partition));
    }

    /// Where the group goes on in each of these partitions, of which all that was taken in lies below `next`: there if nothing of it is
    /// open, else after what is done. One of which nothing is done is left out.
    pub(super) fn positions(
        &self,
        read: impl Iterator<Item = (TopicPartition, CommitOffset)>,
    ) -> BTreeMap<TopicPartition, CommitOffset> {
        let position = |(partition, next)| {
            let at = match self.progress.get(&partition) {
                Some(progress) if !progress.open.is_empty() => progress.done.clone()?,
                _ => next,
            };
            Some((partition, at))
        };
        read.filter_map(position).collect()
    }

    /// Records in flight, and the bytes of their keys, values and headers.
    pub(super) fn in_flight(&self) -> (usize, usize) {
        (self.records, self.bytes)
    }

    fn left(&mut self, records: usize, bytes: usize) {
        self.records -= records;
        self.bytes -= bytes;
    }
}

/// Takes records that are not begun out; says how many there were, and their size.
fn remove(
    ready: &mut VecDeque<ConsumerRecord>,
    behind: &mut HashMap<Lane, VecDeque<ConsumerRecord>>,
    goes: impl Fn(&ConsumerRecord) -> bool,
) -> (usize, usize) {
    let (mut records, mut bytes) = (0, 0);
    for queue in behind.values_mut().chain([ready]) {
        queue.retain(|record| {
            if goes(record) {
                (records, bytes) = (records + 1, bytes + record.payload_size());
            }
            !goes(record)
        });
    }
    (records, bytes)
}

impl Progress {
    fn finish(&mut self, offset: Offset) {
        if let Some((_, done)) = self.open.get_mut(&offset) {
            *done = true;
        }
        while let Some(lowest) = self.open.first_entry().filter(|lowest| lowest.get().1) {
            self.done = Some(lowest.remove().0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use millpond_log::batch::TimestampType;
    use millpond_log::{LeaderEpoch, TimestampMs};

    fn partition(index: u32) -> TopicPartition {
        TopicPartition::new("t", index)
    }

    fn record(index: u32, offset: u64, key: Option<&'static str>) -> ConsumerRecord {
        ConsumerRecord {
            topic: "t".into(),
            partition: index,
            offset: Offset(offset),
            leader_epoch: LeaderEpoch(2),
            timestamp: TimestampMs(0),
            timestamp_type: TimestampType::CreateTime,
            key: key.map(|key| Bytes::from_static(key.as_bytes())),
            value: Some(Bytes::from_static(b"12345678")),
            headers: Vec::new(),
        }
    }

    fn filled(records: &[(u32, u64, Option<&'static str>)]) -> Dispatcher {
        let mut dispatcher = Dispatcher::default();
        records.iter().for_each(|(index, offset, key)| dispatcher.push(record(*index, *offset, *key)));
        dispatcher
    }

    /// Begins all that may be, and says which offsets those are.
    fn begin(dispatcher: &mut Dispatcher) -> Vec<(JobId, u64)> {
        std::iter::from_fn(|| dispatcher.begin()).map(|(job, record)| (job, record.offset.0)).collect()
    }

    /// Up to where a partition was read: past what was handed out of it.
    const READ: Offset = Offset(20);

    fn done(dispatcher: &Dispatcher, index: u32) -> Option<u64> {
        let read = [(partition(index), CommitOffset::at(READ))];
        dispatcher.positions(read.into_iter()).get(&partition(index)).map(|position| position.offset.0)
    }

    #[test]
    fn records_of_a_key_are_worked_on_in_order_one_at_a_time() {
        let mut dispatcher = filled(&[(0, 0, Some("a")), (0, 1, Some("a")), (0, 2, Some("b")), (0, 3, Some("a"))]);
        assert_eq!(begin(&mut dispatcher), [(0, 0), (1, 2)]);
        dispatcher.finish(1);
        assert_eq!(begin(&mut dispatcher), []);
        dispatcher.finish(0);
        assert_eq!(begin(&mut dispatcher), [(2, 1)]);
        dispatcher.finish(2);
        assert_eq!(begin(&mut dispatcher), [(3, 3)]);
        dispatcher.finish(3);
        assert_eq!((dispatcher.in_flight(), dispatcher.behind.len()), ((0, 0), 0));
    }

    #[test]
    fn one_key_in_two_partitions_is_two_orders_and_no_key_is_none() {
        let mut dispatcher = filled(&[(0, 0, Some("a")), (1, 0, Some("a")), (0, 1, None), (0, 2, None)]);
        assert_eq!(begin(&mut dispatcher).len(), 4);
    }

    #[test]
    fn a_partition_is_done_up_to_its_lowest_record_that_is_not() {
        let mut dispatcher = filled(&[(0, 5, None), (0, 6, None), (0, 9, None), (0, 12, None), (1, 0, None)]);
        begin(&mut dispatcher);
        assert_eq!(done(&dispatcher, 0), None);
        dispatcher.finish(1);
        dispatcher.finish(2);
        assert_eq!(done(&dispatcher, 0), None, "5 is not done");
        dispatcher.finish(0);
        assert_eq!((done(&dispatcher, 0), done(&dispatcher, 1)), (Some(10), None));
        let position = &dispatcher.positions([(partition(0), CommitOffset::at(READ))].into_iter())[&partition(0)];
        assert_eq!(position.leader_epoch, Some(LeaderEpoch(2)));
    }

    #[test]
    fn a_partition_of_which_nothing_is_open_is_done_as_far_as_it_was_read_past_what_is_never_handed_out() {
        let mut dispatcher = filled(&[(0, 5, None), (0, 6, None)]);
        assert_eq!(done(&dispatcher, 1), Some(READ.0), "of this one nothing came that could be handed out");
        begin(&mut dispatcher);
        dispatcher.finish(0);
        assert_eq!(done(&dispatcher, 0), Some(6));
        dispatcher.fail(1);
        assert_eq!(done(&dispatcher, 0), Some(6), "what failed is open");
        let mut dispatcher = filled(&[(0, 5, None)]);
        begin(&mut dispatcher);
        dispatcher.finish(0);
        assert_eq!(done(&dispatcher, 0), Some(READ.0));
    }

    #[test]
    fn nothing_of_a_held_partition_is_begun_and_what_was_begun_still_counts() {
        let mut dispatcher = filled(&[(0, 0, Some("a")), (0, 1, Some("a")), (0, 2, None), (1, 0, Some("a"))]);
        let (first, _) = dispatcher.begin().expect("there are some");
        let gone = BTreeSet::from([partition(0)]);
        dispatcher.hold(&gone);
        assert_eq!(begin(&mut dispatcher), [(1, 0)], "of the other partition");
        assert_eq!(dispatcher.working(&gone).collect::<Vec<JobId>>(), [first]);
        dispatcher.finish(first);
        assert_eq!(begin(&mut dispatcher), []);
        assert_eq!(done(&dispatcher, 0), Some(1), "1 and 2 were taken in and never begun");
        assert_eq!(dispatcher.in_flight(), (1, 9));
    }

    #[test]
    fn what_lies_below_a_record_that_was_begun_is_finished_although_its_partition_is_held() {
        let mut dispatcher =
            filled(&[(0, 0, Some("a")), (0, 1, Some("a")), (0, 2, Some("b")), (0, 3, Some("a")), (0, 4, Some("b"))]);
        assert_eq!(begin(&mut dispatcher), [(0, 0), (1, 2)]);
        let gone = BTreeSet::from([partition(0)]);
        dispatcher.hold(&gone);
        dispatcher.finish(1);
        assert!(begin(&mut dispatcher).is_empty() && !dispatcher.is_idle(&gone), "4 is above what was begun");
        dispatcher.finish(0);
        assert_eq!(begin(&mut dispatcher), [(2, 1)]);
        dispatcher.finish(2);
        assert!(begin(&mut dispatcher).is_empty() && dispatcher.is_idle(&gone));
        assert_eq!((done(&dispatcher, 0), dispatcher.in_flight()), (Some(3), (0, 0)), "nothing comes twice");
    }

    #[test]
    fn a_discarded_partition_begins_nothing() {
        let mut dispatcher = filled(&[(0, 0, Some("a")), (0, 1, Some("a")), (0, 2, Some("b"))]);
        begin(&mut dispatcher);
        let gone = BTreeSet::from([partition(0)]);
        dispatcher.discard(&gone);
        dispatcher.finish(0);
        assert!(begin(&mut dispatcher).is_empty() && !dispatcher.is_idle(&gone));
        dispatcher.finish(1);
        assert_eq!((dispatcher.is_idle(&gone), done(&dispatcher, 0)), (true, Some(1)));
    }

    #[test]
    fn what_was_forgotten_counts_for_nothing_when_it_comes_again() {
        let mut dispatcher = filled(&[(0, 0, Some("a")), (0, 1, Some("a"))]);
        let (old, _) = dispatcher.begin().expect("there are some");
        dispatcher.forget(&BTreeSet::from([partition(0)]));
        assert_eq!(dispatcher.in_flight(), (0, 0));
        dispatcher.push(record(0, 0, Some("a")));
        let (new, _) = dispatcher.begin().expect("its key is free again");
        dispatcher.finish(old);
        assert_eq!(done(&dispatcher, 0), None);
        dispatcher.finish(new);
        assert_eq!(done(&dispatcher, 0), Some(READ.0));
    }
}
