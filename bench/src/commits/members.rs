//! A member in each group, which joins, takes all partitions and commits them in its epoch (KIP-848), at a pace; and the same while a broker
//! is killed that coordinates a third of them. Each finds its coordinator anew then and commits again; what was acknowledged must be
//! there in the end, and no member may have lost its place.

use super::{BROKERS, GROUPS, LASTS, PACE, PARTITIONS, STUCK, connect, transactions};
use super::{Done, Result};
use crate::goals::{self, Goals};
use crate::millpond::Dev;
use millpond_proto::v1::groups_client::GroupsClient;
use millpond_proto::v1::{
    CommitOffsetsRequest, FetchOffsetsRequest, FindCoordinatorRequest, GroupPartition, HeartbeatRequest,
    OffsetToCommit, OwnedPartitions, SubscribedTopics,
};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::runtime::Runtime;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, sleep_until, timeout};
use tonic::transport::Channel;

/// Pause before a coordinator is looked for again.
const AGAIN: Duration = Duration::from_millis(50);

/// Who does not answer for so long is asked no more: another one may be in its place.
const SILENT: Duration = Duration::from_secs(2);

/// The broker that is killed.
const VICTIM: usize = BROKERS - 1;

/// Refusals of a member that is none any more, or whose commits were overtaken: the end of its run, whatever is tried again.
const LOST: [&str; 4] = ["UNKNOWN_MEMBER_ID", "FENCED_MEMBER_EPOCH", "STALE_MEMBER_EPOCH", "ILLEGAL_GENERATION"];

/// Has members commit, undisturbed and then with a broker killed in the middle.
pub(super) fn run(dev: &mut Dev, topic: &str, etcd: usize, runtime: &Runtime, goals: &mut Goals) -> Result<()> {
    let connections = Arc::<Connections>::default();
    let addresses: Arc<[String]> = dev.grpc().map(str::to_owned).collect();
    let mut members: Vec<Member> = (0..GROUPS).map(|n| Member::new(n, topic, &addresses, &connections)).collect();
    runtime.block_on(async {
        let mut joining = JoinSet::new();
        for mut member in members.drain(..) {
            joining.spawn(async move { member.join().await.map(|()| member) });
        }
        while let Some(joined) = joining.join_next().await {
            members.push(joined??);
        }
        Ok::<(), Box<dyn std::error::Error + Send + Sync>>(())
    })?;

    let before = transactions(dev)?;
    let done = runtime.block_on(all_commit(&mut members, None))?;
    done.print(etcd, "members, paced", Some(transactions(dev)? - before))?;
    done.hold(PACE, &format!("etcd of {etcd}, members"), goals)?;

    let done = runtime.block_on(all_commit(&mut members, Some(dev)))?;
    done.print(etcd, "members, a broker killed", None)?;
    goals.hold(goals::COMMIT_FAILOVER, &format!("etcd of {etcd}"), done.at_ms(100)?);
    runtime.block_on(async {
        for member in &mut members {
            member.check().await?;
        }
        Ok(())
    })
}

/// Each commits at its pace, evenly spread; a third of the time in, the victim is killed.
async fn all_commit(members: &mut Vec<Member>, fleet: Option<&mut Dev>) -> Result<Done> {
    let begun = Instant::now();
    let mut committing: JoinSet<Result<(Member, Vec<Duration>)>> = JoinSet::new();
    for (n, mut member) in (0u32..).zip(members.drain(..)) {
        committing.spawn(async move {
            let (mut took, mut due) = (Vec::new(), begun + PACE * n / GROUPS);
            while due < begun + LASTS {
                sleep_until(due).await;
                member.commit().await?;
                // From when it was due: a commit that holds up the next is counted with it.
                took.push(due.elapsed());
                due += PACE;
            }
            Ok((member, took))
        });
    }
    if let Some(dev) = fleet {
        sleep_until(begun + LASTS / 3).await;
        dev.kill(VICTIM)?;
    }
    let mut took = Vec::new();
    while let Some(done) = committing.join_next().await {
        let (member, of_member) = done??;
        members.push(member);
        took.extend(of_member);
    }
    took.sort();
    Ok(Done { took, lasted: begun.elapsed() })
}

/// A connection to each broker, for all members.
#[derive(Default)]
struct Connections(Mutex<HashMap<String, Channel>>);

impl Connections {
    async fn to(&self, address: &str) -> Result<GroupsClient<Channel>> {
        let found = self.0.lock().unwrap_or_else(PoisonError::into_inner).get(address).cloned();
        let channel = match found {
            Some(channel) => channel,
            None => {
                let channel = timeout(SILENT, connect(address)).await??;
                self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(address.to_owned(), channel.clone());
                channel
            }
        };
        Ok(GroupsClient::new(channel))
    }
}

/// The only member of a group.
struct Member {
    group: String,
    id: String,
    topic: String,
    epoch: i32,
    /// How often it says that it is there, and when it did last.
    interval: Duration,
    said: Instant,
    /// What it has committed last, of every partition.
    offset: u64,
    coordinator: Option<GroupsClient<Channel>>,
    addresses: Arc<[String]>,
    connections: Arc<Connections>,
}

impl Member {
    fn new(n: u32, topic: &str, addresses: &Arc<[String]>, connections: &Arc<Connections>) -> Member {
        Member {
            group: format!("members-{n}"),
            id: format!("00000000-0000-4000-8000-{n:012x}"),
            topic: topic.to_owned(),
            epoch: 0,
            interval: Duration::ZERO,
            said: Instant::now(),
            offset: 0,
            coordinator: None,
            addresses: Arc::clone(addresses),
            connections: Arc::clone(connections),
        }
    }

    /// Joins, and takes all partitions.
    async fn join(&mut self) -> Result<()> {
        let begun = Instant::now();
        let mut owned: Option<OwnedPartitions> = Some(OwnedPartitions::default());
        loop {
            let assigned = self.heartbeat(owned.take()).await?;
            if assigned.as_ref().is_some_and(|assigned| assigned.partitions.len() == PARTITIONS as usize) {
                self.heartbeat(assigned).await?;
                return Ok(());
            }
            if begun.elapsed() > STUCK {
                return Err(format!("{} is not given all partitions: {assigned:?}", self.group).into());
            }
            // What it owns it says in each epoch.
            owned = assigned;
            sleep(AGAIN).await;
        }
    }

    /// Says that it is there, and in the beginning what it wants; what it is to own, if that is new.
    async fn heartbeat(&mut self, owned: Option<OwnedPartitions>) -> Result<Option<OwnedPartitions>> {
        let joins = self.epoch == 0;
        let request = HeartbeatRequest {
            group: self.group.clone(),
            member: self.id.clone(),
            epoch: self.epoch,
            client_id: "bench".to_owned(),
            rebalance_timeout_ms: joins.then_some(60_000),
            topics: joins.then(|| SubscribedTopics { names: vec!["bench".to_owned()] }),
            owned,
            ..HeartbeatRequest::default()
        };
        let answer = self
            .ask(|mut coordinator| {
                let request = request.clone();
                async move { Ok(coordinator.heartbeat(request).await?.into_inner()) }
            })
            .await?;
        (self.epoch, self.said) = (answer.epoch, Instant::now());
        self.interval = Duration::from_millis(answer.heartbeat_interval_ms.into());
        Ok(answer.assignment)
    }

    /// Commits the next offset of all partitions, and says that it is there when that is due.
    async fn commit(&mut self) -> Result<()> {
        if self.said.elapsed() >= self.interval {
            self.heartbeat(None).await?;
        }
        let offset = self.offset + 1;
        let commit = |partition| OffsetToCommit {
            partition: Some(GroupPartition { topic_id: self.topic.clone(), partition }),
            offset,
            leader_epoch: None,
            metadata: String::new(),
        };
        let request = CommitOffsetsRequest {
            group: self.group.clone(),
            member: self.id.clone(),
            epoch: self.epoch,
            instance: None,
            offsets: (0..PARTITIONS).map(commit).collect(),
            // One that is sent again keeps its number.
            number: Some(offset),
        };
        self.ask(|mut coordinator| {
            let request = request.clone();
            async move {
                let answer = coordinator.commit_offsets(request).await?.into_inner();
                match answer.outcomes.into_iter().find(|outcome| !outcome.error.is_empty()) {
                    Some(refused) => Err(refused.error.into()),
                    None => Ok(()),
                }
            }
        })
        .await?;
        self.offset = offset;
        Ok(())
    }

    /// Whether the coordinator knows what was acknowledged last, of every partition.
    async fn check(&mut self) -> Result<()> {
        let request = FetchOffsetsRequest { group: self.group.clone(), ..FetchOffsetsRequest::default() };
        let known = self
            .ask(|mut coordinator| {
                let request = request.clone();
                async move { Ok(coordinator.fetch_offsets(request).await?.into_inner()) }
            })
            .await?;
        let right = known.offsets.iter().filter(|found| found.error.is_empty() && found.offset == Some(self.offset));
        match right.count() {
            count if count == PARTITIONS as usize => Ok(()),
            count => {
                Err(format!("{}: {count} of {PARTITIONS} commits of {} are there", self.group, self.offset).into())
            }
        }
    }

    /// Asks the coordinator, whoever that is by then, until it answers.
    ///
    /// # Errors
    /// The member has lost its place, or nobody answers for long.
    async fn ask<T, F>(&mut self, ask: impl Fn(GroupsClient<Channel>) -> F) -> Result<T>
    where
        F: Future<Output = Result<T>>,
    {
        let begun = Instant::now();
        loop {
            let asked = match self.find().await {
                Ok(coordinator) => match timeout(SILENT, ask(coordinator)).await {
                    Ok(answered) => answered,
                    Err(silent) => Err(silent.into()),
                },
                Err(error) => Err(error),
            };
            let error = match asked {
                Ok(answer) => return Ok(answer),
                Err(error) => error,
            };
            let told = error.to_string();
            if LOST.iter().any(|lost| told.contains(lost)) || begun.elapsed() > STUCK {
                return Err(format!("{}: {told}", self.group).into());
            }
            self.coordinator = None;
            sleep(AGAIN).await;
        }
    }

    /// The coordinator, by any broker that says who it is.
    async fn find(&mut self) -> Result<GroupsClient<Channel>> {
        if let Some(coordinator) = &self.coordinator {
            return Ok(coordinator.clone());
        }
        let mut last = "there are no brokers".into();
        for address in Arc::clone(&self.addresses).iter() {
            let request = FindCoordinatorRequest { group: self.group.clone() };
            let found = async {
                let mut any = self.connections.to(address).await?;
                let found = timeout(SILENT, any.find_coordinator(request)).await??.into_inner();
                self.connections.to(&found.grpc).await
            };
            match found.await {
                Ok(coordinator) => return Ok(self.coordinator.insert(coordinator).clone()),
                Err(error) => last = error,
            }
        }
        Err(last)
    }
}
