//! An admin client of Java's while the metadata store does not answer: what it began succeeds once the store does.

use super::archives_or_skip;
use super::java::{Programs, rows, until};
use millpond_tests::fleet::{Fleet, FleetOptions, MetadataIn};
use millpond_tests::http;
use millpond_tests::tools::{Tool, skip};

const TOPICS: &str = "org.apache.kafka.tools.TopicCommand";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn java_creates_a_topic_though_the_metadata_store_stands_still_meanwhile() {
    let test = "java_creates_a_topic_though_the_metadata_store_stands_still_meanwhile";
    let archives = archives_or_skip!("java_creates_a_topic_though_the_metadata_store_stands_still_meanwhile");
    let options = FleetOptions { metadata: MetadataIn::Etcd(Tool::EtcdPinned, 1), ..FleetOptions::new(1) };
    let mut fleet = match Fleet::start(&options).await {
        Ok(fleet) => fleet,
        Err(why) => return skip(test, &why),
    };
    let (bootstrap, http) = (fleet.kafka(0), fleet.http(0));
    let mut programs = Programs::start(&archives, &bootstrap);
    assert_eq!(rows(&programs.tool(TOPICS, &["--list"]).await, "t").len(), 0, "Java runs");
    fleet.etcd().pause(0);
    let refused = async {
        until("a refusal", async || {
            let (_, metrics) = http::get(&http, "/metrics").await.expect("the door is open");
            let refused = |line: &str| line.starts_with("millpond_request_errors") && line.contains("\"CreateTopic\"");
            metrics.lines().any(refused)
        })
        .await;
        fleet.etcd().resume(0);
    };
    // The first try was not the last, or the tool would have failed. What a try may have made, its next one finds.
    let create = ["--create", "--topic", "t", "--if-not-exists"];
    tokio::join!(programs.tool(TOPICS, &create), refused);
    assert_eq!(rows(&programs.tool(TOPICS, &["--list"]).await, "t").len(), 1);
    fleet.stop().await;
}
