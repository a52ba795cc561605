//! Transactions on a fleet of processes: their outcome is decided once, and arrives everywhere, whoever dies in between.
//!
//! The clients here speak gRPC as it is: what the SDK adds is tested there.

use millpond_log::batch::{BatchBuilder, NewRecord, ProducerStamp};
use millpond_log::codec::Codec;
use millpond_log::transactions::TxnOutcome;
use millpond_log::{Batch, ProducerEpoch, ProducerId, TimestampMs};
use millpond_proto::v1;
use millpond_proto::v1::groups_client::GroupsClient;
use millpond_proto::v1::log_client::LogClient;
use millpond_proto::v1::transactions_client::TransactionsClient;
use millpond_sdk::{
    Admin, ErrorCode, NewTopic, Offset, OffsetsOf, ProducerRecord, TopicDescription, TopicPartition,
    TransactionalConfig, TransactionalProducer,
};
use millpond_tests::fleet::{Fleet, FleetOptions};
use std::collections::BTreeMap;
use std::time::Duration;
use tonic::{Code, Status};
use tonic_types::StatusExt;

const TOPIC: &str = "ledger";
const PARTITIONS: u32 = 6;
const GROUP: &str = "readers";

/// How often is tried what passes by itself, and for how long before the test is called stuck.
const LOOK: Duration = Duration::from_millis(50);
const PATIENCE: Duration = Duration::from_secs(60);

/// One transactional id, and who its client is at the moment.
struct Client<'a> {
    ledger: &'a Ledger,
    id: String,
    producer: v1::Producer,
    sequences: BTreeMap<u32, i32>,
}

/// A fleet with one topic.
struct Ledger {
    fleet: Fleet,
    topic_id: String,
}

/// Kafka's name of the reason.
fn reason(status: &Status) -> String {
    status.get_details_error_info().map_or_else(|| status.to_string(), |info| info.reason)
}

fn passes(status: &Status) -> bool {
    let told = status.get_details_error_info().and_then(|info| info.metadata.get("retriable").cloned());
    // A broker that dies takes its answer with it.
    told.map_or(matches!(status.code(), Code::Unavailable | Code::Unknown | Code::Cancelled), |told| told == "true")
}

/// Tries until something comes of it.
async fn until<T>(what: &str, attempt: impl AsyncFn() -> Result<T, Status>) -> Result<T, String> {
    let mut look = tokio::time::interval(LOOK);
    let tried = tokio::time::timeout(PATIENCE, async {
        loop {
            look.tick().await;
            match attempt().await {
                Err(status) if passes(&status) => {}
                done => return done.map_err(|status| reason(&status)),
            }
        }
    });
    tried.await.unwrap_or_else(|_| panic!("not within {PATIENCE:?}: {what}"))
}

fn unreachable(error: impl std::fmt::Display) -> Status {
    Status::unavailable(error.to_string())
}

impl Ledger {
    async fn start() -> Ledger {
        let options = FleetOptions::new(3);
        let fleet = Fleet::start(&options).await.expect("every machine has what it takes");
        let mut topic = NewTopic::new(TOPIC);
        (topic.partitions, topic.replication_factor) = (Some(PARTITIONS), Some(3));
        let created = Admin::new(&fleet.connect().await).create_topic(topic).await.expect("the topic is new");
        fleet.wait_until_in_sync().await;
        Ledger { topic_id: created.id.to_string(), fleet }
    }

    fn running(&self) -> impl Iterator<Item = usize> + '_ {
        (0..self.fleet.size()).filter(|broker| self.fleet.runs(*broker))
    }

    /// The broker that coordinates a transactional id.
    async fn coordinator(&self, id: &str) -> Result<usize, Status> {
        for broker in self.running() {
            let any = TransactionsClient::connect(format!("http://{}", self.fleet.grpc(broker))).await;
            let Ok(mut any) = any else { continue };
            let request = v1::FindTransactionCoordinatorRequest { transactional_id: id.to_owned() };
            if let Ok(found) = any.find_transaction_coordinator(request).await {
                return Ok(found.into_inner().id as usize);
            }
        }
        Err(Status::unavailable("nobody knows"))
    }

    async fn group_coordinator(&self) -> Result<GroupsClient<tonic::transport::Channel>, Status> {
        for broker in self.running() {
            let any = GroupsClient::connect(format!("http://{}", self.fleet.grpc(broker))).await;
            let Ok(mut any) = any else { continue };
            if let Ok(found) = any.find_coordinator(v1::FindCoordinatorRequest { group: GROUP.to_owned() }).await {
                return GroupsClient::connect(format!("http://{}", found.into_inner().grpc)).await.map_err(unreachable);
            }
        }
        Err(Status::unavailable("nobody knows"))
    }

    /// A transactional id that is coordinated by this broker.
    async fn id_coordinated_by(&self, broker: usize) -> String {
        for n in 0..1000 {
            let id = format!("teller-{n}");
            if until("a coordinator", async || self.coordinator(&id).await).await == Ok(broker) {
                return id;
            }
        }
        panic!("broker {broker} coordinates nothing");
    }

    /// The leader of a partition, by an answer of any broker.
    async fn leader(&self, partition: u32) -> Result<usize, Status> {
        for broker in self.running() {
            let Ok(client) = millpond_sdk::Client::connect(&self.fleet.grpc(broker)).await else { continue };
            let Ok(topic) = Admin::new(&client).describe_topic(TOPIC).await else { continue };
            if let Some(leader) = topic.partitions[partition as usize].leader {
                return Ok(leader.0 as usize);
            }
        }
        Err(Status::unavailable("nobody leads"))
    }

    async fn log(&self, partition: u32) -> Result<LogClient<tonic::transport::Channel>, Status> {
        let leader = self.leader(partition).await?;
        if !self.fleet.runs(leader) {
            return Err(Status::unavailable("the leader is down"));
        }
        LogClient::connect(format!("http://{}", self.fleet.grpc(leader))).await.map_err(unreachable)
    }

    async fn fetch(&self, partition: u32) -> Result<v1::FetchOneResponse, Status> {
        let request =
            v1::FetchOneRequest { topic: Some(v1::TopicRef::name(TOPIC)), partition, ..v1::FetchOneRequest::default() };
        Ok(self.log(partition).await?.fetch_one(request).await?.into_inner())
    }

    /// The end of a partition's committed records, by a leader that is sure of it.
    async fn proven_end(&self, partition: u32) -> Result<u64, Status> {
        let client = millpond_sdk::Client::connect(&self.fleet.grpc(self.leader(partition).await?)).await;
        let client = client.map_err(unreachable)?;
        let found = Admin::new(&client).list_offset(TOPIC, partition, millpond_sdk::OffsetSpec::Latest).await;
        Ok(found.map_err(unreachable)?.expect("every log has an end").offset.0)
    }

    /// The values that are in a partition, and how transactions end there, in order, once all is decided.
    async fn settled(&self, partition: u32) -> (Vec<String>, Vec<TxnOutcome>) {
        let fetched = until("every transaction has ended", async || {
            // A new leader knows less to be committed than the old one did, until it has proven the end of its log; this waits for that.
            let end = self.proven_end(partition).await?;
            let fetched = self.fetch(partition).await?;
            match fetched.high_watermark >= end && fetched.last_stable == fetched.high_watermark {
                true => Ok(fetched),
                false => Err(Status::unavailable("open")),
            }
        });
        let mut bytes =
            fetched.await.expect("it can be read").records.map(|records| records.into_bytes()).unwrap_or_default();
        let (mut values, mut ends) = (Vec::new(), Vec::new());
        while let Some(batch) = Batch::take(&mut bytes).expect("sound") {
            match batch.end_marker().expect("sound") {
                Some(end) => ends.push(end.outcome),
                None => values.extend(batch.records().expect("sound").map(|record| {
                    let value = record.expect("sound").value.expect("it has one");
                    String::from_utf8(value.to_vec()).expect("text")
                })),
            }
        }
        (values, ends)
    }

    fn partition(&self, partition: u32) -> v1::GroupPartition {
        v1::GroupPartition { topic_id: self.topic_id.clone(), partition }
    }

    /// What the group has committed of a partition, once no transaction is open there.
    async fn committed(&self, partition: u32) -> Option<u64> {
        let fetched = until("offsets are stable", async || {
            let request = v1::FetchOffsetsRequest {
                group: GROUP.to_owned(),
                partitions: vec![self.partition(partition)],
                require_stable: true,
                ..v1::FetchOffsetsRequest::default()
            };
            let fetched = self.group_coordinator().await?.fetch_offsets(request).await?.into_inner();
            match fetched.offsets[0].error.as_str() {
                "UNSTABLE_OFFSET_COMMIT" => Err(Status::unavailable("open")),
                _ => Ok(fetched.offsets[0].clone()),
            }
        });
        let fetched = fetched.await.expect("it can be read");
        assert_eq!(fetched.error, "");
        fetched.offset
    }

    async fn describe(&self, id: &str) -> v1::Transaction {
        let described = until("a description", async || {
            let request = v1::DescribeTransactionRequest { transactional_id: id.to_owned() };
            self.transactions(id).await?.describe_transaction(request).await
        });
        described.await.expect("it is known").into_inner().transaction.expect("it is there")
    }

    async fn transactions(&self, id: &str) -> Result<TransactionsClient<tonic::transport::Channel>, Status> {
        let coordinator = self.coordinator(id).await?;
        TransactionsClient::connect(format!("http://{}", self.fleet.grpc(coordinator))).await.map_err(unreachable)
    }

    async fn client(&self, id: &str, timeout_ms: u32) -> Client<'_> {
        let initialised = until("a producer", async || {
            let transactional_id = id.to_owned();
            let request = v1::InitTransactionsRequest { transactional_id, timeout_ms, expected: None };
            self.transactions(id).await?.init_transactions(request).await
        });
        let producer = initialised.await.expect("nobody is fenced").into_inner().producer.expect("it is told");
        Client { ledger: self, id: id.to_owned(), producer, sequences: BTreeMap::new() }
    }
}

impl Client<'_> {
    /// Writes one record in the transaction.
    async fn write(&mut self, partition: u32, value: &str) -> Result<(), String> {
        let sequence = self.sequences.entry(partition).or_default();
        let stamp = ProducerStamp {
            id: ProducerId(self.producer.id),
            epoch: ProducerEpoch(u16::try_from(self.producer.epoch).expect("small")),
            base_sequence: *sequence,
        };
        *sequence += 1;
        let mut batch = BatchBuilder::new(Codec::None).producer(stamp).transactional();
        batch.push(NewRecord { timestamp: TimestampMs(1), key: None, value: Some(value.as_bytes()), headers: &[] });
        let batch = batch.build();
        let written = until("a write", async || {
            let request = v1::ProduceRequest {
                topic: Some(v1::TopicRef::name(TOPIC)),
                partition,
                records: Some(vec![batch.clone()].into()),
                transactional_id: self.id.clone(),
                ..v1::ProduceRequest::default()
            };
            self.ledger.log(partition).await?.produce_one(request).await
        });
        written.await.map(drop)
    }

    async fn commit_offset(&self, partition: u32, offset: u64) -> Result<(), String> {
        let committed = until("a commit of offsets", async || {
            let place = Some(self.ledger.partition(partition));
            let to_commit = v1::OffsetToCommit { partition: place, offset, ..v1::OffsetToCommit::default() };
            let offsets = v1::CommitOffsetsRequest {
                group: GROUP.to_owned(),
                epoch: -1,
                offsets: vec![to_commit],
                ..v1::CommitOffsetsRequest::default()
            };
            let request = v1::CommitTransactionOffsetsRequest {
                transactional_id: self.id.clone(),
                producer: Some(self.producer),
                offsets: Some(offsets),
            };
            let found = self.ledger.group_broker().await?;
            let mut at = TransactionsClient::connect(format!("http://{found}")).await.map_err(unreachable)?;
            at.commit_transaction_offsets(request).await
        });
        let outcomes = committed.await?.into_inner().outcomes;
        assert!(outcomes.iter().all(|outcome| outcome.error.is_empty()), "{outcomes:?}");
        Ok(())
    }

    /// Ends the transaction; once this returns, its outcome is decided.
    async fn end(&mut self, commit: bool) -> Result<(), String> {
        let ended = until("the end of a transaction", async || {
            let (transactional_id, producer) = (self.id.clone(), Some(self.producer));
            let request = v1::EndTransactionRequest { transactional_id, producer, commit };
            self.ledger.transactions(&self.id).await?.end_transaction(request).await
        });
        self.producer = ended.await?.into_inner().producer.expect("it is told");
        self.sequences.clear();
        Ok(())
    }
}

impl Ledger {
    /// Where the group's coordinator speaks gRPC.
    async fn group_broker(&self) -> Result<String, Status> {
        for broker in self.running() {
            let any = GroupsClient::connect(format!("http://{}", self.fleet.grpc(broker))).await;
            let Ok(mut any) = any else { continue };
            if let Ok(found) = any.find_coordinator(v1::FindCoordinatorRequest { group: GROUP.to_owned() }).await {
                return Ok(found.into_inner().grpc);
            }
        }
        Err(Status::unavailable("nobody knows"))
    }
}

/// Rules X1, X2, X3, X5, O1.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_transaction_over_partitions_and_offsets_is_visible_whole_or_not_at_all() {
    let ledger = Ledger::start().await;
    let mut client = ledger.client("teller", 0).await;
    for (transaction, commit) in [(1, true), (2, false), (3, true)] {
        for partition in 0..PARTITIONS {
            client.write(partition, &format!("{transaction}")).await.expect("it may");
            client.write(partition, &format!("{transaction}+")).await.expect("it may");
        }
        client.commit_offset(0, transaction * 10).await.expect("it may");
        let open = ledger.fetch(0).await.expect("it can be read");
        assert!(open.last_stable < open.high_watermark, "nothing of it is stable before its end");
        let epoch = client.producer.epoch;
        client.end(commit).await.expect("it ends");
        assert_eq!(client.producer.epoch, epoch + 1, "rule X1");
        // What is refused for another outcome, and told again for the same, is the same transaction.
        let expected = if transaction == 3 { 30 } else { 10 };
        assert_eq!(ledger.committed(0).await, Some(expected));
    }
    for partition in 0..PARTITIONS {
        let (values, ends) = ledger.settled(partition).await;
        assert_eq!(values, ["1", "1+", "2", "2+", "3", "3+"], "in order, once");
        assert_eq!(ends, [TxnOutcome::Commit, TxnOutcome::Abort, TxnOutcome::Commit]);
    }
    let told = ledger.describe("teller").await;
    assert_eq!((told.state.as_str(), told.partitions.len(), told.groups.len()), ("CompleteCommit", 0, 0));
    ledger.fleet.stop().await;
}

/// Leads a partition, and coordinates nothing of the test.
fn leaders(topic: &TopicDescription) -> BTreeMap<u32, usize> {
    let led = topic.partitions.iter().map(|at| (at.index, at.leader.expect("all are led").0 as usize));
    led.collect()
}

/// Rules X2, X5, O3: the decision is durable, so whoever coordinates next completes it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn markers_arrive_although_their_coordinator_is_killed_before_it_can_send_them_all() {
    let mut ledger = Ledger::start().await;
    let topic = ledger.fleet.wait_until_in_sync().await.remove(0);
    let stands = leaders(&topic)[&0];
    let dies = (stands + 1) % 3;
    let id = ledger.id_coordinated_by(dies).await;
    let mut client = ledger.client(&id, 0).await;
    for partition in 0..PARTITIONS {
        client.write(partition, "v").await.expect("it may");
    }
    client.commit_offset(3, 7).await.expect("it may");
    let (id, producer) = (client.id.clone(), client.producer);
    // Whoever stands still takes no marker: the one that decides cannot complete.
    let at = ledger.fleet.grpc(dies);
    ledger.fleet.pause(stands);
    let mut coordinator = TransactionsClient::connect(format!("http://{at}")).await.expect("it is up");
    let request = v1::EndTransactionRequest { transactional_id: id.clone(), producer: Some(producer), commit: true };
    let ended = coordinator.end_transaction(request).await.expect("it is decided").into_inner();
    assert_eq!(ended.producer.expect("told").epoch, producer.epoch + 1);
    ledger.fleet.kill(dies);
    ledger.fleet.resume(stands);
    for partition in 0..PARTITIONS {
        let (values, ends) = ledger.settled(partition).await;
        assert_eq!(values, ["v"]);
        // Rule X5: where the one that died had written it, the next owner's is there behind it, and fences the earlier one.
        assert!(matches!(ends.as_slice(), [TxnOutcome::Commit] | [TxnOutcome::Commit, TxnOutcome::Commit]), "{ends:?}");
    }
    assert_eq!(ledger.committed(3).await, Some(7));
    ledger.fleet.restart(dies).await;
    ledger.fleet.stop().await;
}

/// Rule X5: a marker is sent until it is committed, to whoever leads then.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn markers_arrive_although_a_leader_is_killed_before_it_has_them() {
    let mut ledger = Ledger::start().await;
    let topic = ledger.fleet.wait_until_in_sync().await.remove(0);
    let dies = leaders(&topic)[&0];
    let id = ledger.id_coordinated_by((dies + 1) % 3).await;
    let mut client = ledger.client(&id, 0).await;
    for partition in 0..PARTITIONS {
        client.write(partition, "v").await.expect("it may");
    }
    let (id, producer) = (client.id.clone(), client.producer);
    let at = ledger.fleet.grpc((dies + 1) % 3);
    ledger.fleet.pause(dies);
    let mut coordinator = TransactionsClient::connect(format!("http://{at}")).await.expect("it is up");
    let request = v1::EndTransactionRequest { transactional_id: id, producer: Some(producer), commit: false };
    coordinator.end_transaction(request).await.expect("it is decided");
    ledger.fleet.kill(dies);
    for partition in 0..PARTITIONS {
        let (values, ends) = ledger.settled(partition).await;
        assert_eq!((values.len(), ends.as_slice()), (1, [TxnOutcome::Abort].as_slice()));
    }
    ledger.fleet.restart(dies).await;
    ledger.fleet.stop().await;
}

/// Rules X1, X8.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whoever_is_fenced_writes_nothing_more_and_its_transaction_is_aborted() {
    let ledger = Ledger::start().await;
    // By time.
    let mut slow = ledger.client("slow", 300).await;
    slow.write(0, "timed out").await.expect("it may");
    assert_eq!(ledger.settled(0).await.1, [TxnOutcome::Abort]);
    assert_eq!(slow.write(0, "late").await, Err("INVALID_PRODUCER_EPOCH".to_owned()));
    assert_eq!(slow.end(true).await, Err("PRODUCER_FENCED".to_owned()));
    // By another instance.
    let mut older = ledger.client("worker", 0).await;
    older.write(1, "of the older one").await.expect("it may");
    let mut newer = ledger.client("worker", 0).await;
    assert_eq!(ledger.settled(1).await.1, [TxnOutcome::Abort]);
    assert_eq!(older.write(1, "late").await, Err("INVALID_PRODUCER_EPOCH".to_owned()));
    assert_eq!(older.write(2, "late").await, Err("INVALID_PRODUCER_EPOCH".to_owned()), "where nothing is known of it");
    assert_eq!(older.commit_offset(1, 1).await, Err("PRODUCER_FENCED".to_owned()));
    newer.write(1, "of the newer one").await.expect("it may");
    newer.end(true).await.expect("it ends");
    assert_eq!(ledger.settled(1).await.0, ["of the older one", "of the newer one"]);
    // By an operator.
    let mut hanging = ledger.client("hanging", 0).await;
    hanging.write(3, "v").await.expect("it may");
    assert_eq!(ledger.describe("hanging").await.state, "Ongoing");
    let request = v1::AbortTransactionRequest { transactional_id: "hanging".to_owned() };
    let mut coordinator = ledger.transactions("hanging").await.expect("it is up");
    coordinator.abort_transaction(request).await.expect("it is known");
    assert_eq!(ledger.settled(3).await.1, [TxnOutcome::Abort]);
    assert_eq!(hanging.end(true).await, Err("PRODUCER_FENCED".to_owned()));
    let request = v1::AbortTransactionRequest { transactional_id: "nobody".to_owned() };
    let unknown =
        until("a refusal", async || ledger.transactions("nobody").await?.abort_transaction(request.clone()).await);
    assert_eq!(unknown.await.map(drop), Err("TRANSACTIONAL_ID_NOT_FOUND".to_owned()));
    ledger.fleet.stop().await;
}

fn record(partition: u32, value: &str) -> ProducerRecord {
    ProducerRecord { partition: Some(partition), ..ProducerRecord::new(TOPIC).value(value.to_owned()) }
}

/// What the SDK adds: states, and errors that say what to do.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_transactional_producer_commits_and_aborts_whole_and_tells_what_to_do_when_fenced() {
    let ledger = Ledger::start().await;
    let client = ledger.fleet.connect().await;
    let mut producer = TransactionalProducer::new(&client, TransactionalConfig::new("sdk")).await.expect("it is new");
    let of = OffsetsOf { group: GROUP.to_owned(), member: None };
    let at = TopicPartition { topic: TOPIC.into(), partition: 0 };
    assert_eq!(producer.commit().await.expect_err("nothing is open").code, Some(ErrorCode::InvalidTxnState));
    for (transaction, commit) in [("1", true), ("2", false), ("3", true)] {
        producer.begin().expect("none is open");
        assert_eq!(producer.begin().expect_err("one is").code, Some(ErrorCode::InvalidTxnState));
        for partition in 0..PARTITIONS {
            drop(
                producer.send(record(partition, transaction)).await.expect("it is taken").await.expect("it is written"),
            );
        }
        let next = Offset(transaction.parse().expect("a number"));
        producer.send_offsets(&of, &[(at.clone(), next)]).await.expect("it may");
        match commit {
            true => producer.commit().await.expect("it is committed"),
            false => producer.abort().await.expect("it is aborted"),
        }
        assert_eq!(ledger.committed(0).await, Some(if commit { next.0 } else { 1 }));
    }
    // One that holds nothing asks nobody.
    producer.begin().expect("none is open");
    producer.commit().await.expect("nothing is to be committed");
    for partition in 0..PARTITIONS {
        let (values, ends) = ledger.settled(partition).await;
        assert_eq!(values, ["1", "2", "3"]);
        assert_eq!(ends, [TxnOutcome::Commit, TxnOutcome::Abort, TxnOutcome::Commit]);
    }
    let mut newer = TransactionalProducer::new(&client, TransactionalConfig::new("sdk")).await.expect("it takes over");
    producer.begin().expect("it does not know yet");
    let sent = producer.send(record(0, "late")).await;
    if let Ok(delivery) = sent {
        assert!(delivery.await.expect_err("it is fenced").needs_new_producer());
    }
    assert!(producer.commit().await.expect_err("it is fenced").needs_new_producer());
    newer.begin().expect("none is open");
    drop(newer.send(record(0, "4")).await.expect("it is taken"));
    newer.commit().await.expect("the record is waited for");
    assert_eq!(ledger.settled(0).await.0, ["1", "2", "3", "4"]);
    ledger.fleet.stop().await;
}

/// Commits of coordinators so far.
async fn commits(ledger: &Ledger) -> f64 {
    let mut commits = 0.0;
    for broker in ledger.running() {
        let (_, text) = millpond_tests::http::get(&ledger.fleet.http(broker), "/metrics").await.expect("it is up");
        let of_txn =
            |line: &&str| line.starts_with("millpond_coordinator_commit_seconds_count") && line.contains("txn");
        let counts = text.lines().filter(of_txn).filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok());
        commits += counts.sum::<f64>();
    }
    commits
}

/// Many producers at once: all of their transactions end, each once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn transactions_of_many_producers_all_end() {
    const EACH: usize = 10;
    let ledger = Ledger::start().await;
    let client = ledger.fleet.connect().await;
    let mut ended = 0;
    for producers in [1, 20] {
        let (began, before) = (tokio::time::Instant::now(), commits(&ledger).await);
        let tasks: Vec<_> = (0..producers)
            .map(|n| {
                let client = client.clone();
                tokio::spawn(async move {
                    let config = TransactionalConfig::new(&format!("many-{producers}-{n}"));
                    let mut producer = TransactionalProducer::new(&client, config).await.expect("it is new");
                    for _ in 0..EACH {
                        producer.begin().expect("none is open");
                        for partition in 0..2 {
                            drop(producer.send(record(partition, "v")).await.expect("it is taken"));
                        }
                        producer.commit().await.expect("it is committed");
                    }
                })
            })
            .collect();
        for task in tasks {
            task.await.expect("all is committed");
        }
        ended += producers * EACH;
        let (took, made) = (began.elapsed(), commits(&ledger).await - before);
        let (count, seconds) = ((producers * EACH) as f64, took.as_secs_f64());
        println!("{producers} producers: {:.1} transactions/s, {:.2} commits each", count / seconds, made / count);
    }
    for partition in 0..2 {
        let (values, ends) = ledger.settled(partition).await;
        assert_eq!((values.len(), ends.len()), (ended, ended));
        assert!(ends.iter().all(|end| *end == TxnOutcome::Commit));
    }
    ledger.fleet.stop().await;
}
