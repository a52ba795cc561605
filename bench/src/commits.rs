//! Commits of many groups at once: 100 groups of 100 partitions each, over three brokers and an etcd of one member, then of three. First
//! paced, at ten thousand partitions a second; then as fast as answers come. Then the same groups have a member each, which commits in
//! its epoch, and in the end a broker is killed under them (`members.rs`). What it asks of etcd is by the brokers' own metrics.

mod members;

use crate::Result;
use crate::etcd::Etcd;
use crate::goals::{self, Goals};
use crate::millpond::Dev;
use millpond_proto::v1::groups_client::GroupsClient;
use millpond_proto::v1::{CommitOffsetsRequest, FindCoordinatorRequest, GroupPartition, OffsetToCommit};
use std::collections::HashMap;
use std::path::Path;
use std::time::Duration;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, sleep_until};
use tonic::transport::{Channel, Endpoint};

const BROKERS: usize = 3;
const GROUPS: u32 = 100;
const PARTITIONS: u32 = 100;

/// How often each group commits all of its partitions, where it is paced.
const PACE: Duration = Duration::from_secs(1);

/// How long each part takes.
const LASTS: Duration = Duration::from_secs(10);

/// How long coordinators may be missing at the start.
const STUCK: Duration = Duration::from_secs(60);

pub(crate) fn run(dir: &Path, goals: &mut Goals) -> Result<()> {
    println!(
        "| etcd members | load | partition commits/s | p50 ms | p99 ms | longest ms | etcd transactions/s | partitions a transaction |"
    );
    println!("|---|---|---|---|---|---|---|---|");
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    for members in [1, 3] {
        let dir = dir.join(members.to_string());
        std::fs::create_dir_all(&dir)?;
        let etcd = Etcd::start(&dir, members)?;
        let mut dev = Dev::start_over(&dir, BROKERS, &etcd.url())?;
        dev.run(&["topic", "create", "bench", "--partitions", &PARTITIONS.to_string()])?;
        let described = dev.json(&["topic", "describe", "bench"])?;
        let topic = described["id"].as_str().ok_or("a topic without id")?.to_owned();
        let groups = runtime.block_on(find(&dev, &topic))?;
        for (load, pace) in [("paced", Some(PACE)), ("as fast as it goes", None)] {
            let before = transactions(&dev)?;
            let done = runtime.block_on(commit(&groups, pace))?;
            let sent = transactions(&dev)? - before;
            done.print(members, load, Some(sent))?;
            if let Some(pace) = pace {
                done.hold(pace, &format!("etcd of {members}, {load}"), goals)?;
            }
        }
        members::run(&mut dev, &topic, members, &runtime, goals)?;
        dev.stop()?;
        etcd.stop()?;
    }
    Ok(())
}

fn transactions(dev: &Dev) -> Result<u64> {
    dev.counted("millpond_metadata_requests_total", &["operation=\"txn\""])
}

/// A group, and where it is coordinated.
#[derive(Clone)]
struct Group {
    name: String,
    topic: String,
    coordinator: GroupsClient<Channel>,
}

/// Finds the coordinator of each group, over one connection to each broker.
async fn find(dev: &Dev, topic: &str) -> Result<Vec<Group>> {
    let mut channels: HashMap<String, Channel> = HashMap::new();
    let first = dev.grpc().next().ok_or("a fleet has brokers")?;
    let mut any = GroupsClient::new(connect(first).await?);
    let mut groups = Vec::new();
    let begun = Instant::now();
    for n in 0..GROUPS {
        let name = format!("group-{n}");
        let grpc = loop {
            match any.find_coordinator(FindCoordinatorRequest { group: name.clone() }).await {
                Ok(found) => break found.into_inner().grpc,
                Err(error) if begun.elapsed() > STUCK => return Err(error.into()),
                Err(_) => sleep(Duration::from_millis(100)).await,
            }
        };
        let channel = match channels.get(&grpc) {
            Some(channel) => channel.clone(),
            None => channels.entry(grpc.clone()).or_insert(connect(&grpc).await?).clone(),
        };
        let group = Group { name, topic: topic.to_owned(), coordinator: GroupsClient::new(channel) };
        // A shard may still be read back; what follows is measured.
        while let Err(error) = group.clone().commit(0).await {
            if begun.elapsed() > STUCK {
                return Err(error);
            }
            sleep(Duration::from_millis(100)).await;
        }
        groups.push(group);
    }
    Ok(groups)
}

async fn connect(address: &str) -> Result<Channel> {
    Ok(Endpoint::from_shared(format!("http://{address}"))?.tcp_nodelay(true).connect().await?)
}

impl Group {
    /// Commits one offset of all partitions.
    async fn commit(&mut self, offset: u64) -> Result<()> {
        let commit = |partition| OffsetToCommit {
            partition: Some(GroupPartition { topic_id: self.topic.clone(), partition }),
            offset,
            leader_epoch: None,
            metadata: String::new(),
        };
        let request = CommitOffsetsRequest {
            group: self.name.clone(),
            member: String::new(),
            epoch: -1,
            instance: None,
            offsets: (0..PARTITIONS).map(commit).collect(),
            number: None,
        };
        let answer = self.coordinator.commit_offsets(request).await?.into_inner();
        match answer.outcomes.iter().find(|outcome| !outcome.error.is_empty()) {
            Some(refused) => Err(format!("a commit was refused: {}", refused.error).into()),
            None => Ok(()),
        }
    }
}

/// How long commits took.
struct Done {
    took: Vec<Duration>,
    lasted: Duration,
}

/// Has all groups commit for a while: each at its pace, evenly spread, or one commit after the other.
async fn commit(groups: &[Group], pace: Option<Duration>) -> Result<Done> {
    let begun = Instant::now();
    let end = begun + LASTS;
    let mut committing: JoinSet<Result<Vec<Duration>>> = JoinSet::new();
    for (n, group) in (0u32..).zip(groups) {
        let mut group = group.clone();
        committing.spawn(async move {
            let (mut took, mut offset) = (Vec::new(), 1);
            let mut due = begun + pace.unwrap_or_default() * n / GROUPS;
            while due < end {
                sleep_until(due).await;
                group.commit(offset).await?;
                // From when it was due: a commit that holds up the next is counted with it.
                took.push(due.elapsed());
                offset += 1;
                due = pace.map_or_else(Instant::now, |pace| due + pace);
            }
            Ok(took)
        });
    }
    let mut took = Vec::new();
    while let Some(group) = committing.join_next().await {
        took.extend(group??);
    }
    took.sort();
    Ok(Done { took, lasted: begun.elapsed() })
}

impl Done {
    /// A line of the table. What was `sent` to etcd is not known where a broker has taken its count with it.
    fn print(&self, members: usize, load: &str, sent: Option<u64>) -> Result<()> {
        let (p50, p99, longest) = (self.at_ms(50)?, self.at_ms(99)?, self.at_ms(100)?);
        let (rate, seconds) = (self.rate(), self.lasted.as_secs_f64());
        print!("| {members} | {load} | {rate:.0} | {p50:.1} | {p99:.1} | {longest:.1} |");
        match sent {
            Some(sent) => println!(" {:.1} | {:.0} |", sent as f64 / seconds, rate * seconds / sent.max(1) as f64),
            None => println!(" - | - |"),
        }
        Ok(())
    }

    /// Holds it to what is expected at a pace.
    fn hold(&self, pace: Duration, conditions: &str, goals: &mut Goals) -> Result<()> {
        let due = f64::from(GROUPS * PARTITIONS) / pace.as_secs_f64();
        goals.hold(goals::COMMITS, conditions, self.rate() / due);
        goals.hold(goals::COMMIT_P99, conditions, self.at_ms(99)?);
        Ok(())
    }

    /// Partitions committed in a second.
    fn rate(&self) -> f64 {
        (self.took.len() * PARTITIONS as usize) as f64 / self.lasted.as_secs_f64()
    }

    /// The milliseconds that so many in a hundred do not exceed.
    fn at_ms(&self, percent: usize) -> Result<f64> {
        let last = self.took.len().checked_sub(1).ok_or("nothing was committed")?;
        Ok(self.took[last * percent / 100].as_secs_f64() * 1e3)
    }
}
