//! `consume --group`: reads as a member of a group, and commits what was printed.

use super::{Args, Left, failed, print};
use crate::failure::Failure;
use crate::output::Out;
use crate::signals::Shutdown;
use millpond_sdk::{
    Assigned, Client, CommitOffset, ConsumerConfig, ConsumerRecord, ErrorCode, GroupConfig, GroupConsumer, Offset,
    OffsetReset, RebalanceListener, Revoked, Subscription, TopicPartition,
};
use std::collections::{BTreeMap, BTreeSet};
use std::io::IsTerminal;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::time::Instant;

/// How often is committed what was printed, and the group asked how far it is.
const COMMIT_INTERVAL: Duration = Duration::from_secs(1);

/// How far each partition that is held was printed.
#[derive(Clone, Default)]
struct Printed {
    upto: Arc<Mutex<BTreeMap<TopicPartition, CommitOffset>>>,
}

impl Printed {
    fn upto(&self) -> MutexGuard<'_, BTreeMap<TopicPartition, CommitOffset>> {
        self.upto.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl RebalanceListener for Printed {
    async fn assigned(&mut self, assigned: &mut Assigned) {
        for partition in assigned.partitions() {
            // Where it begins is committed too: whoever goes on misses nothing of what comes meanwhile.
            if let Some(start) = assigned.start(partition) {
                self.upto().insert(partition.clone(), CommitOffset::at(start));
                if std::io::stderr().is_terminal() {
                    eprintln!("reading {partition} from offset {start}; Ctrl-C stops");
                }
            }
        }
    }

    async fn revoked(&mut self, revoked: &Revoked) {
        let mut going = self.upto().clone();
        going.retain(|partition, _| revoked.partitions().contains(partition));
        self.upto().retain(|partition, _| !going.contains_key(partition));
        if let Err(error) = revoked.commit_offsets(going).await {
            eprintln!("warning: what was printed of revoked partitions was not committed: {error}");
        }
    }

    async fn lost(&mut self, partitions: &[TopicPartition]) {
        self.upto().retain(|partition, _| !partitions.contains(partition));
    }
}

/// Reads until it is told to stop, or until the group has read what was asked for.
pub(super) async fn consume(
    args: &Args,
    client: &Client,
    group: &str,
    partitions: &[TopicPartition],
    mut left: Left,
    reader: ConsumerConfig,
) -> Result<(), Failure> {
    let mut shutdown = Shutdown::listen()?;
    // No record is asked for that will not be printed: it would be another member's to print.
    let most = args.max.map_or(reader.poll_records_max, |max| usize::try_from(max.max(1)).unwrap_or(usize::MAX));
    let poll_records_max = reader.poll_records_max.min(most);
    let config = GroupConfig {
        initial_offset: OffsetReset::Latest,
        reader: ConsumerConfig { poll_records_max, ..reader },
        ..GroupConfig::new(group)
    };
    let printed = Printed::default();
    let subscription = Subscription::topics([args.topic.as_str()]);
    let mut consumer = GroupConsumer::with_listener(client, config, subscription, printed.clone()).map_err(failed)?;
    let ended = tokio::select! {
        () = shutdown.asked() => Ok(()),
        ended = read(args, &mut consumer, &printed, partitions, &mut left) => ended,
    };
    // Commits what was printed, and leaves the rest to others.
    ended.and(consumer.close().await.map_err(failed))
}

async fn read(
    args: &Args,
    consumer: &mut GroupConsumer,
    printed: &Printed,
    partitions: &[TopicPartition],
    left: &mut Left,
) -> Result<(), Failure> {
    let mut out = Out::new();
    let (mut told, mut committed) = (BTreeMap::new(), BTreeMap::new());
    // Of these something was read that is not to be printed: it is left to others.
    let mut unprinted = BTreeSet::new();
    let mut next_commit = Instant::now();
    loop {
        if Instant::now() >= next_commit {
            let mut upto = printed.upto().clone();
            upto.retain(|partition, offset| told.get(partition) != Some(offset));
            match consumer.commit_offsets(upto.clone()).await {
                Ok(()) => told.extend(upto),
                // Others go on where the last commit stands, and print again what was printed since.
                Err(error) if matches!(error.code, Some(ErrorCode::StaleMemberEpoch | ErrorCode::UnknownMemberId)) => {
                    eprintln!("warning: not all that was printed is committed: {error}");
                }
                Err(error) => return Err(failed(error)),
            }
            if args.until_end {
                let held: BTreeSet<&TopicPartition> = consumer.assignment().collect();
                let others: Vec<TopicPartition> =
                    partitions.iter().filter(|partition| !held.contains(partition)).cloned().collect();
                committed = consumer.committed(others).await.map_err(failed)?;
            }
            next_commit = Instant::now() + COMMIT_INTERVAL;
        }
        let reached = |partition: &TopicPartition| -> Option<Offset> {
            consumer.position(partition).or_else(|| committed.get(partition).copied())
        };
        if left.is_done(reached) {
            return Ok(());
        }
        let records = consumer.poll(super::POLL_WAIT).await.map_err(failed)?;
        let (wanted, others): (Vec<&ConsumerRecord>, Vec<&ConsumerRecord>) =
            records.iter().partition(|record| left.takes(record));
        for record in &wanted {
            print(args, record, &mut out)?;
        }
        out.flush()?;
        let mut upto = printed.upto();
        upto.extend(wanted.into_iter().map(|record| (record.topic_partition(), CommitOffset::after(record))));
        unprinted.extend(others.into_iter().map(ConsumerRecord::topic_partition));
        // Of what was printed whole the group goes on past what is never printed, such as the markers of transactions.
        for (partition, at) in &mut *upto {
            if let Some(next) = consumer.next_commit(partition).filter(|_| !unprinted.contains(partition)) {
                *at = next;
            }
        }
    }
}
