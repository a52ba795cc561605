//! A fleet of processes: what is acknowledged outlives the kill of every broker in turn, while a client goes on publishing.

use millpond_sdk::{
    Admin, BrokerId, Client, Consumer, ConsumerConfig, NewTopic, Producer, ProducerConfig, ProducerRecord, StartAt,
    TopicPartition,
};
use millpond_tests::fleet::{Fleet, FleetOptions, MetadataIn, ObjectsIn};
use millpond_tests::tools::{Tool, skip};
use std::collections::BTreeMap;
use std::time::Duration;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

const TOPIC: &str = "events";
const PARTITIONS: u32 = 4;

/// Numbers published, until told to stop. Every one is acknowledged, or the task fails.
struct Publishing {
    stop: CancellationToken,
    task: JoinHandle<u64>,
    /// How many were acknowledged.
    acknowledged: tokio::sync::watch::Receiver<u64>,
}

impl Publishing {
    fn begin(client: &Client) -> Publishing {
        let producer = Producer::new(client, ProducerConfig::default()).expect("the defaults are sound");
        let stop = CancellationToken::new();
        let (acknowledge, acknowledged) = tokio::sync::watch::channel(0);
        let stopped = stop.clone();
        let task = tokio::spawn(async move {
            let mut number = 0_u64;
            while !stopped.is_cancelled() {
                let sends = number..number + 20;
                let mut deliveries = Vec::new();
                for number in sends.clone() {
                    let key = format!("key-{}", number % 17);
                    let record = ProducerRecord::new(TOPIC).key(key).value(number.to_be_bytes().to_vec());
                    deliveries.push(producer.send(record).await.expect("there is room"));
                }
                for delivery in deliveries {
                    delivery.await.expect("acknowledged within the delivery timeout");
                }
                number = sends.end;
                acknowledge.send_replace(number);
            }
            producer.close().await;
            number
        });
        Publishing { stop, task, acknowledged }
    }

    /// Waits until so many more were acknowledged: the fleet takes records now.
    async fn go_on(&mut self, more: u64) {
        let goal = *self.acknowledged.borrow() + more;
        let reached = self.acknowledged.wait_for(|acknowledged| *acknowledged >= goal);
        tokio::time::timeout(Duration::from_secs(60), reached).await.expect("records go on").expect("it publishes");
    }

    /// Ends it; how many were acknowledged.
    async fn end(self) -> u64 {
        self.stop.cancel();
        self.task.await.expect("every record was acknowledged")
    }
}

async fn create(client: &Client) {
    let mut topic = NewTopic::new(TOPIC);
    topic.partitions = Some(PARTITIONS);
    // Uploads go on meanwhile.
    topic.configs = BTreeMap::from([("segment.bytes".to_owned(), "65536".to_owned())]);
    let created = Admin::new(client).create_topic(topic).await.expect("the topic is new");
    assert!(created.partitions.iter().all(|partition| partition.replicas.len() == 3), "three copies unless asked");
}

/// Reads everything: each number once, and those of one key in order.
async fn check(client: &Client, count: u64) {
    let mut consumer = Consumer::new(client, ConsumerConfig::default());
    let all = (0..PARTITIONS).map(|partition| (TopicPartition::new(TOPIC, partition), StartAt::Earliest));
    consumer.assign(all).await.expect("the topic exists");
    let mut newest_of_key: BTreeMap<u64, u64> = BTreeMap::new();
    let mut seen = 0;
    while seen < count {
        let records = consumer.poll(Duration::from_secs(20)).await.expect("the log can be read");
        assert!(!records.is_empty(), "{seen} of {count} are there");
        for record in records {
            let value = record.value.as_deref().and_then(|value| value.try_into().ok());
            let number = u64::from_be_bytes(value.expect("eight bytes"));
            let expected = newest_of_key.get(&(number % 17)).map_or(number % 17, |newest| newest + 17);
            assert_eq!(number, expected, "each once and in order for its key");
            newest_of_key.insert(number % 17, number);
            seen += 1;
        }
    }
}

async fn kills_lose_nothing(mut fleet: Fleet) {
    let client = fleet.connect().await;
    create(&client).await;
    let mut publishing = Publishing::begin(&client);
    for broker in 0..fleet.size() {
        publishing.go_on(500).await;
        fleet.kill(broker);
        publishing.go_on(500).await;
        fleet.restart(broker).await;
        fleet.wait_until_in_sync().await;
    }
    let count = publishing.end().await;
    let client = fleet.connect().await;
    check(&client, count).await;
    // Whoever leads a partition uploads it.
    let admin = Admin::new(&client);
    admin.flush_topic(TOPIC).await.expect("brokers are up");
    let mut uploaded = 0;
    for partition in 0..PARTITIONS {
        let status = admin.partition_status(TOPIC, partition).await.expect("brokers are up");
        assert_eq!(status.tiered_end, status.high_watermark, "partition {partition}");
        uploaded += status.tiered_end.0;
    }
    assert_eq!(uploaded, count);
    fleet.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn acked_records_outlive_the_kill_of_each_broker_in_turn() {
    let fleet = Fleet::start(&FleetOptions::new(3)).await.expect("every machine has what it takes");
    kills_lose_nothing(fleet).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn acked_records_outlive_kills_over_etcd_and_s3() {
    let metadata = MetadataIn::Etcd(Tool::EtcdPinned, 1);
    let options = FleetOptions { metadata, objects: ObjectsIn::S3, ..FleetOptions::new(3) };
    match Fleet::start(&options).await {
        Ok(fleet) => kills_lose_nothing(fleet).await,
        Err(why) => skip("acked_records_outlive_kills_over_etcd_and_s3", &why),
    }
}

/// A broker that lost its disk comes back as another replica, copies what it missed, and is as good as any (rules K2, B4).
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wiped_broker_copies_what_it_lost() {
    let mut fleet = Fleet::start(&FleetOptions::new(3)).await.expect("every machine has what it takes");
    let client = fleet.connect().await;
    create(&client).await;
    let mut publishing = Publishing::begin(&client);
    publishing.go_on(500).await;
    fleet.kill(1);
    fleet.wipe(1);
    publishing.go_on(500).await;
    fleet.restart(1).await;
    fleet.wait_until_in_sync().await;
    publishing.go_on(500).await;
    // Now its copy has to do for another's.
    fleet.kill(0);
    publishing.go_on(500).await;
    let count = publishing.end().await;
    check(&fleet.connect().await, count).await;
    fleet.stop().await;
}

/// A stopped broker holds up the others no longer than its session lives.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_silent_broker_is_left_behind_and_catches_up() {
    let mut fleet = Fleet::start(&FleetOptions::new(3)).await.expect("every machine has what it takes");
    let client = fleet.connect().await;
    create(&client).await;
    let mut publishing = Publishing::begin(&client);
    publishing.go_on(500).await;
    fleet.pause(2);
    publishing.go_on(1000).await;
    fleet.resume(2);
    fleet.wait_until_in_sync().await;
    let count = publishing.end().await;
    check(&fleet.connect().await, count).await;
    fleet.stop().await;
}

/// Rule B7, in a rolling restart: the broker before has just come back and is not in sync yet when the next is told to stop. That one waits for
/// it, and hands over: the partition is led all the time.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_broker_that_is_told_to_stop_waits_for_a_replica_that_has_just_come_back() {
    /// Larger than is copied at once.
    const MISSED: u64 = 40 << 20;
    let mut fleet = Fleet::start(&FleetOptions::new(3)).await.expect("every machine has what it takes");
    let client = fleet.connect().await;
    let admin = Admin::new(&client);
    let mut topic = NewTopic::new(TOPIC);
    (topic.partitions, topic.replication_factor) = (Some(1), Some(2));
    topic.configs.insert("min.insync.replicas".to_owned(), "1".to_owned());
    admin.create_topic(topic).await.expect("the topic is new");
    admin.move_partition(TOPIC, 0, &[BrokerId(0), BrokerId(1)]).await.expect("they are there");
    fleet.wait_until_in_sync().await;
    admin.elect_leader(TOPIC, 0).await.expect("it is in sync");

    fleet.kill(1);
    let producer = Producer::new(&client, ProducerConfig::default()).expect("the defaults are sound");
    let mut deliveries = Vec::new();
    for _ in 0..MISSED >> 16 {
        let record = ProducerRecord::new(TOPIC).value(vec![7; 1 << 16]);
        deliveries.push(producer.send(record).await.expect("there is room"));
    }
    for delivery in deliveries {
        delivery.await.expect("acknowledged");
    }
    producer.close().await;
    fleet.spawn(1);
    fleet
        .wait_until("broker 1 is back", |cluster, _| cluster.brokers.iter().any(|broker| broker.id == BrokerId(1)))
        .await;
    assert!(fleet.terminate(0).await.success());
    let topics = fleet.wait_until("somebody is asked", |_, topics| !topics.is_empty()).await;
    assert_eq!(topics[0].partitions[0].leader, Some(BrokerId(1)), "it was in sync before the other was gone");
    fleet.restart(0).await;
    fleet.wait_until_in_sync().await;
    fleet.stop().await;
}
