//! `millpond cluster`: the brokers, and how well their partitions are. Asks the cluster, and shows what it says.

use super::status::{self, LossState, PartitionState};
use crate::connection::ConnectionArgs;
use crate::failure::Failure;
use crate::output::{self, Format, OutputArgs};
use crate::units::ByteCount;
use millpond_sdk::{Admin, BrokerId, ClusterDescription, LastKnown, LostBroker, TopicDescription};
use serde::Serialize;
use std::time::Duration;

/// Arguments of `cluster`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example: millpond cluster describe --output json")]
pub(crate) struct Args {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, clap::Subcommand)]
enum Action {
    /// Show brokers, what they lead, and partitions that are not well
    #[command(after_help = "Example: millpond cluster describe --bootstrap broker-0:7400")]
    Describe {
        #[command(flatten)]
        output: OutputArgs,
        #[command(flatten)]
        connection: ConnectionArgs,
    },
    /// Wait until the cluster is well
    #[command(after_help = "Example: millpond cluster wait --isr-full --timeout 5m")]
    Wait {
        /// Until every partition has a leader and all of its replicas are in sync
        #[arg(long, required = true)]
        isr_full: bool,
        /// Give up after this time
        #[arg(long, default_value = "10m", value_parser = crate::units::duration)]
        timeout: Duration,
        #[command(flatten)]
        connection: ConnectionArgs,
    },
    /// Move all leaderships and replicas away from a broker, so that it can be stopped for good
    #[command(after_help = "Example: millpond cluster drain 3")]
    Drain {
        /// Its id
        #[arg(value_name = "ID")]
        broker: u32,
        /// Let it have its share again
        #[arg(long)]
        undo: bool,
        #[command(flatten)]
        connection: ConnectionArgs,
    },
    /// Forget a broker that holds nothing and will not come back
    #[command(after_help = "Example: millpond cluster forget 3")]
    Forget {
        /// Its id
        #[arg(value_name = "ID")]
        broker: u32,
        /// Its disk is gone for good, also where it has the last copy: show what that comes to. It must not run
        #[arg(long)]
        lost: bool,
        /// Count the disk as lost; this cannot be taken back. Without it nothing is changed
        #[arg(long, requires = "lost")]
        yes: bool,
        /// Its machine is gone as well: a broker that does not answer, and may run for all that is known, counts as stopped
        #[arg(long, requires = "lost")]
        machine_gone: bool,
        #[command(flatten)]
        connection: ConnectionArgs,
    },
}

/// How often the cluster is looked at by who waits.
const LOOK: Duration = Duration::from_millis(250);

/// The answer of `cluster describe`.
#[derive(Debug, PartialEq, Eq, Serialize)]
struct Described {
    id: String,
    controller: Option<u32>,
    brokers: Vec<BrokerState>,
    topics: usize,
    partitions: usize,
    under_replicated: Vec<Place>,
    offline: Vec<Place>,
    lost: Vec<Lost>,
    tail_bytes: u64,
    tiered_bytes: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    stale_ms: Option<u64>,
}

#[derive(Debug, PartialEq, Eq, Serialize)]
struct BrokerState {
    id: u32,
    rack: Option<String>,
    grpc: String,
    kafka: String,
    http: String,
    leads: usize,
    replicas: usize,
}

/// A partition that nobody may lead, and why.
#[derive(Debug, PartialEq, Eq, Serialize)]
struct Lost {
    topic: String,
    partition: u32,
    loss: LossState,
}

/// A partition, by name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
struct Place {
    topic: String,
    partition: u32,
}

pub(super) async fn run(args: Args) -> Result<(), Failure> {
    match args.action {
        Action::Describe { connection, output } => describe(&Admin::new(&connection.connect().await?), &output).await,
        Action::Wait { isr_full: _, timeout, connection } => {
            wait(&Admin::new(&connection.connect().await?), timeout).await
        }
        Action::Drain { broker, undo, connection } => {
            Admin::new(&connection.connect().await?).drain_broker(BrokerId(broker), undo).await.map_err(failed)?;
            output::text(&match undo {
                true => format!("broker {broker} gets its share again"),
                false => format!(
                    "broker {broker} is being left; `millpond cluster describe` shows what it still leads and holds"
                ),
            })
        }
        Action::Forget { broker, lost, yes, machine_gone, connection } => {
            let (admin, id) = (Admin::new(&connection.connect().await?), BrokerId(broker));
            let said = match (lost, yes) {
                (false, _) => admin.forget_broker(id).await.map(|()| given_up(broker, &LostBroker::default())),
                (true, true) => admin.forget_lost_broker(id, machine_gone).await.map(|lost| given_up(broker, &lost)),
                (true, false) => {
                    admin.validate_lost_broker(id, machine_gone).await.map(|lost| would_give_up(broker, &lost))
                }
            };
            output::text(&said.map_err(failed)?)
        }
    }
}

/// Partitions that are named one by one.
const NAMED_MAX: usize = 20;

fn last_copies(lost: &LostBroker) -> String {
    let mut named: Vec<String> = lost.last_copies.iter().take(NAMED_MAX).map(ToString::to_string).collect();
    match lost.last_copies.len() {
        0 => return "of none the last copy".to_owned(),
        all if all > NAMED_MAX => named.push(format!("and {} more", all - NAMED_MAX)),
        _ => {}
    }
    format!("of {} the last copy: {}", lost.last_copies.len(), named.join(", "))
}

fn would_give_up(broker: u32, lost: &LostBroker) -> String {
    format!(
        "partitions that name broker {broker}: {}; {}\n\
         Of the latter what is not in object storage would be lost, for good, also if the disk comes back.\n\
         nothing was changed; say --yes if the disk of broker {broker} is gone and the broker does not run",
        lost.partitions,
        last_copies(lost)
    )
}

fn given_up(broker: u32, lost: &LostBroker) -> String {
    if lost.partitions == 0 {
        return format!("broker {broker} is forgotten");
    }
    format!(
        "the disk of broker {broker} counts as lost; partitions that name it: {}; {}\n\
         What it had the last copy of waits for `millpond partition accept-loss --all --yes`; its other replicas go elsewhere.\n\
         After that `millpond cluster forget {broker}` ends it.",
        lost.partitions,
        last_copies(lost)
    )
}

fn failed(error: millpond_sdk::Error) -> Failure {
    Failure::new(error.to_string())
}

/// Waits until nothing is amiss; says what is when the time is over.
async fn wait(admin: &Admin, timeout: Duration) -> Result<(), Failure> {
    let deadline = tokio::time::Instant::now() + timeout;
    loop {
        let failure = match admin.last_known_topics().await {
            Ok(LastKnown { stale_for: Some(time), .. }) => Failure::new(format!(
                "no broker that answers has heard from the metadata store for {:?}, so nobody knows how the partitions are",
                Duration::from_secs(time.as_secs())
            )),
            Ok(LastKnown { value: topics, .. }) => match amiss(&topics) {
                None => return output::text("every partition has all of its replicas in sync"),
                Some((count, first)) => {
                    Failure::new(format!("{count} partitions are not whole yet, {first} among them"))
                }
            },
            Err(error) if error.retriable => failed(error),
            Err(error) => return Err(failed(error)),
        };
        if tokio::time::Instant::now() >= deadline {
            return Err(failure);
        }
        tokio::time::sleep(LOOK).await;
    }
}

/// How many partitions have no leader or a replica that is not in sync, and one of them.
fn amiss(topics: &[TopicDescription]) -> Option<(usize, String)> {
    let all = topics.iter().flat_map(|topic| topic.partitions.iter().map(move |partition| (topic, partition)));
    let mut amiss = all.filter(|(_, partition)| {
        partition.leader.is_none() || partition.replicas.iter().any(|replica| !partition.isr.contains(replica))
    });
    let (topic, partition) = amiss.next()?;
    let first = format!("{}:{}", topic.name, partition.index);
    Some((amiss.count() + 1, first))
}

async fn describe(admin: &Admin, output: &OutputArgs) -> Result<(), Failure> {
    let cluster = admin.last_known_cluster().await.map_err(failed)?;
    let known = admin.last_known_topics().await.map_err(failed)?;
    let stale_ms = status::warned(cluster.stale_for.max(known.stale_for));
    let topics = known.value;
    let states = status::partitions(admin, &topics).await;
    let topics: Vec<_> = topics.into_iter().map(|topic| topic.name).zip(states).collect();
    let described = Described::new(cluster.value, &topics, stale_ms);
    match output.output {
        Format::Json => output::json(&described),
        Format::Text => output::text(&described.to_text()),
    }
}

impl Described {
    fn new(cluster: ClusterDescription, topics: &[(String, Vec<PartitionState>)], stale_ms: Option<u64>) -> Described {
        let all = || topics.iter().flat_map(|(topic, partitions)| partitions.iter().map(move |state| (topic, state)));
        let places = |wanted: fn(&PartitionState) -> bool| {
            let wanted = all().filter(|(_, state)| wanted(state));
            wanted.map(|(topic, state)| Place { topic: topic.clone(), partition: state.partition }).collect()
        };
        let brokers = cluster.brokers.into_iter().map(|broker| BrokerState {
            id: broker.id.0,
            rack: broker.rack,
            grpc: broker.grpc,
            kafka: broker.kafka,
            http: broker.http,
            leads: all().filter(|(_, state)| state.leader == Some(broker.id.0)).count(),
            replicas: all().filter(|(_, state)| state.replicas.contains(&broker.id.0)).count(),
        });
        Described {
            id: cluster.id,
            controller: cluster.controller.map(|id| id.0),
            brokers: brokers.collect(),
            topics: topics.len(),
            partitions: all().count(),
            under_replicated: places(|state| state.isr.len() < state.replicas.len()),
            offline: places(|state| state.leader.is_none()),
            lost: all()
                .filter_map(|(topic, state)| {
                    Some(Lost { topic: topic.clone(), partition: state.partition, loss: state.loss.clone()? })
                })
                .collect(),
            tail_bytes: all().filter_map(|(_, state)| state.tail_bytes).sum(),
            tiered_bytes: all().filter_map(|(_, state)| state.tiered_bytes).sum(),
            stale_ms,
        }
    }

    fn to_text(&self) -> String {
        let controller = self.controller.map_or("none".to_owned(), |id| id.to_string());
        let mut text = format!("cluster {}  controller {controller}\n", self.id);
        text.push_str(&format!(
            "{} topics, {} partitions; {} in brokers' WALs, {} in object storage\n",
            self.topics,
            self.partitions,
            ByteCount(self.tail_bytes),
            ByteCount(self.tiered_bytes)
        ));
        for (what, places) in [("under-replicated", &self.under_replicated), ("without a leader", &self.offline)] {
            let names: Vec<String> =
                places.iter().map(|place| format!("{}:{}", place.topic, place.partition)).collect();
            text.push_str(&format!("{what}: {}\n", if names.is_empty() { "none".to_owned() } else { names.join(" ") }));
        }
        for Lost { topic, partition, loss } in &self.lost {
            text.push_str(&status::loss_line(topic, *partition, loss));
        }
        let row = |broker: &BrokerState| {
            let rack = broker.rack.clone().unwrap_or_else(|| "-".to_owned());
            let (leads, replicas) = (broker.leads.to_string(), broker.replicas.to_string());
            let addresses = [broker.grpc.clone(), broker.kafka.clone(), broker.http.clone()];
            [broker.id.to_string(), rack].into_iter().chain(addresses).chain([leads, replicas]).collect()
        };
        let heading = ["BROKER", "RACK", "GRPC", "KAFKA", "HTTP", "LEADS", "REPLICAS"];
        text + &output::table(&heading, &self.brokers.iter().map(row).collect::<Vec<Vec<String>>>())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schemas;
    use millpond_sdk::{BrokerDescription, BrokerId};

    fn described() -> Described {
        let address = |port: u16| format!("127.0.0.1:{port}");
        let broker = BrokerDescription {
            id: BrokerId(0),
            rack: None,
            grpc: address(7400),
            kafka: address(9092),
            http: address(7480),
        };
        let cluster = ClusterDescription { id: "c".to_owned(), controller: Some(BrokerId(0)), brokers: vec![broker] };
        Described::new(
            cluster,
            &[("t".to_owned(), vec![PartitionState::example(), PartitionState::unknown(3), PartitionState::lost(4)])],
            Some(1),
        )
    }

    #[test]
    fn partitions_that_are_not_well_are_named() {
        let place = |partition| Place { topic: "t".to_owned(), partition };
        let described = described();
        assert_eq!(described.under_replicated, [place(1), place(3), place(4)]);
        assert_eq!(described.offline, [place(3), place(4)]);
        assert_eq!((described.brokers[0].leads, described.brokers[0].replicas), (1, 3));
        let text = described.to_text();
        let line = "lost of t:4: the disk (`wal/1`, byte 4096); the 30 offsets 50 to 79 are lost";
        assert!(text.contains(line) && text.contains("accept-loss t:3 --yes"), "{text}");
    }

    #[test]
    fn json_has_the_promised_fields() {
        schemas::check("cluster-describe", &described());
    }
}
