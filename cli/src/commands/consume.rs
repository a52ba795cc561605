//! `millpond consume`: reads records and prints them, from where it is told to where it is told.

mod grouped;

use crate::connection::ConnectionArgs;
use crate::failure::Failure;
use crate::output::{self, Out, OutputArgs};
use crate::records::format::Format;
use crate::records::{Shown, json};
use crate::signals::Shutdown;
use crate::time::rfc3339_ms;
use millpond_sdk::{
    Admin, Client, Consumer, ConsumerConfig, ConsumerRecord, IsolationLevel, Offset, OffsetSpec, ReadFrom, StartAt,
    TimestampMs, TimestampType, TopicPartition,
};
use std::collections::BTreeMap;
use std::io::{IsTerminal, Write};
use std::time::Duration;

/// How long `poll` waits before the end is looked at again.
const POLL_WAIT: Duration = Duration::from_millis(100);

/// Arguments of `consume`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    millpond consume orders --until-end --format '%p@%o %k: %v\\n'\n  \
    millpond consume orders --from 2013-01-01T10:00:00Z --max 10 --output json\n  \
    millpond consume orders --group billing\n\n\
    Letters of a format: %t topic, %p partition, %o offset, %T (or %d) timestamp in ms, %k key, %v (or %s) value, %h headers,\n\
    %K and %S lengths of key and value (-1 for null), %%, and the escapes \\n \\r \\t \\0 \\\\ \\xHH.")]
pub(crate) struct Args {
    /// The topic
    topic: String,
    /// Where to begin [default: earliest]
    #[arg(long, value_name = "earliest|latest|OFFSET|RFC3339", value_parser = start, conflicts_with = "group")]
    from: Option<StartAt>,
    /// Read as a member of this group, beginning where it has committed, or else at the end, and commit what was printed
    #[arg(long, value_name = "NAME", conflicts_with = "partition", value_parser = clap::builder::NonEmptyStringValueParser::new())]
    group: Option<String>,
    /// Stop at the end as it is when the command starts; with a group, once the group has read up to it
    #[arg(long)]
    until_end: bool,
    /// Stop after so many records
    #[arg(long, value_name = "N")]
    max: Option<u64>,
    /// Read only this partition
    #[arg(long, value_name = "P")]
    partition: Option<u32>,
    /// Which records are seen
    #[arg(long, value_enum, default_value_t = IsolationArg::ReadUncommitted)]
    isolation: IsolationArg,
    /// Read from replicas in this rack where there are some, instead of crossing racks to the leaders
    #[arg(long, env = "MILLPOND_RACK", value_name = "NAME")]
    rack: Option<String>,
    /// Who is read from: leaders (or replicas in the rack), or any broker for what lies in object storage, which spreads a replay
    /// over the cluster
    #[arg(long, value_enum, default_value_t = ReadFromArg::Leader)]
    read_from: ReadFromArg,
    /// How a record is printed as text
    #[arg(long, default_value = "%v\\n", conflicts_with = "output")]
    format: Format,
    #[command(flatten)]
    output: OutputArgs,
    #[command(flatten)]
    connection: ConnectionArgs,
}

#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum IsolationArg {
    #[value(name = "read_uncommitted", alias = "read-uncommitted")]
    ReadUncommitted,
    #[value(name = "read_committed", alias = "read-committed")]
    ReadCommitted,
}

#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum ReadFromArg {
    Leader,
    Any,
}

fn start(text: &str) -> Result<StartAt, String> {
    match text {
        "earliest" => Ok(StartAt::Earliest),
        "latest" => Ok(StartAt::Latest),
        _ => match (text.parse(), rfc3339_ms(text)) {
            (Ok(offset), _) => Ok(StartAt::Offset(Offset(offset))),
            (_, Some(time)) => Ok(StartAt::Time(TimestampMs(time))),
            _ => {
                Err("give earliest, latest, an offset, or a time with its zone such as 2013-01-01T10:00:00Z".to_owned())
            }
        },
    }
}

pub(super) async fn run(args: Args) -> Result<(), Failure> {
    if args.group.is_some() {
        // It ends in order: what was printed is committed first.
        return consume(args).await;
    }
    let mut shutdown = Shutdown::listen()?;
    tokio::select! {
        () = shutdown.asked() => Ok(()),
        result = consume(args) => result,
    }
}

async fn consume(args: Args) -> Result<(), Failure> {
    let client = args.connection.connect().await?;
    let partitions = partitions(&client, &args.topic, args.partition).await?;
    let isolation = match args.isolation {
        IsolationArg::ReadUncommitted => IsolationLevel::ReadUncommitted,
        IsolationArg::ReadCommitted => IsolationLevel::ReadCommitted,
    };
    let mut left = Left::new(args.max, args.until_end.then_some(ends(&client, &partitions, isolation).await?));
    let read_from = match args.read_from {
        ReadFromArg::Leader => ReadFrom::Leader,
        ReadFromArg::Any => ReadFrom::AnyBroker,
    };
    let config = ConsumerConfig { isolation, rack: args.rack.clone(), read_from, ..ConsumerConfig::default() };
    if let Some(group) = &args.group {
        return grouped::consume(&args, &client, group, &partitions, left, config).await;
    }
    let mut consumer = Consumer::new(&client, config);
    let starts = partitions.iter().map(|partition| (partition.clone(), args.from.unwrap_or(StartAt::Earliest)));
    consumer.assign(starts).await.map_err(failed)?;
    if std::io::stderr().is_terminal() {
        for partition in &partitions {
            let position = consumer.position(partition).unwrap_or_default();
            eprintln!("reading {partition} from offset {position}; Ctrl-C stops");
        }
    }
    let mut out = Out::new();
    while !left.is_done(|partition| consumer.position(partition)) {
        let records = consumer.poll(POLL_WAIT).await.map_err(failed)?;
        for record in records.iter().filter(|record| left.takes(record)) {
            print(&args, record, &mut out)?;
        }
        out.flush()?;
    }
    Ok(())
}

fn print(args: &Args, record: &ConsumerRecord, out: &mut Out) -> Result<(), Failure> {
    let shown = shown(record);
    out.with(|mut out: &mut dyn Write| match args.output.output {
        output::Format::Json => json::write(&shown, &mut out),
        output::Format::Text => args.format.write(&shown, &mut out),
    })
}

fn failed(error: millpond_sdk::Error) -> Failure {
    Failure::new(error.to_string())
}

/// The topic's partitions, or the one that was asked for.
pub(super) async fn partitions(
    client: &Client,
    topic: &str,
    only: Option<u32>,
) -> Result<Vec<TopicPartition>, Failure> {
    let described = Admin::new(client).describe_topic(topic).await.map_err(failed)?;
    let count = described.partitions.len();
    let named = described.partitions.iter().map(|partition| TopicPartition::new(topic, partition.index));
    let wanted: Vec<TopicPartition> = named.filter(|named| only.is_none_or(|only| only == named.partition)).collect();
    match (wanted.is_empty(), only) {
        (true, Some(only)) => Err(Failure::new(format!("topic `{topic}` has {count} partitions; there is no {only}"))),
        _ => Ok(wanted),
    }
}

/// The end of what a reader of this isolation sees, of each partition: under `read_committed` where an open transaction begins.
pub(super) async fn ends(
    client: &Client,
    partitions: &[TopicPartition],
    isolation: IsolationLevel,
) -> Result<BTreeMap<TopicPartition, Offset>, Failure> {
    let admin = Admin::new(client);
    let mut ends = BTreeMap::new();
    for partition in partitions {
        let TopicPartition { topic, partition: index } = partition;
        let found = admin.list_offset_seen_by(isolation, topic, *index, OffsetSpec::Latest).await.map_err(failed)?;
        ends.insert(partition.clone(), found.map(|found| found.offset).unwrap_or_default());
    }
    Ok(ends)
}

/// What is still to be read, if there is an end.
pub(super) struct Left {
    records: Option<u64>,
    ends: Option<BTreeMap<TopicPartition, Offset>>,
}

impl Left {
    pub(super) fn new(records: Option<u64>, ends: Option<BTreeMap<TopicPartition, Offset>>) -> Left {
        Left { records, ends }
    }

    /// Whether the record is wanted; counts it if so.
    pub(super) fn takes(&mut self, record: &ConsumerRecord) -> bool {
        let end = self.ends.as_ref().and_then(|ends| ends.get(&record.topic_partition()));
        if end.is_some_and(|end| record.offset >= *end) || self.records == Some(0) {
            return false;
        }
        self.records = self.records.map(|records| records - 1);
        true
    }

    /// Whether nothing more is wanted, given the position of each partition. Records need not be there up to an end: the last
    /// ones may be markers, which are passed over.
    pub(super) fn is_done(&self, position: impl Fn(&TopicPartition) -> Option<Offset>) -> bool {
        let reached = |(partition, end): (&TopicPartition, &Offset)| position(partition).is_some_and(|at| at >= *end);
        self.records == Some(0) || self.ends.as_ref().is_some_and(|ends| ends.iter().all(reached))
    }
}

fn shown(record: &ConsumerRecord) -> Shown<'_> {
    Shown {
        topic: &record.topic,
        partition: record.partition,
        offset: record.offset.0,
        timestamp_ms: record.timestamp.0,
        timestamp_type: match record.timestamp_type {
            TimestampType::CreateTime => "CreateTime",
            TimestampType::LogAppendTime => "LogAppendTime",
        },
        key: record.key.as_deref(),
        value: record.value.as_deref(),
        headers: &record.headers,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use millpond_sdk::LeaderEpoch;

    #[test]
    fn starts_are_read() {
        let check = |text: &str, expected| assert_eq!(start(text).ok(), expected, "{text}");
        check("earliest", Some(StartAt::Earliest));
        check("latest", Some(StartAt::Latest));
        check("42", Some(StartAt::Offset(Offset(42))));
        check("2013-01-01T10:00:00Z", Some(StartAt::Time(TimestampMs(1_357_034_400_000))));
        for bad in ["", "-1", "yesterday", "2013-01-01T10:00:00"] {
            check(bad, None);
        }
    }

    fn record(partition: u32, offset: u64) -> ConsumerRecord {
        ConsumerRecord {
            topic: "t".into(),
            partition,
            offset: Offset(offset),
            leader_epoch: LeaderEpoch(0),
            timestamp: TimestampMs(0),
            timestamp_type: TimestampType::CreateTime,
            key: None,
            value: None,
            headers: Vec::new(),
        }
    }

    #[test]
    fn reading_ends_at_the_end_seen_at_the_start() {
        let place = |partition| TopicPartition::new("t", partition);
        let mut left = Left::new(None, Some(BTreeMap::from([(place(0), Offset(2)), (place(1), Offset(0))])));
        let at =
            |offset| move |partition: &TopicPartition| Some(Offset(if partition.partition == 0 { offset } else { 0 }));
        assert!(!left.is_done(at(1)));
        assert!(left.takes(&record(0, 1)) && !left.takes(&record(0, 2)) && !left.takes(&record(1, 0)));
        assert!(left.is_done(at(2)));
        assert!(!left.is_done(|_| None), "a partition that was not read yet has not ended");
    }

    #[test]
    fn reading_ends_after_the_records_asked_for() {
        let mut left = Left::new(Some(2), None);
        assert!(left.takes(&record(0, 0)) && !left.is_done(|_| None));
        assert!(left.takes(&record(0, 1)) && left.is_done(|_| None));
        assert!(!left.takes(&record(0, 2)));
        assert!(Left::new(Some(0), None).is_done(|_| None));
        assert!(!Left::new(None, None).is_done(|_| None));
    }
}
