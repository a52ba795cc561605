//! Three brokers and the one that acts as controller: whoever dies is replaced as leader, whoever comes back leads again, and no produce
//! fails while leaderships move.

use millpond_broker::api::TopicRef;
use millpond_core::records::Leader;
use millpond_core::topic_name::TopicName;
use millpond_log::{BrokerId, Incarnation, Rid, TopicId, WalGen};
use millpond_metadata::kv::{LeaseId, Revision};
use millpond_metadata::store::{self, CreateOutcome, Placement, Session};
use millpond_sdk::{Admin, Client, ErrorCode, NewTopic, Producer, ProducerConfig, ProducerRecord};
use millpond_tests::brokers::TestBrokers;
use millpond_tests::fleet::{Fleet, FleetOptions};
use object_store::memory::InMemory;
use object_store::throttle::{ThrottleConfig, ThrottledStore};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

const TOPIC: &str = "events";
const PARTITIONS: u32 = 12;

/// How often the metadata are looked at, by a test that waits for them.
const LOOK: Duration = Duration::from_millis(20);

/// How many partitions each broker leads, as `of` sees it.
fn leads(brokers: &TestBrokers, of: u32) -> BTreeMap<Option<BrokerId>, usize> {
    let topic = brokers.handle(of).topic(&TopicRef::Name(TOPIC.to_owned())).expect("the topic exists");
    let mut counts = BTreeMap::new();
    for partition in topic.partitions {
        *counts.entry(partition.leader).or_default() += 1;
    }
    counts
}

/// Waits until the brokers lead so many partitions, as broker `of` sees it.
async fn until_led(brokers: &TestBrokers, of: u32, wanted: &[(u32, usize)]) {
    let wanted: BTreeMap<Option<BrokerId>, usize> =
        wanted.iter().map(|(broker, count)| (Some(BrokerId(*broker)), *count)).collect();
    let reached = async {
        while leads(brokers, of) != wanted {
            tokio::time::sleep(LOOK).await;
        }
    };
    let waited = tokio::time::timeout(Duration::from_secs(60), reached).await;
    assert!(waited.is_ok(), "{:?} where {wanted:?} is wanted", leads(brokers, of));
}

async fn create(client: &Client) {
    create_with(client, PARTITIONS).await;
}

async fn create_with(client: &Client, partitions: u32) {
    let mut topic = NewTopic::new(TOPIC);
    (topic.partitions, topic.replication_factor) = (Some(partitions), Some(3));
    Admin::new(client).create_topic(topic).await.expect("the topic is new");
}

/// Leaderships leave a broker that stops and come back to it, while a producer goes on: every record is acknowledged.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn leaderships_go_and_come_back_and_no_produce_fails() {
    let mut brokers = TestBrokers::start(3, Arc::new(InMemory::new())).await;
    let client = Client::connect(&brokers.bootstrap()).await.expect("brokers are up");
    create(&client).await;
    until_led(&brokers, 0, &[(0, 4), (1, 4), (2, 4)]).await;

    let stop = Arc::new(AtomicBool::new(false));
    let (producing, stopped) = (client.clone(), Arc::clone(&stop));
    let produced = tokio::spawn(async move {
        let producer = Producer::new(&producing, ProducerConfig::default()).expect("the defaults are sound");
        let mut acknowledged = 0u64;
        while !stopped.load(Ordering::Relaxed) {
            let record = ProducerRecord::new(TOPIC).key(format!("key-{acknowledged}")).value(vec![7; 64]);
            producer.send(record).await.expect("there is room").await.expect("acknowledged");
            acknowledged += 1;
        }
        producer.close().await;
        acknowledged
    });
    for id in [1, 2] {
        brokers.stop_one(id).await;
        let moved = async {
            while leads(&brokers, 0).contains_key(&Some(BrokerId(id))) || leads(&brokers, 0).contains_key(&None) {
                tokio::time::sleep(LOOK).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(60), moved).await.expect("others lead");
        brokers.start_one(id).await;
        until_led(&brokers, 0, &[(0, 4), (1, 4), (2, 4)]).await;
    }
    stop.store(true, Ordering::Relaxed);
    let acknowledged = produced.await.expect("no produce failed");
    assert!(acknowledged > 100, "only {acknowledged}");
    brokers.stop().await;
}

/// Waits until the replicas of the first partition are these, and all in sync.
async fn until_placed(brokers: &TestBrokers, wanted: &[u32]) {
    let wanted: Vec<BrokerId> = wanted.iter().copied().map(BrokerId).collect();
    let placed = async {
        loop {
            let topic = brokers.handle(0).topic(&TopicRef::Name(TOPIC.to_owned())).expect("the topic exists");
            let first = &topic.partitions[0];
            if first.replicas == wanted && wanted.iter().all(|broker| first.isr.contains(broker)) {
                return;
            }
            tokio::time::sleep(LOOK).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), placed).await.expect("the move is done");
}

async fn publish(client: &Client, count: usize) {
    let producer = Producer::new(client, ProducerConfig::default()).expect("the defaults are sound");
    for number in 0..count {
        let record = ProducerRecord::new(TOPIC).key(format!("key-{number}")).value(vec![7; 64]);
        producer.send(record).await.expect("there is room").await.expect("acknowledged");
    }
    producer.close().await;
}

/// Rule I8: a partition goes where the operator says, its leader too; a broker is emptied, and forgotten only then.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn partitions_go_where_the_operator_says() {
    let mut brokers = TestBrokers::start(4, Arc::new(InMemory::new())).await;
    let client = Client::connect(&brokers.bootstrap()).await.expect("brokers are up");
    let admin = Admin::new(&client);
    // One alone is never out of balance, so that the controller has nothing to even out after the operator.
    create_with(&client, 1).await;
    publish(&client, 50).await;
    let replicas = |of: &TestBrokers| -> Vec<u32> {
        let topic = of.handle(0).topic(&TopicRef::Name(TOPIC.to_owned())).expect("the topic exists");
        topic.partitions[0].replicas.iter().map(|broker| broker.0).collect()
    };
    let old = replicas(&brokers);
    let absent = (0..4).find(|broker| !old.contains(broker)).expect("three of four have it");

    // Away from its leader, to who has nothing of it.
    let to = [absent, old[1], old[2]];
    admin.move_partition(TOPIC, 0, &to.map(BrokerId)).await.expect("it may go there");
    until_placed(&brokers, &to).await;
    publish(&client, 50).await;
    assert_eq!(admin.elect_leader(TOPIC, 0).await.expect("it is in sync"), BrokerId(absent));
    for bad in [vec![BrokerId(9), BrokerId(1)], vec![BrokerId(1), BrokerId(1)], vec![BrokerId(1)]] {
        let refused = admin.move_partition(TOPIC, 0, &bad).await.expect_err("it may not go there");
        assert_eq!(refused.code, Some(millpond_log::ErrorCode::InvalidReplicaAssignment), "{bad:?}");
    }

    // The new leader is emptied while it runs, and forgotten once it is stopped.
    let emptied = BrokerId(absent);
    let refused = admin.forget_broker(emptied).await.expect_err("it holds replicas");
    assert!(refused.to_string().contains(&format!("drain {absent}")), "{refused}");
    admin.drain_broker(emptied, false).await.expect("it is known");
    let left = async {
        loop {
            let topic = brokers.handle(old[1]).topic(&TopicRef::Name(TOPIC.to_owned())).expect("the topic exists");
            if topic.partitions.iter().all(|partition| !partition.replicas.contains(&emptied)) {
                return;
            }
            tokio::time::sleep(LOOK).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), left).await.expect("everything goes elsewhere");
    let refused = admin.forget_broker(emptied).await.expect_err("it runs");
    assert!(refused.to_string().contains("stop it first"), "{refused}");
    brokers.stop_one(absent).await;
    admin.forget_broker(emptied).await.expect("it holds nothing, and is gone");
    publish(&client, 50).await;
    brokers.stop().await;
}

/// Rule S5: a replica is opened once at a time, however often it is placed and taken away meanwhile. Another opening would begin its log anew,
/// behind the back of a leader that counts on what the first has acknowledged.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_move_that_is_cancelled_and_begun_again_while_the_bucket_is_slow_opens_its_replica_once() {
    /// Of each read, so that an opening lasts longer than the operator's three steps.
    const SLOW: Duration = Duration::from_secs(3);
    let objects = Arc::new(ThrottledStore::new(InMemory::new(), ThrottleConfig::default()));
    let brokers = TestBrokers::start(3, Arc::<ThrottledStore<InMemory>>::clone(&objects)).await;
    let client = Client::connect(&brokers.bootstrap()).await.expect("brokers are up");
    let admin = Admin::new(&client);
    let mut topic = NewTopic::new(TOPIC);
    (topic.partitions, topic.replication_factor) = (Some(1), Some(2));
    let made = admin.create_topic(topic).await.expect("the topic is new").partitions.remove(0);
    publish(&client, 50).await;
    admin.flush_topic(TOPIC).await.expect("the bucket is there");
    publish(&client, 50).await;
    let leader = made.leader.expect("it is led");
    let third = (0..3).map(BrokerId).find(|broker| !made.replicas.contains(broker)).expect("two of three have it");
    let name = TopicRef::Name(TOPIC.to_owned());
    let until_seen = async |placed: bool| {
        let seen = async {
            while {
                let topic = brokers.handle(third.0).topic(&name).expect("the topic exists");
                topic.partitions[0].replicas.contains(&third) != placed
            } {
                tokio::time::sleep(LOOK).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(60), seen).await.expect("it sees the record");
    };

    objects.config_mut(|config| config.wait_get_per_call = SLOW);
    admin.move_partition(TOPIC, 0, &[leader, third]).await.expect("it may go there");
    until_seen(true).await;
    brokers.handle(leader.0).cancel_move(&name, 0).await.expect("it is under way");
    until_seen(false).await;
    admin.move_partition(TOPIC, 0, &[leader, third]).await.expect("it may go there");
    until_seen(true).await;
    objects.config_mut(|config| config.wait_get_per_call = Duration::ZERO);

    until_placed(&brokers, &[leader.0, third.0]).await;
    publish(&client, 50).await;
    assert_eq!(admin.elect_leader(TOPIC, 0).await.expect("the first is in sync"), leader);
    let status = admin.partition_status(TOPIC, 0).await.expect("it is led");
    assert_eq!(status.high_watermark.0, 150);
    brokers.stop().await;
}

/// As if the broker that created it had died in the middle. A name that nobody could use or free would be lost.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_creation_that_somebody_left_is_taken_back_and_its_name_is_free_again() {
    let fleet = Fleet::start(&FleetOptions::new(3)).await.expect("every machine has what it takes");
    let store = fleet.store().await;
    let hosts = store.hosts().await.expect("it answers");
    let (broker, seen) = hosts.live.first_key_value().expect("there are three");
    let rid = Rid { broker: *broker, wal_gen: seen.value.wal_gen };
    let actor = Session { rid, inc: Incarnation(seen.revision.0), lease: LeaseId(0), ttl: Duration::from_secs(1) };
    let gone = Leader { rid: Rid { broker: BrokerId(9), wal_gen: WalGen(1) }, inc: Incarnation(1) };
    let placement =
        Placement { replicas: vec![rid.broker], isr: vec![rid], leader: Some(gone), min_isr: 1, absent: Vec::new() };
    let left = store::NewTopic {
        name: TopicName::new(TOPIC).expect("valid"),
        id: TopicId(77),
        buried: Revision::ABSENT,
        replication_factor: 1,
        config: BTreeMap::new(),
        placements: vec![placement; 3],
    };
    assert_eq!(store.create_topic(&actor, &left).await, Ok(CreateOutcome::Conflict), "it begins, and cannot go on");
    let client = fleet.connect().await;
    let created = async {
        let mut refusals = 0;
        loop {
            match Admin::new(&client).create_topic(NewTopic::new(TOPIC)).await {
                Ok(_) => return refusals,
                Err(error) => assert_eq!(error.code, Some(ErrorCode::TopicAlreadyExists), "{error}"),
            }
            refusals += 1;
            tokio::time::sleep(LOOK).await;
        }
    };
    let refusals = tokio::time::timeout(Duration::from_secs(60), created).await.expect("its name is freed");
    assert!(refusals > 0, "whoever created it might have been at work still");
    let removed = async {
        while store.topic(left.id).await.expect("it answers").is_some() {
            tokio::time::sleep(LOOK).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), removed).await.expect("nothing is left of it");
    // Whoever comes back late finds that the name is another's.
    let late = store.create_topic(&actor, &left).await;
    assert!(matches!(late, Ok(CreateOutcome::Exists { id }) if id != left.id), "{late:?}");
    fleet.stop().await;
}
