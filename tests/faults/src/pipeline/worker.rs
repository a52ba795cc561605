//! A worker of the pipeline by our own SDK, as a process: `millpond-faults pipeline-worker` with the arguments of `clients/pipeline.py`, of which it
//! tells the same lines.

use super::check::place;
use crate::clock::now;
use crate::payload;
use millpond_sdk::{
    Client, ClientConfig, ConsumerRecord, Error, GroupConfig, GroupConsumer, IsolationLevel, Offset, ProducerRecord,
    RebalanceListener, Revoked, Subscription, TopicPartition, TransactionalConfig, TransactionalProducer,
};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use std::collections::BTreeMap;
use std::io::Read;
use std::process::ExitCode;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

/// The word that makes this program a worker.
pub(crate) const WORD: &str = "pipeline-worker";

// As `clients/pipeline.py` has it.
const RECORDS_MAX: usize = 60;
const COLLECT: Duration = Duration::from_millis(100);
const HOLD: Duration = Duration::from_millis(150);
const ABORTS: u32 = 8;
const TRANSACTION_TIMEOUT: Duration = Duration::from_secs(10);
const ANSWER: Duration = Duration::from_secs(5);
const ASKED_MAX: u32 = 12;

/// Pause before an end is asked for again.
const AGAIN: Duration = Duration::from_millis(50);

/// Whether a worker is one of these: every second is, and the others are librdkafka's.
pub(crate) fn is_ours(worker: u16) -> bool {
    worker % 2 == 1
}

/// What it is told on its command line.
struct Arguments {
    bootstrap: String,
    source: String,
    sink: String,
    sinks: u16,
    group: String,
    worker: u16,
    life: u32,
}

impl Arguments {
    fn read(words: Vec<String>) -> Option<Arguments> {
        let [bootstrap, source, sink, sinks, group, worker, life] = words.try_into().ok()?;
        let (sinks, worker, life) = (sinks.parse().ok()?, worker.parse().ok()?, life.parse().ok()?);
        Some(Arguments { bootstrap, source, sink, sinks, group, worker, life })
    }
}

/// What was read, and is in no committed transaction. Partitions that go take theirs with them: it is whoever's who gets them.
#[derive(Clone, Default)]
struct Pending {
    records: Arc<Mutex<Vec<ConsumerRecord>>>,
}

impl Pending {
    fn records(&self) -> MutexGuard<'_, Vec<ConsumerRecord>> {
        self.records.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn forget(&self, gone: &[TopicPartition]) {
        self.records().retain(|record| !gone.iter().any(|gone| gone.partition == record.partition));
    }
}

impl RebalanceListener for Pending {
    async fn revoked(&mut self, revoked: &Revoked) {
        self.forget(revoked.partitions());
    }

    async fn lost(&mut self, partitions: &[TopicPartition]) {
        self.forget(partitions);
    }
}

/// Works until standard input ends, or until it cannot go on.
pub(crate) fn run(words: Vec<String>) -> ExitCode {
    let Some(arguments) = Arguments::read(words) else {
        eprintln!("usage: {WORD} BOOTSTRAP SOURCE SINK SINK_PARTITIONS GROUP WORKER LIFE");
        return ExitCode::from(2);
    };
    let stop = CancellationToken::new();
    let ends = stop.clone();
    std::thread::spawn(move || {
        // Whatever it says, its end is what counts.
        let _ = std::io::stdin().read_to_end(&mut Vec::new());
        ends.cancel();
    });
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
    match runtime.expect("a runtime starts").block_on(work(arguments, &stop)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            println!("F {} {}", now(), one_line(&error));
            ExitCode::from(3)
        }
    }
}

fn one_line(error: &Error) -> String {
    error.to_string().lines().collect::<Vec<&str>>().join("; ")
}

async fn work(arguments: Arguments, stop: &CancellationToken) -> Result<(), Error> {
    let mut config = ClientConfig::new(&arguments.bootstrap)?;
    config.connect_timeout = Duration::from_secs(2);
    config.request_timeout = ANSWER;
    let client = Client::with_config(config).await?;
    let transactional_id = super::transactional_id(arguments.worker);
    let producing = TransactionalConfig { timeout: TRANSACTION_TIMEOUT, ..TransactionalConfig::new(&transactional_id) };
    let producer = TransactionalProducer::new(&client, producing).await?;
    let pending = Pending::default();
    let mut consuming = GroupConfig::new(arguments.group.as_str());
    consuming.reader.isolation = IsolationLevel::ReadCommitted;
    let topics = Subscription::topics([arguments.source.as_str()]);
    let consumer = GroupConsumer::with_listener(&client, consuming, topics, pending.clone())?;
    // Another one for each process, and the same for the same.
    let random = StdRng::seed_from_u64((u64::from(arguments.worker) << 32) | u64::from(arguments.life));
    let mut worker = Worker { arguments, producer, consumer, pending, random, number: 0 };
    while !stop.is_cancelled() {
        worker.collect().await?;
        if !worker.pending.records().is_empty() {
            worker.transact().await?;
        }
    }
    worker.consumer.close().await
}

struct Worker {
    arguments: Arguments,
    producer: TransactionalProducer,
    consumer: GroupConsumer,
    pending: Pending,
    random: StdRng,
    /// Of the next transaction.
    number: u32,
}

impl Worker {
    async fn collect(&mut self) -> Result<(), Error> {
        let end = Instant::now() + COLLECT;
        loop {
            // At least once, since partitions go and come in this call.
            match self.consumer.poll(end.saturating_duration_since(Instant::now())).await {
                Ok(records) => self.pending.records().extend(records),
                Err(error) if error.retriable => println!("E {}", one_line(&error)),
                Err(error) => return Err(error),
            }
            if Instant::now() >= end || self.pending.records().len() >= RECORDS_MAX {
                return Ok(());
            }
        }
    }

    /// One transaction of all that is pending.
    async fn transact(&mut self) -> Result<(), Error> {
        let records = self.pending.records().clone();
        let (number, count) = (self.number, records.len());
        self.number += 1;
        println!("B {number} {}", now());
        self.producer.begin()?;
        let meant = self.random.random_range(0..ABORTS) == 0;
        let hold = HOLD.mul_f64(self.random.random());
        match self.write(number, &records, hold).await {
            Ok(()) if meant => {
                self.abort().await?;
                println!("X {number} {count} {} meant", now());
                return Ok(());
            }
            Ok(()) => {}
            Err(error) => return self.give_up(number, count, &error).await,
        }
        println!("K {number} {count} {}", now());
        match self.commit().await {
            Ok(()) => {
                self.pending.records().clear();
                println!("C {number} {count} {}", now());
                Ok(())
            }
            Err(error) => self.give_up(number, count, &error).await,
        }
    }

    /// Writes the outputs and commits the offsets, in the transaction, and keeps it open for a while.
    async fn write(&mut self, number: u32, records: &[ConsumerRecord], hold: Duration) -> Result<(), Error> {
        let Arguments { sink, sinks, worker, life, .. } = &self.arguments;
        let mut following: BTreeMap<TopicPartition, Offset> = BTreeMap::new();
        for record in records {
            let value = record.value.as_ref().map_or(&[][..], |value| value);
            // What nobody wrote so is passed on all the same: whoever judges finds it.
            let partition = payload::read(value).map_or(0, |id| place(id, *sinks));
            let mut output = ProducerRecord::new(sink.as_str())
                .partition(u32::from(partition))
                .value([format!("{}/{}/", record.partition, record.offset).as_bytes(), value].concat())
                .header("txn", format!("{worker}/{life}/{number}"));
            output.key.clone_from(&record.key);
            self.producer.send(output).await?;
            let at = TopicPartition::new(Arc::clone(&record.topic), record.partition);
            following.insert(at, record.offset.plus(1));
        }
        // In the log while it is open.
        sleep(hold).await;
        let of = self.consumer.offsets_of(following.keys())?;
        let offsets: Vec<(TopicPartition, Offset)> = following.into_iter().collect();
        let mut asked = 0;
        loop {
            match self.producer.send_offsets(&of, &offsets).await {
                Err(error) if error.retriable && asked < ASKED_MAX => asked += 1,
                answered => return answered,
            }
        }
    }

    async fn commit(&mut self) -> Result<(), Error> {
        let mut asked = 0;
        loop {
            match self.producer.commit().await {
                Err(error) if error.retriable && asked < ASKED_MAX => asked += 1,
                answered => return answered,
            }
            sleep(AGAIN).await;
        }
    }

    async fn abort(&mut self) -> Result<(), Error> {
        let mut asked = 0;
        loop {
            match self.producer.abort().await {
                Err(error) if error.retriable && asked < ASKED_MAX => asked += 1,
                answered => return answered,
            }
            sleep(AGAIN).await;
        }
    }

    /// Aborts what cannot be committed, if this producer may.
    async fn give_up(&mut self, number: u32, count: usize, error: &Error) -> Result<(), Error> {
        if error.needs_new_producer() || error.retriable {
            return Err(error.clone());
        }
        println!("E transaction {number} {}", one_line(error));
        self.abort().await?;
        println!("X {number} {count} {} forced", now());
        Ok(())
    }
}
