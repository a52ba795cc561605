//! A worker of a pipeline with the SDK, in a process of its own: the same as `clients/pipeline.py`, which says what it tells on standard output.

use super::workers::{SESSION, SILENT_AT_MOST};
use super::{check, transactional_id};
use crate::clock::now;
use crate::fleet::connect;
use crate::payload;
use millpond_sdk::{
    Client, ConsumerRecord, Error, GroupConfig, GroupConsumer, IsolationLevel, Offset, ProducerRecord, RebalanceListener,
    Revoked, Subscription, TopicPartition, TransactionalConfig, TransactionalProducer,
};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use std::collections::BTreeMap;
use std::process::ExitCode;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::io::AsyncReadExt;
use tokio_util::sync::CancellationToken;

/// The first argument of a process that is one.
pub(crate) const MODE: &str = "pipeline-worker";

/// A transaction has so many records at most, of so much time, and is then held open for up to so long.
const RECORDS_MAX: usize = 60;
const COLLECT: Duration = Duration::from_millis(100);
const HOLD_MS: u64 = 150;

/// One of so many is aborted though nothing is wrong with it.
const ABORTS: u32 = 8;

/// How often an answer is asked for again: beyond that the worker is of no use.
const ASKED_MAX: u32 = 12;

/// What was read, and is in no committed transaction.
type Pending = Arc<Mutex<Vec<ConsumerRecord>>>;

/// What the process is told on its command line.
struct Orders {
    bootstrap: String,
    source: String,
    sink: String,
    sinks: u16,
    group: String,
    worker: u16,
    life: u32,
}

impl Orders {
    fn read(mut arguments: impl Iterator<Item = String>) -> Option<Orders> {
        let mut next = || arguments.next();
        Some(Orders {
            bootstrap: next()?,
            source: next()?,
            sink: next()?,
            sinks: next()?.parse().ok()?,
            group: next()?,
            worker: next()?.parse().ok()?,
            life: next()?.parse().ok()?,
        })
    }
}

/// Forgets what was read of partitions that go: it is whoever's who gets them.
struct Forget(Pending);

impl Forget {
    fn forget(&self, gone: &[TopicPartition]) {
        let mut pending = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        pending.retain(|record| !gone.contains(&record.topic_partition()));
    }
}

impl RebalanceListener for Forget {
    async fn revoked(&mut self, revoked: &Revoked) {
        self.forget(revoked.partitions());
    }

    async fn lost(&mut self, partitions: &[TopicPartition]) {
        self.forget(partitions);
    }
}

/// Works until standard input ends; 3 if it cannot go on.
pub(crate) fn work(arguments: impl Iterator<Item = String>) -> ExitCode {
    let Some(orders) = Orders::read(arguments) else {
        eprintln!("error: a worker is started by the scenario `pipeline` only");
        return ExitCode::from(2);
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.expect("a runtime starts");
    let stop = CancellationToken::new();
    let code = runtime.block_on(async {
        tokio::spawn(end_of_input(stop.clone()));
        match pipe(&orders, &stop).await {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                println!("F {} {:?} {error}", now(), error.code);
                ExitCode::from(3)
            }
        }
    });
    // Whoever still waits for input does not hold the process up.
    runtime.shutdown_background();
    code
}

async fn end_of_input(stop: CancellationToken) {
    let mut rest = Vec::new();
    // However it ends, it has ended.
    let _ = tokio::io::stdin().read_to_end(&mut rest).await;
    stop.cancel();
}

async fn pipe(orders: &Orders, stop: &CancellationToken) -> Result<(), Error> {
    let mut worker = Worker::start(orders).await?;
    while !stop.is_cancelled() {
        worker.collect().await;
        if !worker.pending().is_empty() {
            worker.transact(orders).await?;
        }
    }
    worker.consumer.close().await
}

struct Worker {
    producer: TransactionalProducer,
    consumer: GroupConsumer,
    pending: Pending,
    random: StdRng,
    number: u32,
}

impl Worker {
    async fn start(orders: &Orders) -> Result<Worker, Error> {
        let client: Client = match connect(&orders.bootstrap).await {
            Ok(client) => client,
            Err(error) => {
                println!("E {error}");
                Client::connect(&orders.bootstrap).await?
            }
        };
        let mut config = TransactionalConfig::new(&transactional_id(orders.worker));
        config.timeout = SILENT_AT_MOST;
        config.producer.linger = Duration::from_millis(2);
        let producer = TransactionalProducer::new(&client, config).await?;
        let mut config = GroupConfig::new(&orders.group);
        config.reader.isolation = IsolationLevel::ReadCommitted;
        config.reader.poll_records_max = RECORDS_MAX;
        // Longer than any call takes; a stopped process is found out by its session.
        config.poll_interval_max = SESSION * 20;
        let pending = Pending::default();
        let topics = Subscription::topics([orders.source.as_str()]);
        let consumer = GroupConsumer::with_listener(&client, config, topics, Forget(Arc::clone(&pending)))?;
        let random = StdRng::seed_from_u64(u64::from(orders.worker) << 32 | u64::from(orders.life));
        Ok(Worker { producer, consumer, pending, random, number: 0 })
    }

    fn pending(&self) -> Vec<ConsumerRecord> {
        self.pending.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Reads until there is enough, or for long enough. Partitions go and come meanwhile.
    async fn collect(&mut self) {
        let end = tokio::time::Instant::now() + COLLECT;
        loop {
            let rest = end.saturating_duration_since(tokio::time::Instant::now());
            match self.consumer.poll(rest).await {
                Ok(records) => self.pending.lock().unwrap_or_else(PoisonError::into_inner).extend(records),
                Err(error) => println!("E {error}"),
            }
            if rest.is_zero() || self.pending().len() >= RECORDS_MAX {
                return;
            }
        }
    }

    /// One transaction of all that is pending. An error that is returned is one that no abort mends.
    async fn transact(&mut self, orders: &Orders) -> Result<(), Error> {
        let (number, records) = (self.number, self.pending());
        let count = records.len();
        self.number += 1;
        println!("B {number} {}", now());
        let meant = self.random.random_range(0..ABORTS) == 0;
        match self.write(orders, number, &records, meant).await {
            Ok(()) if !meant => {
                self.pending.lock().unwrap_or_else(PoisonError::into_inner).clear();
                println!("C {number} {count} {}", now());
                return Ok(());
            }
            Ok(()) => {}
            Err(error) => println!("E transaction {number} {error}"),
        }
        self.again(async |producer| producer.abort().await).await?;
        println!("X {number} {count} {} {}", now(), if meant { "meant" } else { "forced" });
        Ok(())
    }

    async fn write(
        &mut self,
        orders: &Orders,
        number: u32,
        records: &[ConsumerRecord],
        meant: bool,
    ) -> Result<(), Error> {
        self.producer.begin()?;
        let label = format!("{}/{}/{number}", orders.worker, orders.life);
        let mut following: BTreeMap<TopicPartition, Offset> = BTreeMap::new();
        for record in records {
            self.producer.send(output(orders, record, &label)).await?;
            following.insert(record.topic_partition(), record.offset.plus(1));
        }
        let hold = Duration::from_millis(self.random.random_range(0..HOLD_MS));
        tokio::time::sleep(hold).await;
        let member = self.consumer.offsets_of(following.keys())?;
        let offsets: Vec<(TopicPartition, Offset)> = following.into_iter().collect();
        self.again(async |producer| producer.send_offsets(&member, &offsets).await).await?;
        if meant {
            return Ok(());
        }
        println!("K {number} {} {}", records.len(), now());
        self.again(async |producer| producer.commit().await).await
    }

    /// Asks until the answer is another than that it may be asked for again.
    async fn again(
        &mut self,
        ask: impl AsyncFn(&mut TransactionalProducer) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let mut asked = 1;
        loop {
            match ask(&mut self.producer).await {
                Err(error) if error.retriable && asked < ASKED_MAX => asked += 1,
                answer => return answer,
            }
        }
    }
}

fn output(orders: &Orders, record: &ConsumerRecord, label: &str) -> ProducerRecord {
    let input = record.value.as_deref().unwrap_or_default();
    let value = [format!("{}/{}/", record.partition, record.offset).as_bytes(), input].concat();
    let partition = payload::read(input).map_or(0, |id| check::place(id, orders.sinks));
    let mut output = ProducerRecord::new(orders.sink.as_str()).partition(u32::from(partition)).value(value);
    output.key.clone_from(&record.key);
    output.header("txn", label.to_owned())
}
