//! `millpond group`: consumer groups, how far they lag, and where they go on. Asks the cluster, and shows what it says.

use crate::connection::ConnectionArgs;
use crate::failure::Failure;
use crate::output::{self, Format, OutputArgs};
use crate::time::rfc3339_ms;
use millpond_sdk::{
    Admin, GroupDescription, GroupKind, IsolationLevel, ListedGroup, Offset, OffsetSpec, PartitionLag, TimestampMs,
    TopicId,
};
use serde::Serialize;
use std::collections::BTreeMap;

/// Arguments of `group`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example: millpond group describe billing")]
pub(crate) struct Args {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, clap::Subcommand)]
enum Action {
    /// List the groups of the cluster
    #[command(after_help = "Example: millpond group list")]
    List {
        #[command(flatten)]
        output: OutputArgs,
        #[command(flatten)]
        connection: ConnectionArgs,
    },
    /// Show a group's members, and how far it lags in each partition
    #[command(after_help = "Example: millpond group describe billing")]
    Describe {
        /// Which group
        group: String,
        /// Whose end counts: that of everything committed, or of what transactions have not left open
        #[arg(long, value_enum, default_value_t, value_name = "LEVEL")]
        isolation: Isolation,
        #[command(flatten)]
        output: OutputArgs,
        #[command(flatten)]
        connection: ConnectionArgs,
    },
    /// Move the committed offsets of a group without members; a dry run without --execute
    #[command(after_help = "Example: millpond group reset-offsets billing --topic orders --to earliest --execute")]
    ResetOffsets {
        /// Which group
        group: String,
        /// Which topics, or single partitions of them
        #[arg(long = "topic", value_name = "TOPIC[:PARTITION]", required_unless_present = "all_topics")]
        topics: Vec<String>,
        /// Every partition that the group has committed an offset of
        #[arg(long, conflicts_with = "topics")]
        all_topics: bool,
        /// Where to go on
        #[arg(long, value_name = "earliest|latest|OFFSET|RFC3339", value_parser = target)]
        #[arg(required_unless_present = "shift_by", conflicts_with = "shift_by")]
        to: Option<Target>,
        /// By how many offsets to move what is committed, forward or back
        #[arg(long, value_name = "N", allow_negative_numbers = true)]
        shift_by: Option<i64>,
        /// Commit the offsets; without it they are only shown
        #[arg(long)]
        execute: bool,
        #[command(flatten)]
        output: OutputArgs,
        #[command(flatten)]
        connection: ConnectionArgs,
    },
    /// Forget the committed offsets of a group in topics that no member reads; a dry run without --execute
    #[command(after_help = "Example: millpond group delete-offsets billing --topic orders --execute")]
    DeleteOffsets {
        /// Which group
        group: String,
        /// Which topics, or single partitions of them
        #[arg(long = "topic", value_name = "TOPIC[:PARTITION]", required = true)]
        topics: Vec<String>,
        /// Forget them; without it they are only shown
        #[arg(long)]
        execute: bool,
        #[command(flatten)]
        output: OutputArgs,
        #[command(flatten)]
        connection: ConnectionArgs,
    },
    /// Delete a group without members, with its offsets
    #[command(after_help = "Example: millpond group delete billing")]
    Delete {
        /// Which group
        group: String,
        #[command(flatten)]
        output: OutputArgs,
        #[command(flatten)]
        connection: ConnectionArgs,
    },
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
enum Isolation {
    /// Up to the high watermark
    #[default]
    #[value(name = "read_uncommitted")]
    ReadUncommitted,
    /// Up to the last stable offset
    #[value(name = "read_committed")]
    ReadCommitted,
}

/// Where offsets are moved to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Target {
    Earliest,
    Latest,
    Offset(Offset),
    Time(TimestampMs),
}

fn target(text: &str) -> Result<Target, String> {
    match text {
        "earliest" => Ok(Target::Earliest),
        "latest" => Ok(Target::Latest),
        _ => match (text.parse(), rfc3339_ms(text)) {
            (Ok(offset), _) => Ok(Target::Offset(Offset(offset))),
            (_, Some(time)) => Ok(Target::Time(TimestampMs(time))),
            _ => {
                Err("give earliest, latest, an offset, or a time with its zone such as 2013-01-01T10:00:00Z".to_owned())
            }
        },
    }
}

/// The answer of `list`.
#[derive(Debug, Serialize)]
struct List {
    groups: Vec<Listed>,
}

/// A group, in brief.
#[derive(Debug, Serialize)]
struct Listed {
    group: String,
    state: String,
    /// `consumer`, `classic`, or `simple`: without members, ever.
    kind: &'static str,
}

/// The answer of `describe`.
#[derive(Debug, Serialize)]
struct Described {
    group: String,
    state: String,
    kind: &'static str,
    epoch: i32,
    assignor: String,
    /// Of all partitions together; null if that of one is not known.
    lag: Option<u64>,
    members: Vec<Member>,
    partitions: Vec<Lagging>,
}

#[derive(Debug, Serialize)]
struct Member {
    member: String,
    instance: Option<String>,
    client_id: String,
    host: String,
    epoch: i32,
    /// How many partitions it owns.
    partitions: usize,
}

/// A partition of a group. Null is what is not known, or not there.
#[derive(Debug, Serialize)]
struct Lagging {
    topic: Option<String>,
    topic_id: String,
    partition: u32,
    offset: Option<u64>,
    log_start: Option<u64>,
    end: Option<u64>,
    lag: Option<u64>,
    /// For how long the first record that is not consumed has waited, at least.
    lag_seconds: Option<f64>,
    member: Option<String>,
}

/// The answer of `reset-offsets`.
#[derive(Debug, Serialize)]
struct Reset {
    group: String,
    executed: bool,
    partitions: Vec<Moved>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
struct Moved {
    topic: String,
    partition: u32,
    /// Null if nothing was committed.
    before: Option<u64>,
    after: u64,
    #[serde(skip)]
    topic_id: TopicId,
}

/// The answer of `delete-offsets`.
#[derive(Debug, Serialize)]
struct Forgotten {
    group: String,
    executed: bool,
    partitions: Vec<Committed>,
}

#[derive(Debug, Serialize)]
struct Committed {
    topic: String,
    partition: u32,
    offset: u64,
    #[serde(skip)]
    topic_id: TopicId,
}

/// The answer of `delete`.
#[derive(Debug, Serialize)]
struct Deleted {
    group: String,
    deleted: bool,
}

pub(super) async fn run(args: Args) -> Result<(), Failure> {
    match args.action {
        Action::List { output, connection } => list(&Admin::new(&connection.connect().await?), &output).await,
        Action::Describe { group, isolation, output, connection } => {
            let admin = Admin::new(&connection.connect().await?);
            describe(&admin, &group, isolation, &output).await
        }
        Action::ResetOffsets { group, topics, all_topics: _, to, shift_by, execute, output, connection } => {
            let admin = Admin::new(&connection.connect().await?);
            let places = topics.iter().map(|text| place(text)).collect();
            let wish = Wish { group, places, to, shift_by: shift_by.unwrap_or(0), execute };
            reset(&admin, wish, &output).await
        }
        Action::DeleteOffsets { group, topics, execute, output, connection } => {
            let admin = Admin::new(&connection.connect().await?);
            forget(&admin, group, topics.iter().map(|text| place(text)).collect(), execute, &output).await
        }
        Action::Delete { group, output, connection } => {
            let admin = Admin::new(&connection.connect().await?);
            admin.delete_group(&group).await.map_err(|error| failed(&group, &error))?;
            let deleted = Deleted { group, deleted: true };
            match output.output {
                Format::Json => output::json(&deleted),
                Format::Text => output::text(&format!("group {} is deleted, with its offsets", deleted.group)),
            }
        }
    }
}

async fn list(admin: &Admin, output: &OutputArgs) -> Result<(), Failure> {
    let groups = admin.list_groups().await.map_err(|error| Failure::new(error.to_string()))?;
    let list = List { groups: groups.iter().map(Listed::from).collect() };
    match output.output {
        Format::Json => output::json(&list),
        Format::Text if list.groups.is_empty() => output::text("no groups"),
        Format::Text => {
            let row = |listed: &Listed| vec![listed.group.clone(), listed.state.clone(), listed.kind.to_owned()];
            let rows: Vec<Vec<String>> = list.groups.iter().map(row).collect();
            output::text(&output::table(&["GROUP", "STATE", "KIND"], &rows))
        }
    }
}

async fn describe(admin: &Admin, group: &str, isolation: Isolation, output: &OutputArgs) -> Result<(), Failure> {
    let level = match isolation {
        Isolation::ReadUncommitted => IsolationLevel::ReadUncommitted,
        Isolation::ReadCommitted => IsolationLevel::ReadCommitted,
    };
    let description = admin.describe_group(group).await.map_err(|error| failed(group, &error))?;
    let lags = admin.group_lag(group, level).await.map_err(|error| failed(group, &error))?;
    let described = Described::new(description, lags);
    match output.output {
        Format::Json => output::json(&described),
        Format::Text => output::text(&described.to_text()),
    }
}

/// What is to be reset.
struct Wish {
    group: String,
    /// Topics, with the one partition that is meant, or all. None: everything that is committed.
    places: Vec<(String, Option<u32>)>,
    to: Option<Target>,
    shift_by: i64,
    execute: bool,
}

/// A topic, or one partition of it. Names have no colon.
fn place(text: &str) -> (String, Option<u32>) {
    let split = text.rsplit_once(':').and_then(|(topic, partition)| Some((topic, partition.parse().ok()?)));
    split.map_or_else(|| (text.to_owned(), None), |(topic, partition)| (topic.to_owned(), Some(partition)))
}

async fn reset(admin: &Admin, wish: Wish, output: &OutputArgs) -> Result<(), Failure> {
    let group = wish.group.as_str();
    let found = match admin.describe_group(group).await {
        // Offsets make a group: nothing was committed yet, and nobody is in it.
        Err(error) if error.code == Some(millpond_sdk::ErrorCode::GroupIdNotFound) && !wish.places.is_empty() => None,
        found => Some(found.map_err(|error| failed(group, &error))?),
    };
    if let Some(members) = found.as_ref().map(|found| found.members.len()).filter(|members| *members > 0) {
        let noun = if members == 1 { "member" } else { "members" };
        return Err(Failure::new(format!(
            "group `{group}` has {members} {noun}, which would not notice; stop its consumers first"
        )));
    }
    let committed = match found {
        Some(_) => {
            admin.group_lag(group, IsolationLevel::ReadUncommitted).await.map_err(|error| failed(group, &error))?
        }
        None => Vec::new(),
    };
    let mut partitions = Vec::new();
    for (topic, topic_id, partition, before) in wanted(admin, &wish, &committed).await? {
        let after = destination(admin, &topic, partition, before, &wish).await?;
        partitions.push(Moved { topic, partition, before: before.map(|offset| offset.0), after: after.0, topic_id });
    }
    if wish.execute && !partitions.is_empty() {
        let offsets: Vec<_> =
            partitions.iter().map(|moved| (moved.topic_id, moved.partition, Offset(moved.after))).collect();
        admin.commit_group_offsets(group, &offsets).await.map_err(|error| failed(group, &error))?;
    }
    let reset = Reset { group: wish.group, executed: wish.execute, partitions };
    match output.output {
        Format::Json => output::json(&reset),
        Format::Text => output::text(&reset.to_text()),
    }
}

async fn forget(
    admin: &Admin,
    group: String,
    places: Vec<(String, Option<u32>)>,
    execute: bool,
    output: &OutputArgs,
) -> Result<(), Failure> {
    let lags =
        admin.group_lag(&group, IsolationLevel::ReadUncommitted).await.map_err(|error| failed(&group, &error))?;
    let mut partitions = Vec::new();
    for (topic, only) in &places {
        let meant = |lag: &&PartitionLag| {
            lag.topic.as_deref() == Some(topic.as_str()) && only.is_none_or(|partition| partition == lag.partition)
        };
        let before = partitions.len();
        partitions.extend(lags.iter().filter(meant).filter_map(|lag| {
            let (topic, partition, topic_id) = (topic.clone(), lag.partition, lag.topic_id);
            Some(Committed { topic, partition, offset: lag.offset?.0, topic_id })
        }));
        if partitions.len() == before {
            let place = only.map_or_else(|| topic.clone(), |partition| format!("{topic}:{partition}"));
            return Err(Failure::new(format!("group `{group}` has committed nothing of {place}")));
        }
    }
    if execute {
        let places: Vec<(TopicId, u32)> = partitions.iter().map(|one| (one.topic_id, one.partition)).collect();
        admin.delete_group_offsets(&group, &places).await.map_err(|error| failed(&group, &error))?;
    }
    let forgotten = Forgotten { group, executed: execute, partitions };
    match output.output {
        Format::Json => output::json(&forgotten),
        Format::Text => output::text(&forgotten.to_text()),
    }
}

type Wanted = (String, TopicId, u32, Option<Offset>);

/// The partitions that are meant, with what is committed of them.
async fn wanted(admin: &Admin, wish: &Wish, committed: &[PartitionLag]) -> Result<Vec<Wanted>, Failure> {
    let offsets: BTreeMap<(TopicId, u32), Option<Offset>> =
        committed.iter().map(|lag| ((lag.topic_id, lag.partition), lag.offset)).collect();
    if wish.places.is_empty() {
        let named = |lag: &PartitionLag| Some((lag.topic.clone()?, lag.topic_id, lag.partition, Some(lag.offset?)));
        return Ok(committed.iter().filter_map(named).collect());
    }
    let mut wanted = BTreeMap::new();
    for (topic, only) in &wish.places {
        let described = admin.describe_topic(topic).await.map_err(|error| Failure::new(error.to_string()))?;
        let count = u32::try_from(described.partitions.len()).unwrap_or(u32::MAX);
        if let Some(partition) = only.filter(|partition| *partition >= count) {
            return Err(Failure::new(format!(
                "topic `{topic}` has {count} partitions, numbered from 0; not {partition}"
            )));
        }
        let which = only.map_or(0..count, |partition| partition..partition + 1);
        for partition in which {
            let before = offsets.get(&(described.id, partition)).copied().flatten();
            wanted.insert((topic.clone(), partition), (topic.clone(), described.id, partition, before));
        }
    }
    Ok(wanted.into_values().collect())
}

/// Where the group goes on in a partition: never outside of what there is to be read.
async fn destination(
    admin: &Admin,
    topic: &str,
    partition: u32,
    before: Option<Offset>,
    wish: &Wish,
) -> Result<Offset, Failure> {
    let find = async |spec| {
        let found = admin.list_offset(topic, partition, spec).await;
        found
            .map(|found| found.map(|found| found.offset))
            .map_err(|error| Failure::new(format!("{topic}:{partition}: {error}")))
    };
    let earliest = find(OffsetSpec::Earliest).await?.unwrap_or_default();
    let latest = find(OffsetSpec::Latest).await?.unwrap_or_default();
    let to = match wish.to {
        Some(Target::Earliest) => earliest,
        Some(Target::Latest) => latest,
        Some(Target::Offset(offset)) => offset,
        Some(Target::Time(time)) => find(OffsetSpec::AtOrAfter(time)).await?.unwrap_or(latest),
        None => match before {
            Some(before) => Offset(before.0.saturating_add_signed(wish.shift_by)),
            None => {
                return Err(Failure::new(format!(
                    "group `{}` has committed nothing of {topic}:{partition} that could be shifted; use --to",
                    wish.group
                )));
            }
        },
    };
    Ok(to.clamp(earliest, latest.max(earliest)))
}

fn failed(group: &str, error: &millpond_sdk::Error) -> Failure {
    use millpond_sdk::ErrorCode as E;
    match error.code {
        Some(E::GroupIdNotFound) => {
            Failure::new(format!("there is no group `{group}`; `millpond group list` shows those there are"))
        }
        Some(E::GroupSubscribedToTopic) => {
            Failure::new(format!("members of group `{group}` read that topic; stop its consumers first"))
        }
        Some(E::NonEmptyGroup | E::UnknownMemberId) => {
            Failure::new(format!("group `{group}` has members; stop its consumers first"))
        }
        _ => Failure::new(error.to_string()),
    }
}

fn kind(kind: GroupKind) -> &'static str {
    match kind {
        GroupKind::Consumer => "consumer",
        GroupKind::Classic => "classic",
        GroupKind::Simple => "simple",
    }
}

impl From<&ListedGroup> for Listed {
    fn from(listed: &ListedGroup) -> Listed {
        Listed { group: listed.group.clone(), state: listed.state.clone(), kind: kind(listed.kind) }
    }
}

impl Described {
    fn new(description: GroupDescription, lags: Vec<PartitionLag>) -> Described {
        let GroupDescription { listed, epoch, assignor, members } = description;
        let member = |member: millpond_sdk::GroupMember| Member {
            partitions: member.assigned.len(),
            member: member.member,
            instance: member.instance,
            client_id: member.client_id,
            host: member.host,
            epoch: member.epoch,
        };
        // What nothing was committed of lags by no number.
        let counted = lags.iter().filter(|lag| lag.offset.is_some());
        let lag = counted.map(|lag| lag.lag).try_fold(0_u64, |sum, lag| sum.checked_add(lag?));
        let mut partitions: Vec<Lagging> = lags.into_iter().map(Lagging::from).collect();
        partitions.sort_by(|one, other| (&one.topic, one.partition).cmp(&(&other.topic, other.partition)));
        Described {
            group: listed.group,
            state: listed.state,
            kind: kind(listed.kind),
            epoch,
            assignor,
            lag,
            members: members.into_iter().map(member).collect(),
            partitions,
        }
    }

    fn to_text(&self) -> String {
        let lag = shown(self.lag);
        let mut text = format!(
            "{}: {}, {}, epoch {}, {} members, lag {lag}",
            self.group,
            self.state,
            self.kind,
            self.epoch,
            self.members.len()
        );
        if !self.partitions.is_empty() {
            let row = |one: &Lagging| {
                vec![
                    one.topic.clone().unwrap_or_else(|| format!("deleted ({})", one.topic_id)),
                    one.partition.to_string(),
                    shown(one.offset),
                    shown(one.end),
                    shown(one.lag),
                    one.lag_seconds.map_or_else(|| "-".to_owned(), |seconds| format!("{seconds:.1}")),
                    one.member.clone().unwrap_or_else(|| "-".to_owned()),
                ]
            };
            let rows: Vec<Vec<String>> = self.partitions.iter().map(row).collect();
            let heading = ["TOPIC", "PARTITION", "OFFSET", "END", "LAG", "SECONDS", "MEMBER"];
            text = format!("{text}\n{}", output::table(&heading, &rows));
        }
        text
    }
}

fn shown(number: Option<u64>) -> String {
    number.map_or_else(|| "-".to_owned(), |number| number.to_string())
}

impl From<PartitionLag> for Lagging {
    fn from(lag: PartitionLag) -> Lagging {
        Lagging {
            topic: lag.topic,
            topic_id: lag.topic_id.to_string(),
            partition: lag.partition,
            offset: lag.offset.map(|offset| offset.0),
            log_start: lag.log_start.map(|offset| offset.0),
            end: lag.end.map(|offset| offset.0),
            lag: lag.lag,
            lag_seconds: lag.waited.map(|waited| waited.as_secs_f64()),
            member: lag.member,
        }
    }
}

impl Reset {
    fn to_text(&self) -> String {
        if self.partitions.is_empty() {
            return format!("group {} has committed nothing that could be reset", self.group);
        }
        let row = |moved: &Moved| {
            vec![moved.topic.clone(), moved.partition.to_string(), shown(moved.before), moved.after.to_string()]
        };
        let rows: Vec<Vec<String>> = self.partitions.iter().map(row).collect();
        let table = output::table(&["TOPIC", "PARTITION", "BEFORE", "AFTER"], &rows);
        match self.executed {
            true => table,
            false => format!("{table}\nnothing was changed; say --execute to commit these offsets"),
        }
    }
}

impl Forgotten {
    fn to_text(&self) -> String {
        let row = |one: &Committed| vec![one.topic.clone(), one.partition.to_string(), one.offset.to_string()];
        let rows: Vec<Vec<String>> = self.partitions.iter().map(row).collect();
        let table = output::table(&["TOPIC", "PARTITION", "OFFSET"], &rows);
        match self.executed {
            true => format!("{table}\nthese offsets are forgotten"),
            false => format!("{table}\nnothing was changed; say --execute to forget these offsets"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schemas;
    use std::time::Duration;

    fn lag(topic: Option<&str>, partition: u32, offset: Option<u64>, lag: Option<u64>) -> PartitionLag {
        PartitionLag {
            topic_id: TopicId(7),
            topic: topic.map(str::to_owned),
            partition,
            offset: offset.map(Offset),
            log_start: Some(Offset(0)),
            end: Some(Offset(100)),
            lag,
            waited: lag.map(|_| Duration::from_millis(1_500)),
            member: None,
        }
    }

    fn described(lags: Vec<PartitionLag>) -> Described {
        let listed = ListedGroup { group: "g".to_owned(), state: "Stable".to_owned(), kind: GroupKind::Consumer };
        let member = millpond_sdk::GroupMember {
            member: "m".to_owned(),
            instance: None,
            client_id: "c".to_owned(),
            host: "127.0.0.1".to_owned(),
            epoch: 3,
            assigned: vec![(TopicId(7), 0)],
        };
        let assignor = "uniform".to_owned();
        Described::new(GroupDescription { listed, epoch: 3, assignor, members: vec![member] }, lags)
    }

    #[test]
    fn json_has_the_promised_fields() {
        let listed = Listed { group: "g".to_owned(), state: "Empty".to_owned(), kind: "simple" };
        schemas::check("group-list", &List { groups: vec![listed] });
        schemas::check(
            "group-describe",
            &described(vec![lag(Some("t"), 1, Some(4), Some(96)), lag(None, 0, None, None)]),
        );
        let moved = |before| Moved { topic: "t".to_owned(), partition: 3, before, after: 4, topic_id: TopicId(7) };
        let partitions = vec![moved(None), moved(Some(9))];
        schemas::check("group-reset-offsets", &Reset { group: "g".to_owned(), executed: true, partitions });
        let committed = Committed { topic: "t".to_owned(), partition: 3, offset: 4, topic_id: TopicId(7) };
        let forgotten = Forgotten { group: "g".to_owned(), executed: false, partitions: vec![committed] };
        schemas::check("group-delete-offsets", &forgotten);
        schemas::check("group-delete", &Deleted { group: "g".to_owned(), deleted: true });
    }

    #[test]
    fn the_lag_of_a_group_is_that_of_all_its_partitions_and_unknown_if_one_is() {
        let sum = |lags| described(lags).lag;
        assert_eq!(sum(vec![lag(Some("t"), 0, Some(4), Some(6)), lag(Some("t"), 1, Some(1), Some(2))]), Some(8));
        assert_eq!(sum(vec![lag(Some("t"), 0, Some(4), Some(6)), lag(Some("t"), 1, None, None)]), Some(6));
        assert_eq!(sum(vec![lag(Some("t"), 0, Some(4), Some(6)), lag(Some("t"), 1, Some(1), None)]), None);
    }

    #[test]
    fn what_is_not_known_is_shown_as_such() {
        let text = described(vec![lag(Some("t"), 0, Some(4), Some(96)), lag(Some("t"), 1, None, None)]).to_text();
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[0], "g: Stable, consumer, epoch 3, 1 members, lag 96");
        assert_eq!(lines[2].split_whitespace().collect::<Vec<_>>(), ["t", "0", "4", "100", "96", "1.5", "-"]);
        assert_eq!(lines[3].split_whitespace().collect::<Vec<_>>(), ["t", "1", "-", "100", "-", "-", "-"]);
    }

    #[test]
    fn targets_are_words_offsets_and_times() {
        assert_eq!(target("earliest"), Ok(Target::Earliest));
        assert_eq!(target("latest"), Ok(Target::Latest));
        assert_eq!(target("42"), Ok(Target::Offset(Offset(42))));
        assert_eq!(target("2013-01-01T10:00:00Z"), Ok(Target::Time(TimestampMs(1_357_034_400_000))));
        assert!(target("-1").is_err() && target("yesterday").is_err());
        assert_eq!(place("a.b:12"), ("a.b".to_owned(), Some(12)));
        assert_eq!(place("orders"), ("orders".to_owned(), None));
    }

    #[test]
    fn a_dry_run_says_that_it_was_one() {
        let moved = Moved { topic: "t".to_owned(), partition: 0, before: None, after: 4, topic_id: TopicId(7) };
        let mut reset = Reset { group: "g".to_owned(), executed: false, partitions: vec![moved] };
        assert!(reset.to_text().ends_with("say --execute to commit these offsets"));
        reset.executed = true;
        assert!(!reset.to_text().contains("--execute"));
        reset.partitions.clear();
        assert_eq!(reset.to_text(), "group g has committed nothing that could be reset");
    }
}
