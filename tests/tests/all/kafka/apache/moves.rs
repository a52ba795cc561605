//! Replicas that are moved, and preferred ones that lead again, by Kafka's tools.

use super::super::cluster::Cluster;
use super::archives_or_skip;
use super::java::{Programs, until};
use serde_json::{Value, json};
use std::path::Path;

const TOPICS: &str = "org.apache.kafka.tools.TopicCommand";
const REASSIGN: &str = "org.apache.kafka.tools.reassign.ReassignPartitionsCommand";
const ELECT: &str = "org.apache.kafka.tools.LeaderElectionCommand";
const PRODUCER: &str = "org.apache.kafka.tools.ConsoleProducer";
const CONSUMER: &str = "org.apache.kafka.tools.consumer.ConsoleConsumer";

/// A file of JSON that a tool is told of.
fn file(dir: &Path, content: &Value) -> String {
    let file = dir.join("plan.json");
    std::fs::write(&file, content.to_string()).expect("there is room");
    file.to_str().expect("a path of text").to_owned()
}

fn plan(replicas: &[usize]) -> Value {
    json!({"version": 1, "partitions": [{"topic": "m", "partition": 0, "replicas": replicas}]})
}

/// Carries a plan out, and looks until the tool says that it is done. It ends well only if it could clear all throttles as well.
async fn execute(programs: &mut Programs, plan: &str) {
    let started = programs.tool(REASSIGN, &["--execute", "--reassignment-json-file", plan]).await;
    assert!(started.contains("Successfully started partition reassignment for m-0"), "{started}");
    until("the move", async || {
        let said = programs.tool(REASSIGN, &["--verify", "--reassignment-json-file", plan]).await;
        said.contains("Reassignment of partition m-0 is completed.")
            && said.contains("Clearing topic-level throttles on topic m")
    })
    .await;
}

async fn described(programs: &mut Programs) -> String {
    programs.tool(TOPICS, &["--describe", "--topic", "m"]).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kafka_tools_move_a_partition_and_have_the_preferred_replica_lead() {
    let archives = archives_or_skip!("kafka_tools_move_a_partition_and_have_the_preferred_replica_lead");
    let cluster = Cluster::fleet().await;
    let dir = tempfile::tempdir().expect("a temporary folder");
    let mut programs = Programs::start(&archives, &cluster.bootstrap);
    programs.tool(TOPICS, &["--create", "--topic", "m", "--replica-assignment", "0:1"]).await;
    programs.tool_with(PRODUCER, &["--topic", "m"], "one\ntwo\n").await;

    let topics = file(dir.path(), &json!({"version": 1, "topics": [{"topic": "m"}]}));
    let generate = ["--generate", "--topics-to-move-json-file", &topics, "--broker-list", "1,2"];
    let said = programs.tool(REASSIGN, &generate).await;
    let proposed: Value = serde_json::from_str(said.trim().lines().last().expect("lines")).expect("it ends in JSON");
    let mut brokers: Vec<u64> = proposed["partitions"][0]["replicas"]
        .as_array()
        .expect("replicas")
        .iter()
        .map(|broker| broker.as_u64().expect("an id"))
        .collect();
    brokers.sort_unstable();
    assert_eq!(brokers, [1, 2], "{said}");
    let proposed = file(dir.path(), &proposed);
    execute(&mut programs, &proposed).await;
    let now = described(&mut programs).await;
    assert!(now.contains("Replicas: 1,2") || now.contains("Replicas: 2,1"), "{now}");

    // Another order moves nothing, and has another lead once it is asked for.
    let other = file(dir.path(), &plan(&[2, 1]));
    execute(&mut programs, &other).await;
    until("the preferred leader", async || {
        programs.tool(ELECT, &["--election-type", "PREFERRED", "--topic", "m", "--partition", "0"]).await;
        described(&mut programs).await.contains("Leader: 2\tReplicas: 2,1")
    })
    .await;
    let other = file(dir.path(), &plan(&[1, 0]));
    execute(&mut programs, &other).await;
    programs.tool(ELECT, &["--election-type", "PREFERRED", "--all-topic-partitions"]).await;
    assert!(programs.tool(REASSIGN, &["--list"]).await.contains("No partition reassignments found."));
    let throttled = ["--execute", "--reassignment-json-file", &other, "--throttle", "10000000"];
    assert!(programs.refused(REASSIGN, &throttled).await.contains("settings of brokers cannot be altered"));

    let read = programs.tool(CONSUMER, &["--topic", "m", "--from-beginning", "--max-messages", "2"]).await;
    assert_eq!(read, "one\ntwo\n");
    cluster.stop().await;
}
