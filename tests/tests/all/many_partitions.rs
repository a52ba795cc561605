//! What is asked of many partitions at once, of a fleet of processes: one call for all of them.

use crate::commands::succeed_at;
use millpond_sdk::{Admin, NewTopic, Producer, ProducerConfig, ProducerRecord};
use millpond_tests::fleet::{Fleet, FleetOptions};
use millpond_tests::http;
use serde_json::Value;

const PARTITIONS: u32 = 300;

/// Calls of this name that the brokers have answered, together.
async fn calls(fleet: &Fleet, name: &str) -> f64 {
    let mut sum = 0.0;
    let series = format!("millpond_requests_total{{api=\"{name}\",door=\"grpc\"}} ");
    for broker in 0..fleet.size() {
        let (_, text) = http::get(&fleet.http(broker), "/metrics").await.expect("it answers");
        // There is none before the first call.
        let counted = text.lines().find_map(|line| line.strip_prefix(&series));
        sum += counted.map_or(0.0, |count| count.parse().expect("a number"));
    }
    sum
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cluster_is_described_by_one_call_and_as_its_leaders_say_one_by_one() {
    let mut fleet = Fleet::start(&FleetOptions::new(3)).await.expect("every machine has what it takes");
    fleet.wait_until("all are alive", |cluster, _| cluster.brokers.len() == 3).await;
    let client = fleet.connect().await;
    let admin = Admin::new(&client);
    let mut topic = NewTopic::new("many");
    (topic.partitions, topic.replication_factor) = (Some(PARTITIONS), Some(3));
    admin.create_topic(topic).await.expect("the topic is new");
    fleet.wait_until_in_sync().await;
    let producer = Producer::new(&client, ProducerConfig::default()).expect("the defaults are sound");
    for partition in 0..PARTITIONS {
        let record = ProducerRecord::new("many").partition(partition).value(format!("{partition}"));
        producer.send(record).await.expect("there is room");
    }
    producer.flush().await;
    // Some of it is in object storage, some only in the WAL.
    admin.flush_topic("many").await.expect("the object store is there");
    for partition in 0..PARTITIONS / 2 {
        let record = ProducerRecord::new("many").partition(partition).value("tail");
        producer.send(record).await.expect("there is room");
    }
    producer.close().await;

    let shown = |arguments: &[&str]| -> Value {
        let arguments = [arguments, &["--output", "json"]].concat();
        serde_json::from_str(&succeed_at(&fleet.bootstrap(), &arguments, b"")).expect("it is JSON")
    };
    let before = calls(&fleet, "DescribePartition").await;
    let cluster = shown(&["cluster", "describe"]);
    let described = shown(&["topic", "describe", "many"]);
    let after = calls(&fleet, "DescribePartition").await;
    assert_eq!(
        (after - before, calls(&fleet, "DescribePartitions").await),
        (0.0, 2.0),
        "one call each, not {PARTITIONS}"
    );

    let (mut tail_bytes, mut tiered_bytes) = (0, 0);
    for partition in 0..PARTITIONS {
        let status = admin.partition_status("many", partition).await.expect("it is led");
        let told = &described["partitions"][partition as usize];
        let offsets = ["log_start", "tiered_end", "high_watermark", "log_end"].map(|name| told[name].as_u64());
        let expected = [status.log_start, status.tiered_end, status.high_watermark, status.log_end];
        assert_eq!(offsets, expected.map(|offset| Some(offset.0)), "partition {partition}");
        assert_eq!(told["tail_bytes"].as_u64(), Some(status.tail_bytes));
        assert_eq!(told["tiered_bytes"].as_u64(), Some(status.tiered_bytes));
        tail_bytes += status.tail_bytes;
        tiered_bytes += status.tiered_bytes;
    }
    assert!(tail_bytes > 0 && tiered_bytes > 0, "{tail_bytes} {tiered_bytes}");
    assert_eq!(cluster["tail_bytes"].as_u64(), Some(tail_bytes));
    assert_eq!(cluster["tiered_bytes"].as_u64(), Some(tiered_bytes));

    // Whoever leads after a broker is killed is asked at its leader again.
    fleet.kill(1);
    let gone = |topics: &[millpond_sdk::TopicDescription]| {
        topics[0].partitions.iter().all(|partition| partition.leader.is_some_and(|leader| leader.0 != 1))
    };
    fleet.wait_until("the others lead", |_, topics| gone(topics)).await;
    let described: Value =
        serde_json::from_str(&succeed_at(&fleet.bootstrap(), &["topic", "describe", "many", "--output", "json"], b""))
            .expect("it is JSON");
    let ends: Vec<Option<u64>> =
        described["partitions"].as_array().expect("a list").iter().map(|one| one["log_end"].as_u64()).collect();
    let expected: Vec<Option<u64>> = (0..PARTITIONS).map(|n| Some(if n < PARTITIONS / 2 { 2 } else { 1 })).collect();
    assert_eq!(ends, expected);
    fleet.restart(1).await;
    fleet.stop().await;
}
