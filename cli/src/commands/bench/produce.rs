//! `millpond bench produce`. With a rate the load is open: a record is due at its time, whether or not earlier ones have been
//! acknowledged, and its latency counts from then. So a queue that builds up is seen, and not left out. With `--in-flight` it is
//! closed: a record waits for the answer to an earlier one, and its latency counts from when it is sent.

use super::pace::Pace;
use super::payload::Payload;
use super::report::{Latencies, Report};
use crate::commands::produce::SendingArgs;
use crate::connection::ConnectionArgs;
use crate::failure::Failure;
use crate::output::OutputArgs;
use crate::progress::Progress;
use crate::signals::Shutdown;
use crate::units::ByteCount;
use futures::stream::FuturesUnordered;
use futures::{FutureExt, StreamExt};
use millpond_sdk::{Client, Delivery, Producer, ProducerRecord};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// Arguments of `bench produce`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example: millpond bench produce bench --records 100000 --size 1Ki --rate 5000 --output json")]
pub(super) struct Args {
    /// The topic
    topic: String,
    /// How many records
    #[arg(long, value_name = "N", default_value_t = 1_000_000)]
    records: u64,
    /// Bytes of a value
    #[arg(long, value_name = "SIZE", default_value = "100")]
    size: ByteCount,
    /// How many different keys; 0 for records without a key
    #[arg(long, value_name = "N", default_value_t = 0)]
    keys: u64,
    /// Records per second over all producers; as fast as possible if left out
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    rate: Option<u64>,
    /// Most records of a producer whose answers it awaits; as many as its memory holds if left out
    #[arg(long, value_name = "N", conflicts_with = "rate", value_parser = clap::value_parser!(u64).range(1..))]
    in_flight: Option<u64>,
    /// How many producers, each with its own connections
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=1024))]
    producers: u64,
    #[command(flatten)]
    sending: SendingArgs,
    #[command(flatten)]
    output: OutputArgs,
    #[command(flatten)]
    connection: ConnectionArgs,
}

/// One producer's part: every `producers`-th record, beginning with its own number.
struct Share {
    topic: Arc<str>,
    payload: Payload,
    numbers: std::iter::StepBy<std::ops::Range<u64>>,
    rate: Option<u64>,
    in_flight: usize,
    start: Instant,
}

/// Latencies told at once: telling each would wake the task that counts them as often as a producer is answered, on cores that the
/// measured ones need.
const TOLD_TOGETHER: usize = 4096;

/// How old a latency may become before it is told: the progress shows it.
const TOLD_AFTER: Duration = Duration::from_millis(200);

/// Sent records whose answer is awaited, each with the time from which its latency counts.
type Pending = FuturesUnordered<futures::future::Map<Delivery, Settle>>;
type Settle = Box<dyn FnOnce(Answer) -> Settled + Send>;
type Answer = Result<millpond_sdk::RecordMetadata, millpond_sdk::Error>;
type Settled = Result<Duration, millpond_sdk::Error>;

pub(super) async fn run(args: Args) -> Result<(), Failure> {
    let mut shutdown = Shutdown::listen()?;
    let size = usize::try_from(args.size.0).map_err(|_| Failure::usage("--size is larger than any record"))?;
    let payload = Payload { size, keys: args.keys };
    let mut clients = Vec::new();
    for _ in 0..args.producers {
        clients.push(args.connection.connect().await?);
    }
    let in_flight = args.in_flight.map_or(usize::MAX, |most| usize::try_from(most).unwrap_or(usize::MAX));
    let start = Instant::now();
    let (measure, mut measured) = tokio::sync::mpsc::channel(1024);
    for (number, client) in (0..).zip(&clients) {
        let numbers = (number..args.records).step_by(usize::try_from(args.producers).unwrap_or(usize::MAX));
        let share = Share { topic: args.topic.as_str().into(), payload, numbers, rate: args.rate, in_flight, start };
        let producer = producer(client, &args.sending)?;
        let measure = measure.clone();
        tokio::spawn(async move {
            if let Err(failure) = share.send(&producer, &measure).await {
                // Nobody listens once the command has failed.
                let _ = measure.send(Err(failure)).await;
            }
        });
    }
    drop(measure);
    let mut latencies = Latencies::new()?;
    let mut progress = Progress::begin("producing", Some(args.records), start);
    let mut records = 0;
    let mut end = start;
    loop {
        let settled = tokio::select! {
            () = shutdown.asked() => break,
            settled = measured.recv() => settled,
        };
        let Some(settled) = settled else { break };
        let portion: Vec<Duration> = settled?;
        end = Instant::now();
        records += portion.len() as u64;
        progress.add(portion.len() as u64, end);
        portion.into_iter().for_each(|latency| latencies.add(latency));
    }
    progress.end();
    Report::new(records, records * args.size.0, end - start, Some(&latencies)).print(args.output.output)
}

fn producer(client: &Client, sending: &SendingArgs) -> Result<Producer, Failure> {
    Producer::new(client, sending.config()).map_err(|error| Failure::usage(error.to_string()))
}

/// Latencies on their way to be counted.
struct Telling<'a> {
    portion: Vec<Duration>,
    told: Instant,
    measure: &'a tokio::sync::mpsc::Sender<Result<Vec<Duration>, Failure>>,
}

impl Telling<'_> {
    /// Takes one in, and tells all that are here if it is time.
    async fn add(&mut self, settled: Settled) -> Result<(), Failure> {
        self.portion.push(settled.map_err(failed)?);
        if self.portion.len() < TOLD_TOGETHER && self.told.elapsed() < TOLD_AFTER {
            return Ok(());
        }
        self.told = Instant::now();
        self.tell().await
    }

    /// Takes in all that is known now, without waiting for answers.
    async fn look(&mut self, pending: &mut Pending) -> Result<(), Failure> {
        while let Some(Some(settled)) = pending.next().now_or_never() {
            self.add(settled).await?;
        }
        Ok(())
    }

    async fn tell(&mut self) -> Result<(), Failure> {
        let portion = std::mem::take(&mut self.portion);
        self.measure.send(Ok(portion)).await.map_err(|_| Failure::new("the run was stopped"))
    }
}

impl Share {
    /// Sends every record at its time, and tells the latencies in portions.
    async fn send(
        self,
        producer: &Producer,
        measure: &tokio::sync::mpsc::Sender<Result<Vec<Duration>, Failure>>,
    ) -> Result<(), Failure> {
        let mut pending = Pending::new();
        let mut telling = Telling { portion: Vec::new(), told: Instant::now(), measure };
        let mut pace = self.rate.map(|rate| Pace::begin(self.start, rate, self.numbers.clone()));
        for number in self.numbers {
            while pending.len() >= self.in_flight {
                if let Some(settled) = pending.next().await {
                    telling.add(settled).await?;
                }
            }
            let from = match &mut pace {
                Some(pace) => due(pace, &mut pending, &mut telling).await?,
                None => Instant::now(),
            };
            let record = ProducerRecord {
                key: self.payload.key(number),
                value: Some(self.payload.value(number)),
                ..ProducerRecord::new(Arc::clone(&self.topic))
            };
            let delivery = producer.send(record).await.map_err(failed)?;
            let settle: Settle = Box::new(move |answer| answer.map(|_| from.elapsed()));
            pending.push(delivery.map(settle));
            telling.look(&mut pending).await?;
        }
        // Together, so that an answer's time does not end with the flush.
        let rest = async {
            while let Some(settled) = pending.next().await {
                telling.add(settled).await?;
            }
            telling.tell().await
        };
        futures::join!(producer.flush(), rest).1
    }
}

/// Waits until the next record is due, and takes answers meanwhile: a latency ends when its answer comes, not when the next record
/// is sent. When the record was due.
async fn due(pace: &mut Pace, pending: &mut Pending, telling: &mut Telling<'_>) -> Result<Instant, Failure> {
    loop {
        tokio::select! {
            due = pace.next() => return Ok(due),
            Some(settled) = pending.next() => telling.add(settled).await?,
        }
    }
}

fn failed(error: millpond_sdk::Error) -> Failure {
    Failure::new(error.to_string())
}
