//! Dead letters written back to where they came from, in order, each once as far as that can be remembered.
//!
//! It goes in rounds: some records are written, all of them are on all in-sync replicas, then what was redriven is remembered. Broken off
//! between the two, a round is written again the next time; nothing is passed over.

use super::dead_letters::{DeadLetter, DeadLetterFilter, DeadLetterReader};
use super::marks::{Marks, TEXT_BYTES_MAX};
use crate::client::Client;
use crate::error::Error;
use crate::producer::{Producer, ProducerConfig};
use crate::record::TopicPartition;
use millpond_log::ErrorCode;
use millpond_log::codec::Codec;
use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use tokio::time::Instant;

/// What is to be redriven.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Redrive {
    /// The dead-letter topic.
    pub topic: String,
    /// Which dead letters.
    pub filter: DeadLetterFilter,
    /// Where they go; `None`: each to the topic it came from.
    pub to: Option<String>,
    /// Also those that were redriven before.
    pub again: bool,
    /// Write them. Without it they are only counted.
    pub execute: bool,
}

/// How far a redrive came.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Redriven {
    /// Dead letters written, or to be written if nothing was to be executed.
    pub redriven: u64,
    /// Left out, since they were redriven before.
    pub before: u64,
    /// Left out by the filter.
    pub filtered: u64,
    /// Left out, since they are no copies of records that failed.
    pub foreign: u64,
    /// Whether it was told to stop before the end.
    pub stopped: bool,
}

/// How much of the dead-letter topic was dealt with, in offsets, some of which may hold no records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RedriveProgress {
    /// Since it was told last.
    pub dealt_with: u64,
    /// Left.
    pub left: u64,
}

/// A redrive that failed, and how far it came.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{error} ({} were redriven before, and are remembered)", so_far.redriven)]
pub struct RedriveError {
    /// What it came to before.
    pub so_far: Redriven,
    /// What happened.
    pub error: Error,
}

/// A dead letter of a round: where it is, and the offsets that are redriven with it: those from the one before, exclusive, hold nothing.
struct Chosen {
    dead: DeadLetter,
    start: u64,
}

impl Redrive {
    /// Redrives. `progress` hears how far it is, once before it begins; `stop` has it end after the round at hand.
    ///
    /// Records of one partition are written in order, to the partition they came from where there is one of that number. A record that
    /// is redriven has its original's time, key, value and headers, `header::EVENT_ID`, `header::REDRIVE_COUNT` and
    /// `header::REDRIVE_GROUP`, and all its retries before it.
    ///
    /// # Errors
    /// What could not be read, written or remembered. What the error counts as redriven is written and remembered; of the last round
    /// some may have been written as well.
    pub async fn run(
        &self,
        client: &Client,
        mut progress: impl FnMut(RedriveProgress),
        stop: impl Future<Output = ()>,
    ) -> Result<Redriven, RedriveError> {
        let mut so_far = Redriven::default();
        let run = self.rounds(client, &mut so_far, &mut progress, stop).await;
        run.map_err(|error| RedriveError { so_far, error }).map(|()| so_far)
    }

    async fn rounds(
        &self,
        client: &Client,
        so_far: &mut Redriven,
        progress: &mut impl FnMut(RedriveProgress),
        stop: impl Future<Output = ()>,
    ) -> Result<(), Error> {
        if self.to.as_deref() == Some(&*self.topic) {
            let message =
                format!("dead letters of `{}` cannot be redriven to itself: that would never end", self.topic);
            return Err(Error::new(ErrorCode::InvalidRequest, message));
        }
        let mut reader = DeadLetterReader::open(client, &self.topic).await?;
        let mut scan = Scan::new(&reader);
        let writer = if self.execute { Some(Writer::new(client, self.to.as_deref())?) } else { None };
        let mut stop = pin!(stop);
        let mut left = reader.left();
        progress(RedriveProgress { dealt_with: 0, left });
        loop {
            let read = tokio::select! {
                biased;
                () = &mut stop => {
                    so_far.stopped = true;
                    return Ok(());
                }
                read = reader.next() => read?,
            };
            let Some(read) = read else { return Ok(()) };
            let chosen = scan.choose(self, read, so_far);
            if let Some(writer) = &writer {
                scan.check_memory()?;
                writer.write(&chosen).await?;
            }
            if self.execute {
                reader.memory().0.remember(scan.redriven(&chosen)).await?;
            }
            so_far.redriven += chosen.len() as u64;
            let dealt_with = left.saturating_sub(reader.left());
            left = reader.left();
            progress(RedriveProgress { dealt_with, left });
        }
    }
}

/// What was seen and redriven of each partition.
struct Scan {
    marks: BTreeMap<u32, Marks>,
    /// The same with what is being written.
    planned: BTreeMap<u32, Marks>,
    /// The end of what was seen.
    seen: BTreeMap<u32, u64>,
}

impl Scan {
    fn new(reader: &DeadLetterReader) -> Scan {
        let marks = reader.memory().1.clone();
        let seen = reader.bounds().map(|(place, start, _)| (place.partition, start.0)).collect();
        Scan { planned: marks.clone(), marks, seen }
    }

    /// Chooses what is to be written, and counts the rest.
    fn choose(&mut self, redrive: &Redrive, read: Vec<DeadLetter>, counts: &mut Redriven) -> Vec<Chosen> {
        let mut chosen = Vec::new();
        for dead in read {
            let TopicPartition { partition, .. } = dead.place;
            let offset = dead.offset.0;
            let start = self.seen.insert(partition, offset + 1).unwrap_or(0);
            let planned = self.planned.entry(partition).or_default();
            if !redrive.filter.takes(&dead) {
                counts.filtered += 1;
            } else if dead.set_aside.is_none() {
                counts.foreign += 1;
            } else if planned.contains(offset) && !redrive.again {
                counts.before += 1;
            } else {
                planned.mark(start, offset + 1);
                chosen.push(Chosen { dead, start });
            }
        }
        chosen
    }

    /// Refuses to write what could not be remembered.
    fn check_memory(&self) -> Result<(), Error> {
        let Some((partition, _)) = self.planned.iter().find(|(_, planned)| !planned.fit()) else { return Ok(()) };
        let message = format!(
            "what is redriven of partition {partition} is in too many pieces to be remembered in {TEXT_BYTES_MAX} bytes; redrive all \
             of it (no filter), or less at a time"
        );
        Err(Error::new(ErrorCode::OffsetMetadataTooLarge, message))
    }

    /// Notes what was written; the marks of the partitions concerned.
    fn redriven(&mut self, chosen: &[Chosen]) -> Vec<(u32, &Marks)> {
        let mut concerned = BTreeSet::new();
        for Chosen { dead, start } in chosen {
            let TopicPartition { partition, .. } = dead.place;
            self.marks.entry(partition).or_default().mark(*start, dead.offset.0 + 1);
            concerned.insert(partition);
        }
        self.marks
            .iter()
            .filter(|(partition, _)| concerned.contains(*partition))
            .map(|(index, marks)| (*index, marks))
            .collect()
    }
}

/// Writes records back.
struct Writer {
    client: Client,
    producer: Producer,
    to: Option<Arc<str>>,
}

impl Writer {
    fn new(client: &Client, to: Option<&str>) -> Result<Writer, Error> {
        let config = ProducerConfig { compression: Codec::Zstd, ..ProducerConfig::default() };
        Ok(Writer { client: client.clone(), producer: Producer::new(client, config)?, to: to.map(Into::into) })
    }

    /// Writes a round. All of it is on all in-sync replicas when this returns well.
    async fn write(&self, round: &[Chosen]) -> Result<(), Error> {
        let mut deliveries = Vec::with_capacity(round.len());
        for Chosen { dead, .. } in round {
            let Some(set_aside) = &dead.set_aside else { continue };
            let original = &set_aside.original;
            let topic = self.to.clone().unwrap_or_else(|| Arc::clone(&original.topic));
            let deadline = Instant::now() + self.client.config().api_timeout;
            // A topic that is gone is not made again by the way.
            let count =
                self.client.partition_count(&topic, false, deadline).await.map_err(|error| lost(dead, &error))?;
            let partition = Some(original.partition).filter(|partition| *partition < count);
            let record = set_aside.redriven(topic, partition);
            let delivery = self.producer.send(record).await.map_err(|error| lost(dead, &error))?;
            deliveries.push((dead, delivery));
        }
        // Awaited to the last: then nothing is under way any more.
        let mut first = None;
        for (dead, delivery) in deliveries {
            if let Err(error) = delivery.await {
                first.get_or_insert_with(|| lost(dead, &error));
            }
        }
        first.map_or(Ok(()), Err)
    }
}

fn lost(dead: &DeadLetter, error: &Error) -> Error {
    error.clone().at(format_args!("{} offset {} was not redriven", dead.place, dead.offset))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::ConsumerRecord;
    use crate::retries::{ErrorKind, LastError, SetAside};
    use millpond_log::batch::TimestampType;
    use millpond_log::{LeaderEpoch, Offset, TimestampMs};

    fn dead(offset: u64, class: &str) -> DeadLetter {
        let original = ConsumerRecord {
            topic: "t".into(),
            partition: 0,
            offset: Offset(100 + offset),
            leader_epoch: LeaderEpoch(0),
            timestamp: TimestampMs(0),
            timestamp_type: TimestampType::CreateTime,
            key: None,
            value: None,
            headers: Vec::new(),
        };
        let error = LastError { kind: ErrorKind::Permanent, class: class.to_owned(), text: String::new() };
        let set_aside =
            SetAside { original, event_id: "e".to_owned(), group: "g".to_owned(), attempts: 1, error, next_at: None };
        let place = TopicPartition::new("t.g.dlq", 0);
        DeadLetter { place, offset: Offset(offset), since: TimestampMs(0), redriven: false, set_aside: Some(set_aside) }
    }

    fn foreign(offset: u64) -> DeadLetter {
        DeadLetter { set_aside: None, ..dead(offset, "") }
    }

    fn of_class(class: &str) -> Redrive {
        let filter = DeadLetterFilter { error_class: Some(class.to_owned()), ..Default::default() };
        Redrive { filter, execute: true, ..Redrive::default() }
    }

    /// Goes once through a partition, with what was remembered before; what was written, and what is remembered then.
    fn pass(redrive: &Redrive, dead: Vec<DeadLetter>, before: Marks) -> (Vec<u64>, Redriven, Marks) {
        let marks = BTreeMap::from([(0, before)]);
        let mut scan = Scan { planned: marks.clone(), marks, seen: BTreeMap::from([(0, 0)]) };
        let mut counts = Redriven::default();
        let chosen = scan.choose(redrive, dead, &mut counts);
        scan.check_memory().expect("few pieces");
        scan.redriven(&chosen);
        let written = chosen.iter().map(|chosen| chosen.dead.offset.0).collect();
        (written, counts, scan.marks.remove(&0).expect("it is there"))
    }

    #[test]
    fn what_was_redriven_is_not_redriven_again_whatever_the_filters() {
        let letters = || vec![dead(0, "a"), dead(1, "b"), dead(4, "a"), dead(5, "b"), dead(9, "a")];
        let (written, counts, marks) = pass(&of_class("b"), letters(), Marks::default());
        assert_eq!((written, counts.filtered), (vec![1, 5], 3));
        assert!(!marks.contains(0) && marks.contains(1) && !marks.contains(4) && marks.contains(5));
        let all = Redrive { execute: true, ..Redrive::default() };
        let (written, counts, marks) = pass(&all, letters(), marks);
        assert_eq!((written, counts.before), (vec![0, 4, 9], 2));
        assert_eq!(marks, Marks::below(10), "gaps between records are not remembered");
        let (written, counts, marks) = pass(&all, letters(), marks);
        assert_eq!((written, counts.before), (vec![], 5));
        let (written, ..) = pass(&Redrive { again: true, ..all }, letters(), marks);
        assert_eq!(written, [0, 1, 4, 5, 9]);
    }

    #[test]
    fn what_is_no_copy_is_left_alone_and_never_counts_as_redriven() {
        let all = Redrive { execute: true, ..Redrive::default() };
        let (written, counts, marks) = pass(&all, vec![dead(0, "a"), foreign(1), dead(2, "a")], Marks::default());
        assert_eq!((written, counts.foreign), (vec![0, 2], 1));
        assert!(marks.contains(0) && !marks.contains(1) && marks.contains(2));
    }

    #[test]
    fn what_cannot_be_remembered_is_not_written() {
        let mut scan = Scan { planned: BTreeMap::new(), marks: BTreeMap::new(), seen: BTreeMap::from([(0, 0)]) };
        let letters = (0..10_000).map(|offset| dead(offset, if offset % 2 == 0 { "a" } else { "b" })).collect();
        scan.choose(&of_class("b"), letters, &mut Redriven::default());
        let refused = scan.check_memory().expect_err("five thousand pieces");
        assert_eq!(refused.code, Some(ErrorCode::OffsetMetadataTooLarge));
    }
}
