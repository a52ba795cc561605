//! Groups with clients that people use, each promise with one broker and with three; and with librdkafka on a fleet whose coordinators are
//! killed.

use crate::kafka::programs::{Client, Program, promises, promises_with_one_broker};
use millpond_tests::fleet::{Fleet, FleetOptions};
use millpond_tests::tools::skip;

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
}

promises_with_one_broker! {
    confluent_member_of_a_consumer_group_never_gives_up_what_it_keeps:
        Program::Python("group_confluent.py"), ["@", "cooperative", "--protocol", "consumer"], "cooperative (consumer) holds";
    confluent_static_member_of_a_consumer_group_comes_back_unnoticed:
        Program::Python("group_confluent.py"), ["@", "static", "--protocol", "consumer"], "static (consumer) holds";
    confluent_consumer_group_follows_a_pattern_to_topics_that_come_later:
        Program::Python("group_confluent.py"), ["@", "pattern", "--protocol", "consumer"], "pattern (consumer) holds";
    confluent_looks_after_consumer_groups:
        Program::Python("group_confluent.py"), ["@", "admin", "--protocol", "consumer"], "admin (consumer) holds";
    java_member_of_a_consumer_group_never_gives_up_what_it_keeps:
        Program::Java("Groups.java"), ["@", "cooperative", "consumer"], "cooperative (consumer) holds";
    java_static_member_of_a_consumer_group_comes_back_unnoticed:
        Program::Java("Groups.java"), ["@", "static", "consumer"], "static (consumer) holds";
    java_looks_after_consumer_groups:
        Program::Java("Groups.java"), ["@", "admin", "consumer"], "admin (consumer) holds";
}

/// Rules O1 and O3, as a client of Kafka sees them: a member commits without end, while its coordinators are killed.
async fn commits_outlive_the_kill_of_each_coordinator(test: &str, protocol: &str) {
    let mut fleet = Fleet::start(&FleetOptions::new(3)).await.expect("it needs nothing but this machine");
    let program = Program::Python("group_confluent.py");
    let mut committing = match program.command(&fleet.kafka_bootstrap(), &["@", "--protocol", protocol, "fleet"]) {
        Ok(command) => Client::start(command),
        Err(why) => return skip(test, &why),
    };
    for broker in 0..fleet.size() {
        committing.goes_on().await;
        fleet.kill(broker);
        // Twice: the first may have been acknowledged before.
        committing.goes_on().await;
        committing.goes_on().await;
        fleet.restart(broker).await;
    }
    committing.goes_on().await;
    committing.end().await;
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
