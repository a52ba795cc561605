//! `millpond transaction`: what transactional producers have under way, what hangs, and an end to either. Asks the cluster, and shows what it
//! says.

use super::partition::place;
use crate::connection::ConnectionArgs;
use crate::failure::Failure;
use crate::output::{self, Format, OutputArgs};
use crate::units;
use millpond_sdk::{
    Admin, Error, ErrorCode, HangingTransaction, Offset, OpenIn, TopicPartition, TransactionDescription,
    TransactionPartition,
};
use serde::Serialize;
use std::collections::BTreeSet;
use std::time::Duration;

/// Arguments of `transaction`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example: millpond transaction list --state Ongoing")]
pub(crate) struct Args {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, clap::Subcommand)]
enum Action {
    /// List the transactional ids of the cluster, and where their newest transactions stand
    #[command(after_help = "Example: millpond transaction list --open-for 5m")]
    List {
        /// Only those in one of these states
        #[arg(long, value_name = "STATE,…", value_delimiter = ',', value_parser = STATES)]
        state: Vec<String>,
        /// Only those with a transaction that has been under way for this time at least
        #[arg(long, value_name = "TIME", value_parser = units::duration)]
        open_for: Option<Duration>,
        #[command(flatten)]
        output: OutputArgs,
        #[command(flatten)]
        connection: ConnectionArgs,
    },
    /// Show a transactional id, and what belongs to its transaction
    #[command(after_help = "Example: millpond transaction describe teller-1")]
    Describe {
        /// Which transactional id
        #[arg(value_name = "ID")]
        id: String,
        #[command(flatten)]
        output: OutputArgs,
        #[command(flatten)]
        connection: ConnectionArgs,
    },
    /// Find what is open in partitions and known to no coordinator: nothing ends it, and readers of committed records wait there
    #[command(after_help = "Example: millpond transaction find-hanging --topic orders")]
    FindHanging {
        /// In this topic, or one partition of it; in all topics without it
        #[arg(long, value_name = "TOPIC[:PARTITION]")]
        topic: Option<String>,
        /// Only what was not written to for longer than any transaction of the cluster may last
        #[arg(long, value_name = "TIME", value_parser = units::duration, default_value = "15m")]
        max_transaction_timeout: Duration,
        #[command(flatten)]
        output: OutputArgs,
        #[command(flatten)]
        connection: ConnectionArgs,
    },
    /// Abort the transaction of a transactional id and fence its producer, or one that hangs in a partition
    #[command(after_help = "Example: millpond transaction abort teller-1\n         \
                            millpond transaction abort --partition orders:3 --start-offset 1729")]
    Abort {
        /// Which transactional id
        #[arg(value_name = "ID", required_unless_present = "partition", conflicts_with = "partition")]
        id: Option<String>,
        /// Where it hangs, as `find-hanging` shows
        #[arg(long, value_name = "TOPIC:PARTITION", value_parser = place, requires = "start_offset")]
        partition: Option<TopicPartition>,
        /// Its first offset there
        #[arg(long, value_name = "OFFSET", requires = "partition")]
        start_offset: Option<u64>,
        #[command(flatten)]
        output: OutputArgs,
        #[command(flatten)]
        connection: ConnectionArgs,
    },
}

/// The states that there are, by Kafka's names.
const STATES: [&str; 6] = ["Empty", "Ongoing", "PrepareCommit", "PrepareAbort", "CompleteCommit", "CompleteAbort"];

/// The answer of `list`.
#[derive(Debug, Serialize)]
struct List {
    transactions: Vec<Listed>,
}

/// A transactional id, in brief.
#[derive(Debug, Serialize)]
struct Listed {
    transactional_id: String,
    state: String,
    producer_id: u64,
    producer_epoch: u32,
    /// For how long its transaction has been under way; null if none is.
    open_seconds: Option<f64>,
    /// How many belong to it.
    partitions: usize,
    groups: usize,
}

/// The answer of `describe`.
#[derive(Debug, Serialize)]
struct Described {
    transactional_id: String,
    state: String,
    producer_id: u64,
    producer_epoch: u32,
    timeout_seconds: f64,
    /// When its transaction began, in milliseconds since the Unix epoch; null if none is under way.
    started_ms: Option<i64>,
    open_seconds: Option<f64>,
    changed_ms: i64,
    partitions: Vec<Place>,
    groups: Vec<String>,
}

/// A partition that belongs to a transaction. The topic is null if it was deleted.
#[derive(Debug, Serialize)]
struct Place {
    topic: Option<String>,
    topic_id: String,
    partition: u32,
}

/// The answer of `find-hanging`.
#[derive(Debug, Serialize)]
struct Found {
    hanging: Vec<Hanging>,
    /// Partitions that were not looked at, since nobody leads them.
    leaderless: Vec<String>,
}

/// What hangs in one partition.
#[derive(Debug, Serialize)]
struct Hanging {
    topic: String,
    partition: u32,
    start_offset: u64,
    producer_id: u64,
    producer_epoch: u32,
    /// When it was written to last, in milliseconds since the Unix epoch.
    written_ms: i64,
    idle_seconds: f64,
    /// Null if no coordinator knows the producer.
    transactional_id: Option<String>,
}

/// The answer of `abort`: of a transactional id, or of what hung in a partition.
#[derive(Debug, Serialize)]
struct Aborted {
    aborted: bool,
    transactional_id: Option<String>,
    topic: Option<String>,
    partition: Option<u32>,
    start_offset: Option<u64>,
}

pub(super) async fn run(args: Args) -> Result<(), Failure> {
    match args.action {
        Action::List { state, open_for, output, connection } => {
            let admin = Admin::new(&connection.connect().await?);
            list(&admin, &Filter { state, open_for }, &output).await
        }
        Action::Describe { id, output, connection } => {
            let admin = Admin::new(&connection.connect().await?);
            let described = admin.describe_transaction(&id).await.map_err(|error| failed(&id, &error))?;
            let described = Described::from(described);
            match output.output {
                Format::Json => output::json(&described),
                Format::Text => output::text(&described.to_text()),
            }
        }
        Action::FindHanging { topic, max_transaction_timeout, output, connection } => {
            let admin = Admin::new(&connection.connect().await?);
            let place = topic.as_deref().map(open_in).unwrap_or_default();
            let look = async || {
                // Whoever has no leader before or after may have had none meanwhile.
                let mut without = leaderless(&admin, &place).await?;
                let found = admin.hanging_transactions(&place, max_transaction_timeout).await?;
                without.extend(leaderless(&admin, &place).await?);
                Ok((found, without))
            };
            let (found, without) = look().await.map_err(|error: Error| Failure::new(error.to_string()))?;
            let leaderless = without.into_iter().map(|(topic, index)| format!("{topic}:{index}")).collect();
            let found = Found { hanging: found.into_iter().map(Hanging::from).collect(), leaderless };
            match output.output {
                Format::Json => output::json(&found),
                Format::Text => output::text(&found.to_text()),
            }
        }
        Action::Abort { id, partition, start_offset, output, connection } => {
            let admin = Admin::new(&connection.connect().await?);
            let aborted = match (id, partition, start_offset) {
                (Some(id), ..) => of_id(&admin, id).await?,
                (None, Some(partition), Some(first)) => that_hangs(&admin, &partition, Offset(first)).await?,
                _ => unreachable!("clap asks for an id, or for a partition with an offset"),
            };
            match output.output {
                Format::Json => output::json(&aborted),
                Format::Text => output::text(&aborted.to_text()),
            }
        }
    }
}

/// What is listed; what is not given lets everything pass.
struct Filter {
    state: Vec<String>,
    open_for: Option<Duration>,
}

impl Filter {
    fn passes(&self, one: &TransactionDescription) -> bool {
        let state = self.state.is_empty() || self.state.contains(&one.state);
        state && self.open_for.is_none_or(|wanted| one.open.is_some_and(|open| open >= wanted))
    }
}

async fn list(admin: &Admin, filter: &Filter, output: &OutputArgs) -> Result<(), Failure> {
    let listed = admin.list_transactions().await.map_err(|error| Failure::new(error.to_string()))?;
    let list = List { transactions: listed.into_iter().filter(|one| filter.passes(one)).map(Listed::from).collect() };
    match output.output {
        Format::Json => output::json(&list),
        Format::Text => output::text(&list.to_text()),
    }
}

async fn of_id(admin: &Admin, id: String) -> Result<Aborted, Failure> {
    admin.abort_transaction(&id).await.map_err(|error| failed(&id, &error))?;
    Ok(Aborted { aborted: true, transactional_id: Some(id), topic: None, partition: None, start_offset: None })
}

async fn that_hangs(admin: &Admin, at: &TopicPartition, first: Offset) -> Result<Aborted, Failure> {
    admin.abort_hanging_transaction(at, first).await.map_err(|error| Failure::new(error.to_string()))?;
    Ok(Aborted {
        aborted: true,
        transactional_id: None,
        topic: Some(at.topic.to_string()),
        partition: Some(at.partition),
        start_offset: Some(first.0),
    })
}

/// A topic, or one partition of it. Names have no colon.
fn open_in(text: &str) -> OpenIn {
    match place(text) {
        Ok(at) => OpenIn { topic: Some(at.topic.to_string()), partition: Some(at.partition) },
        Err(_) => OpenIn { topic: Some(text.to_owned()), partition: None },
    }
}

fn failed(id: &str, error: &millpond_sdk::Error) -> Failure {
    match error.code {
        Some(ErrorCode::TransactionalIdNotFound) => Failure::new(format!(
            "there is no transactional id `{id}`; `millpond transaction list` shows those there are"
        )),
        Some(ErrorCode::ConcurrentTransactions) => {
            Failure::new(format!("the transaction of `{id}` is being ended already: {error}"))
        }
        _ => Failure::new(error.to_string()),
    }
}

fn seconds(time: Option<f64>) -> String {
    time.map_or_else(|| "-".to_owned(), |seconds| format!("{seconds:.1}"))
}

impl From<TransactionDescription> for Listed {
    fn from(one: TransactionDescription) -> Listed {
        Listed {
            transactional_id: one.transactional_id,
            state: one.state,
            producer_id: one.producer_id,
            producer_epoch: one.producer_epoch,
            open_seconds: one.open.map(|open| open.as_secs_f64()),
            partitions: one.partitions.len(),
            groups: one.groups.len(),
        }
    }
}

impl List {
    fn to_text(&self) -> String {
        if self.transactions.is_empty() {
            return "no transactions".to_owned();
        }
        let row = |one: &Listed| {
            vec![
                one.transactional_id.clone(),
                one.state.clone(),
                one.producer_id.to_string(),
                one.producer_epoch.to_string(),
                seconds(one.open_seconds),
                one.partitions.to_string(),
                one.groups.to_string(),
            ]
        };
        let heading = ["ID", "STATE", "PRODUCER", "EPOCH", "SECONDS", "PARTITIONS", "GROUPS"];
        output::table(&heading, &self.transactions.iter().map(row).collect::<Vec<_>>())
    }
}

impl From<TransactionDescription> for Described {
    fn from(one: TransactionDescription) -> Described {
        let place = |place: TransactionPartition| Place {
            topic: place.topic,
            topic_id: place.topic_id.to_string(),
            partition: place.partition,
        };
        Described {
            transactional_id: one.transactional_id,
            state: one.state,
            producer_id: one.producer_id,
            producer_epoch: one.producer_epoch,
            timeout_seconds: one.timeout.as_secs_f64(),
            started_ms: one.started.map(|started| started.0),
            open_seconds: one.open.map(|open| open.as_secs_f64()),
            changed_ms: one.changed.0,
            partitions: one.partitions.into_iter().map(place).collect(),
            groups: one.groups,
        }
    }
}

impl Described {
    fn to_text(&self) -> String {
        let mut text = format!(
            "{}: {}, producer {}, epoch {}, timeout {:.1} s",
            self.transactional_id, self.state, self.producer_id, self.producer_epoch, self.timeout_seconds
        );
        if let Some(open) = self.open_seconds {
            text.push_str(&format!(", under way for {open:.1} s"));
        }
        let name = |place: &Place| match &place.topic {
            Some(topic) => format!("{topic}:{}", place.partition),
            None => format!("deleted ({}):{}", place.topic_id, place.partition),
        };
        let partitions: Vec<String> = self.partitions.iter().map(name).collect();
        for (what, parts) in [("partitions", &partitions), ("offsets of groups", &self.groups)] {
            if !parts.is_empty() {
                text.push_str(&format!("\n{what}: {}", parts.join(" ")));
            }
        }
        text
    }
}

impl From<HangingTransaction> for Hanging {
    fn from(found: HangingTransaction) -> Hanging {
        let HangingTransaction { open, transactional_id } = found;
        Hanging {
            topic: open.topic,
            partition: open.partition,
            start_offset: open.first.0,
            producer_id: open.producer_id,
            producer_epoch: open.producer_epoch,
            written_ms: open.written.0,
            idle_seconds: open.idle.as_secs_f64(),
            transactional_id,
        }
    }
}

async fn leaderless(admin: &Admin, place: &OpenIn) -> Result<BTreeSet<(String, u32)>, Error> {
    let topics = match &place.topic {
        Some(name) => vec![admin.describe_topic(name).await?],
        None => admin.list_topics().await?,
    };
    let mut found = BTreeSet::new();
    for topic in topics {
        let asked = |index| place.partition.is_none_or(|partition| partition == index);
        let without = topic.partitions.iter().filter(|partition| partition.leader.is_none() && asked(partition.index));
        found.extend(without.map(|partition| (topic.name.clone(), partition.index)));
    }
    Ok(found)
}

impl Found {
    fn to_text(&self) -> String {
        match self.leaderless.as_slice() {
            [] => self.hanging_text(),
            names => format!("{}\nnot looked at, since nobody leads them: {}", self.hanging_text(), names.join(", ")),
        }
    }

    fn hanging_text(&self) -> String {
        let Some(first) = self.hanging.first() else {
            return "nothing hangs".to_owned();
        };
        let row = |one: &Hanging| {
            vec![
                one.topic.clone(),
                one.partition.to_string(),
                one.start_offset.to_string(),
                one.producer_id.to_string(),
                one.producer_epoch.to_string(),
                format!("{:.1}", one.idle_seconds),
                one.transactional_id.clone().unwrap_or_else(|| "-".to_owned()),
            ]
        };
        let heading = ["TOPIC", "PARTITION", "START-OFFSET", "PRODUCER", "EPOCH", "SECONDS", "ID"];
        let table = output::table(&heading, &self.hanging.iter().map(row).collect::<Vec<_>>());
        let Hanging { topic, partition, start_offset, .. } = first;
        format!(
            "{table}\nabort one with: millpond transaction abort --partition {topic}:{partition} --start-offset {start_offset}"
        )
    }
}

impl Aborted {
    fn to_text(&self) -> String {
        match (&self.transactional_id, &self.topic, self.partition, self.start_offset) {
            (Some(id), ..) => format!("the transaction of {id} is aborted, and its producer fenced"),
            (None, Some(topic), Some(partition), Some(first)) => {
                format!("what hung in {topic}:{partition} from offset {first} on is aborted")
            }
            _ => unreachable!("one or the other was aborted"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schemas;
    use millpond_sdk::{OpenTransaction, TimestampMs, TopicId};

    fn transaction(state: &str, open: Option<u64>) -> TransactionDescription {
        let place = |topic: Option<&str>, partition| TransactionPartition {
            topic: topic.map(str::to_owned),
            topic_id: TopicId(7),
            partition,
        };
        TransactionDescription {
            transactional_id: "teller".to_owned(),
            state: state.to_owned(),
            producer_id: 5,
            producer_epoch: 3,
            timeout: Duration::from_secs(60),
            started: open.map(|_| TimestampMs(1)),
            open: open.map(Duration::from_secs),
            changed: TimestampMs(2),
            partitions: vec![place(Some("orders"), 0), place(None, 4)],
            groups: vec!["billing".to_owned()],
        }
    }

    fn hanging(transactional_id: Option<&str>) -> Hanging {
        let open = OpenTransaction {
            topic: "orders".to_owned(),
            topic_id: TopicId(7),
            partition: 3,
            first: Offset(17),
            producer_id: 5,
            producer_epoch: 3,
            written: TimestampMs(2),
            idle: Duration::from_secs(1000),
        };
        Hanging::from(HangingTransaction { open, transactional_id: transactional_id.map(str::to_owned) })
    }

    #[test]
    fn json_has_the_promised_fields() {
        let both = || [transaction("Ongoing", Some(4)), transaction("Empty", None)];
        schemas::check("transaction-list", &List { transactions: both().map(Listed::from).into() });
        both().map(Described::from).iter().for_each(|described| schemas::check("transaction-describe", described));
        let leaderless = vec!["orders:4".to_owned()];
        let found = Found { hanging: vec![hanging(None), hanging(Some("teller"))], leaderless };
        schemas::check("transaction-find-hanging", &found);
        let aborted = |id: Option<&str>| Aborted {
            aborted: true,
            transactional_id: id.map(str::to_owned),
            topic: id.is_none().then(|| "orders".to_owned()),
            partition: id.is_none().then_some(3),
            start_offset: id.is_none().then_some(17),
        };
        schemas::check("transaction-abort", &aborted(None));
        schemas::check("transaction-abort", &aborted(Some("teller")));
    }

    #[test]
    fn only_what_passes_every_filter_is_listed() {
        let check = |state: &[&str], open_for: Option<u64>, expected| {
            let state = state.iter().map(|state| (*state).to_owned()).collect();
            let filter = Filter { state, open_for: open_for.map(Duration::from_secs) };
            let passes = [transaction("Ongoing", Some(4)), transaction("Empty", None)].map(|one| filter.passes(&one));
            assert_eq!(passes, expected);
        };
        check(&[], None, [true, true]);
        check(&["Ongoing", "PrepareAbort"], None, [true, false]);
        check(&["Empty"], None, [false, true]);
        check(&[], Some(4), [true, false]);
        check(&[], Some(5), [false, false]);
        check(&["Empty"], Some(0), [false, false]);
    }

    #[test]
    fn a_transaction_is_shown_with_all_that_belongs_to_it() {
        let text = Described::from(transaction("Ongoing", Some(4))).to_text();
        let expected = format!(
            "teller: Ongoing, producer 5, epoch 3, timeout 60.0 s, under way for 4.0 s\n\
             partitions: orders:0 deleted ({}):4\noffsets of groups: billing",
            TopicId(7)
        );
        assert_eq!(text, expected);
    }

    #[test]
    fn what_hangs_is_shown_with_the_command_that_aborts_it() {
        let found = |hanging, leaderless: &[&str]| Found {
            hanging,
            leaderless: leaderless.iter().map(|name| (*name).to_owned()).collect(),
        };
        let text = found(vec![hanging(None)], &[]).to_text();
        assert!(text.ends_with("millpond transaction abort --partition orders:3 --start-offset 17"), "{text}");
        assert_eq!(found(Vec::new(), &[]).to_text(), "nothing hangs");
        let text = found(Vec::new(), &["orders:4", "bills:0"]).to_text();
        assert_eq!(text, "nothing hangs\nnot looked at, since nobody leads them: orders:4, bills:0");
    }

    #[test]
    fn hanging_transactions_are_looked_for_in_a_topic_or_in_one_partition() {
        let of = |text| open_in(text);
        assert_eq!(of("orders"), OpenIn { topic: Some("orders".to_owned()), partition: None });
        assert_eq!(of("orders:3"), OpenIn { topic: Some("orders".to_owned()), partition: Some(3) });
    }
}
