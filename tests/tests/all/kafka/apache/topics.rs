//! Topics, their settings, their records and where these lie, by the tools that operators know.

use super::super::cluster::{Brokers, Cluster, with_one_broker_and_with_three};
use super::archives_or_skip;
use super::java::{Programs, rows, until};
use serde_json::Value;
use std::collections::BTreeSet;

const TOPICS: &str = "org.apache.kafka.tools.TopicCommand";
const CONFIGS: &str = "kafka.admin.ConfigCommand";
const OFFSETS: &str = "org.apache.kafka.tools.GetOffsetShell";
const DELETE_RECORDS: &str = "org.apache.kafka.tools.DeleteRecordsCommand";
const LOG_DIRS: &str = "org.apache.kafka.tools.LogDirsCommand";
const API_VERSIONS: &str = "org.apache.kafka.tools.BrokerApiVersionsCommand";
const CLUSTER: &str = "org.apache.kafka.tools.ClusterTool";
const PRODUCER: &str = "org.apache.kafka.tools.ConsoleProducer";
const CONSUMER: &str = "org.apache.kafka.tools.consumer.ConsoleConsumer";
const PRODUCER_PERFORMANCE: &str = "org.apache.kafka.tools.ProducerPerformance";
const CONSUMER_PERFORMANCE: &str = "org.apache.kafka.tools.ConsumerPerformance";

async fn describe(programs: &mut Programs, more: &[&str]) -> String {
    programs.tool(TOPICS, &[&["--describe"][..], more].concat()).await
}

async fn topics_are_looked_after(programs: &mut Programs, size: usize) {
    let replicas = size.to_string();
    let create = ["--create", "--topic", "t", "--partitions", "3", "--replication-factor", &replicas];
    let config = ["--config", "retention.ms=3600000"];
    assert_eq!(programs.tool(TOPICS, &[&create[..], &config].concat()).await.trim(), "Created topic t.");
    assert!(programs.refused(TOPICS, &create).await.contains("TopicExistsException"));
    programs.tool(TOPICS, &[&create[..], &["--if-not-exists"]].concat()).await;
    assert_eq!(programs.tool(TOPICS, &["--list"]).await.trim(), "t");

    let created = describe(programs, &["--topic", "t"]).await;
    assert!(created.contains("PartitionCount: 3") && created.contains("Configs: retention.ms=3600000"), "{created}");
    for line in created.lines().skip(1) {
        let words: Vec<&str> = line.split_whitespace().collect();
        let replicas = words.iter().position(|word| *word == "Replicas:").and_then(|at| words.get(at + 1));
        assert_eq!(replicas.map(|found| found.split(',').count()), Some(size), "{line}");
    }
    for state in ["--under-replicated-partitions", "--unavailable-partitions", "--under-min-isr-partitions"] {
        until(state, async || describe(programs, &[state]).await.trim().is_empty()).await;
    }
    assert!(describe(programs, &["--topics-with-overrides"]).await.starts_with("Topic: t"));

    programs.tool(TOPICS, &["--alter", "--topic", "t", "--partitions", "4"]).await;
    assert!(programs.refused(TOPICS, &["--alter", "--topic", "t", "--partitions", "2"]).await.contains("only grow"));
    assert!(describe(programs, &["--topic", "t"]).await.contains("PartitionCount: 4"));
    assert!(programs.refused(TOPICS, &["--describe", "--topic", "nope"]).await.contains("does not exist"));
}

async fn settings_hold(programs: &mut Programs) {
    let of = ["--entity-type", "topics", "--entity-name", "t"];
    let alter = async |programs: &mut Programs, more: [&str; 2]| {
        let said = programs.tool(CONFIGS, &[&["--alter"][..], &of, &more].concat()).await;
        assert_eq!(said.trim(), "Completed updating config for topic t.");
    };
    alter(programs, ["--add-config", "segment.bytes=16777216,cleanup.policy=[compact,delete]"]).await;
    let set = programs.tool(CONFIGS, &[&["--describe"][..], &of].concat()).await;
    let changed = [
        "cleanup.policy=compact,delete sensitive=false synonyms={DYNAMIC_TOPIC_CONFIG:cleanup.policy=compact,delete, \
         DEFAULT_CONFIG:log.cleanup.policy=delete}",
        "retention.ms=3600000",
        "segment.bytes=16777216",
    ];
    assert_eq!(set.lines().count(), 4, "{set}");
    for each in changed {
        assert!(set.contains(each), "{each} in {set}");
    }
    let all = programs.tool(CONFIGS, &[&["--describe", "--all"][..], &of].concat()).await;
    assert!(all.lines().count() > 25 && all.contains("max.message.bytes=1048588"), "{all}");
    alter(programs, ["--delete-config", "cleanup.policy"]).await;
    let all = programs.tool(CONFIGS, &["--describe", "--entity-type", "topics"]).await;
    assert!(!all.contains("cleanup.policy") && all.contains("segment.bytes=16777216"), "{all}");
    let wrong = [&["--alter"][..], &of, &["--add-config", "retention.ms=abc"]].concat();
    assert!(programs.refused(CONFIGS, &wrong).await.contains("InvalidConfigurationException"));

    let of = ["--entity-type", "brokers", "--entity-name", "0"];
    let all = programs.tool(CONFIGS, &[&["--describe", "--all"][..], &of].concat()).await;
    assert!(all.contains("node.id=0") && all.contains("STATIC_BROKER_CONFIG"), "{all}");
    let alter = [&["--alter"][..], &of, &["--add-config", "num.partitions=3"]].concat();
    assert!(programs.refused(CONFIGS, &alter).await.contains("settings of brokers cannot be altered"));
}

async fn offsets(programs: &mut Programs, more: &[&str]) -> String {
    let said = programs.tool(OFFSETS, &[&["--topic", "r"][..], more].concat()).await;
    said.lines().collect::<Vec<&str>>().join(" ")
}

async fn records_are_read_found_and_deleted(programs: &mut Programs) {
    programs.tool(TOPICS, &["--create", "--topic", "r", "--partitions", "2"]).await;
    let keyed = ["--topic", "r", "--reader-property", "parse.key=true", "--reader-property", "key.separator=:"];
    let written = "a:1\nb:2\nc:3\nd:4\ne:5\nf:6\n";
    for codec in ["none", "gzip", "snappy", "lz4", "zstd"] {
        programs.tool_with(PRODUCER, &[&keyed[..], &["--compression-codec", codec]].concat(), written).await;
    }
    let show = ["--formatter-property", "print.key=true", "--formatter-property", "key.separator=:"];
    let read = ["--topic", "r", "--from-beginning", "--max-messages", "30"];
    let mut read: Vec<String> = {
        let said = programs.tool(CONSUMER, &[&read[..], &show].concat()).await;
        said.lines().map(str::to_owned).collect()
    };
    read.sort();
    let expected: Vec<&str> = written.lines().flat_map(|line| [line; 5]).collect();
    assert_eq!(read, expected);

    let ends = offsets(programs, &[]).await;
    let counts: Vec<u32> =
        ends.split(' ').map(|end| end.rsplit(':').next().and_then(|end| end.parse().ok()).expect("a number")).collect();
    assert_eq!((counts.len(), counts.iter().sum::<u32>()), (2, 30), "{ends}");
    assert_eq!(offsets(programs, &["--time", "earliest"]).await, "r:0:0 r:1:0");
    assert_eq!(offsets(programs, &["--time", "0"]).await, "r:0:0 r:1:0");
    assert_eq!(offsets(programs, &["--time", "latest", "--partitions", "1"]).await, format!("r:1:{}", counts[1]));
    let last = programs.tool(OFFSETS, &["--topic-partitions", "r:0-1", "--time", "max-timestamp"]).await;
    assert!(last.starts_with("r:0:"), "{last}");

    let dir = tempfile::tempdir().expect("a temporary folder");
    let file = dir.path().join("offsets.json");
    let plan = r#"{"partitions": [{"topic": "r", "partition": 0, "offset": -1},
        {"topic": "r", "partition": 1, "offset": 1}], "version": 1}"#;
    std::fs::write(&file, plan).expect("there is room");
    let file = file.to_str().expect("a path of text");
    let deleted = programs.tool(DELETE_RECORDS, &["--offset-json-file", file]).await;
    for (partition, low) in [(0, counts[0]), (1, 1)] {
        assert!(deleted.contains(&format!("partition: r-{partition}\tlow_watermark: {low}")), "{deleted}");
    }
    assert_eq!(offsets(programs, &["--time", "earliest"]).await, format!("r:0:{} r:1:1", counts[0]));
}

/// The console's own way to write them: what is null is named, and what is empty is not there.
async fn headers_and_nulls_come_back(programs: &mut Programs) {
    programs.tool(TOPICS, &["--create", "--topic", "h", "--partitions", "3"]).await;
    let mut write = vec!["--topic", "h"];
    for property in ["parse.headers=true", "parse.key=true", "null.marker=NULL"] {
        write.extend(["--reader-property", property]);
    }
    let written = "h:1,n:2\tkey\tvalue\nNULL\tNULL\tNULL\nh:\t\tx\n";
    programs.tool_with(PRODUCER, &write, written).await;
    let mut read = vec!["--topic", "h", "--from-beginning", "--max-messages", "3"];
    for property in ["print.headers=true", "print.key=true"] {
        read.extend(["--formatter-property", property]);
    }
    let said = programs.tool(CONSUMER, &read).await;
    let came: BTreeSet<&str> = said.lines().collect();
    assert_eq!(came, BTreeSet::from(["NO_HEADERS\tnull\tnull", "h:\t\tx", "h:1,n:2\tkey\tvalue"]), "{said}");
}

async fn brokers_tell_of_themselves(programs: &mut Programs, bootstrap: &str, size: usize) {
    let versions = programs.tool(API_VERSIONS, &[]).await;
    let brokers: Vec<&str> = versions.lines().filter(|line| line.ends_with("-> (")).collect();
    assert_eq!(brokers.len(), size, "{brokers:?}");
    assert_eq!(versions.matches("Fetch(1): 4 to 17 [usable: 17]").count(), size);
    let endpoints = ["list-endpoints", "--bootstrap-server", bootstrap];
    let endpoints = format!("{:?}", programs.run(CLUSTER, &endpoints, "").await);
    assert_eq!(endpoints.matches(" unfenced ").count(), size, "{endpoints}");
    let dirs = programs.tool(LOG_DIRS, &["--describe", "--topic-list", "t"]).await;
    let dirs: Value = serde_json::from_str(dirs.lines().last().expect("lines")).expect("the last line is JSON");
    let of_each = dirs["brokers"].as_array().expect("brokers");
    assert_eq!(of_each.len(), size, "{dirs}");
    for broker in of_each {
        assert_eq!(broker["logDirs"][0]["partitions"].as_array().map(Vec::len), Some(4), "{dirs}");
    }
}

/// As `kafka-producer-perf-test.sh` and `kafka-consumer-perf-test.sh` do: many records, and large ones.
async fn performance_programs_read_all_that_they_wrote(programs: &mut Programs, bootstrap: &str) {
    let room = "6291456";
    let (topic_room, client_room) = (format!("max.message.bytes={room}"), format!("max.request.size={room}"));
    programs.tool(TOPICS, &["--create", "--topic", "p", "--partitions", "3", "--config", &topic_room]).await;
    let at = format!("bootstrap.servers={bootstrap}");
    for (count, size, all) in [("20000", "100", "20000"), ("6", "3000000", "20006")] {
        let write = ["--topic", "p", "--num-records", count, "--record-size", size, "--throughput", "-1"];
        let to = ["--producer-props", &at, &client_room];
        let said = format!("{:?}", programs.run(PRODUCER_PERFORMANCE, &[&write[..], &to].concat(), "").await);
        assert!(said.contains(&format!("{count} records sent")), "{said}");
        let said = programs.tool(CONSUMER_PERFORMANCE, &["--topic", "p", "--num-records", all]).await;
        let read = said.lines().last().and_then(|line| line.split(", ").nth(4)).map(str::to_owned);
        assert_eq!(read.as_deref(), Some(all), "{said}");
    }
}

async fn topics_are_deleted(programs: &mut Programs) {
    for topic in ["t", "r", "p", "h"] {
        programs.tool(TOPICS, &["--delete", "--topic", topic]).await;
    }
    assert!(programs.refused(TOPICS, &["--delete", "--topic", "t"]).await.contains("does not exist"));
    programs.tool(TOPICS, &["--delete", "--topic", "t", "--if-exists"]).await;
    assert_eq!(rows(&programs.tool(TOPICS, &["--list"]).await, "t").len(), 0);
}

with_one_broker_and_with_three! {
    kafka_tools_look_after_topics_settings_and_records: tools_hold;
}

async fn tools_hold(test: &str, brokers: Brokers) {
    let archives = archives_or_skip!(test);
    let cluster = Cluster::start(brokers).await;
    let mut programs = Programs::start(&archives, &cluster.bootstrap);
    topics_are_looked_after(&mut programs, cluster.size).await;
    settings_hold(&mut programs).await;
    records_are_read_found_and_deleted(&mut programs).await;
    headers_and_nulls_come_back(&mut programs).await;
    brokers_tell_of_themselves(&mut programs, &cluster.bootstrap, cluster.size).await;
    performance_programs_read_all_that_they_wrote(&mut programs, &cluster.bootstrap).await;
    topics_are_deleted(&mut programs).await;
    cluster.stop().await;
}
