//! Consumer groups on a fleet of processes: offsets that were acknowledged outlive the kill of every coordinator in turn.

use millpond_proto::v1::groups_client::GroupsClient;
use millpond_proto::v1::{
    CommitOffsetsRequest, FetchOffsetsRequest, FindCoordinatorRequest, GroupPartition, OffsetToCommit,
};
use millpond_sdk::{Admin, NewTopic};
use millpond_tests::fleet::{Fleet, FleetOptions};
use std::time::Duration;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::MissedTickBehavior;
use tokio_util::sync::CancellationToken;
use tonic::Status;
use tonic::transport::Channel;

/// So many that every shard has one, but for chance.
const GROUPS: usize = 32;

/// How often a coordinator is looked for.
const LOOK: Duration = Duration::from_millis(100);

/// How long the coordinator of a group may be missing before the test is called stuck.
const PATIENCE: Duration = Duration::from_secs(60);

/// A client of one group: it finds the coordinator anew whenever it is refused.
#[derive(Clone)]
struct Group {
    name: String,
    topic_id: String,
    bootstrap: Vec<String>,
}

impl Group {
    async fn coordinator(&self) -> Option<GroupsClient<Channel>> {
        for address in &self.bootstrap {
            let Ok(mut any) = GroupsClient::connect(format!("http://{address}")).await else { continue };
            let asked = any.find_coordinator(FindCoordinatorRequest { group: self.name.clone() }).await;
            let Ok(found) = asked else { continue };
            let grpc = found.into_inner().grpc;
            if let Ok(coordinator) = GroupsClient::connect(format!("http://{grpc}")).await {
                return Some(coordinator);
            }
        }
        None
    }

    fn partition(&self) -> GroupPartition {
        GroupPartition { topic_id: self.topic_id.clone(), partition: 1 }
    }

    async fn commit(&self, coordinator: &mut GroupsClient<Channel>, offset: u64) -> Result<(), Status> {
        let to_commit =
            OffsetToCommit { partition: Some(self.partition()), offset, leader_epoch: None, metadata: String::new() };
        let request = CommitOffsetsRequest {
            group: self.name.clone(),
            member: String::new(),
            epoch: -1,
            instance: None,
            offsets: vec![to_commit],
            number: None,
        };
        let answer = coordinator.commit_offsets(request).await?.into_inner();
        assert!(answer.outcomes.iter().all(|outcome| outcome.error.is_empty()), "{answer:?}");
        Ok(())
    }

    async fn committed(&self, coordinator: &mut GroupsClient<Channel>) -> Result<Option<u64>, Status> {
        let request = FetchOffsetsRequest {
            group: self.name.clone(),
            partitions: vec![self.partition()],
            ..FetchOffsetsRequest::default()
        };
        Ok(coordinator.fetch_offsets(request).await?.into_inner().offsets[0].offset)
    }

    /// Commits 1, 2, 3… until told to stop, and tells what was acknowledged. Before each it reads back what it acknowledged last.
    async fn go_on(self, stop: CancellationToken, acknowledged: watch::Sender<u64>) {
        let mut coordinator = None;
        let mut look = tokio::time::interval(LOOK);
        look.set_missed_tick_behavior(MissedTickBehavior::Delay);
        while !stop.is_cancelled() {
            let Some(at) = coordinator.as_mut() else {
                look.tick().await;
                coordinator = self.coordinator().await;
                continue;
            };
            let last = *acknowledged.borrow();
            let step = async {
                let found = self.committed(at).await?;
                assert!(found.unwrap_or(0) >= last, "group {}: {last} was acknowledged, {found:?} is there", self.name);
                self.commit(at, last + 1).await
            };
            match step.await {
                Ok(()) => drop(acknowledged.send_replace(last + 1)),
                Err(_) => coordinator = None,
            }
        }
    }
}

struct Committing {
    stop: CancellationToken,
    tasks: Vec<JoinHandle<()>>,
    acknowledged: Vec<watch::Receiver<u64>>,
}

impl Committing {
    /// Waits until every group has so many more commits acknowledged.
    async fn each_goes_on(&mut self, more: u64) {
        for acknowledged in &mut self.acknowledged {
            let goal = *acknowledged.borrow() + more;
            let reached = acknowledged.wait_for(|acknowledged| *acknowledged >= goal);
            tokio::time::timeout(PATIENCE, reached).await.expect("commits go on").expect("nothing was lost");
        }
    }
}

/// Rules O1, O3, K5.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn acked_offsets_outlive_the_kill_of_each_coordinator_in_turn() {
    let mut fleet = Fleet::start(&FleetOptions::new(3)).await.expect("every machine has what it takes");
    let client = fleet.connect().await;
    let mut topic = NewTopic::new("events");
    topic.partitions = Some(4);
    let created = Admin::new(&client).create_topic(topic).await.expect("the topic is new");
    let bootstrap: Vec<String> = (0..fleet.size()).map(|broker| fleet.grpc(broker)).collect();
    let mut committing = Committing { stop: CancellationToken::new(), tasks: Vec::new(), acknowledged: Vec::new() };
    for n in 0..GROUPS {
        let topic_id = created.id.to_string();
        let group = Group { name: format!("group-{n}"), topic_id, bootstrap: bootstrap.clone() };
        let (sender, acknowledged) = watch::channel(0);
        committing.tasks.push(tokio::spawn(group.go_on(committing.stop.clone(), sender)));
        committing.acknowledged.push(acknowledged);
    }
    for broker in 0..fleet.size() {
        committing.each_goes_on(3).await;
        fleet.kill(broker);
        committing.each_goes_on(3).await;
        fleet.restart(broker).await;
    }
    committing.each_goes_on(3).await;
    committing.stop.cancel();
    for task in committing.tasks {
        task.await.expect("no acknowledged offset was lost");
    }
    fleet.stop().await;
}
