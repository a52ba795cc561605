//! `millpond group` over a fleet of processes: what operators are told of groups, and how they move offsets.

use crate::commands::{fail_at, succeed_at};
use millpond_proto::v1::groups_client::GroupsClient;
use millpond_proto::v1::{FindCoordinatorRequest, HeartbeatRequest, SubscribedTopics};
use millpond_sdk::{
    Admin, Client, IsolationLevel, NewTopic, Offset, Producer, ProducerConfig, ProducerRecord, TopicId,
};
use millpond_tests::fleet::{Fleet, FleetOptions};
use serde_json::{Value, json};

const TOPIC: &str = "orders";
const GROUP: &str = "billing";
const MEMBER: &str = "00000000-0000-0000-0000-000000000001";

async fn publish(client: &Client, partition: u32, count: u64) {
    let producer = Producer::new(client, ProducerConfig::default()).expect("the defaults are sound");
    for number in 0..count {
        let record = ProducerRecord::new(TOPIC).partition(partition).value(format!("{number}"));
        producer.send(record).await.expect("there is room").await.expect("acknowledged");
    }
    producer.close().await;
}

fn shown(fleet: &Fleet, arguments: &[&str]) -> Value {
    let arguments = [arguments, &["--output", "json"]].concat();
    serde_json::from_str(&succeed_at(&fleet.bootstrap(), &arguments, b"")).expect("it is JSON")
}

/// What `describe` says of each partition: offset, end and lag.
fn lags(fleet: &Fleet) -> Vec<(u64, Value, Value, Value)> {
    let described = shown(fleet, &["group", "describe", GROUP]);
    let of = |one: &Value| {
        (one["partition"].as_u64().expect("a number"), one["offset"].clone(), one["end"].clone(), one["lag"].clone())
    };
    described["partitions"].as_array().expect("a list").iter().map(of).collect()
}

/// Joins the group, or leaves it with epoch -1.
async fn beat(client: &mut GroupsClient<tonic::transport::Channel>, epoch: i32) {
    let request = HeartbeatRequest {
        group: GROUP.to_owned(),
        member: MEMBER.to_owned(),
        epoch,
        client_id: "test".to_owned(),
        rebalance_timeout_ms: Some(60_000),
        topics: Some(SubscribedTopics { names: vec![TOPIC.to_owned()] }),
        ..Default::default()
    };
    client.heartbeat(request).await.expect("it is taken");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn groups_are_listed_described_reset_and_deleted() {
    let fleet = Fleet::start(&FleetOptions::new(3)).await.expect("every machine has what it takes");
    let client = fleet.connect().await;
    let admin = Admin::new(&client);
    let mut topic = NewTopic::new(TOPIC);
    (topic.partitions, topic.replication_factor) = (Some(3), Some(3));
    let id: TopicId = admin.create_topic(topic).await.expect("the topic is new").id;
    publish(&client, 0, 10).await;
    publish(&client, 1, 4).await;
    admin.commit_group_offsets(GROUP, &[(id, 0, Offset(4)), (id, 1, Offset(4))]).await.expect("nobody is in it");

    let listed = shown(&fleet, &["group", "list"]);
    assert_eq!(listed["groups"], json!([{"group": GROUP, "state": "Empty", "kind": "simple"}]));
    assert_eq!(lags(&fleet), [(0, json!(4), json!(10), json!(6)), (1, json!(4), json!(4), json!(0))]);
    let described = shown(&fleet, &["group", "describe", GROUP]);
    assert_eq!((&described["lag"], &described["members"]), (&json!(6), &json!([])));
    let waited = |described: &Value, at: usize| described["partitions"][at]["lag_seconds"].as_f64();
    assert!(waited(&described, 0).expect("it is known") > 0.0, "{described}");
    assert_eq!(waited(&described, 1), Some(0.0), "who has caught up waits for nothing");
    // What is tiered has waited too.
    admin.flush_topic(TOPIC).await.expect("the object store is there");
    let tiered = shown(&fleet, &["group", "describe", GROUP]);
    assert!(waited(&tiered, 0).expect("it is known") > 0.0, "{tiered}");
    let text = succeed_at(&fleet.bootstrap(), &["group", "describe", GROUP], b"");
    assert!(text.starts_with("billing: Empty, simple, epoch 0, 0 members, lag 6\n"), "{text}");

    // Without --execute nothing changes; with it all does that was shown.
    let reset = |arguments: &[&str]| shown(&fleet, &[&["group", "reset-offsets", GROUP][..], arguments].concat());
    let dry = reset(&["--topic", TOPIC, "--to", "earliest"]);
    let moved = |partition: u32, before: Value, after: u64| json!({"topic": TOPIC, "partition": partition, "before": before, "after": after});
    let earliest = json!([moved(0, json!(4), 0), moved(1, json!(4), 0), moved(2, Value::Null, 0)]);
    assert_eq!((&dry["executed"], &dry["partitions"]), (&json!(false), &earliest));
    assert_eq!(lags(&fleet)[0].1, json!(4));
    let done = reset(&["--topic", TOPIC, "--to", "earliest", "--execute"]);
    assert_eq!((&done["executed"], &done["partitions"]), (&json!(true), &earliest));
    let offsets = || lags(&fleet).into_iter().map(|(_, offset, ..)| offset).collect::<Vec<Value>>();
    assert_eq!(offsets(), [json!(0), json!(0), json!(0)]);
    reset(&["--topic", "orders:0", "--to", "7", "--execute"]);
    assert_eq!(offsets(), [json!(7), json!(0), json!(0)]);
    // Never outside of what there is to be read.
    reset(&["--all-topics", "--shift-by", "-3", "--execute"]);
    assert_eq!(offsets(), [json!(4), json!(0), json!(0)]);
    reset(&["--all-topics", "--shift-by", "100", "--execute"]);
    assert_eq!(offsets(), [json!(10), json!(4), json!(0)]);
    reset(&["--all-topics", "--to", "1970-01-01T00:00:00Z", "--execute"]);
    assert_eq!(offsets(), [json!(0), json!(0), json!(0)]);
    reset(&["--all-topics", "--to", "2100-01-01T00:00:00Z", "--execute"]);
    assert_eq!(offsets(), [json!(10), json!(4), json!(0)], "after the last record comes the end");
    let refused =
        fail_at(&fleet.bootstrap(), &["group", "reset-offsets", GROUP, "--topic", "orders:3", "--to", "latest"], b"");
    assert!(refused.contains("3 partitions"), "{refused}");

    // A member would not notice that its offsets moved.
    let any = GroupsClient::connect(format!("http://{}", fleet.grpc(0))).await;
    let found = any.expect("it is up").find_coordinator(FindCoordinatorRequest { group: GROUP.to_owned() }).await;
    let coordinator = format!("http://{}", found.expect("there is one").into_inner().grpc);
    let mut member = GroupsClient::connect(coordinator).await.expect("it is up");
    beat(&mut member, 0).await;
    let owned = shown(&fleet, &["group", "describe", GROUP]);
    assert_eq!((&owned["kind"], &owned["members"][0]["partitions"]), (&json!("consumer"), &json!(3)));
    assert_eq!(owned["partitions"][2]["member"], json!(MEMBER));
    let to: &[&str] = &["group", "reset-offsets", GROUP, "--all-topics", "--to", "earliest", "--execute"];
    let forget: &[&str] = &["group", "delete-offsets", GROUP, "--topic", TOPIC, "--execute"];
    for arguments in [to, forget, &["group", "delete", GROUP]] {
        let refused = fail_at(&fleet.bootstrap(), arguments, b"");
        assert!(refused.contains("stop its consumers first"), "{refused}");
    }
    admin.commit_group_offsets(GROUP, &[(id, 0, Offset(1))]).await.expect_err("its coordinator refuses it, too");
    assert_eq!(offsets()[0], json!(10));
    beat(&mut member, -1).await;

    // What is committed of a topic, or of a partition, is forgotten, and the rest stays.
    let forget = |arguments: &[&str]| shown(&fleet, &[&["group", "delete-offsets", GROUP][..], arguments].concat());
    let of_one = json!([{ "topic": TOPIC, "partition": 1, "offset": 4 }]);
    let dry = forget(&["--topic", "orders:1"]);
    assert_eq!((&dry["executed"], &dry["partitions"]), (&json!(false), &of_one));
    assert_eq!(lags(&fleet).len(), 3, "it was only shown");
    let done = forget(&["--topic", "orders:1", "--execute"]);
    assert_eq!((&done["executed"], &done["partitions"]), (&json!(true), &of_one));
    assert_eq!(lags(&fleet).iter().map(|(partition, ..)| *partition).collect::<Vec<u64>>(), [0, 2]);
    let again = ["group", "delete-offsets", GROUP, "--topic", "orders:1", "--execute"];
    let nothing = fail_at(&fleet.bootstrap(), &again, b"");
    assert!(nothing.contains("has committed nothing of orders:1"), "{nothing}");
    admin.commit_group_offsets(GROUP, &[(id, 1, Offset(4))]).await.expect("nobody is in it");

    let lag = admin.group_lag(GROUP, IsolationLevel::ReadCommitted).await.expect("it is there");
    assert_eq!(lag.iter().map(|lag| lag.lag).collect::<Vec<_>>(), [Some(0), Some(0), Some(0)]);
    assert_eq!(shown(&fleet, &["group", "delete", GROUP]), json!({"group": GROUP, "deleted": true}));
    let gone = fail_at(&fleet.bootstrap(), &["group", "describe", GROUP], b"");
    assert!(gone.contains("no group `billing`"), "{gone}");
    fleet.stop().await;
}
