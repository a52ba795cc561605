//! `millpond partition`: placement and repair of single partitions. Asks the cluster, and shows what it says.

use super::status::LossState;
use crate::connection::ConnectionArgs;
use crate::failure::Failure;
use crate::output::{self, Format, OutputArgs};
use millpond_sdk::{Admin, BrokerId, TopicPartition};
use serde::Serialize;

/// Arguments of `partition`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example: millpond partition accept-loss orders:0")]
pub(crate) struct Args {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, clap::Subcommand)]
enum Action {
    /// Move a partition's replicas to other brokers; only its tail is copied
    ///
    /// Balance goes on: brokers that come to hold or lead more than others give some of it away later, of this partition or of another.
    #[command(after_help = "Example: millpond partition move orders:0 --to 1,2,3")]
    Move {
        /// Which partition
        #[arg(value_name = "TOPIC:PARTITION", value_parser = place)]
        partition: TopicPartition,
        /// Ids of the brokers, the preferred leader first
        #[arg(long, value_name = "ID,ID,…", value_delimiter = ',', required = true)]
        to: Vec<u32>,
        #[command(flatten)]
        output: OutputArgs,
        #[command(flatten)]
        connection: ConnectionArgs,
    },
    /// Have the preferred replicas of partitions lead them, now
    #[command(after_help = "Example: millpond partition elect-leader orders:0 orders:3")]
    ElectLeader {
        /// Which partitions
        #[arg(value_name = "TOPIC:PARTITION", value_parser = place, required = true)]
        partitions: Vec<TopicPartition>,
        #[command(flatten)]
        output: OutputArgs,
        #[command(flatten)]
        connection: ConnectionArgs,
    },
    /// Show what is lost of partitions without a complete copy; with --yes accept it, for good, so that they get leaders again
    #[command(after_help = "Example: millpond partition accept-loss orders:0 orders:3 --yes")]
    AcceptLoss {
        /// Which partitions
        #[arg(value_name = "TOPIC:PARTITION", value_parser = place, required_unless_present = "all")]
        partitions: Vec<TopicPartition>,
        /// Every partition that waits for it
        #[arg(long, conflicts_with = "partitions")]
        all: bool,
        /// Accept; without it nothing is changed
        #[arg(long)]
        yes: bool,
        #[command(flatten)]
        output: OutputArgs,
        #[command(flatten)]
        connection: ConnectionArgs,
    },
}

/// The answer of `move`.
#[derive(Debug, Serialize)]
struct Moving {
    topic: String,
    partition: u32,
    to: Vec<u32>,
}

/// The answer of `elect-leader`.
#[derive(Debug, Serialize)]
struct Elected {
    partitions: Vec<Led>,
}

/// One partition of it.
#[derive(Debug, Serialize)]
struct Led {
    topic: String,
    partition: u32,
    leader: u32,
}

/// The answer of `accept-loss`.
#[derive(Debug, Serialize)]
struct Answer {
    accepted: bool,
    partitions: Vec<Lost>,
}

/// One partition of it.
#[derive(Debug, Serialize)]
struct Lost {
    topic: String,
    partition: u32,
    /// The epoch in which it is led since; null in a dry run.
    leader_epoch: Option<u32>,
    loss: LossState,
}

pub(super) async fn run(args: Args) -> Result<(), Failure> {
    match args.action {
        Action::Move { partition, to, output, connection } => {
            let admin = Admin::new(&connection.connect().await?);
            move_to(&admin, &partition, to, &output).await
        }
        Action::ElectLeader { partitions, output, connection } => {
            let admin = Admin::new(&connection.connect().await?);
            elect(&admin, &partitions, &output).await
        }
        Action::AcceptLoss { partitions, all, yes, output, connection } => {
            let admin = Admin::new(&connection.connect().await?);
            accept(&admin, partitions, Accept { all, yes }, &output).await
        }
    }
}

async fn move_to(admin: &Admin, place: &TopicPartition, to: Vec<u32>, output: &OutputArgs) -> Result<(), Failure> {
    let brokers: Vec<BrokerId> = to.iter().copied().map(BrokerId).collect();
    admin.move_partition(&place.topic, place.partition, &brokers).await.map_err(failed)?;
    let moving = Moving { topic: place.topic.to_string(), partition: place.partition, to };
    match output.output {
        Format::Json => output::json(&moving),
        Format::Text => {
            let to: Vec<String> = moving.to.iter().map(u32::to_string).collect();
            output::text(&format!(
                "{place} moves to {}; `millpond cluster wait --isr-full` waits for it",
                to.join(", ")
            ))
        }
    }
}

async fn elect(admin: &Admin, places: &[TopicPartition], output: &OutputArgs) -> Result<(), Failure> {
    let mut partitions = Vec::with_capacity(places.len());
    for place in places {
        let leader = admin.elect_leader(&place.topic, place.partition).await;
        let leader = leader.map_err(|error| Failure::new(format!("{place}: {error}")))?;
        partitions.push(Led { topic: place.topic.to_string(), partition: place.partition, leader: leader.0 });
    }
    let elected = Elected { partitions };
    match output.output {
        Format::Json => output::json(&elected),
        Format::Text => {
            let line = |led: &Led| format!("{}:{} is led by broker {}", led.topic, led.partition, led.leader);
            output::text(&elected.partitions.iter().map(line).collect::<Vec<_>>().join("\n"))
        }
    }
}

/// What is accepted.
struct Accept {
    all: bool,
    yes: bool,
}

async fn accept(
    admin: &Admin,
    partitions: Vec<TopicPartition>,
    accept: Accept,
    output: &OutputArgs,
) -> Result<(), Failure> {
    let Accept { all, yes } = accept;
    let places = if all { waiting(admin).await? } else { partitions };
    // All are looked at before any is accepted: a mistyped one changes nothing.
    let mut found = Vec::with_capacity(places.len());
    for place in &places {
        let lost = admin.validate_loss(&place.topic, place.partition).await.map_err(failed)?;
        found.push(Lost::new(place, &lost));
    }
    if yes {
        for (done, (place, found)) in places.iter().zip(&mut found).enumerate() {
            let accepted = admin.accept_loss(&place.topic, place.partition).await;
            let accepted = accepted.map_err(|error| {
                Failure::new(format!("{place}: {error} ({done} of {} were accepted before)", places.len()))
            })?;
            *found = Lost::new(place, &accepted);
        }
    }
    let answer = Answer { accepted: yes, partitions: found };
    match output.output {
        Format::Json => output::json(&answer),
        Format::Text => output::text(&answer.to_text()),
    }
}

/// Every partition with a loss that nobody has accepted.
async fn waiting(admin: &Admin) -> Result<Vec<TopicPartition>, Failure> {
    let topics = admin.list_topics().await.map_err(failed)?;
    let lost = topics.iter().flat_map(|topic| {
        let lost = topic.partitions.iter().filter(|partition| partition.loss.is_some());
        lost.map(|partition| TopicPartition::new(topic.name.as_str(), partition.index))
    });
    Ok(lost.collect())
}

fn failed(error: millpond_sdk::Error) -> Failure {
    Failure::new(error.to_string())
}

/// `TOPIC:PARTITION`, as arguments name a partition.
pub(super) fn place(text: &str) -> Result<TopicPartition, String> {
    let parsed = text.rsplit_once(':').filter(|(topic, _)| !topic.is_empty());
    let parsed = parsed.and_then(|(topic, partition)| Some((topic, partition.parse().ok()?)));
    match parsed {
        Some((topic, partition)) => Ok(TopicPartition::new(topic, partition)),
        None => Err("write TOPIC:PARTITION, for example orders:0".to_owned()),
    }
}

impl Lost {
    fn new(place: &TopicPartition, lost: &millpond_sdk::AcceptedLoss) -> Lost {
        Lost {
            topic: place.topic.to_string(),
            partition: place.partition,
            leader_epoch: lost.leader_epoch.map(|epoch| epoch.0),
            loss: LossState::from(&lost.loss),
        }
    }
}

impl Answer {
    fn to_text(&self) -> String {
        if self.partitions.is_empty() {
            return "no partition waits for a loss to be accepted".to_owned();
        }
        let line = |lost: &Lost| {
            let goes_on = match lost.leader_epoch {
                Some(epoch) => format!("it goes on at offset {} in epoch {epoch}", lost.loss.end),
                None => format!("it would go on at offset {}", lost.loss.end),
            };
            format!("{}:{}: {}; {goes_on}", lost.topic, lost.partition, lost.loss.sentence)
        };
        let mut lines: Vec<String> = self.partitions.iter().map(line).collect();
        if !self.accepted {
            lines.push("nothing was changed; say --yes to accept the loss, for good".to_owned());
        }
        lines.join("\n")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schemas;

    #[test]
    fn json_has_the_promised_fields() {
        let lost =
            |leader_epoch| Lost { topic: "t".to_owned(), partition: 3, leader_epoch, loss: LossState::example() };
        let answer = Answer { accepted: true, partitions: vec![lost(None), lost(Some(4))] };
        schemas::check("partition-accept-loss", &answer);
    }

    #[test]
    fn json_of_moves_and_elections_has_the_promised_fields() {
        schemas::check("partition-move", &Moving { topic: "t".to_owned(), partition: 3, to: vec![1, 2] });
        let led = Led { topic: "t".to_owned(), partition: 3, leader: 1 };
        schemas::check("partition-elect-leader", &Elected { partitions: vec![led] });
    }

    #[test]
    fn a_partition_is_named_by_topic_and_number() {
        assert_eq!(place("a.b:12"), Ok(TopicPartition::new("a.b", 12)));
        for bad in ["orders", ":1", "orders:", "orders:x", "orders:-1"] {
            assert!(place(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_dry_run_says_that_it_was_one() {
        let lost = Lost { topic: "t".to_owned(), partition: 3, leader_epoch: None, loss: LossState::example() };
        let mut answer = Answer { accepted: false, partitions: vec![lost] };
        assert!(answer.to_text().ends_with("say --yes to accept the loss, for good"));
        answer.partitions[0].leader_epoch = Some(4);
        answer.accepted = true;
        assert!(answer.to_text().ends_with("it goes on at offset 50 in epoch 4"), "{}", answer.to_text());
        answer.partitions.clear();
        assert_eq!(answer.to_text(), "no partition waits for a loss to be accepted");
    }
}
