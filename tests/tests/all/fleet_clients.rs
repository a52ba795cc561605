//! Clients of a fleet: sent to the leader by whoever is not it, steered to the replica in their rack, and not troubled by leaders
//! that move.

use crate::kafka::programs::{self, Program};
use crate::kafka::wire::{self, Connection, batch, text};
use kafka_protocol::messages as kafka;
use millpond_proto::v1;
use millpond_proto::v1::log_client::LogClient;
use millpond_sdk::{
    Admin, Client, Consumer, ConsumerConfig, NewTopic, Offset, PartitionDescription, Producer, ProducerConfig,
    ProducerRecord, StartAt, TopicPartition,
};
use millpond_tests::brokers::TestBrokers;
use millpond_tests::fleet::{Fleet as ProcessFleet, FleetOptions};
use millpond_tests::http;
use millpond_tests::process::binary;
use millpond_tests::tools::skip;
use object_store::memory::InMemory;
use std::collections::BTreeMap;
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;
use tonic::Status;
use tonic_types::StatusExt;

const TOPIC: &str = "events";
const NOT_LEADER: i16 = 6;
const FENCED_LEADER_EPOCH: i16 = 74;

/// Three brokers in racks `r0` to `r2`, with a topic that each has a copy of.
struct Fleet {
    brokers: TestBrokers,
    client: Client,
}

impl Fleet {
    async fn start(partitions: u32) -> Fleet {
        let brokers = TestBrokers::start(3, Arc::new(InMemory::new())).await;
        let client = Client::connect(&brokers.bootstrap()).await.expect("brokers are up");
        let mut topic = NewTopic::new(TOPIC);
        (topic.partitions, topic.replication_factor) = (Some(partitions), Some(3));
        Admin::new(&client).create_topic(topic).await.expect("the topic is new");
        Fleet { brokers, client }
    }

    /// The partitions, once all of their copies are in sync, as the broker of that id sees it too.
    async fn in_sync(&self, seen_by: u32) -> Vec<PartitionDescription> {
        let one = Client::connect(&self.brokers.addresses(seen_by).grpc).await.expect("it is up");
        loop {
            let topic = Admin::new(&one).describe_topic(TOPIC).await.expect("the topic exists");
            if topic.partitions.iter().all(|partition| partition.isr.len() == 3 && partition.leader.is_some()) {
                return topic.partitions;
            }
            tokio::task::yield_now().await;
        }
    }

    async fn publish(&self, partition: u32, numbers: std::ops::Range<u32>) {
        let producer = Producer::new(&self.client, ProducerConfig::default()).expect("the defaults are sound");
        let mut deliveries = Vec::new();
        for number in numbers {
            let record = ProducerRecord::new(TOPIC).partition(partition).value(number.to_be_bytes().to_vec());
            deliveries.push(producer.send(record).await.expect("there is room"));
        }
        for delivery in deliveries {
            delivery.await.expect("acknowledged");
        }
        producer.close().await;
    }

    /// The partition's leader, and a broker that only follows.
    async fn roles(&self, partition: u32) -> (u32, u32, u32) {
        let mut seen = None;
        for id in 0..3 {
            seen = Some(self.in_sync(id).await.remove(partition as usize));
        }
        let seen = seen.expect("there are three");
        let leader = seen.leader.expect("it is led").0;
        ((leader), (leader + 1) % 3, seen.leader_epoch.0)
    }
}

async fn next(consumer: &mut Consumer, count: usize) -> Vec<u32> {
    let mut numbers = Vec::new();
    while numbers.len() < count {
        for record in consumer.poll(Duration::from_secs(10)).await.expect("the log can be read") {
            numbers.push(number_of(&record));
        }
    }
    numbers
}

fn number_of(record: &millpond_sdk::ConsumerRecord) -> u32 {
    let value = record.value.as_deref().and_then(|value| value.try_into().ok());
    u32::from_be_bytes(value.expect("four bytes"))
}

async fn reader(client: &Client, config: ConsumerConfig, partition: u32) -> Consumer {
    let mut consumer = Consumer::new(client, config);
    consumer.assign([(TopicPartition::new(TOPIC, partition), StartAt::Earliest)]).await.expect("the topic exists");
    consumer
}

async fn fetched_bytes(brokers: &TestBrokers, id: u32) -> f64 {
    http::metric(&brokers.addresses(id).http, "millpond_fetch_bytes_total").await
}

/// The leader that a status names: id, epoch, address.
fn named(status: &Status) -> Option<(u32, u32, String)> {
    let metadata = status.get_details_error_info()?.metadata;
    let number = |key: &str| metadata.get(key)?.parse().ok();
    Some((number("leader")?, number("leader_epoch")?, metadata.get("leader_grpc")?.clone()))
}

/// KIP-951, and the same over gRPC.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whoever_is_not_the_leader_names_it() {
    let fleet = Fleet::start(1).await;
    let (leader, follower, epoch) = fleet.roles(0).await;
    let at = fleet.brokers.addresses(leader).clone();

    let mut log =
        LogClient::connect(format!("http://{}", fleet.brokers.addresses(follower).grpc)).await.expect("it is up");
    let produce = v1::ProduceRequest {
        topic: Some(v1::TopicRef::name(TOPIC)),
        records: Some(v1::RecordBatches::from(batch(&[1], b"v"))),
        ..Default::default()
    };
    let refused = log.produce_one(produce).await.expect_err("it does not lead");
    assert_eq!(named(&refused), Some((leader, epoch, at.grpc.clone())));
    let old = v1::FetchOneRequest {
        topic: Some(v1::TopicRef::name(TOPIC)),
        current_leader_epoch: Some(epoch - 1),
        ..Default::default()
    };
    let fenced = log.fetch_one(old).await.expect_err("it knows a later epoch");
    assert_eq!(fenced.get_details_error_info().map(|info| info.reason).as_deref(), Some("FENCED_LEADER_EPOCH"));
    assert_eq!(named(&fenced), Some((leader, epoch, at.grpc.clone())));

    let mut kafka = Connection::to(&fleet.brokers.addresses(follower).kafka).await;
    let request = wire::produce(-1, TOPIC, &[(0, batch(&[1], b"v"))]);
    for version in [9, 10, 12] {
        let answer = kafka.call(version, &request).await;
        let refused = &answer.responses[0].partition_responses[0];
        assert_eq!(refused.error_code, NOT_LEADER, "version {version}");
        let told = (refused.current_leader.leader_id.0, refused.current_leader.leader_epoch);
        let nodes: Vec<_> =
            answer.node_endpoints.iter().map(|node| (node.node_id.0, format!("{}:{}", node.host, node.port))).collect();
        if version < 10 {
            assert_eq!((told, nodes), ((-1, -1), vec![]), "version {version}");
        } else {
            let expected = (leader.cast_signed(), epoch.cast_signed());
            assert_eq!((told, nodes), (expected, vec![(leader.cast_signed(), at.kafka.clone())]), "version {version}");
        }
    }
    let answer = kafka.call(16, &fetch(&fleet, Some(epoch - 1), None).await).await;
    let fenced = &answer.responses[0].partitions[0];
    assert_eq!(fenced.error_code, FENCED_LEADER_EPOCH);
    assert_eq!(fenced.current_leader.leader_id.0, leader.cast_signed());
    assert_eq!(answer.node_endpoints[0].rack.as_deref(), Some(&*format!("r{leader}")));
    fleet.brokers.stop().await;
}

/// A fetch of partition 0 from its beginning, in the layout of versions from 13 on.
async fn fetch(fleet: &Fleet, epoch: Option<u32>, rack: Option<u32>) -> kafka::FetchRequest {
    let id = Admin::new(&fleet.client).describe_topic(TOPIC).await.expect("the topic exists").id;
    let partition = kafka::fetch_request::FetchPartition::default()
        .with_partition(0)
        .with_current_leader_epoch(epoch.map_or(-1, u32::cast_signed))
        .with_partition_max_bytes(1 << 20);
    let topic = kafka::fetch_request::FetchTopic::default()
        .with_topic_id(uuid::Uuid::from_u128(id.0))
        .with_partitions(vec![partition]);
    kafka::FetchRequest::default()
        .with_max_bytes(1 << 20)
        .with_session_epoch(-1)
        .with_rack_id(text(&rack.map_or(String::new(), |rack| format!("r{rack}"))))
        .with_topics(vec![topic])
}

/// KIP-392 at both doors: the leader names the replica in the reader's rack, which serves it; and the leader serves again when that
/// replica is gone.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn readers_are_served_in_their_rack() {
    let mut fleet = Fleet::start(1).await;
    let (leader, follower, _) = fleet.roles(0).await;
    fleet.publish(0, 0..500).await;

    let config = ConsumerConfig { rack: Some(format!("r{follower}")), ..ConsumerConfig::default() };
    let mut consumer = reader(&fleet.client, config, 0).await;
    assert_eq!(next(&mut consumer, 500).await, (0..500).collect::<Vec<u32>>());
    let by_leader = fetched_bytes(&fleet.brokers, leader).await;
    assert_eq!(by_leader, 0.0, "nothing crossed the racks");
    assert!(fetched_bytes(&fleet.brokers, follower).await > 0.0);
    // What is committed while it waits comes from there too (rule F1).
    fleet.publish(0, 500..600).await;
    assert_eq!(next(&mut consumer, 100).await, (500..600).collect::<Vec<u32>>());
    assert_eq!(fetched_bytes(&fleet.brokers, leader).await, 0.0);

    let mut at_leader = Connection::to(&fleet.brokers.addresses(leader).kafka).await;
    let mut at_follower = Connection::to(&fleet.brokers.addresses(follower).kafka).await;
    let steered = at_leader.call(16, &fetch(&fleet, None, Some(follower)).await).await;
    let steered = &steered.responses[0].partitions[0];
    assert_eq!((steered.error_code, steered.preferred_read_replica.0), (0, follower.cast_signed()));
    assert!(steered.records.as_ref().is_none_or(bytes::Bytes::is_empty), "records come from there");
    for rack in [None, Some(leader), Some(7)] {
        let answer = at_leader.call(16, &fetch(&fleet, None, rack).await).await;
        let served = &answer.responses[0].partitions[0];
        assert_eq!((served.error_code, served.preferred_read_replica.0), (0, -1), "{rack:?}");
        assert!(served.records.as_ref().is_some_and(|records| !records.is_empty()), "{rack:?}");
    }
    let served = at_follower.call(16, &fetch(&fleet, None, Some(follower)).await).await;
    let served = &served.responses[0].partitions[0];
    assert_eq!((served.error_code, served.preferred_read_replica.0), (0, -1));
    assert!(served.records.as_ref().is_some_and(|records| !records.is_empty()));
    let old = at_follower.call(10, &wire::fetch(TOPIC, &[(0, 0)], 1 << 20, 1 << 20)).await;
    assert_eq!(old.responses[0].partitions[0].error_code, NOT_LEADER, "older clients read from leaders only");

    fleet.brokers.stop_one(follower).await;
    fleet.publish(0, 600..700).await;
    assert_eq!(next(&mut consumer, 100).await, (600..700).collect::<Vec<u32>>(), "without the replica near by");
    drop(consumer);
    fleet.brokers.stop().await;
}

/// `consume --rack`, and `--read-from any`.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn consume_reads_in_the_rack_it_is_told_and_replays_from_any_broker() {
    let fleet = Fleet::start(1).await;
    let (leader, follower, _) = fleet.roles(0).await;
    fleet.publish(0, 0..500).await;
    let bootstrap = fleet.brokers.bootstrap();
    let rack = format!("r{follower}");
    let consume = async |arguments: &[&str]| {
        let mut command = tokio::process::Command::new(binary());
        command.args(["consume", TOPIC, "--bootstrap", &bootstrap, "--until-end", "--format", "%o\\n"]).args(arguments);
        let output = command.stdin(Stdio::null()).kill_on_drop(true).output().await.expect("`millpond` starts");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let offsets = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(offsets.lines().map(|line| line.parse().ok()).eq((0..500).map(Some)), "{offsets}");
    };
    consume(&["--rack", &rack]).await;
    assert_eq!(fetched_bytes(&fleet.brokers, leader).await, 0.0, "nothing crossed the racks");
    Admin::new(&fleet.client).flush_topic(TOPIC).await.expect("the bucket is there");
    consume(&["--rack", &format!("r{leader}"), "--read-from", "any"]).await;
    let by_leader = fetched_bytes(&fleet.brokers, leader).await;
    assert!(by_leader > 0.0, "it is a broker like the others");
    consume(&["--rack", &rack, "--read-from", "any"]).await;
    assert_eq!(fetched_bytes(&fleet.brokers, leader).await, by_leader);
    fleet.brokers.stop().await;
}

/// A producer and two consumers, one of them near a follower, while each broker in turn goes away and comes back.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clients_follow_leaders_that_move_and_see_every_record_once_in_order() {
    const PARTITIONS: u32 = 6;
    let mut fleet = Fleet::start(PARTITIONS).await;
    for id in 0..3 {
        fleet.in_sync(id).await;
    }
    let (stop, stopped) = tokio::sync::watch::channel(false);
    let client = fleet.client.clone();
    let publishing = tokio::spawn(async move {
        let producer = Producer::new(&client, ProducerConfig::default()).expect("the defaults are sound");
        let mut sent = vec![0_u32; PARTITIONS as usize];
        let mut deliveries = Vec::new();
        while !*stopped.borrow() {
            for partition in 0..PARTITIONS {
                let number = &mut sent[partition as usize];
                let record = ProducerRecord::new(TOPIC).partition(partition).value(number.to_be_bytes().to_vec());
                *number += 1;
                deliveries.push((partition, producer.send(record).await.expect("there is room")));
            }
            if deliveries.len() > 2_000 {
                for (partition, delivery) in deliveries.drain(..1_000) {
                    delivery.await.unwrap_or_else(|error| panic!("partition {partition}: {error}"));
                }
            }
        }
        for (partition, delivery) in deliveries {
            delivery.await.unwrap_or_else(|error| panic!("partition {partition}: {error}"));
        }
        producer.close().await;
        sent
    });
    // What each has seen; the position in a partition is the next number there.
    let consume = |rack: Option<&str>, mut until: tokio::sync::watch::Receiver<Option<Vec<u32>>>| {
        let (client, config) =
            (fleet.client.clone(), ConsumerConfig { rack: rack.map(str::to_owned), ..ConsumerConfig::default() });
        tokio::spawn(async move {
            let mut consumer = Consumer::new(&client, config);
            let all = (0..PARTITIONS).map(|partition| (TopicPartition::new(TOPIC, partition), StartAt::Earliest));
            consumer.assign(all).await.expect("the topic exists");
            let mut seen = vec![0_u32; PARTITIONS as usize];
            while until.borrow_and_update().as_ref() != Some(&seen) {
                for record in consumer.poll(Duration::from_millis(100)).await.expect("no error comes to the user") {
                    let next = &mut seen[record.partition as usize];
                    assert_eq!(
                        (number_of(&record), record.offset),
                        (*next, Offset(u64::from(*next))),
                        "once and in order"
                    );
                    *next += 1;
                }
            }
        })
    };
    let (goal, until) = tokio::sync::watch::channel(None);
    let consumers = [consume(None, until.clone()), consume(Some("r1"), until)];
    for round in 0..3 {
        fleet.brokers.stop_one(round).await;
        // Somebody leads each partition again, and records go on.
        let seen_by = (round + 1) % 3;
        let one = Client::connect(&fleet.brokers.addresses(seen_by).grpc).await.expect("it is up");
        loop {
            let topic = Admin::new(&one).describe_topic(TOPIC).await.expect("the topic exists");
            if topic.partitions.iter().all(|partition| partition.leader.is_some_and(|leader| leader.0 != round)) {
                break;
            }
            tokio::task::yield_now().await;
        }
        fleet.brokers.start_one(round).await;
        fleet.in_sync(round).await;
    }
    stop.send_replace(true);
    let sent =
        tokio::time::timeout(Duration::from_secs(60), publishing).await.expect("it ends").expect("all acknowledged");
    assert!(sent.iter().all(|count| *count > 100), "{sent:?}");
    goal.send_replace(Some(sent));
    for consumer in consumers {
        tokio::time::timeout(Duration::from_secs(60), consumer).await.expect("it ends").expect("all of them, in order");
    }
    fleet.brokers.stop().await;
}

/// Metadata, DescribeCluster and DescribeTopicPartitions tell the same of brokers and copies, also of those that are away.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn brokers_and_copies_are_described_alike_everywhere() {
    let mut fleet = Fleet::start(2).await;
    for id in 0..3 {
        fleet.in_sync(id).await;
    }
    fleet.brokers.stop_one(2).await;
    for id in [0, 1] {
        let one = Client::connect(&fleet.brokers.addresses(id).grpc).await.expect("it is up");
        let topic = loop {
            let topic = Admin::new(&one).describe_topic(TOPIC).await.expect("the topic exists");
            if topic.partitions.iter().all(|partition| partition.isr.len() == 2 && partition.leader.is_some()) {
                break topic;
            }
            tokio::task::yield_now().await;
        };
        let mut kafka = Connection::to(&fleet.brokers.addresses(id).kafka).await;
        let cluster = kafka.call(2, &kafka::DescribeClusterRequest::default()).await;
        let racks: BTreeMap<i32, Option<String>> = cluster
            .brokers
            .iter()
            .map(|broker| (broker.broker_id.0, broker.rack.as_ref().map(ToString::to_string)))
            .collect();
        assert_eq!(racks, BTreeMap::from([(0, Some("r0".to_owned())), (1, Some("r1".to_owned()))]));
        let asked = kafka::metadata_request::MetadataRequestTopic::default().with_name(Some(wire::name(TOPIC)));
        let metadata = kafka.call(12, &kafka::MetadataRequest::default().with_topics(Some(vec![asked]))).await;
        assert_eq!(metadata.brokers.len(), 2);
        assert!(racks.contains_key(&metadata.controller_id.0), "the controller is one of them");
        let described =
            kafka.call(0, &kafka::DescribeTopicPartitionsRequest::default().with_response_partition_limit(1)).await;
        let cursor = described.next_cursor.as_ref().expect("one partition is left");
        assert_eq!((cursor.topic_name.as_str(), cursor.partition_index), (TOPIC, 1));
        let ids = |ids: &[kafka::BrokerId]| ids.iter().map(|id| id.0.cast_unsigned()).collect::<Vec<u32>>();
        let told = &topic.partitions[0];
        let sdk = |ids: &[millpond_sdk::BrokerId]| ids.iter().map(|id| id.0).collect::<Vec<u32>>();
        let (one, other) = (&metadata.topics[0].partitions[0], &described.topics[0].partitions[0]);
        assert_eq!(one.leader_id, other.leader_id);
        assert_eq!((ids(&one.replica_nodes), ids(&one.isr_nodes)), (sdk(&told.replicas), sdk(&told.isr)));
        assert_eq!((ids(&other.replica_nodes), ids(&other.isr_nodes)), (sdk(&told.replicas), sdk(&told.isr)));
        assert_eq!(
            (ids(&one.offline_replicas), ids(&other.offline_replicas), sdk(&told.offline)),
            (vec![2], vec![2], vec![2])
        );
    }
    fleet.brokers.stop().await;
}

/// librdkafka: an idempotent producer and a consumer with a rack, over processes that are restarted one after the other, and one of them
/// killed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn confluent_kafka_follows_leaders_that_move() {
    // On ports that they keep, as brokers do: librdkafka follows no broker that moves.
    let mut fleet = ProcessFleet::start(&FleetOptions::new(3)).await.expect("it needs nothing but this machine");
    let client = fleet.connect().await;
    let mut topic = NewTopic::new(TOPIC);
    (topic.partitions, topic.replication_factor) = (Some(4), Some(3));
    Admin::new(&client).create_topic(topic).await.expect("the topic is new");
    fleet.wait_until_in_sync().await;
    let arguments = ["@", "--topic", TOPIC, "--partitions", "4", "--rack", "r1"];
    let mut client = match Program::Python("fleet.py").command(&fleet.kafka_bootstrap(), &arguments) {
        Ok(command) => programs::Client::start(command),
        Err(why) => return skip("confluent_kafka_follows_leaders_that_move", &why),
    };
    assert_eq!(client.goes_on().await, "running");
    let mut asked = 0;
    for broker in 0..3 {
        if broker == 1 {
            fleet.kill(broker);
        } else {
            assert!(fleet.terminate(broker).await.success());
        }
        fleet.spawn(broker);
        fleet.wait_until_ready().await;
        fleet.wait_until_in_sync().await;
        // A broker counts anew with each start, so it is looked at each time who was asked.
        for broker in 0..3 {
            let (_, metrics) = http::get(&fleet.http(broker), "/metrics").await.expect("it is up");
            asked += metrics.lines().filter(|line| line.contains("\"OffsetForLeaderEpoch\"")).count();
        }
    }
    // Case F18: it asks new leaders whether their log is the one that it has read, and goes on where it was.
    assert!(asked > 0, "librdkafka looks for what was truncated");
    let last = client.end().await;
    let count: u64 = last.split(' ').next().and_then(|count| count.parse().ok()).expect("how many");
    assert!(count > 1_000, "{count} records");
    fleet.stop().await;
}

/// Case F18: whoever leads next knows of all that was acknowledged, from its first answer on.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ends_of_epochs_are_never_below_what_was_acknowledged() {
    const ROUNDS: u32 = 5;
    const EACH: u32 = 300;
    let mut fleet = ProcessFleet::start(&FleetOptions::new(3)).await.expect("it needs nothing but this machine");
    let client = fleet.connect().await;
    let mut topic = NewTopic::new(TOPIC);
    (topic.partitions, topic.replication_factor) = (Some(1), Some(3));
    Admin::new(&client).create_topic(topic).await.expect("the topic is new");
    for round in 0..ROUNDS {
        let partition = fleet.wait_until_in_sync().await.remove(0).partitions.remove(0);
        let (leader, epoch) = (partition.leader.expect("it is led").0 as usize, partition.leader_epoch.0.cast_signed());
        let producer = Producer::new(&client, ProducerConfig::default()).expect("the defaults are sound");
        let mut acknowledged = 0;
        let mut deliveries = Vec::new();
        for number in 0..2 * EACH {
            let record = ProducerRecord::new(TOPIC).partition(0).value(number.to_be_bytes().to_vec());
            deliveries.push(producer.send(record).await.expect("there is room"));
        }
        // The rest is on its way when the leader dies.
        let rest = deliveries.split_off(EACH as usize);
        for delivery in deliveries {
            acknowledged = delivery.await.expect("acknowledged").offset.expect("it was").0 + 1;
        }
        fleet.kill(leader);
        let followers: Vec<usize> = (0..3).filter(|broker| *broker != leader).collect();
        let (end_epoch, end) = first_end_of(&fleet, &followers, epoch).await;
        assert_eq!(end_epoch, epoch, "round {round}: records of it were acknowledged");
        assert!(
            end >= acknowledged.cast_signed(),
            "round {round}: {end} is below {acknowledged}, which was acknowledged"
        );
        for delivery in rest {
            delivery.await.expect("acknowledged by the next leader");
        }
        producer.close().await;
        fleet.restart(leader).await;
    }
    fleet.stop().await;
}

/// The first answer that any of the brokers gives to where an epoch ends.
async fn first_end_of(fleet: &ProcessFleet, brokers: &[usize], epoch: i32) -> (i32, i64) {
    let partition =
        kafka::offset_for_leader_epoch_request::OffsetForLeaderPartition::default().with_leader_epoch(epoch);
    let asked = kafka::offset_for_leader_epoch_request::OffsetForLeaderTopic::default()
        .with_topic(wire::name(TOPIC))
        .with_partitions(vec![partition.with_current_leader_epoch(-1)]);
    let request = kafka::OffsetForLeaderEpochRequest::default().with_topics(vec![asked]);
    let mut doors = Vec::new();
    for broker in brokers {
        doors.push(Connection::to(&fleet.kafka(*broker)).await);
    }
    loop {
        for door in &mut doors {
            let answer = door.call(4, &request).await;
            let told = &answer.topics[0].partitions[0];
            match told.error_code {
                0 => return (told.leader_epoch, told.end_offset),
                refused => assert_eq!(refused, NOT_LEADER),
            }
        }
        tokio::task::yield_now().await;
    }
}

/// A leader that says nothing any more, though its connections stand: a producer and a consumer go on with the next one, long before
/// their requests would time out.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clients_leave_a_leader_that_stands_still() {
    let mut fleet = ProcessFleet::start(&FleetOptions::new(3)).await.expect("it needs nothing but this machine");
    let client = fleet.connect().await;
    let mut topic = NewTopic::new(TOPIC);
    (topic.partitions, topic.replication_factor) = (Some(1), Some(3));
    Admin::new(&client).create_topic(topic).await.expect("the topic is new");
    let partition = fleet.wait_until_in_sync().await.remove(0).partitions.remove(0);
    let leader = partition.leader.expect("it is led").0 as usize;
    let producer = Producer::new(&client, ProducerConfig::default()).expect("the defaults are sound");
    let send = async |number: u32| {
        let record = ProducerRecord::new(TOPIC).partition(0).value(number.to_be_bytes().to_vec());
        producer.send(record).await.expect("there is room").await.expect("acknowledged")
    };
    let mut consumer = reader(&client, ConsumerConfig::default(), 0).await;
    send(0).await;
    assert_eq!(next(&mut consumer, 1).await, [0]);
    fleet.pause(leader);
    let patience = client.config().request_timeout;
    tokio::time::timeout(patience, send(1)).await.expect("acknowledged before a request would time out");
    let read = tokio::time::timeout(patience, next(&mut consumer, 1)).await;
    assert_eq!(read.expect("read before a request would time out"), [1]);
    // It comes back as a follower, and what it had taken for its own is not in the log.
    fleet.resume(leader);
    fleet.wait_until_in_sync().await;
    send(2).await;
    assert_eq!(next(&mut consumer, 1).await, [2]);
    producer.close().await;
    fleet.stop().await;
}

/// Replicas that an operator chooses are where he says, and what cannot be is refused as Kafka does.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kafka_clients_choose_the_replicas_of_a_topic() {
    let brokers = TestBrokers::start(3, Arc::new(InMemory::new())).await;
    let mut kafka = Connection::to(&brokers.addresses(0).kafka).await;
    let request = |name: &str, numbers: (i32, i16), assignments: &[&[i32]], validate_only| {
        let assignment = |(partition, brokers): (i32, &&[i32])| {
            kafka::create_topics_request::CreatableReplicaAssignment::default()
                .with_partition_index(partition)
                .with_broker_ids(brokers.iter().map(|id| (*id).into()).collect())
        };
        let topic = kafka::create_topics_request::CreatableTopic::default()
            .with_name(wire::name(name))
            .with_num_partitions(numbers.0)
            .with_replication_factor(numbers.1)
            .with_assignments((0..).zip(assignments).map(assignment).collect());
        kafka::CreateTopicsRequest::default()
            .with_topics(vec![topic])
            .with_timeout_ms(10_000)
            .with_validate_only(validate_only)
    };
    const INVALID_REQUEST: i16 = 42;
    const INVALID_ASSIGNMENT: i16 = 39;
    const BY_HAND: (i32, i16) = (-1, -1);
    for (numbers, assignments, expected) in [
        ((2, -1), &[&[0][..], &[1]][..], INVALID_REQUEST),
        ((-1, 1), &[&[0][..]], INVALID_REQUEST),
        (BY_HAND, &[&[][..]], INVALID_ASSIGNMENT),
        (BY_HAND, &[&[0, 1][..], &[0]], INVALID_ASSIGNMENT),
        (BY_HAND, &[&[0, 1][..], &[2, 2]], INVALID_ASSIGNMENT),
        (BY_HAND, &[&[0, 7][..]], INVALID_ASSIGNMENT),
        (BY_HAND, &[&[2, 0][..], &[1, 2]], 0),
    ] {
        for version in [2, 7] {
            let answer = kafka.call(version, &request("t", numbers, assignments, true)).await;
            let told = &answer.topics[0];
            assert_eq!(told.error_code, expected, "{numbers:?} {assignments:?}: {told:?}");
            assert_eq!(told.error_message.is_some(), expected != 0);
        }
    }
    let assignments: &[&[i32]] = &[&[2, 0], &[1, 2], &[0, 1]];
    let made = kafka.call(7, &request("t", BY_HAND, assignments, false)).await;
    let made = &made.topics[0];
    assert_eq!((made.error_code, made.num_partitions, made.replication_factor), (0, 3, 2));
    let client = Client::connect(&brokers.bootstrap()).await.expect("brokers are up");
    for (partition, expected) in
        Admin::new(&client).describe_topic("t").await.expect("it was made").partitions.iter().zip(assignments)
    {
        let replicas: Vec<i32> = partition.replicas.iter().map(|id| id.0.cast_signed()).collect();
        assert_eq!(&replicas, expected);
        assert_eq!(partition.leader.map(|id| id.0.cast_signed()), expected.first().copied(), "the first one leads");
    }
    brokers.stop().await;
}
