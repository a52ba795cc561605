//! One broker: what a member is told, what it reads, and what is committed of it.

use super::*;
use futures::StreamExt;
use millpond_proto::v1;
use millpond_proto::v1::groups_client::GroupsClient;
use millpond_sdk::{CommitOffset, ErrorCode, OffsetReset, StartAt};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_group_goes_on_where_it_has_committed() {
    let pond = Pond::start().await;
    create(&pond.client, "t", 2).await;
    for index in 0..2 {
        produce(&pond.client, "t", index, 0..50).await;
    }
    let group = || GroupConfig::new("g");
    let mut first = GroupConsumer::new(&pond.client, group(), Subscription::topics(["t"])).expect("good settings");
    let taken = take(&mut first, 100).await;
    assert!(taken.values().all(|values| values.iter().copied().eq(0..50)), "{taken:?}");
    first.commit().await.expect("it is a member");
    assert_eq!(committed(&first, "t", 2).await, [Some(50), Some(50)]);
    // Handed out and not committed: it comes again.
    produce(&pond.client, "t", 1, 50..60).await;
    take(&mut first, 10).await;
    first.close().await.expect("the coordinator hears of it");

    let mut second = GroupConsumer::new(&pond.client, group(), Subscription::topics(["t"])).expect("good settings");
    let again = take(&mut second, 10).await;
    assert_eq!(again, BTreeMap::from([(partition("t", 1), (50..60).collect())]));
    let after = CommitOffset { metadata: "by hand".to_owned(), ..CommitOffset::at(Offset(55)) };
    second.commit_offsets([(partition("t", 1), after)]).await.expect("it is held");
    assert_eq!(committed(&second, "t", 2).await, [Some(50), Some(55)]);
    second.commit_async().await.expect("it is a member");
    assert_eq!(committed(&second, "t", 2).await, [Some(50), Some(60)]);
    let elsewhere = second.commit_offsets([(partition("t", 7), CommitOffset::at(Offset(1)))]).await;
    assert_eq!(elsewhere.expect_err("it is not held").code, Some(ErrorCode::StaleMemberEpoch));
    second.close().await.expect("the coordinator hears of it");
    pond.stop().await;
}

/// Rule O1: a commit whose connection broke, and which the consumer has asked for again and gone on from, may still arrive.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_commit_that_comes_late_does_not_set_a_group_back() {
    let pond = Pond::start().await;
    let topic = create(&pond.client, "t", 1).await;
    produce(&pond.client, "t", 0, 0..30).await;
    let group = GroupConfig::new("g");
    let mut consumer = GroupConsumer::new(&pond.client, group, Subscription::topics(["t"])).expect("good settings");
    take(&mut consumer, 30).await;
    for at in [10, 20] {
        let offset = CommitOffset::at(Offset(at));
        consumer.commit_offsets([(partition("t", 0), offset)]).await.expect("it is held");
    }
    let described = Admin::new(&pond.client).describe_group("g").await.expect("it is there");
    let [member] = &described.members[..] else { panic!("{described:?}") };
    let late = |number| v1::CommitOffsetsRequest {
        group: "g".to_owned(),
        member: member.member.clone(),
        epoch: member.epoch,
        instance: None,
        offsets: vec![v1::OffsetToCommit {
            partition: Some(v1::GroupPartition { topic_id: topic.to_string(), partition: 0 }),
            offset: 10,
            ..v1::OffsetToCommit::default()
        }],
        number,
    };
    let mut raw = GroupsClient::connect(format!("http://{}", pond.broker.grpc())).await.expect("the broker is up");
    let refused = raw.commit_offsets(late(Some(1))).await.expect_err("it was given up");
    assert!(String::from_utf8_lossy(refused.details()).contains("STALE_MEMBER_EPOCH"), "{refused:?}");
    assert_eq!(committed(&consumer, "t", 1).await, [Some(20)]);
    // Without a number the last to come wins, as with Kafka.
    raw.commit_offsets(late(None)).await.expect("it is the member's");
    assert_eq!(committed(&consumer, "t", 1).await, [Some(10)]);
    consumer.commit_offsets([(partition("t", 0), CommitOffset::at(Offset(30)))]).await.expect("it is held");
    assert_eq!(committed(&consumer, "t", 1).await, [Some(30)]);
    consumer.close().await.expect("the coordinator hears of it");
    drop(raw);
    pond.stop().await;
}

/// Rule O2, as members see it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_partition_moves_once_it_was_given_up_and_the_others_are_read_on() {
    let pond = Pond::start().await;
    create(&pond.client, "t", 4).await;
    let (heard, gate) = Heard::new();
    let mut first = join(&pond.client, GroupConfig::new("g"), "t", &heard);
    for index in 0..4 {
        produce(&pond.client, "t", index, 0..10).await;
    }
    take(&mut first, 40).await;
    assert_eq!(heard.told(), [Told::Assigned(partitions("t", 0..4))]);

    // A second member: the first is asked for half, and takes its time.
    gate.send_replace(false);
    let (late, _gate) = Heard::new();
    let mut second = join(&pond.client, GroupConfig::new("g"), "t", &late);
    let asked = async {
        while heard.told().len() < 2 {
            tokio::task::yield_now().await;
        }
    };
    idle(&mut first, timeout(PATIENCE, asked).map_ok()).await;
    let Told::Revoked(moving) = heard.told()[1].clone() else { panic!("{:?}", heard.told()) };
    let staying: BTreeSet<TopicPartition> = partitions("t", 0..4).difference(&moving).cloned().collect();
    assert_eq!((moving.len(), staying.len()), (2, 2));
    assert_eq!(first.assignment().cloned().collect::<BTreeSet<_>>(), staying);
    for index in 0..4 {
        produce(&pond.client, "t", index, 10..20).await;
    }
    // What stays is read on, what moves is not, and the second has nothing: nobody gave it up.
    let taken = take(&mut first, 20).await;
    assert_eq!(taken.into_keys().collect::<BTreeSet<_>>(), staying);
    assert!(late.told().is_empty());

    gate.send_replace(true);
    let gets = async {
        tokio::join!(late.holds(&moving), heard.holds(&staying));
    };
    let taken = tokio::select! {
        taken = take(&mut second, 20) => taken,
        never = async { idle(&mut first, gets).await; idle(&mut first, std::future::pending()).await } => never_ends(never),
    };
    // From where the first has committed it while it gave it up.
    assert!(taken.values().all(|values| values.iter().copied().eq(10..20)), "{taken:?}");
    assert_eq!(taken.into_keys().collect::<BTreeSet<_>>(), moving);
    assert_eq!(heard.told(), [Told::Assigned(partitions("t", 0..4)), Told::Revoked(moving.clone())]);
    assert_eq!(late.told(), [Told::Assigned(moving.clone())]);

    // The second leaves: all of it comes back, and nothing else moves.
    second.close().await.expect("the coordinator hears of it");
    idle(&mut first, heard.holds(&partitions("t", 0..4))).await;
    assert_eq!(heard.told()[2..], [Told::Assigned(moving)]);
    first.close().await.expect("the coordinator hears of it");
    pond.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stuck_application_loses_its_partitions_and_comes_back() {
    let pond = Pond::start().await;
    create(&pond.client, "t", 2).await;
    for index in 0..2 {
        produce(&pond.client, "t", index, 0..10).await;
    }
    let (heard, _gate) = Heard::new();
    let stuck = GroupConfig { poll_interval_max: Duration::from_secs(1), ..GroupConfig::new("g") };
    let mut first = join(&pond.client, stuck, "t", &heard);
    take(&mut first, 20).await;
    // It asks for nothing more, and others get all of it: from the start, for it has committed nothing.
    let (late, _gate) = Heard::new();
    let mut second = join(&pond.client, GroupConfig::new("g"), "t", &late);
    assert_eq!(take(&mut second, 20).await.len(), 2);
    second.commit().await.expect("it is a member");
    let refused = first.commit().await.expect_err("others have them");
    assert!(matches!(refused.code, Some(ErrorCode::UnknownMemberId | ErrorCode::StaleMemberEpoch)), "{refused:?}");
    assert_eq!(committed(&second, "t", 2).await, [Some(10), Some(10)]);
    // It comes back: it hears that all was lost, and gets its share of what there is.
    let shared = async {
        tokio::join!(heard.holds_what(|held| held.len() == 1), late.holds_what(|held| held.len() == 1));
    };
    tokio::select! {
        () = idle(&mut first, std::future::pending()) => {}
        () = idle(&mut second, shared) => {}
    }
    assert_eq!(heard.told()[1], Told::Lost(partitions("t", 0..2)));
    pond.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_member_that_waits_for_records_is_alive() {
    let pond = Pond::start().await;
    create(&pond.client, "t", 1).await;
    let (heard, _gate) = Heard::new();
    let quick = GroupConfig { poll_interval_max: Duration::from_secs(1), ..GroupConfig::new("g") };
    let mut consumer = join(&pond.client, quick, "t", &heard);
    // Three times as long as an application may be silent.
    let waited = timeout(Duration::from_secs(3), consumer.next()).await;
    assert!(waited.is_err(), "{waited:?}");
    produce(&pond.client, "t", 0, 0..1).await;
    take(&mut consumer, 1).await;
    assert_eq!(heard.told(), [Told::Assigned(partitions("t", 0..1))]);
    pond.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_static_member_comes_back_to_its_partitions_and_nobody_else_moves() {
    let pond = Pond::start().await;
    create(&pond.client, "t", 4).await;
    let member = |instance: &str| GroupConfig { instance: Some(instance.to_owned()), ..GroupConfig::new("g") };
    let ((heard, _gate), (other, _other_gate)) = (Heard::new(), Heard::new());
    let mut first = join(&pond.client, member("one"), "t", &heard);
    let mut second = join(&pond.client, member("two"), "t", &other);
    let shared = async {
        tokio::join!(heard.holds_what(|held| held.len() == 2), other.holds_what(|held| held.len() == 2));
    };
    tokio::select! {
        () = idle(&mut first, std::future::pending()) => {}
        () = idle(&mut second, shared) => {}
    }
    let (had, others) = (heard.held.borrow().clone(), other.told());
    first.close().await.expect("the coordinator hears of it");
    let (again, _again_gate) = Heard::new();
    let mut first = join(&pond.client, member("one"), "t", &again);
    idle(&mut first, again.holds(&had)).await;
    assert_eq!(other.told(), others);
    assert_eq!(again.told(), [Told::Assigned(had)]);
    pond.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn auto_commit_counts_a_record_once_the_next_is_asked_for() {
    let pond = Pond::start().await;
    create(&pond.client, "t", 1).await;
    produce(&pond.client, "t", 0, 0..10).await;
    let auto = || GroupConfig { auto_commit_interval: Some(Duration::from_secs(3600)), ..GroupConfig::new("g") };
    let mut consumer = GroupConsumer::new(&pond.client, auto(), Subscription::topics(["t"])).expect("good settings");
    for expected in 0..5 {
        let record = consumer.next().await.expect("it does not end").expect("a record");
        assert_eq!(value(&record.value), expected);
    }
    // The last one may not have been processed: nothing was asked for after it.
    consumer.close().await.expect("the coordinator hears of it");
    let mut consumer = GroupConsumer::new(&pond.client, auto(), Subscription::topics(["t"])).expect("good settings");
    assert_eq!(committed(&consumer, "t", 1).await, [Some(4)]);
    assert_eq!(take(&mut consumer, 6).await[&partition("t", 0)], [4, 5, 6, 7, 8, 9]);
    drop(consumer);

    let often = GroupConfig { auto_commit_interval: Some(Duration::from_millis(10)), ..GroupConfig::new("g") };
    let mut consumer = GroupConsumer::new(&pond.client, often, Subscription::topics(["t"])).expect("good settings");
    take(&mut consumer, 6).await;
    let (other, topic) = (GroupConsumer::new(&pond.client, GroupConfig::new("g"), Subscription::topics(["none"])), "t");
    let other = other.expect("good settings");
    let reached = async {
        while committed(&other, topic, 1).await != [Some(10)] {
            tokio::task::yield_now().await;
        }
    };
    idle(&mut consumer, timeout(PATIENCE, reached).map_ok()).await;
    pond.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pattern_reads_topics_that_come_later() {
    let pond = Pond::start().await;
    create(&pond.client, "ev-a", 1).await;
    create(&pond.client, "other", 1).await;
    let pattern = Subscription::pattern("ev-.*");
    let mut consumer = GroupConsumer::new(&pond.client, GroupConfig::new("g"), pattern).expect("good settings");
    for (topic, values) in [("ev-a", 0..3), ("other", 0..3)] {
        produce(&pond.client, topic, 0, values).await;
    }
    assert_eq!(take(&mut consumer, 3).await.into_keys().collect::<BTreeSet<_>>(), partitions("ev-a", 0..1));
    create(&pond.client, "ev-b", 2).await;
    produce(&pond.client, "ev-b", 1, 0..3).await;
    assert_eq!(take(&mut consumer, 3).await.into_keys().collect::<BTreeSet<_>>(), partitions("ev-b", 1..2));
    // And by name from then on.
    consumer.subscribe(Subscription::topics(["other"])).expect("it names a topic");
    assert_eq!(take(&mut consumer, 3).await.into_keys().collect::<BTreeSet<_>>(), partitions("other", 0..1));
    assert_eq!(consumer.assignment().cloned().collect::<BTreeSet<_>>(), partitions("other", 0..1));
    pond.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn partitions_are_paused_and_sought_and_rest_where_nobody_knows_where_to_begin() {
    let pond = Pond::start().await;
    create(&pond.client, "t", 2).await;
    for index in 0..2 {
        produce(&pond.client, "t", index, 0..10).await;
    }
    let careful = GroupConfig { initial_offset: OffsetReset::Fail, ..GroupConfig::new("g") };
    let mut consumer = GroupConsumer::new(&pond.client, careful, Subscription::topics(["t"])).expect("good settings");
    for _ in 0..2 {
        let error = consumer.next().await.expect("it does not end").expect_err("nothing was committed");
        assert!(error.code == Some(ErrorCode::OffsetNotAvailable) && error.message.contains("seek"), "{error}");
    }
    let (zero, one) = (partition("t", 0), partition("t", 1));
    assert_eq!(consumer.resume(&one).expect_err("it has no position").code, Some(ErrorCode::InvalidRequest));
    consumer.commit().await.expect("there is nothing to commit");
    assert_eq!(committed(&consumer, "t", 2).await, [None, None], "a partition at rest has no position");
    consumer.seek(&one, StartAt::Offset(Offset(7))).await.expect("it is assigned");
    assert_eq!(take(&mut consumer, 3).await[&one], [7, 8, 9]);
    consumer.seek(&zero, StartAt::Earliest).await.expect("it is assigned");
    consumer.pause(&zero).expect("it is assigned");
    produce(&pond.client, "t", 1, 10..12).await;
    assert_eq!(take(&mut consumer, 2).await, BTreeMap::from([(one, vec![10, 11])]));
    consumer.resume(&zero).expect("it is assigned");
    assert_eq!(take(&mut consumer, 10).await, BTreeMap::from([(zero, (0..10).collect())]));
    assert_eq!(consumer.pause(&partition("t", 9)).expect_err("not assigned").code, Some(ErrorCode::InvalidRequest));
    pond.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_cannot_be_a_member_is_told_so_and_the_stream_ends() {
    let pond = Pond::start().await;
    let refuse = |config, subscription| GroupConsumer::new(&pond.client, config, subscription).map(|_| ());
    let invalid = |result: Result<(), millpond_sdk::Error>| result.expect_err("it is refused").code;
    for (config, subscription) in [
        (GroupConfig::new(""), Subscription::topics(["t"])),
        (GroupConfig::new("g"), Subscription::Topics(Vec::new())),
        (GroupConfig::new("g"), Subscription::pattern("")),
        (
            GroupConfig { poll_interval_max: Duration::from_millis(1), ..GroupConfig::new("g") },
            Subscription::topics(["t"]),
        ),
    ] {
        assert_eq!(invalid(refuse(config, subscription)), Some(ErrorCode::InvalidRequest));
    }
    let bad = Subscription::pattern("(");
    let mut consumer = GroupConsumer::new(&pond.client, GroupConfig::new("g"), bad).expect("the broker decides");
    let error = consumer.next().await.expect("it says why").expect_err("no expression");
    assert_eq!(error.code, Some(ErrorCode::InvalidRegularExpression));
    assert!(consumer.next().await.is_none());
    consumer.close().await.expect("there is nothing to leave");
    pond.stop().await;
}

fn never_ends(never: ()) -> BTreeMap<TopicPartition, Vec<u32>> {
    panic!("a member reads on until it is closed: {never:?}")
}

/// A wait that must not time out.
trait InTime {
    fn map_ok(self) -> impl Future<Output = ()>;
}

impl<F: Future<Output = Result<(), tokio::time::error::Elapsed>>> InTime for F {
    async fn map_ok(self) {
        self.await.expect("in time");
    }
}
