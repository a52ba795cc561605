//! Transactions by Kafka's tool for them: listed, described, looked for where they hang, and aborted.

use super::super::cluster::{Brokers, Cluster, with_one_broker_and_with_three};
use super::archives_or_skip;
use super::java::{Programs, rows, until};
use millpond_metadata::keys::Key;
use millpond_metadata::kv::{Txn, Write};
use millpond_sdk::{
    Admin, Client, IsolationLevel, Offset, OffsetSpec, ProducerRecord, TransactionalConfig, TransactionalProducer,
};
use std::time::Duration;

const TOPICS: &str = "org.apache.kafka.tools.TopicCommand";
const TRANSACTIONS: &str = "org.apache.kafka.tools.TransactionsCommand";

/// A producer with a record in an open transaction.
async fn open(client: &Client, id: &str) -> TransactionalProducer {
    // Nothing is to end by its timeout here.
    let config = TransactionalConfig { timeout: Duration::from_secs(600), ..TransactionalConfig::new(id) };
    let mut producer = TransactionalProducer::new(client, config).await.expect("it is taken");
    producer.begin().expect("none is open");
    let record = ProducerRecord::new("t").partition(0).value(id.to_owned());
    producer.send(record).await.expect("there is room").await.expect("it is written");
    producer
}

/// The end of what readers of committed records see.
async fn stable(client: &Client) -> Offset {
    let end = Admin::new(client).list_offset_seen_by(IsolationLevel::ReadCommitted, "t", 0, OffsetSpec::Latest).await;
    end.expect("it is led").expect("every log has an end").offset
}

async fn state(programs: &mut Programs, id: &str) -> String {
    let listed = programs.tool(TRANSACTIONS, &["list"]).await;
    let [row] = &rows(&listed, id)[..] else { panic!("{listed}") };
    row[3].clone()
}

/// Offsets at which transactions hang that have a replica on this broker.
async fn hanging(programs: &mut Programs, broker: &str) -> Vec<String> {
    let find = ["find-hanging", "--broker-id", broker, "--max-transaction-timeout", "0"];
    let said = programs.tool(TRANSACTIONS, &find).await;
    rows(&said, "t").into_iter().map(|row| row[5].clone()).collect()
}

/// Where a transaction is open in the partition, as its leader knows.
async fn opened(programs: &mut Programs) -> Vec<String> {
    let said = programs.tool(TRANSACTIONS, &["describe-producers", "--topic", "t", "--partition", "0"]).await;
    let starts = said.lines().skip(1).filter_map(|line| line.split_whitespace().last().map(str::to_owned));
    starts.filter(|start| start != "None").collect()
}

async fn abort(programs: &mut Programs, first: &str) {
    programs.tool(TRANSACTIONS, &["abort", "--topic", "t", "--partition", "0", "--start-offset", first]).await;
}

with_one_broker_and_with_three! {
    kafka_tools_tell_of_open_transactions_and_abort_them: open_transactions_are_told_of_and_aborted;
}

async fn open_transactions_are_told_of_and_aborted(test: &str, brokers: Brokers) {
    let archives = archives_or_skip!(test);
    let cluster = Cluster::start(brokers).await;
    let programs = &mut Programs::start(&archives, &cluster.bootstrap);
    let client = &cluster.connect().await;
    programs.tool(TOPICS, &["--create", "--topic", "t"]).await;
    let _tracked = open(client, "tracked").await;
    assert_eq!(state(programs, "tracked").await, "Ongoing");
    let described = programs.tool(TRANSACTIONS, &["describe", "--transactional-id", "tracked"]).await;
    let [row] = &rows(&described, "tracked")[..] else { panic!("{described}") };
    assert_eq!((&*row[4], &*row[5], &*row[8]), ("Ongoing", "600000", "t-0"), "{described}");
    assert_eq!(opened(programs).await, ["0"]);
    for broker in 0..cluster.size {
        assert!(hanging(programs, &broker.to_string()).await.is_empty(), "its coordinator will end it");
    }
    let absent = programs.refused(TRANSACTIONS, &["describe", "--transactional-id", "absent"]).await;
    assert!(absent.contains("could not be found"), "{absent}");

    assert_eq!(stable(client).await, Offset(0), "readers wait there");
    abort(programs, "0").await;
    assert_eq!(stable(client).await, Offset(2), "its record, and the marker");
    assert!(opened(programs).await.is_empty());
    let again = ["abort", "--topic", "t", "--partition", "0", "--start-offset", "0"];
    let again = programs.refused(TRANSACTIONS, &again).await;
    assert!(again.contains("Could not find any open transactions starting at offset 0"), "{again}");

    // By its id, whoever has it open.
    let mut forced = open(client, "forced").await;
    programs.tool(TRANSACTIONS, &["forceTerminateTransaction", "--transactionalId", "forced"]).await;
    // It was aborted for whoever would be the next of that id.
    until("the end of it", async || state(programs, "forced").await == "Empty").await;
    assert!(forced.commit().await.is_err(), "it was aborted");
    until("its marker", async || stable(client).await == Offset(4)).await;
    cluster.stop().await;
}

/// Case T3. A coordinator that has lost a transaction, as one does whose metadata were restored from a backup, never ends it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kafka_tools_find_what_hangs_at_each_replica_and_abort_it_at_three_brokers() {
    let archives = archives_or_skip!("kafka_tools_find_what_hangs_at_each_replica_and_abort_it_at_three_brokers");
    let brokers = ["0", "1", "2"];
    let mut cluster = Cluster::fleet().await;
    let mut programs = Programs::start(&archives, &cluster.bootstrap);
    let client = cluster.connect().await;
    programs.tool(TOPICS, &["--create", "--topic", "t"]).await;
    let mut lost = open(&client, "lost").await;
    let fleet = cluster.as_fleet();
    let store = fleet.store().await;
    let key = store.keys().encode(&Key::Transaction("lost".to_owned()));
    store.kv().txn(Txn { then: vec![Write::delete(&key)], ..Txn::default() }).await.expect("the store is up");
    // Whoever coordinates next reads what is left.
    for broker in 0..fleet.size() {
        fleet.kill(broker);
        fleet.restart(broker).await;
        fleet.wait_until_in_sync().await;
    }
    for broker in brokers {
        until("what hangs", async || hanging(&mut programs, broker).await == ["0"]).await;
    }
    abort(&mut programs, "0").await;
    for broker in brokers {
        until("nothing hangs", async || hanging(&mut programs, broker).await.is_empty()).await;
    }
    assert_eq!(stable(&client).await, Offset(2));
    assert!(lost.commit().await.is_err(), "nobody knows it");
    cluster.stop().await;
}
