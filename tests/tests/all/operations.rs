//! What operators do to a fleet of real processes by the command line: move, drain, forget; and a broker that joins a running fleet.

use crate::commands::{fail_at, succeed_at};
use millpond_proto::v1;
use millpond_proto::v1::admin_client::AdminClient;
use millpond_sdk::{
    Admin, BrokerId, Client, ClusterDescription, NewTopic, Producer, ProducerConfig, ProducerRecord, TopicDescription,
};
use millpond_tests::fleet::{Fleet, FleetOptions, MetadataIn};
use millpond_tests::tools::{Tool, skip};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

const TOPIC: &str = "events";
const PARTITIONS: u32 = 12;

/// Nothing that is waited for takes so long, unless it never comes.
const PATIENCE: Duration = Duration::from_secs(60);

/// Publishes until it is told to stop; every record is acknowledged, or the task fails.
struct Publishing {
    stop: CancellationToken,
    acknowledged: watch::Receiver<u64>,
    task: JoinHandle<()>,
}

impl Publishing {
    fn begin(client: &Client) -> Publishing {
        let producer = Producer::new(client, ProducerConfig::default()).expect("the defaults are sound");
        let stop = CancellationToken::new();
        let stopped = stop.clone();
        let (count, acknowledged) = watch::channel(0);
        let task = tokio::spawn(async move {
            while !stopped.is_cancelled() {
                let record = ProducerRecord::new(TOPIC).key(format!("key-{}", *count.borrow())).value(vec![7; 100]);
                producer.send(record).await.expect("there is room").await.expect("acknowledged");
                count.send_modify(|count| *count += 1);
            }
            producer.close().await;
        });
        Publishing { stop, acknowledged, task }
    }

    /// Waits until records have been acknowledged in all partitions, from now on.
    async fn go_on(&mut self) {
        let goal = *self.acknowledged.borrow() + 10 * u64::from(PARTITIONS);
        let reached = self.acknowledged.wait_for(|acknowledged| *acknowledged >= goal);
        tokio::time::timeout(PATIENCE, reached).await.expect("records go on").expect("it publishes");
    }

    async fn end(mut self) {
        self.go_on().await;
        self.stop.cancel();
        self.task.await.expect("every record was acknowledged");
    }
}

async fn start(brokers: usize) -> (Fleet, Client) {
    let fleet = Fleet::start(&FleetOptions::new(brokers)).await.expect("every machine has what it takes");
    let client = fleet.connect().await;
    // Ready is whoever has opened its doors; placed is on those that the others know of.
    fleet.wait_until("all brokers are alive", |cluster, _| cluster.brokers.len() == brokers).await;
    let mut topic = NewTopic::new(TOPIC);
    (topic.partitions, topic.replication_factor) = (Some(PARTITIONS), Some(3));
    Admin::new(&client).create_topic(topic).await.expect("the topic is new");
    (fleet, client)
}

fn run(fleet: &Fleet, arguments: &[&str]) -> String {
    succeed_at(&fleet.bootstrap(), arguments, b"")
}

fn cluster(fleet: &Fleet) -> Value {
    serde_json::from_str(&run(fleet, &["cluster", "describe", "--output", "json"])).expect("it is JSON")
}

fn ids(brokers: &[BrokerId]) -> BTreeSet<u32> {
    brokers.iter().map(|broker| broker.0).collect()
}

/// How many partitions each broker leads.
fn leads(topics: &[TopicDescription]) -> BTreeMap<Option<u32>, usize> {
    let mut counts = BTreeMap::new();
    for partition in topics.iter().flat_map(|topic| &topic.partitions) {
        *counts.entry(partition.leader.map(|leader| leader.0)).or_default() += 1;
    }
    counts
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_partition_is_moved_and_a_broker_drained_and_forgotten_while_records_are_written() {
    let (mut fleet, client) = start(4).await;
    let mut publishing = Publishing::begin(&client);
    let topics = fleet.wait_until_in_sync().await;

    // `partition move`, to who has nothing of it; the others stay.
    let old = &topics[0].partitions[0].replicas;
    let absent = (0..4).find(|broker| !ids(old).contains(broker)).expect("three of four have it");
    let to = [absent, old[1].0, old[2].0];
    let list = to.map(|broker| broker.to_string()).join(",");
    let said = run(&fleet, &["partition", "move", "events:0", "--to", &list]);
    assert!(said.contains(&format!("events:0 moves to {list}").replace(',', ", ")), "{said}");
    run(&fleet, &["cluster", "wait", "--isr-full", "--timeout", "60s"]);
    let moved = |topics: &[TopicDescription]| {
        let first = &topics[0].partitions[0];
        first.replicas == to.map(BrokerId) && ids(&first.isr) == BTreeSet::from(to)
    };
    fleet.wait_until("the partition has moved", |_, topics| moved(topics)).await;
    let elected = run(&fleet, &["partition", "elect-leader", "events:0"]);
    assert_eq!(elected, format!("events:0 is led by broker {absent}\n"));
    let refused = fail_at(&fleet.bootstrap(), &["partition", "move", "events:0", "--to", "0,1,9"], b"");
    assert!(refused.contains("broker 9 is not there"), "{refused}");

    publishing.go_on().await;

    // `cluster forget` while it holds something, then `cluster drain`, then what is left of it.
    let refused = fail_at(&fleet.bootstrap(), &["cluster", "forget", "3"], b"");
    assert!(refused.contains("runs; stop it first") || refused.contains("drain 3"), "{refused}");
    run(&fleet, &["cluster", "drain", "3"]);
    let holds_nothing = |topics: &[TopicDescription]| {
        let mut partitions = topics.iter().flat_map(|topic| &topic.partitions);
        partitions.all(|partition| !ids(&partition.replicas).contains(&3) && partition.leader != Some(BrokerId(3)))
    };
    fleet.wait_until("broker 3 holds nothing", |_, topics| holds_nothing(topics)).await;
    let refused = fail_at(&fleet.bootstrap(), &["cluster", "forget", "3"], b"");
    assert!(refused.contains("stop it first"), "{refused}");
    assert!(fleet.terminate(3).await.success());
    assert_eq!(run(&fleet, &["cluster", "forget", "3"]), "broker 3 is forgotten\n");
    let described = cluster(&fleet);
    let brokers: Vec<&Value> = described["brokers"].as_array().expect("a list").iter().map(|it| &it["id"]).collect();
    assert_eq!(brokers, [&json!(0), &json!(1), &json!(2)]);
    let refused = fail_at(&fleet.bootstrap(), &["cluster", "forget", "3"], b"");
    assert!(refused.contains("no broker 3 has ever registered"), "{refused}");

    run(&fleet, &["cluster", "wait", "--isr-full", "--timeout", "60s"]);
    publishing.end().await;
    fleet.stop().await;
}

/// Nobody asks for anything: the new broker gets replicas and leaderships, within the minute that a wait lasts at most.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_broker_that_joins_a_running_fleet_takes_its_share_by_itself() {
    let (mut fleet, client) = start(3).await;
    let topics = fleet.wait_until_in_sync().await;
    assert_eq!(leads(&topics), BTreeMap::from([(Some(0), 4), (Some(1), 4), (Some(2), 4)]));
    let publishing = Publishing::begin(&client);
    let fourth = fleet.grow();
    fleet.restart(fourth).await;
    let spread = |_: &ClusterDescription, topics: &[TopicDescription]| {
        let mut replicas: BTreeMap<u32, usize> = BTreeMap::new();
        for broker in topics.iter().flat_map(|topic| &topic.partitions).flat_map(|partition| &partition.replicas) {
            *replicas.entry(broker.0).or_default() += 1;
        }
        let all = (0..4).all(|broker| replicas.get(&broker) == Some(&9));
        all && leads(topics) == (0..4).map(|broker| (Some(broker), 3)).collect()
    };
    fleet.wait_until("each of four has nine replicas and leads three partitions", spread).await;
    fleet.wait_until_in_sync().await;
    publishing.end().await;
    fleet.stop().await;
}

/// Neither a new topic nor a new partition has fewer copies for ever since a broker was down for a moment (rules I1, I5).
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_topic_that_is_made_and_grows_while_one_of_three_brokers_is_down_has_three_copies_once_it_is_back() {
    let (mut fleet, client) = start(3).await;
    fleet.wait_until_in_sync().await;
    fleet.kill(1);
    fleet.wait_until("its session ends", |cluster, _| cluster.brokers.len() == 2).await;
    let admin = Admin::new(&client);
    let mut topic = NewTopic::new("made-meanwhile");
    topic.partitions = Some(4);
    admin.create_topic(topic).await.expect("two are enough to write with");
    admin.create_partitions("made-meanwhile", 6).await.expect("and to grow");
    let producer = Producer::new(&client, ProducerConfig::default()).expect("the defaults are sound");
    for index in 0..6 {
        let record = ProducerRecord::new("made-meanwhile").partition(index).value("v");
        producer.send(record).await.expect("there is room").await.expect("acknowledged");
    }
    producer.close().await;
    let made = admin.describe_topic("made-meanwhile").await.expect("it is there");
    for partition in &made.partitions {
        assert_eq!(
            (ids(&partition.replicas), ids(&partition.isr)),
            (BTreeSet::from([0, 1, 2]), BTreeSet::from([0, 2]))
        );
    }
    fleet.restart(1).await;
    let topics = fleet.wait_until_in_sync().await;
    let made = topics.iter().find(|topic| topic.name == "made-meanwhile").expect("it is there");
    assert!(made.partitions.iter().all(|partition| partition.isr.len() == 3));
    // Without enough to write with, those that are down are not counted: nobody knows whether they come back.
    fleet.kill(1);
    fleet.kill(2);
    fleet.wait_until("one is left", |cluster, _| cluster.brokers.len() == 1).await;
    admin.create_topic(NewTopic::new("made-alone")).await.expect("one is enough for one copy");
    let alone = admin.describe_topic("made-alone").await.expect("it is there");
    assert_eq!(ids(&alone.partitions[0].replicas), BTreeSet::from([0]));
    fleet.stop().await;
}

/// The topics as this very broker knows them, or why it does not tell.
type Told = Result<Vec<v1::TopicDescription>, tonic::Status>;

async fn topics_of(fleet: &Fleet, broker: usize) -> Told {
    let admin = AdminClient::connect(format!("http://{}", fleet.grpc(broker))).await;
    let told = admin.expect("it is up").list_topics(v1::ListTopicsRequest::default()).await;
    Ok(told?.into_inner().topics)
}

/// Waits until what a broker tells is as it should be.
async fn until_told(fleet: &Fleet, broker: usize, holds: fn(Told) -> bool) {
    let ask = async {
        let mut poll = tokio::time::interval(Duration::from_millis(20));
        while !holds(topics_of(fleet, broker).await) {
            poll.tick().await;
        }
    };
    tokio::time::timeout(PATIENCE, ask).await.expect("it comes to tell so");
}

fn is_whole(topics: &[v1::TopicDescription]) -> bool {
    let mut partitions = topics.iter().flat_map(|topic| &topic.partitions);
    partitions.all(|partition| partition.leader.is_some() && partition.isr.len() == partition.replicas.len())
}

/// Rule B5: it still takes the cluster for what it was, and tells nobody so.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_cluster_is_not_called_whole_by_a_broker_that_is_cut_off_from_the_metadata() {
    let (mut fleet, _) = start(3).await;
    assert!(fleet.terminate(0).await.success());
    let proxy = fleet.proxy_metadata(0).await;
    fleet.restart(0).await;
    until_told(&fleet, 0, |topics| topics.is_ok_and(|topics| is_whole(&topics))).await;
    drop(proxy);
    fleet.kill(1);
    until_told(&fleet, 0, |topics| topics.is_err_and(|refused| refused.code() == tonic::Code::Unavailable)).await;
    until_told(&fleet, 2, |topics| topics.is_ok_and(|topics| !is_whole(&topics))).await;
    let said = fail_at(&fleet.grpc(0), &["cluster", "wait", "--isr-full", "--timeout", "1s"], b"");
    assert!(said.contains("are not whole yet"), "{said}");
    fleet.stop().await;
}

/// Rule B5: nobody knows how the cluster is then, but everybody how it was, and says so; only who waits for how it is waits on.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_etcd_commands_tell_how_the_cluster_was_and_since_when() {
    let options = FleetOptions { metadata: MetadataIn::Etcd(Tool::EtcdPinned, 1), ..FleetOptions::new(3) };
    let mut fleet = match Fleet::start(&options).await {
        Ok(fleet) => fleet,
        Err(why) => return skip("without_etcd_commands_tell_how_the_cluster_was_and_since_when", &why),
    };
    let admin = Admin::new(&fleet.connect().await);
    admin.create_topic(NewTopic::new(TOPIC)).await.expect("created");
    assert_eq!(admin.last_known_cluster().await.expect("a broker answers").stale_for, None);
    fleet.etcd().kill(0);
    let stale = async {
        let mut poll = tokio::time::interval(Duration::from_millis(20));
        while admin.last_known_topics().await.expect("brokers answer").stale_for.is_none() {
            poll.tick().await;
        }
    };
    tokio::time::timeout(PATIENCE, stale).await.expect("all of them come to be stale");
    let bootstrap = fleet.bootstrap();
    for (command, at) in [
        (&["cluster", "describe"][..], "/brokers/2/id"),
        (&["topic", "list"], "/topics/0/id"),
        (&["topic", "describe", TOPIC], "/partitions/0/leader"),
    ] {
        let told: Value =
            serde_json::from_str(&succeed_at(&bootstrap, &[command, &["--output", "json"]].concat(), b""))
                .expect("one document");
        assert!(!told.pointer(at).expect("it is told").is_null(), "{told}");
        assert!(told["stale_ms"].as_u64().is_some_and(|time| time > 1_000), "{told}");
    }
    let said = fail_at(&bootstrap, &["cluster", "wait", "--isr-full", "--timeout", "1s"], b"");
    assert!(said.contains("so nobody knows how the partitions are"), "{said}");
    fleet.etcd().restart(0).await;
    fleet.wait_until_in_sync().await;
    let known = succeed_at(&bootstrap, &["topic", "list", "--output", "json"], b"");
    assert!(!known.contains("stale_ms"), "{known}");
    fleet.stop().await;
}
