//! Groups with clients that people use, each promise with one broker; and with librdkafka on a fleet whose coordinators are killed.

use crate::kafka::clients::run;
use crate::kafka::programs::{Program, promises};
use crate::kafka::wire::Served;
use millpond_tests::fleet::{Fleet, FleetOptions};
use millpond_tests::tools::{Tool, repository, skip};
use std::path::Path;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::process::{Child, ChildStdout, Command};

/// How long clients may take to find a coordinator and to go on, in a test build on a busy machine.
const PATIENCE: Duration = Duration::from_secs(90);

promises! {
    confluent_members_share_a_topic_and_go_on_where_others_were:
        Program::Python("group_confluent.py"), ["@", "share"], "share (classic) holds";
    confluent_cooperative_member_never_gives_up_what_it_keeps:
        Program::Python("group_confluent.py"), ["@", "cooperative"], "cooperative (classic) holds";
    confluent_static_member_comes_back_unnoticed:
        Program::Python("group_confluent.py"), ["@", "static"], "static (classic) holds";
    confluent_looks_after_classic_groups:
        Program::Python("group_confluent.py"), ["@", "admin"], "admin (classic) holds";
    confluent_members_of_a_consumer_group_share_a_topic_and_go_on_where_others_were:
        Program::Python("group_confluent.py"), ["@", "share", "--protocol", "consumer"], "share (consumer) holds";
    confluent_member_of_a_consumer_group_never_gives_up_what_it_keeps:
        Program::Python("group_confluent.py"), ["@", "cooperative", "--protocol", "consumer"], "cooperative (consumer) holds";
    confluent_static_member_of_a_consumer_group_comes_back_unnoticed:
        Program::Python("group_confluent.py"), ["@", "static", "--protocol", "consumer"], "static (consumer) holds";
    confluent_consumer_group_follows_a_pattern_to_topics_that_come_later:
        Program::Python("group_confluent.py"), ["@", "pattern", "--protocol", "consumer"], "pattern (consumer) holds";
    confluent_looks_after_consumer_groups:
        Program::Python("group_confluent.py"), ["@", "admin", "--protocol", "consumer"], "admin (consumer) holds";
    kafka_python_members_share_a_topic_and_go_on_where_others_were:
        Program::Python("group_python.py"), ["@", "share"], "share holds";
    kafka_python_static_member_comes_back_with_what_it_had:
        Program::Python("group_python.py"), ["@", "static"], "static holds";
    kafka_python_cooperative_member_never_gives_up_what_it_keeps:
        Program::Python("group_python.py"), ["@", "cooperative"], "cooperative holds";
    kafka_python_cooperative_member_that_was_removed_comes_back_beside_one_of_the_newer_protocol:
        Program::Python("group_python.py"), ["@", "evicted"], "evicted holds";
    kafka_python_looks_after_groups:
        Program::Python("group_python.py"), ["@", "admin"], "admin holds";
    aiokafka_members_share_a_topic_and_go_on_where_others_were:
        Program::Python("group_aiokafka.py"), ["@"], "share holds";
    aiokafka_static_member_comes_back_unnoticed:
        Program::Python("group_aiokafka.py"), ["@", "static"], "static holds";
    kafkajs_members_share_a_topic_and_go_on_where_others_were:
        Program::KafkaJs("groups.js"), ["@"], "share holds";
    franz_go_members_share_a_topic_and_go_on_where_others_were:
        Program::Go, ["franz", "@"], "share holds";
    franz_go_members_of_a_consumer_group_share_a_topic_and_go_on_where_others_were:
        Program::Go, ["franz", "@", "consumer"], "consumer holds";
    franz_go_cooperative_member_never_gives_up_what_it_keeps:
        Program::Go, ["franz", "@", "cooperative"], "cooperative holds";
    franz_go_static_member_comes_back_unnoticed:
        Program::Go, ["franz", "@", "static"], "static holds";
    sarama_members_share_a_topic_and_go_on_where_others_were:
        Program::Go, ["sarama", "@"], "share holds";
    sarama_cooperative_member_never_gives_up_what_it_keeps:
        Program::Go, ["sarama", "@", "cooperative"], "cooperative holds";
    sarama_static_member_comes_back_unnoticed:
        Program::Go, ["sarama", "@", "static"], "static holds";
    java_members_share_a_topic_and_go_on_where_others_were:
        Program::Java("Groups.java"), ["@", "share", "classic"], "share (classic) holds";
    java_cooperative_member_never_gives_up_what_it_keeps:
        Program::Java("Groups.java"), ["@", "cooperative", "classic"], "cooperative (classic) holds";
    java_static_member_comes_back_unnoticed:
        Program::Java("Groups.java"), ["@", "static", "classic"], "static (classic) holds";
    java_looks_after_classic_groups:
        Program::Java("Groups.java"), ["@", "admin", "classic"], "admin (classic) holds";
    java_members_of_a_consumer_group_share_a_topic_and_go_on_where_others_were:
        Program::Java("Groups.java"), ["@", "share", "consumer"], "share (consumer) holds";
    java_member_of_a_consumer_group_never_gives_up_what_it_keeps:
        Program::Java("Groups.java"), ["@", "cooperative", "consumer"], "cooperative (consumer) holds";
    java_static_member_of_a_consumer_group_comes_back_unnoticed:
        Program::Java("Groups.java"), ["@", "static", "consumer"], "static (consumer) holds";
    java_looks_after_consumer_groups:
        Program::Java("Groups.java"), ["@", "admin", "consumer"], "admin (consumer) holds";
}

/// kcat's balanced consumer: it prints what it reads, commits when it ends, and goes on behind that the next time.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kcat_in_a_group_goes_on_where_it_was() {
    let kcat = match Tool::Kcat.find() {
        Ok(kcat) => kcat,
        Err(why) => return skip("kcat_in_a_group_goes_on_where_it_was", &why),
    };
    let served = Served::start().await;
    let bootstrap = served.broker.kafka();
    served.connect().await.create("t", 1, &[]).await;
    let produce = ["-b", bootstrap, "-P", "-t", "t", "-p", "0"];
    run(&kcat, &produce, b"one\ntwo\n").await;
    let read = |count| ["-b", bootstrap, "-G", "readers", "-c", count, "-q", "-X", "auto.offset.reset=earliest", "t"];
    assert_eq!(run(&kcat, &read("2"), b"").await.stdout, b"one\ntwo\n");
    run(&kcat, &produce, b"three\n").await;
    assert_eq!(run(&kcat, &read("1"), b"").await.stdout, b"three\n");
}

/// A member that commits without end, while its coordinators are killed.
struct Committing {
    child: Child,
    said: Lines<BufReader<ChildStdout>>,
}

impl Committing {
    fn start(python: &Path, fleet: &Fleet, protocol: &str) -> Committing {
        let bootstrap: Vec<String> = (0..fleet.size()).map(|broker| fleet.kafka(broker)).collect();
        let mut child = Command::new(python)
            .arg(repository().join("tests/clients/group_confluent.py"))
            .args(["--bootstrap", &bootstrap.join(","), "--protocol", protocol, "fleet"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .expect("the tool was found");
        let said = BufReader::new(child.stdout.take().expect("piped")).lines();
        Committing { child, said }
    }

    /// Waits until more commits were acknowledged.
    async fn goes_on(&mut self) {
        let line = tokio::time::timeout(PATIENCE, self.said.next_line()).await.expect("commits go on");
        if line.expect("it speaks").is_none() {
            panic!("it ended: {}", self.errors().await);
        }
    }

    async fn errors(&mut self) -> String {
        let mut errors = String::new();
        let mut stderr = self.child.stderr.take().expect("piped");
        stderr.read_to_string(&mut errors).await.expect("text");
        errors
    }

    async fn end(mut self) -> (ExitStatus, String) {
        self.child.stdin.take().expect("piped").shutdown().await.expect("it reads");
        while self.said.next_line().await.expect("it speaks").is_some() {}
        let errors = self.errors().await;
        (self.child.wait().await.expect("it ends"), errors)
    }
}

/// Rules O1 and O3, as a client of Kafka sees them.
async fn commits_outlive_the_kill_of_each_coordinator(test: &str, protocol: &str) {
    let python = match Tool::ClientPython.find() {
        Ok(python) => python,
        Err(why) => return skip(test, &why),
    };
    let mut fleet = Fleet::start(&FleetOptions::new(3)).await.expect("it needs nothing but this machine");
    let mut committing = Committing::start(&python, &fleet, protocol);
    for broker in 0..fleet.size() {
        committing.goes_on().await;
        fleet.kill(broker);
        // Twice: the first may have been acknowledged before.
        committing.goes_on().await;
        committing.goes_on().await;
        fleet.restart(broker).await;
    }
    committing.goes_on().await;
    let (status, errors) = committing.end().await;
    assert!(status.success(), "{errors}");
    fleet.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn confluent_commits_outlive_the_kill_of_each_coordinator() {
    commits_outlive_the_kill_of_each_coordinator("confluent_commits_outlive_the_kill_of_each_coordinator", "classic")
        .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn confluent_commits_of_a_consumer_group_outlive_the_kill_of_each_coordinator() {
    let test = "confluent_commits_of_a_consumer_group_outlive_the_kill_of_each_coordinator";
    commits_outlive_the_kill_of_each_coordinator(test, "consumer").await;
}
