//! Three brokers in this process: transactions of clients that speak to whoever coordinates and leads.

use super::passes;
use crate::api::{Acks, ApiError, InTransaction, NewTopic, ProduceRequest, TopicRef, TransactionOffsets};
use crate::broker::Broker;
use crate::config::Config;
use crate::secret::Secret;
use crate::server::{Components, Running, start};
use crate::wal::disk::RealDisk;
use millpond_core::groups::{Answer, Commit, CommitOffset, Fetch, Request};
use millpond_core::records::{ProducerInstance, TransactionState};
use millpond_log::batch::{BatchBuilder, NewRecord, ProducerStamp};
use millpond_log::codec::Codec;
use millpond_log::transactions::TxnOutcome;
use millpond_log::{BrokerId, ErrorCode, Offset, PartitionId, ProducerEpoch, TimestampMs, TopicId};
use millpond_metadata::clock::SystemClock;
use millpond_metadata::embedded::Embedded;
use millpond_metadata::keys::Keys;
use object_store::memory::InMemory;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio_util::sync::CancellationToken;

const PARTITIONS: u32 = 6;
const GROUP: &str = "readers";

/// How often is tried what passes by itself, and for how long before the test is called stuck.
const LOOK: Duration = Duration::from_millis(20);
const PATIENCE: Duration = Duration::from_secs(60);

struct Fleet {
    running: Vec<(Running, CancellationToken)>,
    topic: TopicId,
    _dir: tempfile::TempDir,
}

/// One instance of a client, and what it writes next in each partition.
struct Client<'a> {
    fleet: &'a Fleet,
    transaction: InTransaction,
    producer: ProducerInstance,
    sequences: BTreeMap<u32, i32>,
}

/// Tries until something comes of it that does not pass by itself.
async fn settled<T>(what: &str, attempt: impl AsyncFn() -> Result<T, ApiError>) -> Result<T, ErrorCode> {
    let mut look = tokio::time::interval(LOOK);
    let tried = tokio::time::timeout(PATIENCE, async {
        loop {
            look.tick().await;
            match attempt().await {
                Err(error) if passes(error.code) || error.code.retriable() => {}
                done => return done.map_err(|error| error.code),
            }
        }
    });
    tried.await.unwrap_or_else(|_| panic!("not within {PATIENCE:?}: {what}"))
}

impl Fleet {
    async fn start() -> Fleet {
        let dir = tempfile::tempdir().expect("a temporary folder");
        let metadata = Arc::new(Embedded::in_memory(Arc::new(SystemClock::start())));
        let objects = Arc::new(InMemory::new());
        let mut running = Vec::new();
        for id in 0..3 {
            let mut config = Config::local(dir.path().join(id.to_string()));
            for listener in [&mut config.grpc, &mut config.kafka[0].listener, &mut config.http] {
                listener.bind = SocketAddr::from(([127, 0, 0, 1], 0));
            }
            (config.id, config.wal_file_bytes, config.wal_bytes) = (BrokerId(id), 4 << 20, 64 << 20);
            config.cluster_secret = Some(Secret::new(b"known to the brokers of this test").expect("it is long enough"));
            let components = Components {
                metadata: metadata.clone(),
                keys: Keys::for_cluster("tests"),
                objects: objects.clone(),
                disk: Arc::new(RealDisk),
            };
            let stop = CancellationToken::new();
            let started = start(config, components, stop.clone()).await.expect("the broker comes up");
            running.push((started, stop));
        }
        let mut fleet = Fleet { running, topic: TopicId(0), _dir: dir };
        let created = settled("a topic", async || {
            let (partitions, replication_factor) = (Some(PARTITIONS), Some(3));
            let topic = NewTopic { name: "ledger".to_owned(), partitions, replication_factor, ..NewTopic::default() };
            fleet.any().create_topic(topic).await
        });
        fleet.topic = created.await.expect("it is new").topic.id;
        fleet
    }

    async fn stop(self) {
        for (running, stop) in self.running {
            stop.cancel();
            running.ended().await.expect("it ends cleanly");
        }
    }

    fn brokers(&self) -> impl Iterator<Item = &Broker> {
        self.running.iter().map(|(running, _)| &running.broker)
    }

    fn any(&self) -> &Broker {
        &self.running[0].0.broker
    }

    fn broker(&self, id: BrokerId) -> Broker {
        self.brokers().find(|broker| broker.id() == id).expect("all are here").clone()
    }

    fn coordinator(&self, id: &str) -> Result<Broker, ApiError> {
        Ok(self.broker(self.any().transaction_coordinator(id)?.broker.id))
    }

    fn group_coordinator(&self) -> Result<Broker, ApiError> {
        Ok(self.broker(self.any().group_coordinator(GROUP)?.broker.id))
    }

    fn partition(&self, index: u32) -> PartitionId {
        PartitionId { topic: self.topic, index }
    }

    fn leader(&self, partition: u32) -> Result<Broker, ApiError> {
        let handle = self.any().partition(&TopicRef::Id(self.topic), partition)?;
        let none = || ApiError::new(ErrorCode::LeaderNotAvailable, "nobody leads");
        Ok(self.broker(handle.placement.leader.ok_or_else(none)?))
    }

    /// Waits until every transaction of a partition has ended: how many records there are, those of markers among them.
    async fn all_ended(&self, partition: u32) -> u64 {
        let ended = settled("every transaction has ended", async || {
            let handle = self.leader(partition)?.partition(&TopicRef::Id(self.topic), partition)?;
            let visible = handle.local()?.view.borrow().visible;
            match visible.leads && visible.bounds_proven() && visible.lso == visible.end {
                true => Ok(visible.end.0),
                false => Err(ApiError::new(ErrorCode::NotLeaderOrFollower, "not yet")),
            }
        });
        ended.await.expect("it can be read")
    }

    async fn committed(&self) -> Option<u64> {
        let fetched = settled("offsets are stable", async || {
            let partitions = Some(vec![self.partition(0)]);
            let fetch = Fetch { group: GROUP.into(), partitions, require_stable: true, ..Fetch::default() };
            match self.group_coordinator()?.ask_group(GROUP, Request::Fetch(fetch)).await? {
                Answer::Fetch(Ok(mut fetched)) => {
                    fetched.remove(0).1.map_err(|_| ApiError::new(ErrorCode::CoordinatorNotAvailable, "not yet"))
                }
                other => panic!("{other:?}"),
            }
        });
        fetched.await.expect("it can be read").map(|committed| committed.offset.0)
    }

    async fn client(&self, id: &str, timeout_ms: i32, epoch_per_transaction: bool) -> Client<'_> {
        let producer = settled("a producer", async || {
            self.coordinator(id)?.init_transactional(id.to_owned(), timeout_ms, None).await
        });
        let producer = producer.await.expect("nobody is fenced");
        let transaction = InTransaction { id: id.into(), epoch_per_transaction, hung_up: CancellationToken::new() };
        Client { fleet: self, transaction, producer, sequences: BTreeMap::new() }
    }

    async fn state(&self, id: &str) -> TransactionState {
        let described =
            settled("a description", async || self.coordinator(id)?.describe_transaction(id.to_owned()).await);
        described.await.expect("it is known").state
    }
}

impl Client<'_> {
    /// Writes one record; clients of the first version add its partition before.
    async fn write(&mut self, partition: u32) -> Result<(), ErrorCode> {
        let (fleet, transaction, producer) = (self.fleet, self.transaction.clone(), self.producer);
        if !transaction.epoch_per_transaction {
            let added = settled("an addition", async || {
                let (id, partitions) = (transaction.id.to_string(), vec![fleet.partition(partition)]);
                fleet.coordinator(&id)?.add_partitions(id, producer, partitions, false).await
            });
            added.await?;
        }
        let sequence = self.sequences.entry(partition).or_default();
        let stamp = ProducerStamp { id: producer.id, epoch: producer.epoch, base_sequence: *sequence };
        *sequence += 1;
        let mut batch = BatchBuilder::new(Codec::None).producer(stamp).transactional();
        batch.push(NewRecord { timestamp: TimestampMs(1), key: None, value: Some(b"v"), headers: &[] });
        let mut records = Vec::new();
        batch.build().put(&mut records);
        let written = settled("a write", async || {
            let request = ProduceRequest {
                topic: TopicRef::Id(fleet.topic),
                partition,
                records: records.clone().into(),
                arrived_bytes: records.len(),
                behind: None,
                transaction: Some(transaction.clone()),
                acks: Acks::All,
                timeout: Duration::from_secs(20),
            };
            fleet.leader(partition)?.produce(request).await?.await
        });
        written.await.map(drop)
    }

    async fn commit_offset(&self, offset: u64) -> Result<(), ErrorCode> {
        let (fleet, transaction, producer) = (self.fleet, self.transaction.clone(), self.producer);
        if !transaction.epoch_per_transaction {
            let id = transaction.id.to_string();
            let added = settled("an addition", async || {
                fleet.coordinator(&id)?.add_group(id.clone(), producer, GROUP.to_owned()).await
            });
            added.await?;
        }
        let committed = settled("a commit of offsets", async || {
            let offset = CommitOffset { offset: Offset(offset), leader_epoch: None, metadata: String::new() };
            let offsets = vec![(fleet.partition(0), offset)];
            let commit = Commit { group: GROUP.into(), epoch: -1, offsets, ..Commit::default() };
            let offsets = TransactionOffsets { transaction: transaction.clone(), producer, commit };
            fleet.group_coordinator()?.commit_offsets_in_transaction(offsets).await
        });
        assert_eq!(committed.await?, [Ok(())]);
        Ok(())
    }

    async fn end(&mut self, outcome: TxnOutcome) -> Result<(), ErrorCode> {
        let (fleet, transaction, producer) = (self.fleet, self.transaction.clone(), self.producer);
        let ended = settled("an end", async || {
            fleet.coordinator(&transaction.id)?.end_transaction(transaction.clone(), producer, outcome).await
        });
        self.producer = ended.await?;
        if transaction.epoch_per_transaction {
            self.sequences.clear();
        }
        Ok(())
    }
}

/// Rules X1, X2, X3, X5, O1: for clients of both versions.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn transactions_over_a_fleet_end_everywhere_as_they_were_decided() {
    let fleet = Fleet::start().await;
    let mut records = 0;
    for (id, epoch_per_transaction) in [("newer", true), ("older", false)] {
        let mut client = fleet.client(id, 60_000, epoch_per_transaction).await;
        for (n, outcome) in [(1, TxnOutcome::Commit), (2, TxnOutcome::Abort), (3, TxnOutcome::Commit)] {
            let epoch = client.producer.epoch;
            for partition in 0..PARTITIONS {
                client.write(partition).await.expect("it may");
                client.write(partition).await.expect("it may");
            }
            client.commit_offset(n).await.expect("it may");
            assert_eq!(fleet.state(id).await, TransactionState::Ongoing);
            client.end(outcome).await.expect("it ends");
            let raised = u16::from(epoch_per_transaction);
            assert_eq!(client.producer.epoch, ProducerEpoch(epoch.0 + raised), "rule X1");
            let expected = if outcome == TxnOutcome::Commit { n } else { n - 1 };
            assert_eq!(fleet.committed().await, Some(expected));
            // Two records and a marker.
            records += 3;
            for partition in 0..PARTITIONS {
                assert_eq!(fleet.all_ended(partition).await, records, "once each");
            }
        }
        assert_eq!(fleet.state(id).await, TransactionState::CompleteCommit);
    }
    fleet.stop().await;
}

/// Rules X1, X3, X8.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whoever_is_fenced_writes_nothing_more_and_its_transaction_is_aborted() {
    let fleet = Fleet::start().await;
    // By time.
    let mut slow = fleet.client("slow", 500, true).await;
    slow.write(0).await.expect("it may");
    assert_eq!(fleet.all_ended(0).await, 2, "a record and a marker");
    assert_eq!(slow.write(0).await, Err(ErrorCode::InvalidProducerEpoch));
    assert_eq!(slow.end(TxnOutcome::Commit).await, Err(ErrorCode::ProducerFenced));
    // By another instance.
    let mut older = fleet.client("worker", 60_000, true).await;
    older.write(1).await.expect("it may");
    let mut newer = fleet.client("worker", 60_000, true).await;
    assert_eq!(fleet.all_ended(1).await, 2);
    assert_eq!(older.write(1).await, Err(ErrorCode::InvalidProducerEpoch));
    assert_eq!(older.write(2).await, Err(ErrorCode::InvalidProducerEpoch), "where nothing is known of it (rule X3)");
    assert_eq!(older.commit_offset(1).await, Err(ErrorCode::ProducerFenced));
    newer.write(1).await.expect("it may");
    newer.end(TxnOutcome::Commit).await.expect("it ends");
    assert_eq!(fleet.all_ended(1).await, 4);
    // By an operator.
    let mut hanging = fleet.client("hanging", 60_000, true).await;
    hanging.write(3).await.expect("it may");
    let coordinator = fleet.coordinator("hanging").expect("it is known");
    coordinator.terminate_transaction("hanging".to_owned()).await.expect("it is known");
    assert_eq!(fleet.all_ended(3).await, 2);
    assert_eq!(hanging.end(TxnOutcome::Commit).await, Err(ErrorCode::ProducerFenced));
    let listed = coordinator.list_transactions_here().await.expect("all are read back").found;
    assert!(listed.iter().any(|(id, record)| id == "hanging" && record.state == TransactionState::CompleteAbort));
    // A client of the first version adds before it writes.
    let older = fleet.client("nothing added", 60_000, false).await;
    let verified = settled("a verification", async || {
        let id = older.transaction.id.to_string();
        fleet.coordinator(&id)?.add_partitions(id, older.producer, vec![fleet.partition(4)], true).await
    });
    assert_eq!(verified.await, Err(ErrorCode::TransactionAbortable));
    fleet.stop().await;
}

/// Rule X3: a client that keeps its epoch may have given up what it sent on a connection that it closed, and have begun another transaction
/// with the same partition and group.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_verified_after_its_client_hung_up_is_part_of_no_transaction() {
    let fleet = Fleet::start().await;
    let mut older = fleet.client("older", 60_000, false).await;
    older.transaction.hung_up.cancel();
    assert_eq!(older.write(0).await, Err(ErrorCode::TransactionAbortable));
    assert_eq!(older.commit_offset(7).await, Err(ErrorCode::TransactionAbortable));
    // On another connection.
    older.transaction.hung_up = CancellationToken::new();
    older.sequences.clear();
    older.write(0).await.expect("it may");
    older.end(TxnOutcome::Commit).await.expect("it ends");
    assert_eq!(fleet.all_ended(0).await, 2, "a record and a marker");
    assert_eq!(fleet.committed().await, None);
    // The epoch tells the transactions of others.
    let mut newer = fleet.client("newer", 60_000, true).await;
    newer.transaction.hung_up.cancel();
    newer.write(1).await.expect("it may");
    newer.commit_offset(8).await.expect("it may");
    newer.end(TxnOutcome::Commit).await.expect("it ends");
    assert_eq!(fleet.all_ended(1).await, 2, "a record and a marker");
    fleet.stop().await;
}
