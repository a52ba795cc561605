//! `millpond topic`: what operators do to topics. Asks the cluster, and shows what it says.

use super::status::{self, PartitionState};
use crate::connection::ConnectionArgs;
use crate::failure::Failure;
use crate::output::{self, Format, OutputArgs};
use crate::units::ByteCount;
use millpond_sdk::{Admin, ErrorCode, NewTopic, Offset, TopicDescription};
use serde::Serialize;
use std::collections::BTreeMap;
use std::io::{BufRead, IsTerminal};

/// Arguments of `topic`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example: millpond topic create orders --partitions 6 --config retention.ms=604800000")]
pub(crate) struct Args {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, clap::Subcommand)]
enum Action {
    /// Create a topic
    #[command(after_help = "Example: millpond topic create orders --partitions 6 --config cleanup.policy=compact")]
    Create {
        /// Its name
        name: String,
        /// How many partitions [default: the brokers']
        #[arg(long, value_name = "N")]
        partitions: Option<u32>,
        /// How many copies of each [default: the brokers']
        #[arg(long, value_name = "R")]
        replication_factor: Option<u32>,
        /// A setting by its Kafka name; may be repeated
        #[arg(long = "config", value_name = "KEY=VALUE", value_parser = setting)]
        configs: Vec<(String, String)>,
        /// Succeed if a topic of that name is already there
        #[arg(long)]
        if_not_exists: bool,
        #[command(flatten)]
        common: Common,
    },
    /// List all topics
    #[command(after_help = "Example: millpond topic list --output json")]
    List {
        #[command(flatten)]
        common: Common,
    },
    /// Show the settings of a topic and the state of its partitions
    #[command(after_help = "Example: millpond topic describe orders")]
    Describe {
        /// Its name
        name: String,
        #[command(flatten)]
        common: Common,
    },
    /// Set and unset settings of a topic, all or none
    #[command(after_help = "Example: millpond topic alter orders --set retention.ms=86400000 --unset segment.bytes")]
    Alter {
        /// Its name
        name: String,
        /// A setting by its Kafka name; may be repeated
        #[arg(long, value_name = "KEY=VALUE", value_parser = setting, required_unless_present = "unset")]
        set: Vec<(String, String)>,
        /// A setting that goes back to its default; may be repeated
        #[arg(long, value_name = "KEY")]
        unset: Vec<String>,
        #[command(flatten)]
        common: Common,
    },
    /// Grow a topic; keys go to other partitions from then on
    #[command(after_help = "Example: millpond topic add-partitions orders --total 12")]
    AddPartitions {
        /// Its name
        name: String,
        /// How many partitions it has afterwards
        #[arg(long, value_name = "N")]
        total: u32,
        #[command(flatten)]
        common: Common,
    },
    /// Delete a topic and all its records, for good
    #[command(after_help = "Example: millpond topic delete orders --yes")]
    Delete {
        /// Its name
        name: String,
        /// Succeed if there is no such topic
        #[arg(long)]
        if_exists: bool,
        /// Do not ask
        #[arg(long)]
        yes: bool,
        #[command(flatten)]
        common: Common,
    },
    /// Delete the oldest records of a partition
    #[command(after_help = "Example: millpond topic delete-records orders --partition 0 --before 1000")]
    DeleteRecords {
        /// The topic's name
        name: String,
        /// The partition
        #[arg(long, value_name = "P")]
        partition: u32,
        /// Delete what is before this offset, or all that is committed with `end`
        #[arg(long, value_name = "OFFSET|end", value_parser = before)]
        before: Before,
        #[command(flatten)]
        common: Common,
    },
    /// Upload what is committed of every partition, now
    #[command(after_help = "Example: millpond topic flush orders")]
    Flush {
        /// The topic's name
        name: String,
        #[command(flatten)]
        common: Common,
    },
}

#[derive(Debug, clap::Args)]
struct Common {
    #[command(flatten)]
    output: OutputArgs,
    #[command(flatten)]
    connection: ConnectionArgs,
}

#[derive(Clone, Copy, Debug)]
struct Before(Option<Offset>);

fn before(text: &str) -> Result<Before, String> {
    match text {
        "end" => Ok(Before(None)),
        _ => text.parse().map(|offset| Before(Some(Offset(offset)))).map_err(|_| "give an offset or `end`".to_owned()),
    }
}

fn setting(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((key, value)) if !key.is_empty() => Ok((key.to_owned(), value.to_owned())),
        _ => Err("write KEY=VALUE, for example retention.ms=604800000".to_owned()),
    }
}

/// A line of `topic list`.
#[derive(Serialize)]
struct Listed {
    name: String,
    id: String,
    partitions: usize,
    replication_factor: usize,
}

#[derive(Serialize)]
struct List {
    topics: Vec<Listed>,
    #[serde(skip_serializing_if = "Option::is_none")]
    stale_ms: Option<u64>,
}

/// The answer of `topic describe`, and of `create`.
#[derive(Serialize)]
struct Described {
    name: String,
    id: String,
    configs: BTreeMap<String, String>,
    partitions: Vec<PartitionState>,
    #[serde(skip_serializing_if = "Option::is_none")]
    stale_ms: Option<u64>,
}

/// The answer of a command that changed something.
#[derive(Serialize)]
struct Changed<'a> {
    topic: &'a str,
    changed: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    log_start: Option<u64>,
}

pub(super) async fn run(args: Args) -> Result<(), Failure> {
    match args.action {
        Action::Create { name, partitions, replication_factor, configs, if_not_exists, common } => {
            let configs = configs.into_iter().collect();
            let topic = NewTopic { name, partitions, replication_factor, configs };
            create(topic, if_not_exists, &common).await
        }
        Action::List { common } => list(&common).await,
        Action::Describe { name, common } => describe(&name, &common).await,
        Action::Alter { name, set, unset, common } => alter(&name, set, unset, &common).await,
        Action::AddPartitions { name, total, common } => {
            admin(&common).await?.create_partitions(&name, total).await.map_err(failed)?;
            changed(&common, &name, true, None, &format!("topic `{name}` has {total} partitions"))
        }
        Action::Delete { name, if_exists, yes, common } => delete(&name, if_exists, yes, &common).await,
        Action::DeleteRecords { name, partition, before, common } => {
            let start = admin(&common).await?.delete_records(&name, partition, before.0).await.map_err(failed)?;
            let said = format!("{name}:{partition} starts at offset {start}");
            changed(&common, &name, true, Some(start), &said)
        }
        Action::Flush { name, common } => {
            admin(&common).await?.flush_topic(&name).await.map_err(failed)?;
            changed(&common, &name, true, None, &format!("topic `{name}` is in object storage"))
        }
    }
}

async fn admin(common: &Common) -> Result<Admin, Failure> {
    common.connection.connect().await.map(|client| Admin::new(&client))
}

fn failed(error: millpond_sdk::Error) -> Failure {
    Failure::new(error.to_string())
}

async fn create(topic: NewTopic, if_not_exists: bool, common: &Common) -> Result<(), Failure> {
    let admin = admin(common).await?;
    let name = topic.name.clone();
    match admin.create_topic(topic).await {
        Ok(topic) => {
            let said = format!("created topic `{name}` with {} partitions", topic.partitions.len());
            changed(common, &name, true, None, &said)
        }
        Err(error) if if_not_exists && error.code == Some(ErrorCode::TopicAlreadyExists) => {
            changed(common, &name, false, None, &format!("topic `{name}` is already there"))
        }
        Err(error) => Err(failed(error)),
    }
}

async fn list(common: &Common) -> Result<(), Failure> {
    let known = admin(common).await?.last_known_topics().await.map_err(failed)?;
    let stale_ms = status::warned(known.stale_for);
    let topics: Vec<Listed> = known.value.into_iter().map(Listed::from).collect();
    match common.output.output {
        Format::Json => output::json(&List { topics, stale_ms }),
        Format::Text => {
            let row = |topic: &Listed| {
                vec![topic.name.clone(), topic.partitions.to_string(), topic.replication_factor.to_string()]
            };
            output::text(&output::table(
                &["TOPIC", "PARTITIONS", "REPLICAS"],
                &topics.iter().map(row).collect::<Vec<_>>(),
            ))
        }
    }
}

impl From<TopicDescription> for Listed {
    fn from(topic: TopicDescription) -> Listed {
        let replication_factor = topic.partitions.iter().map(|partition| partition.replicas.len()).max().unwrap_or(0);
        Listed { name: topic.name, id: topic.id.to_string(), partitions: topic.partitions.len(), replication_factor }
    }
}

async fn describe(name: &str, common: &Common) -> Result<(), Failure> {
    let admin = admin(common).await?;
    let known = admin.last_known_topic(name).await.map_err(failed)?;
    let (topic, stale_ms) = (known.value, status::warned(known.stale_for));
    let partitions = status::partitions(&admin, std::slice::from_ref(&topic)).await.concat();
    let (name, id, configs) = (topic.name, topic.id.to_string(), topic.configs);
    let described = Described { name, id, configs, partitions, stale_ms };
    match common.output.output {
        Format::Json => output::json(&described),
        Format::Text => output::text(&described.to_text()),
    }
}

impl Described {
    fn to_text(&self) -> String {
        let mut text = format!("topic {}  id {}\n", self.name, self.id);
        for (key, value) in &self.configs {
            text.push_str(&format!("  {key}={value}\n"));
        }
        let ids = |ids: &[u32]| ids.iter().map(u32::to_string).collect::<Vec<String>>().join(",");
        let number = |number: Option<u64>| number.map_or("-".to_owned(), |number| number.to_string());
        let size = |size: Option<u64>| size.map_or("-".to_owned(), |size| ByteCount(size).to_string());
        let row = |partition: &PartitionState| {
            vec![
                partition.partition.to_string(),
                partition.leader.map_or("-".to_owned(), |leader| leader.to_string()),
                ids(&partition.replicas),
                ids(&partition.isr),
                ids(&partition.elr),
                ids(&partition.offline),
                number(partition.log_start),
                number(partition.tiered_end),
                number(partition.high_watermark),
                size(partition.tail_bytes),
                size(partition.tiered_bytes),
            ]
        };
        let heading =
            ["PARTITION", "LEADER", "REPLICAS", "ISR", "ELR", "OFFLINE", "START", "TIERED", "END", "TAIL", "IN STORE"];
        for partition in &self.partitions {
            if let Some(loss) = &partition.loss {
                text.push_str(&status::loss_line(&self.name, partition.partition, loss));
            }
        }
        text + &output::table(&heading, &self.partitions.iter().map(row).collect::<Vec<_>>())
    }
}

async fn alter(name: &str, set: Vec<(String, String)>, unset: Vec<String>, common: &Common) -> Result<(), Failure> {
    let mut changes: BTreeMap<String, Option<String>> = unset.into_iter().map(|key| (key, None)).collect();
    for (key, value) in set {
        if changes.insert(key.clone(), Some(value)).is_some() {
            return Err(Failure::usage(format!("`{key}` is named twice; set it or unset it")));
        }
    }
    admin(common).await?.alter_topic(name, changes).await.map_err(failed)?;
    changed(common, name, true, None, &format!("changed topic `{name}`"))
}

async fn delete(name: &str, if_exists: bool, yes: bool, common: &Common) -> Result<(), Failure> {
    if !yes && !confirmed(name)? {
        return Err(Failure::new(format!("topic `{name}` was not deleted")));
    }
    match admin(common).await?.delete_topic(name).await {
        Ok(()) => changed(common, name, true, None, &format!("deleted topic `{name}`")),
        Err(error) if if_exists && error.code == Some(ErrorCode::UnknownTopicOrPartition) => {
            changed(common, name, false, None, &format!("there is no topic `{name}`"))
        }
        Err(error) => Err(failed(error)),
    }
}

/// Asks the person at the terminal; where there is none, the flag has to say it.
fn confirmed(name: &str) -> Result<bool, Failure> {
    if !std::io::stdin().is_terminal() {
        return Err(Failure::usage(format!("deleting topic `{name}` cannot be undone; say --yes")));
    }
    eprint!("Delete topic `{name}` and all its records? Type its name: ");
    let mut answer = String::new();
    let read = std::io::stdin().lock().read_line(&mut answer);
    Ok(read.is_ok() && answer.trim() == name)
}

fn changed(common: &Common, topic: &str, changed: bool, log_start: Option<Offset>, said: &str) -> Result<(), Failure> {
    match common.output.output {
        Format::Json => output::json(&Changed { topic, changed, log_start: log_start.map(|offset| offset.0) }),
        Format::Text => output::text(said),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schemas;

    #[test]
    fn json_has_the_promised_fields() {
        let listed = Listed { name: "t".to_owned(), id: "i".to_owned(), partitions: 1, replication_factor: 1 };
        schemas::check("topic-list", &List { topics: vec![listed], stale_ms: Some(1) });
        let partitions = vec![PartitionState::example(), PartitionState::unknown(3), PartitionState::lost(4)];
        let configs = BTreeMap::from([("retention.ms".to_owned(), "1".to_owned())]);
        let (name, id) = ("t".to_owned(), "i".to_owned());
        let described = Described { name, id, configs, partitions, stale_ms: Some(1) };
        schemas::check("topic-describe", &described);
        schemas::check("topic-change", &Changed { topic: "t", changed: true, log_start: None });
        schemas::check("topic-change", &Changed { topic: "t", changed: true, log_start: Some(1) });
    }

    #[test]
    fn settings_are_pairs() {
        let pair = |key: &str, value: &str| Ok((key.to_owned(), value.to_owned()));
        assert_eq!(setting("a.b=c=d"), pair("a.b", "c=d"));
        assert_eq!(setting("a="), pair("a", ""));
        assert!(setting("a").is_err() && setting("=a").is_err());
    }
}
