//! Settings of groups, and of what else there is, by Kafka's tools for them.

use super::super::cluster::Cluster;
use super::super::wire::{Connection, name, text};
use super::archives_or_skip;
use super::java::{Programs, until};
use kafka_protocol::messages as kafka;
use std::collections::BTreeSet;

const TOPICS: &str = "org.apache.kafka.tools.TopicCommand";
const CONFIGS: &str = "kafka.admin.ConfigCommand";
const CLIENT_METRICS: &str = "org.apache.kafka.tools.ClientMetricsCommand";

const MEMBER: &str = "AAAAAAAAAAAAAAAAAAAAAQ";

/// A member of a consumer group, which asks whichever broker coordinates the group.
struct Member {
    connections: Vec<Connection>,
    epoch: i32,
}

impl Member {
    /// Beats once; the interval that it is told.
    async fn beat(&mut self) -> i32 {
        let mut request = kafka::ConsumerGroupHeartbeatRequest::default()
            .with_group_id(text("g").into())
            .with_member_id(text(MEMBER))
            .with_member_epoch(self.epoch);
        if self.epoch == 0 {
            request = request
                .with_rebalance_timeout_ms(60_000)
                .with_subscribed_topic_names(Some(vec![name("t")]))
                .with_topic_partitions(Some(Vec::new()));
        }
        loop {
            for connection in &mut self.connections {
                let told = connection.call(1, &request).await;
                if told.error_code == 0 {
                    self.epoch = told.member_epoch;
                    return told.heartbeat_interval_ms;
                }
            }
        }
    }
}

async fn alter(programs: &mut Programs, change: &[&str]) {
    let of = ["--alter", "--entity-type", "groups", "--entity-name", "g"];
    let said = programs.tool(CONFIGS, &[&of[..], change].concat()).await;
    assert_eq!(said.trim(), "Completed updating config for group g.");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kafka_tools_set_the_times_of_a_consumer_group_and_its_coordinator_goes_by_them() {
    let archives = archives_or_skip!("kafka_tools_set_the_times_of_a_consumer_group_and_its_coordinator_goes_by_them");
    let cluster = Cluster::fleet().await;
    let mut programs = Programs::start(&archives, &cluster.bootstrap);
    programs.tool(TOPICS, &["--create", "--topic", "t", "--partitions", "1"]).await;
    let mut member = Member { connections: Vec::new(), epoch: 0 };
    for address in cluster.bootstrap.split(',') {
        member.connections.push(Connection::to(address).await);
    }
    assert_eq!(member.beat().await, 3_000);

    alter(&mut programs, &["--add-config", "consumer.session.timeout.ms=50000,consumer.heartbeat.interval.ms=6000"])
        .await;
    until("the interval that was set", async || member.beat().await == 6_000).await;
    let describe = ["--describe", "--entity-type", "groups"];
    let expected = [
        "consumer.heartbeat.interval.ms=6000 sensitive=false synonyms={DYNAMIC_GROUP_CONFIG:consumer.heartbeat.interval.ms=6000, \
         DEFAULT_CONFIG:group.consumer.heartbeat.interval.ms=3000}",
        "consumer.session.timeout.ms=50000 sensitive=false synonyms={DYNAMIC_GROUP_CONFIG:consumer.session.timeout.ms=50000, \
         DEFAULT_CONFIG:group.consumer.session.timeout.ms=45000}",
    ];
    let said = programs.tool(CONFIGS, &[&describe[..], &["--entity-name", "g"]].concat()).await;
    let lines: BTreeSet<&str> = said.lines().map(str::trim).collect();
    assert!(said.lines().count() == 3 && expected.iter().all(|line| lines.contains(line)), "{said}");
    // Without a name: of all that have some, and of all that are there.
    let said = programs.tool(CONFIGS, &describe).await;
    assert!(expected.iter().all(|line| said.contains(line)), "{said}");

    let of = ["--alter", "--entity-type", "groups", "--entity-name", "g", "--add-config"];
    for wrong in ["consumer.session.timeout.ms=60001", "consumer.heartbeat.interval.ms=2999", "no.such=1"] {
        let said = programs.refused(CONFIGS, &[&of[..], &[wrong]].concat()).await;
        assert!(said.contains("InvalidConfigurationException"), "{wrong}: {said}");
    }
    alter(&mut programs, &["--delete-config", "consumer.session.timeout.ms,consumer.heartbeat.interval.ms"]).await;
    until("the broker's own interval", async || member.beat().await == 3_000).await;
    let said = programs.tool(CONFIGS, &[&describe[..], &["--entity-name", "g"]].concat()).await;
    assert!(!said.contains("DYNAMIC_GROUP_CONFIG"), "{said}");
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kafka_tools_find_no_subscriptions_to_metrics_of_clients_and_are_refused_one() {
    let archives = archives_or_skip!("kafka_tools_find_no_subscriptions_to_metrics_of_clients_and_are_refused_one");
    let cluster = Cluster::dev();
    let mut programs = Programs::start(&archives, &cluster.bootstrap);
    assert_eq!(programs.tool(CLIENT_METRICS, &["--list"]).await.trim(), "");
    let alter = ["--alter", "--name", "m", "--metrics", "org.apache.kafka.producer.", "--interval", "60000"];
    let said = programs.refused(CLIENT_METRICS, &alter).await;
    assert!(said.contains("brokers do not ask clients for their metrics"), "{said}");
    cluster.stop().await;
}
