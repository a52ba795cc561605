//! Groups by Kafka's tool for them, with members that are Kafka's verifiable consumers, of the classic protocol and of KIP-848.

use super::super::cluster::{Brokers, Cluster, with_one_broker_and_with_three};
use super::archives_or_skip;
use super::java::{Programs, Running, rows, until};
use std::collections::BTreeSet;
use std::path::Path;

const TOPICS: &str = "org.apache.kafka.tools.TopicCommand";
const GROUPS: &str = "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand";
const ALL_GROUPS: &str = "org.apache.kafka.tools.GroupsCommand";
const PRODUCER: &str = "org.apache.kafka.tools.VerifiableProducer";
const CONSUMER: &str = "org.apache.kafka.tools.VerifiableConsumer";

const RECORDS: u64 = 400;

/// Every record was acknowledged, each once.
async fn produce(archives: &Path, cluster: &Cluster) {
    let records = RECORDS.to_string();
    let arguments = ["--bootstrap-server", &cluster.bootstrap, "--topic", "t", "--max-messages", &records];
    // With keys, so that every partition has some.
    let mut producer = Running::start(archives, PRODUCER, &[&arguments[..], &["--repeating-keys", "50"]].concat());
    let (status, said) = producer.ended().await;
    let events = said.iter().map(|line| serde_json::from_str(line).expect("an event is JSON"));
    let events: Vec<serde_json::Value> = events.collect();
    let acked = events.iter().filter(|event| event["name"] == "producer_send_success");
    let places: BTreeSet<String> = acked.map(|event| format!("{} {}", event["partition"], event["offset"])).collect();
    assert!(status.success() && places.len() as u64 == RECORDS, "{status} {said:?}");
}

struct Group<'a> {
    archives: &'a Path,
    cluster: &'a Cluster,
    /// `classic` or `consumer`.
    protocol: &'a str,
    programs: Programs,
}

impl Group<'_> {
    fn member(&self) -> Running {
        let group = ["--group-id", "readers", "--group-protocol", self.protocol];
        let topic = ["--bootstrap-server", &self.cluster.bootstrap, "--topic", "t"];
        Running::start(self.archives, CONSUMER, &[topic, group].concat())
    }

    async fn tool(&mut self, arguments: &[&str]) -> String {
        self.programs.tool(GROUPS, arguments).await
    }

    async fn describe(&mut self, more: &[&str]) -> Vec<Vec<String>> {
        rows(&self.tool(&[&["--describe", "--group", "readers"][..], more].concat()).await, "readers")
    }

    /// Partition by partition: number, committed offset, end and lag.
    async fn offsets(&mut self) -> Vec<[u64; 4]> {
        let mut all: Vec<[u64; 4]> = Vec::new();
        for row in self.describe(&[]).await {
            all.push([2, 3, 4, 5].map(|column| row[column].parse().expect("a number")));
        }
        all.sort_unstable();
        all
    }

    /// Resets all partitions; where to, in order of partition.
    async fn reset(&mut self, how: &[&str]) -> Vec<u64> {
        let said = self.tool(&[&["--reset-offsets", "--group", "readers"][..], how].concat()).await;
        let mut to: Vec<(u64, u64)> = Vec::new();
        for row in rows(&said, "readers") {
            to.push((row[2].parse().expect("a partition"), row[3].parse().expect("an offset")));
        }
        to.sort_unstable();
        to.into_iter().map(|(_, offset)| offset).collect()
    }

    async fn looks_well_with_two_members(&mut self) {
        until("a share for each", async || {
            let members = self.describe(&["--members"]).await;
            members.len() == 2 && members.iter().all(|member| member.last().is_some_and(|count| count == "2"))
        })
        .await;
        let states = self.describe(&["--state"]).await;
        assert_eq!(states[0][states[0].len() - 2..], ["Stable", "2"], "{states:?}");
        assert_eq!(rows(&self.tool(&["--list", "--state"]).await, "readers"), [["readers", "Stable"]]);
        let kind = if self.protocol == "classic" { "Classic" } else { "Consumer" };
        assert_eq!(rows(&self.tool(&["--list", "--type"]).await, "readers"), [["readers", kind]]);
        let listed = self.programs.tool(ALL_GROUPS, &["--list"]).await;
        assert_eq!(rows(&listed, "readers"), [["readers", kind, "consumer"]]);

        // Nothing is taken from members that are there.
        let refused = self.tool(&["--delete", "--group", "readers"]).await;
        assert!(refused.contains("GroupNotEmptyException"), "{refused}");
        let refused = self.tool(&["--delete-offsets", "--group", "readers", "--topic", "t"]).await;
        assert_eq!(refused.matches("GroupSubscribedToTopicException").count(), 4, "{refused}");
        let reset = ["--reset-offsets", "--group", "readers", "--topic", "t", "--to-earliest", "--execute"];
        let refused = self.tool(&reset).await;
        assert!(refused.contains("can only be reset if the group 'readers' is inactive"), "{refused}");
    }

    async fn is_reset_by_every_means(&mut self, ends: &[u64]) {
        let topic = |more: &[&'static str]| [&["--topic", "t", "--execute"][..], more].concat();
        assert_eq!(self.reset(&topic(&["--to-earliest"])).await, [0; 4]);
        assert_eq!(self.reset(&topic(&["--to-offset", "3"])).await, [3; 4]);
        assert_eq!(self.reset(&topic(&["--shift-by", "2"])).await, [5; 4]);
        assert_eq!(self.reset(&topic(&["--to-current"])).await, [5; 4]);
        assert_eq!(self.reset(&topic(&["--to-latest"])).await, ends);
        assert_eq!(self.reset(&topic(&["--to-datetime", "2020-01-01T00:00:00.000"])).await, [0; 4]);
        assert_eq!(self.reset(&topic(&["--by-duration", "PT1H"])).await, [0; 4]);
        assert_eq!(self.reset(&["--topic", "t:1", "--to-offset", "1", "--execute"]).await, [1]);
        assert_eq!(self.reset(&["--topic", "t", "--to-latest", "--dry-run"]).await, ends);
        let committed: Vec<u64> = self.offsets().await.iter().map(|[_, committed, ..]| *committed).collect();
        assert_eq!(committed, [0, 1, 0, 0], "nothing was changed by the last");
        let export = ["--reset-offsets", "--group", "readers", "--topic", "t", "--to-current", "--export", "--dry-run"];
        let exported = self.tool(&export).await;
        assert_eq!(exported.lines().filter(|line| line.starts_with("t,")).count(), 4, "{exported}");
        let dir = tempfile::tempdir().expect("a temporary folder");
        let file = dir.path().join("offsets.csv");
        std::fs::write(&file, "t,0,2\nt,3,4\n").expect("there is room");
        let file = file.to_str().expect("a path of text");
        assert_eq!(self.reset(&["--from-file", file, "--execute"]).await, [2, 4]);
        let offsets: Vec<[u64; 2]> =
            self.offsets().await.iter().map(|[number, offset, ..]| [*number, *offset]).collect();
        assert_eq!(offsets, [[0, 2], [1, 1], [2, 0], [3, 4]]);
    }

    async fn is_deleted(&mut self) {
        let said = self.tool(&["--delete-offsets", "--group", "readers", "--topic", "t:0"]).await;
        assert!(said.contains("Successful"), "{said}");
        let left: Vec<u64> = self.offsets().await.iter().map(|[partition, ..]| *partition).collect();
        assert_eq!(left, [1, 2, 3]);
        let said = self.tool(&["--delete", "--group", "readers"]).await;
        assert!(said.contains("was successful"), "{said}");
        assert_eq!(self.tool(&["--list"]).await.trim(), "");
        let said = self.tool(&["--describe", "--group", "readers"]).await;
        assert!(said.contains("GroupIdNotFoundException"), "{said}");
    }
}

with_one_broker_and_with_three! {
    kafka_tools_look_after_a_classic_group_of_verifiable_consumers:
        async |test, brokers| groups_are_looked_after(test, brokers, "classic").await;
    kafka_tools_look_after_a_consumer_group_of_verifiable_consumers:
        async |test, brokers| groups_are_looked_after(test, brokers, "consumer").await;
}

async fn groups_are_looked_after(test: &str, brokers: Brokers, protocol: &str) {
    let archives = archives_or_skip!(test);
    let (archives, cluster) = (archives.as_path(), Cluster::start(brokers).await);
    let mut group =
        Group { archives, cluster: &cluster, protocol, programs: Programs::start(archives, &cluster.bootstrap) };
    group.programs.tool(TOPICS, &["--create", "--topic", "t", "--partitions", "4"]).await;
    let mut first = group.member();
    produce(archives, &cluster).await;
    let mut read = 0;
    while read < RECORDS {
        let event = first.event("records", |event| event["name"] == "records_consumed").await;
        read += event["count"].as_u64().expect("a number");
    }
    assert_eq!(read, RECORDS, "each once");
    let mut second = group.member();
    let has_some = |event: &serde_json::Value| {
        event["name"] == "partitions_assigned" && event["partitions"].as_array().is_some_and(|some| !some.is_empty())
    };
    second.event("a share for the second", has_some).await;
    group.looks_well_with_two_members().await;
    for member in [first, second] {
        let said = member.terminate().await;
        assert!(said.last().is_some_and(|line| line.contains("shutdown_complete")), "{said:?}");
    }
    until("the end of the members", async || group.describe(&["--members"]).await.is_empty()).await;
    let offsets = group.offsets().await;
    assert!(offsets.iter().all(|[_, committed, end, lag]| committed == end && *lag == 0), "{offsets:?}");
    let ends: Vec<u64> = offsets.iter().map(|[_, _, end, _]| *end).collect();
    assert_eq!((ends.len(), ends.iter().sum::<u64>()), (4, RECORDS));
    group.is_reset_by_every_means(&ends).await;
    group.is_deleted().await;
    cluster.stop().await;
}
