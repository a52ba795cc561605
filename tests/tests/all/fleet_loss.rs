//! Three brokers whose complete copies of a partition go one after the other: what is said, what is served, and what brings it back, by
//! the operator's order or because the topic asks for it (rules B4, E2, E7, F4). Over real processes.

use crate::commands::{fail_at, succeed_at};
use millpond_log::WalGen;
use millpond_proto::v1;
use millpond_proto::v1::admin_client::AdminClient;
use millpond_sdk::{
    Admin, BrokerId, Client, Consumer, ConsumerConfig, NewTopic, Offset, Producer, ProducerConfig, ProducerRecord,
    StartAt, TopicDescription, TopicPartition,
};
use millpond_tests::fleet::{Fleet, FleetOptions};
use millpond_tests::http;
use serde_json::{Value, json};
use std::ops::Range;
use std::time::Duration;

const TOPIC: &str = "orders";

async fn start(brokers: usize) -> (Fleet, Client) {
    let fleet = Fleet::start(&FleetOptions::new(brokers)).await.expect("every machine has what it takes");
    let client = fleet.connect().await;
    (fleet, client)
}

/// A topic of one partition, with these settings.
async fn create(client: &Client, name: &str, replicas: u32, configs: &[(&str, &str)]) {
    let mut topic = NewTopic::new(name);
    (topic.partitions, topic.replication_factor) = (Some(1), Some(replicas));
    topic.configs = configs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
    Admin::new(client).create_topic(topic).await.expect("the topic is new");
}

/// Sends records one by one; each lands at the offset of its number.
async fn publish(client: &Client, topic: &str, era: &str, numbers: Range<u64>) {
    let producer = Producer::new(client, ProducerConfig::default()).expect("the defaults are sound");
    for number in numbers {
        let record = ProducerRecord::new(topic).value(format!("{era}-{number}"));
        let written = producer.send(record).await.expect("there is room").await.expect("acknowledged");
        assert_eq!(written.offset, Some(Offset(number)), "{era}");
    }
    producer.close().await;
}

/// The values at `0..count`.
async fn read(client: &Client, topic: &str, count: usize) -> Vec<String> {
    let mut consumer = Consumer::new(client, ConsumerConfig::default());
    consumer.assign([(TopicPartition::new(topic, 0), StartAt::Earliest)]).await.expect("it can be read");
    let mut values = Vec::new();
    while values.len() < count {
        let records = consumer.poll(Duration::from_secs(20)).await.expect("it can be read");
        assert!(!records.is_empty(), "only {} of {count} can be read", values.len());
        values.extend(records.into_iter().map(|record| record.value.expect("not null").to_vec()));
    }
    values.into_iter().take(count).map(|value| String::from_utf8(value).expect("text")).collect()
}

fn values(era: &str, numbers: Range<u64>) -> Vec<String> {
    numbers.map(|number| format!("{era}-{number}")).collect()
}

fn named<'a>(topics: &'a [TopicDescription], name: &str) -> Option<&'a TopicDescription> {
    topics.iter().find(|topic| topic.name == name)
}

fn leader_of(topics: &[TopicDescription], name: &str) -> Option<BrokerId> {
    named(topics, name)?.partitions[0].leader
}

/// The partition, as this very broker sees it.
async fn seen_by(fleet: &Fleet, broker: usize) -> v1::PartitionDescription {
    let admin = AdminClient::connect(format!("http://{}", fleet.grpc(broker))).await;
    let request = v1::DescribeTopicRequest { topic: Some(v1::TopicRef::name(TOPIC)), allow_stale: true };
    let described = admin.expect("it is up").describe_topic(request).await.expect("it knows the topic").into_inner();
    described.topic.expect("it is told of").partitions.remove(0)
}

/// Waits until a broker sees the partition so.
async fn until_seen(
    fleet: &Fleet,
    broker: usize,
    holds: impl Fn(&v1::PartitionDescription) -> bool,
) -> v1::PartitionDescription {
    let told = async {
        let mut look = tokio::time::interval(Duration::from_millis(20));
        loop {
            look.tick().await;
            let seen = seen_by(fleet, broker).await;
            if holds(&seen) {
                return seen;
            }
        }
    };
    tokio::time::timeout(Duration::from_secs(60), told).await.expect("every broker hears of the others")
}

/// Waits until a broker says that the partition is lost, or that it is not.
async fn known_to(fleet: &Fleet, broker: usize, lost: bool) -> v1::PartitionDescription {
    until_seen(fleet, broker, |seen| seen.loss.is_some() == lost).await
}

/// Every broker comes back with an empty disk, each after the other. The first one hears from the others' registrations that the partition
/// is lost, and does what an operator says, though it was not started again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_first_of_three_wiped_brokers_learns_that_all_is_lost_and_takes_the_order_to_go_on() {
    let (mut fleet, client) = start(3).await;
    create(&client, TOPIC, 3, &[]).await;
    publish(&client, TOPIC, "a", 0..20).await;
    Admin::new(&client).flush_topic(TOPIC).await.expect("the object store is there");
    publish(&client, TOPIC, "a", 20..50).await;
    (0..3).for_each(|broker| fleet.kill(broker));

    fleet.wipe(0);
    fleet.restart(0).await;
    let first = fleet.pid(0);
    // The others may come back with all that there was: nothing is lost yet, and nothing can be accepted. Who led may have a session left.
    let early = until_seen(&fleet, 0, |seen| seen.leader.is_none()).await;
    assert_eq!(early.loss, None);
    let refused = fail_at(&fleet.grpc(0), &["partition", "accept-loss", "orders:0", "--yes"], b"");
    assert!(refused.contains("lost nothing"), "{refused}");
    fleet.wipe(1);
    fleet.restart(1).await;
    assert_eq!(seen_by(&fleet, 0).await.loss, None, "the last one may still come back");
    fleet.wipe(2);
    fleet.restart(2).await;
    let known = known_to(&fleet, 0, true).await;
    assert_eq!(fleet.pid(0), first, "it was not started again");
    let loss = known.loss.expect("it is lost");
    assert_eq!((loss.end, &known.isr[..]), (20, &[][..]), "what is in object storage is left");
    assert!(loss.cause.contains("was empty"), "{}", loss.cause);
    // From here on it is alone: whatever is asked for, it does.
    fleet.kill(1);
    fleet.kill(2);
    let alone = fleet.connect().await;

    // Rule F4: that can be read; the rest is refused with the reason.
    assert_eq!(read(&alone, TOPIC, 20).await, values("a", 0..20));
    let produce = ["produce", TOPIC, "--partition", "0", "--delivery-timeout", "5s"];
    let refused = fail_at(&fleet.grpc(0), &produce, b"x\n");
    assert!(refused.contains("accept-loss orders:0 --yes"), "{refused}");

    let accepted = ["partition", "accept-loss", "orders:0", "--yes", "--output", "json"];
    let accepted: Value = serde_json::from_str(&succeed_at(&fleet.grpc(0), &accepted, b"")).expect("it is JSON");
    assert_eq!(accepted["accepted"], json!(true));
    // Two in-sync replicas are wanted again: the others copy what is left, and hear that it is lost no longer.
    fleet.restart(1).await;
    fleet.restart(2).await;
    fleet.wait_until_in_sync().await;
    publish(&client, TOPIC, "b", 20..40).await;
    for broker in 0..3 {
        assert_eq!(known_to(&fleet, broker, false).await.leader, Some(0), "as broker {broker} sees it");
    }
    let all = [values("a", 0..20), values("b", 20..40)].concat();
    assert_eq!(read(&client, TOPIC, 40).await, all);
    let losses = fleet.store().await.losses().await.expect("the store is up");
    let ends: Vec<(Offset, Offset)> = losses.iter().map(|(_, loss)| (loss.end, loss.tiered_end)).collect();
    assert_eq!(ends, [(Offset(20), Offset(20))], "one loss is on record");
    // Each of them is as good as any.
    fleet.kill(0);
    fleet.wait_until("another one leads", |_, topics| leader_of(topics, TOPIC).is_some_and(|it| it.0 != 0)).await;
    assert_eq!(read(&client, TOPIC, 40).await, all);
    fleet.stop().await;
}

/// Makes a topic of thirty records that is lost: broker 1 has them all and is not in sync, the others have nothing.
async fn lose_what_is_in_sync(fleet: &mut Fleet, client: &Client) {
    create(client, TOPIC, 3, &[]).await;
    publish(client, TOPIC, "a", 0..30).await;
    (0..3).for_each(|broker| fleet.kill(broker));
    // Broker 1 takes its disk back after another one has registered in its name: it is another replica, with all of its frames (B1a).
    let (disk, aside) = (fleet.data_dir(1), fleet.data_dir(1).with_extension("aside"));
    std::fs::rename(&disk, &aside).expect("it is a folder");
    fleet.restart(1).await;
    fleet.kill(1);
    std::fs::remove_dir_all(&disk).expect("it was there");
    std::fs::rename(&aside, &disk).expect("it is a folder");
    for broker in [0, 2] {
        fleet.wipe(broker);
        fleet.restart(broker).await;
    }
    fleet.restart(1).await;
    let mut ends = Vec::new();
    for broker in 0..3 {
        ends.push(known_to(fleet, broker, true).await.loss.expect("it is lost").end);
    }
    assert_eq!(ends, [0, 30, 0]);
}

/// What is accepted at one broker is lost no longer at the others, which know of the loss as well.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_loss_that_was_accepted_elsewhere_is_none_any_more_and_the_most_that_is_left_is_kept() {
    let (mut fleet, client) = start(3).await;
    lose_what_is_in_sync(&mut fleet, &client).await;

    // Whichever is asked, the one with the frames takes it.
    let accept = ["partition", "accept-loss", "orders:0", "--yes"];
    let said = succeed_at(&fleet.grpc(0), &accept, b"");
    assert!(said.contains("it goes on at offset 30"), "{said}");
    let topics = fleet.wait_until_in_sync().await;
    assert_eq!(leader_of(&topics, TOPIC), Some(BrokerId(1)));
    for broker in 0..3 {
        known_to(&fleet, broker, false).await;
    }
    publish(&client, TOPIC, "b", 30..40).await;
    assert_eq!(read(&client, TOPIC, 40).await, [values("a", 0..30), values("b", 30..40)].concat());
    fleet.stop().await;
}

/// Whoever is left alone leads what it has, and serves it once no more replicas are wanted in sync: that change waits for nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_loss_that_is_accepted_with_too_few_in_sync_holds_up_no_change_of_a_topic() {
    let (mut fleet, client) = start(3).await;
    lose_what_is_in_sync(&mut fleet, &client).await;
    fleet.kill(0);
    fleet.kill(2);
    fleet.wait_until("one is left", |cluster, _| cluster.brokers.len() == 1).await;
    let said = succeed_at(&fleet.grpc(1), &["partition", "accept-loss", "orders:0", "--yes"], b"");
    assert!(said.contains("it goes on at offset 30"), "{said}");
    succeed_at(&fleet.grpc(1), &["topic", "alter", TOPIC, "--set", "min.insync.replicas=1"], b"");
    let alone = fleet.connect().await;
    publish(&alone, TOPIC, "b", 30..40).await;
    assert_eq!(read(&alone, TOPIC, 40).await, [values("a", 0..30), values("b", 30..40)].concat());
    fleet.stop().await;
}

/// Forgets a broker once nothing names it any more.
async fn forget(fleet: &Fleet, asked: usize, broker: usize) {
    let admin = AdminClient::connect(format!("http://{}", fleet.grpc(asked))).await.expect("it is up");
    let forgotten = async {
        let mut look = tokio::time::interval(Duration::from_millis(100));
        loop {
            look.tick().await;
            let broker = u32::try_from(broker).expect("few");
            let request = v1::ForgetBrokerRequest { broker, ..v1::ForgetBrokerRequest::default() };
            match admin.clone().forget_broker(request).await {
                Ok(_) => return,
                Err(refused) => assert!(refused.message().contains("still"), "{refused}"),
            }
        }
    };
    tokio::time::timeout(Duration::from_secs(60), forgotten).await.expect("its replicas go elsewhere");
}

/// Rule B4 by an operator's word: a broker whose id never comes back had the last copy. Nobody else holds anything of it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_last_copy_on_a_broker_that_never_comes_back_is_accepted_as_lost_and_the_broker_is_forgotten() {
    let (mut fleet, client) = start(3).await;
    create(&client, TOPIC, 1, &[]).await;
    publish(&client, TOPIC, "a", 0..20).await;
    Admin::new(&client).flush_topic(TOPIC).await.expect("the object store is there");
    publish(&client, TOPIC, "a", 20..30).await;
    let topics = fleet.wait_until_in_sync().await;
    let gone = leader_of(&topics, TOPIC).expect("it is led").0 as usize;
    let left = (gone + 1) % 3;
    let id = gone.to_string();
    for lost in [&["cluster", "forget", &id, "--lost"][..], &["cluster", "forget", &id, "--lost", "--yes"]] {
        let refused = fail_at(&fleet.grpc(left), lost, b"");
        assert!(refused.contains("stop it first"), "{refused}");
    }
    fleet.kill(gone);
    fleet.wait_until("nobody leads", |_, topics| leader_of(topics, TOPIC).is_none()).await;

    // It may come back: nothing is lost before somebody says that it will not. That is said where it is looked for.
    let accept = ["partition", "accept-loss", "orders:0", "--yes"];
    let command = format!("cluster forget {gone} --lost");
    for refused in
        [fail_at(&fleet.grpc(left), &accept, b""), fail_at(&fleet.grpc(left), &["cluster", "forget", &id], b"")]
    {
        assert!(refused.contains(&command), "{refused}");
    }
    let said = succeed_at(&fleet.grpc(left), &["cluster", "forget", &id, "--lost"], b"");
    assert!(said.contains("of 1 the last copy: orders:0") && said.contains("nothing was changed"), "{said}");
    assert!(fail_at(&fleet.grpc(left), &accept, b"").contains(&command), "it was only asked");
    let said = succeed_at(&fleet.grpc(left), &["cluster", "forget", &id, "--lost", "--yes"], b"");
    assert!(said.contains("of 1 the last copy: orders:0") && said.contains("accept-loss"), "{said}");
    let said = succeed_at(&fleet.grpc(left), &accept, b"");
    assert!(said.contains("it goes on at offset 20"), "{said}");
    publish(&client, TOPIC, "b", 20..40).await;
    let all = [values("a", 0..20), values("b", 20..40)].concat();
    assert_eq!(read(&client, TOPIC, 40).await, all);

    // Should the disk come back after all, it is another replica, which has no say (rules B1a, B4).
    fleet.restart(gone).await;
    let topics = fleet.wait_until_in_sync().await;
    assert!(leader_of(&topics, TOPIC).is_some_and(|leader| leader.0 as usize != gone));
    assert_eq!(read(&client, TOPIC, 40).await, all);
    fleet.kill(gone);
    fleet.wait_until("it is gone", |cluster, _| cluster.brokers.len() == 2).await;
    forget(&fleet, left, gone).await;
    let losses = fleet.store().await.losses().await.expect("the store is up");
    let ends: Vec<(Offset, Offset)> = losses.iter().map(|(_, loss)| (loss.end, loss.tiered_end)).collect();
    assert_eq!(ends, [(Offset(20), Offset(20))], "one loss is on record");
    fleet.stop().await;
}

/// The same for all copies of three: brokers with other ids, which never held anything, go on from object storage.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn all_copies_on_brokers_that_never_come_back_are_accepted_as_lost_by_brokers_that_never_held_any() {
    let (mut fleet, client) = start(3).await;
    create(&client, TOPIC, 3, &[]).await;
    publish(&client, TOPIC, "a", 0..20).await;
    Admin::new(&client).flush_topic(TOPIC).await.expect("the object store is there");
    publish(&client, TOPIC, "a", 20..30).await;
    fleet.wait_until_in_sync().await;
    (0..3).for_each(|broker| fleet.kill(broker));
    for _ in 0..3 {
        let broker = fleet.grow();
        fleet.restart(broker).await;
    }
    let others = fleet.connect().await;
    fleet
        .wait_until("nobody leads", |cluster, topics| cluster.brokers.len() == 3 && leader_of(topics, TOPIC).is_none())
        .await;
    for broker in ["0", "1", "2"] {
        let refused = fail_at(&fleet.grpc(3), &["partition", "accept-loss", "orders:0", "--yes"], b"");
        assert!(refused.contains(&format!("cluster forget {broker} --lost")), "{refused}");
        let said = succeed_at(&fleet.grpc(3), &["cluster", "forget", broker, "--lost", "--yes"], b"");
        let last = if broker == "2" { "of 1 the last copy: orders:0" } else { "of none the last copy" };
        assert!(said.contains(last), "{said}");
    }
    let said = succeed_at(&fleet.grpc(4), &["partition", "accept-loss", "orders:0", "--yes"], b"");
    assert!(said.contains("it goes on at offset 20"), "{said}");
    publish(&others, TOPIC, "b", 20..40).await;
    let topics = fleet.wait_until_in_sync().await;
    let replicas = &named(&topics, TOPIC).expect("it is there").partitions[0].replicas;
    assert!(replicas.len() == 3 && replicas.iter().all(|broker| broker.0 > 2), "{replicas:?}");
    assert_eq!(read(&others, TOPIC, 40).await, [values("a", 0..20), values("b", 20..40)].concat());
    for broker in 0..3 {
        forget(&fleet, 3, broker).await;
    }
    fleet.stop().await;
}

/// A broker that is cut off from the metadata has no session, and goes on acknowledging what it leads: that is no broker whose disk is gone.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_broker_that_is_only_cut_off_from_the_metadata_is_not_given_up() {
    let (mut fleet, client) = start(3).await;
    create(&client, TOPIC, 1, &[]).await;
    publish(&client, TOPIC, "a", 0..10).await;
    let topics = fleet.wait_until_in_sync().await;
    let cut = leader_of(&topics, TOPIC).expect("it is led").0 as usize;
    let left = (cut + 1) % 3;
    assert!(fleet.terminate(cut).await.success());
    let proxy = fleet.proxy_metadata(cut).await;
    fleet.restart(cut).await;
    fleet.wait_until_in_sync().await;
    drop(proxy);
    fleet.wait_until("its session ends", |cluster, _| cluster.brokers.len() == 2).await;
    assert!(fleet.runs(cut));
    let id = cut.to_string();
    for lost in [&["cluster", "forget", &id, "--lost"][..], &["cluster", "forget", &id, "--lost", "--yes"]] {
        let refused = fail_at(&fleet.grpc(left), lost, b"");
        assert!(refused.contains("cut off from the metadata") && refused.contains("stop it first"), "{refused}");
    }
    let disk = fleet.store().await.read_disk(BrokerId(cut as u32)).await.expect("the store is up");
    assert_ne!(disk.expect("it registered").value.wal_gen, WalGen::LOST);
    fleet.kill(cut);
    let said = succeed_at(&fleet.grpc(left), &["cluster", "forget", &id, "--lost", "--yes"], b"");
    assert!(said.contains("of 1 the last copy: orders:0"), "{said}");
    fleet.stop().await;
}

/// Silence proves nothing: a broker that does not answer is given up by the word of who knows that its machine is gone, and by no less. One that
/// runs for all to see is not given up by that word either.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_broker_of_which_nobody_knows_whether_it_runs_is_given_up_only_if_its_machine_is_said_to_be_gone() {
    let (mut fleet, client) = start(3).await;
    create(&client, TOPIC, 1, &[]).await;
    publish(&client, TOPIC, "a", 0..10).await;
    let topics = fleet.wait_until_in_sync().await;
    let silent = leader_of(&topics, TOPIC).expect("it is led").0 as usize;
    let (left, other) = ((silent + 1) % 3, (silent + 2) % 3);
    let id = silent.to_string();
    let insist = ["cluster", "forget", &id, "--lost", "--machine-gone", "--yes"];
    let refused = fail_at(&fleet.grpc(left), &insist, b"");
    assert!(refused.contains("runs; stop it first"), "{refused}");
    fleet.pause(silent);
    fleet.wait_until("its session ends", |cluster, _| cluster.brokers.len() == 2).await;
    // Started again, it never saw the silent one: where that was the metadata tell.
    fleet.kill(other);
    fleet.restart(other).await;
    for asked in [left, other] {
        for lost in [&["cluster", "forget", &id, "--lost"][..], &["cluster", "forget", &id, "--lost", "--yes"]] {
            let refused = fail_at(&fleet.grpc(asked), lost, b"");
            let unknown = format!("not known whether broker {silent} runs");
            assert!(refused.contains(&unknown) && refused.contains("--machine-gone"), "{refused}");
            assert!(refused.contains("out of reach"), "an address of it is known to broker {asked}: {refused}");
        }
    }
    let wal_gen = async |fleet: &Fleet| {
        let disk = fleet.store().await.read_disk(BrokerId(silent as u32)).await.expect("the store is up");
        disk.expect("it registered").value.wal_gen
    };
    assert_ne!(wal_gen(&fleet).await, WalGen::LOST);
    let asked = ["cluster", "forget", &id, "--lost", "--machine-gone"];
    let said = succeed_at(&fleet.grpc(other), &asked, b"");
    assert!(said.contains("of 1 the last copy: orders:0") && said.contains("nothing was changed"), "{said}");
    assert_ne!(wal_gen(&fleet).await, WalGen::LOST);
    let said = succeed_at(&fleet.grpc(other), &insist, b"");
    assert!(said.contains("of 1 the last copy: orders:0"), "{said}");
    assert_eq!(wal_gen(&fleet).await, WalGen::LOST);
    fleet.kill(silent);
    fleet.stop().await;
}

async fn unclean_elections(fleet: &Fleet, broker: usize) -> u64 {
    let (_, text) = http::get(&fleet.http(broker), "/metrics").await.expect("it answers");
    let line = text.lines().find_map(|line| line.strip_prefix("millpond_unclean_elections_total "));
    line.expect("the metric is there").parse().expect("a number")
}

/// Rule E7 as a topic asks for it: off unless said so, and then the best that is left leads, with the loss on record.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_topic_that_asks_for_it_is_led_by_who_may_lack_records_and_no_other_topic_is() {
    let (mut fleet, client) = start(3).await;
    let one = ("min.insync.replicas", "1");
    create(&client, "strict", 2, &[one]).await;
    create(&client, "loose", 2, &[one]).await;
    let admin = Admin::new(&client);
    // Both on the same two brokers, with the same leader.
    for topic in ["strict", "loose"] {
        admin.move_partition(topic, 0, &[BrokerId(0), BrokerId(1)]).await.expect("they are there");
    }
    let placed = |topics: &[TopicDescription]| {
        let on = |name| named(topics, name).map(|it| (it.partitions[0].leader, it.partitions[0].replicas.clone()));
        let wanted = Some((Some(BrokerId(0)), vec![BrokerId(0), BrokerId(1)]));
        on("strict") == wanted && on("loose") == wanted
    };
    fleet.wait_until_in_sync().await;
    for topic in ["strict", "loose"] {
        admin.elect_leader(topic, 0).await.expect("it is in sync");
    }
    fleet.wait_until("both are where they should be", |_, topics| placed(topics)).await;
    for topic in ["strict", "loose"] {
        publish(&client, topic, "a", 0..20).await;
        admin.flush_topic(topic).await.expect("the object store is there");
        publish(&client, topic, "a", 20..30).await;
    }
    fleet.wait_until_in_sync().await;
    // Broker 1 misses ten records, and then is all there is.
    assert!(fleet.terminate(1).await.success());
    for topic in ["strict", "loose"] {
        publish(&client, topic, "a", 30..40).await;
    }
    fleet.kill(0);
    fleet.restart(1).await;
    let vacant =
        |topics: &[TopicDescription]| leader_of(topics, "strict").is_none() && leader_of(topics, "loose").is_none();
    let seen = fleet.wait_until("nobody leads", |cluster, topics| cluster.brokers.len() == 2 && vacant(topics)).await;
    let epoch = named(&seen, "loose").expect("it is there").partitions[0].leader_epoch;

    // Asking for it takes effect at once.
    let alter = ["topic", "alter", "loose", "--set", "unclean.leader.election.enable=true"];
    succeed_at(&fleet.bootstrap(), &alter, b"");
    let led = |topics: &[TopicDescription]| leader_of(topics, "loose") == Some(BrokerId(1));
    let topics = fleet.wait_until("the broker that is left leads", |_, topics| led(topics)).await;
    assert_eq!(leader_of(&topics, "strict"), None, "off by default");
    let loose = &named(&topics, "loose").expect("it is there").partitions[0];
    assert_eq!((loose.leader_epoch.0, &loose.isr[..]), (epoch.0 + 1, &[BrokerId(1)][..]), "rule E7");
    publish(&client, "loose", "b", 30..35).await;
    let all = [values("a", 0..30), values("b", 30..35)].concat();
    assert_eq!(read(&client, "loose", 35).await, all);
    assert_eq!((unclean_elections(&fleet, 1).await, unclean_elections(&fleet, 2).await), (1, 0));
    let losses = fleet.store().await.losses().await.expect("the store is up");
    let on_record: Vec<_> = losses.iter().map(|(_, loss)| (loss.epoch, loss.leader.broker, loss.end)).collect();
    assert_eq!(on_record, [(loose.leader_epoch, BrokerId(1), Offset(30))]);
    assert!(losses[0].1.cause.contains("allows unclean elections"), "{}", losses[0].1.cause);

    // Who comes back gives up what the new leader never had (rule R7), and leads what nobody else may lead.
    fleet.restart(0).await;
    let topics = fleet.wait_until_in_sync().await;
    assert_eq!(leader_of(&topics, "strict"), Some(BrokerId(0)));
    assert_eq!(read(&client, "strict", 40).await, values("a", 0..40), "rule S1");
    fleet.kill(1);
    fleet.wait_until("broker 0 leads", |_, topics| leader_of(topics, "loose") == Some(BrokerId(0))).await;
    assert_eq!(read(&client, "loose", 35).await, all, "the logs are the same");
    publish(&client, "loose", "c", 35..40).await;
    assert_eq!(fleet.store().await.losses().await.expect("the store is up").len(), 1, "that one was clean");
    fleet.stop().await;
}

/// A disk that ends before object storage does reads the manifest first: what is tiered is never given up (rules E7, R12).
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_unclean_leader_that_missed_what_was_tiered_goes_on_from_there() {
    let (mut fleet, client) = start(3).await;
    create(&client, TOPIC, 2, &[("min.insync.replicas", "1"), ("unclean.leader.election.enable", "true")]).await;
    let admin = Admin::new(&client);
    admin.move_partition(TOPIC, 0, &[BrokerId(0), BrokerId(1)]).await.expect("they are there");
    fleet.wait_until_in_sync().await;
    admin.elect_leader(TOPIC, 0).await.expect("it is in sync");
    publish(&client, TOPIC, "a", 0..10).await;
    // It misses the rest while it stands still, and then goes on from where it stood, without a start.
    fleet.pause(1);
    publish(&client, TOPIC, "a", 10..30).await;
    admin.flush_topic(TOPIC).await.expect("the object store is there");
    publish(&client, TOPIC, "a", 30..40).await;
    fleet.kill(0);
    fleet.resume(1);
    fleet.wait_until("broker 1 leads", |_, topics| leader_of(topics, TOPIC) == Some(BrokerId(1))).await;
    publish(&client, TOPIC, "b", 30..35).await;
    assert_eq!(read(&client, TOPIC, 35).await, [values("a", 0..30), values("b", 30..35)].concat());
    fleet.stop().await;
}

/// What was deleted stays deleted though the winner of an unclean election never had it, and what is written after is there to be read
/// (rules E7, C1).
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_unclean_leader_that_ends_below_what_was_deleted_goes_on_from_the_log_start() {
    let (mut fleet, client) = start(3).await;
    create(&client, TOPIC, 2, &[("min.insync.replicas", "1"), ("unclean.leader.election.enable", "true")]).await;
    let admin = Admin::new(&client);
    admin.move_partition(TOPIC, 0, &[BrokerId(0), BrokerId(1)]).await.expect("they are there");
    fleet.wait_until_in_sync().await;
    admin.elect_leader(TOPIC, 0).await.expect("it is in sync");
    publish(&client, TOPIC, "a", 0..10).await;
    fleet.pause(1);
    publish(&client, TOPIC, "a", 10..40).await;
    let delete = ["topic", "delete-records", TOPIC, "--partition", "0", "--before", "25"];
    succeed_at(&fleet.bootstrap(), &delete, b"");
    fleet.kill(0);
    fleet.resume(1);
    fleet.wait_until("broker 1 leads", |_, topics| leader_of(topics, TOPIC) == Some(BrokerId(1))).await;
    publish(&client, TOPIC, "b", 25..30).await;
    assert_eq!(
        read(&client, TOPIC, 5).await,
        values("b", 25..30),
        "nothing deleted is back, and nothing new is out of reach"
    );

    // Who was deposed takes the same log, and serves it when it leads: from its disk, and then from object storage.
    fleet.restart(0).await;
    fleet.wait_until_in_sync().await;
    fleet.kill(1);
    fleet.wait_until("broker 0 leads", |_, topics| leader_of(topics, TOPIC) == Some(BrokerId(0))).await;
    publish(&client, TOPIC, "c", 30..35).await;
    let all = [values("b", 25..30), values("c", 30..35)].concat();
    assert_eq!(read(&client, TOPIC, 10).await, all);
    admin.flush_topic(TOPIC).await.expect("the object store is there");
    fleet.restart(1).await;
    fleet.kill(0);
    fleet.wait_until("broker 1 leads again", |_, topics| leader_of(topics, TOPIC) == Some(BrokerId(1))).await;
    assert_eq!(read(&client, TOPIC, 10).await, all);
    fleet.stop().await;
}
