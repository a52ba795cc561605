//! A group's coordinator that tells its only member what the test says, and keeps what it hears. It promises nothing else.

use millpond_log::TopicId;
use millpond_proto::v1;
use millpond_proto::v1::groups_server::Groups;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use tokio::sync::watch;
use tonic::{Request, Response, Status};

/// What the member said in a heartbeat.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Beat {
    pub(crate) epoch: i32,
    /// Partitions of the topic `t`, if it said what it owns.
    pub(crate) owned: Option<BTreeSet<u32>>,
}

/// What the coordinator tells, and has heard.
#[derive(Debug)]
pub(crate) struct Coordination {
    told: watch::Sender<(i32, BTreeSet<u32>)>,
    committed: Mutex<BTreeMap<u32, u64>>,
    beats: watch::Sender<Vec<Beat>>,
    /// The partitions of each question after committed offsets.
    asked: watch::Sender<Vec<BTreeSet<u32>>>,
}

impl Default for Coordination {
    fn default() -> Coordination {
        Coordination {
            told: watch::channel((1, BTreeSet::new())).0,
            committed: Mutex::default(),
            beats: watch::channel(Vec::new()).0,
            asked: watch::channel(Vec::new()).0,
        }
    }
}

impl Coordination {
    /// The member may hold these partitions from now on, in this epoch; returns once it has said so that it knows.
    pub(crate) async fn tell(&self, epoch: i32, partitions: &[u32]) {
        self.told.send_replace((epoch, partitions.iter().copied().collect()));
        self.hears(|beat| beat.epoch == epoch).await;
    }

    /// Returns once the member has said such a thing.
    pub(crate) async fn hears(&self, what: impl Fn(&Beat) -> bool) {
        self.beats.subscribe().wait_for(|beats| beats.iter().any(&what)).await.expect("it lives as long as this");
    }

    /// The group has committed this offset of a partition.
    pub(crate) fn commit(&self, partition: u32, offset: u64) {
        self.committed.lock().expect("no panic").insert(partition, offset);
    }

    /// Returns once committed offsets were asked for so often, and says of which partitions each time.
    pub(crate) async fn is_asked(&self, times: usize) -> Vec<BTreeSet<u32>> {
        let mut asked = self.asked.subscribe();
        asked.wait_for(|asked| asked.len() >= times).await.expect("it lives as long as this").clone()
    }
}

fn wire(partition: u32) -> v1::GroupPartition {
    v1::GroupPartition { topic_id: TopicId(1).to_string(), partition }
}

fn indexes(partitions: &[v1::GroupPartition]) -> BTreeSet<u32> {
    partitions.iter().map(|partition| partition.partition).collect()
}

/// The coordinator as brokers serve it.
pub(crate) struct Service {
    pub(crate) coordination: Arc<Coordination>,
    pub(crate) address: String,
}

#[tonic::async_trait]
impl Groups for Service {
    async fn find_coordinator(
        &self,
        _: Request<v1::FindCoordinatorRequest>,
    ) -> Result<Response<v1::FindCoordinatorResponse>, Status> {
        Ok(Response::new(v1::FindCoordinatorResponse { id: 0, epoch: 1, grpc: self.address.clone() }))
    }

    async fn heartbeat(
        &self,
        request: Request<v1::HeartbeatRequest>,
    ) -> Result<Response<v1::HeartbeatResponse>, Status> {
        let v1::HeartbeatRequest { member, epoch, owned, .. } = request.into_inner();
        let owned = owned.map(|owned| indexes(&owned.partitions));
        self.coordination.beats.send_modify(|beats| beats.push(Beat { epoch, owned }));
        let (epoch, partitions) = self.coordination.told.borrow().clone();
        let partitions = partitions.into_iter().map(wire).collect();
        Ok(Response::new(v1::HeartbeatResponse {
            member,
            epoch,
            heartbeat_interval_ms: 10,
            session_timeout_ms: 60_000,
            assignment: Some(v1::OwnedPartitions { partitions }),
        }))
    }

    async fn fetch_offsets(
        &self,
        request: Request<v1::FetchOffsetsRequest>,
    ) -> Result<Response<v1::FetchOffsetsResponse>, Status> {
        let request = request.into_inner();
        self.coordination.asked.send_modify(|asked| asked.push(indexes(&request.partitions)));
        let committed = self.coordination.committed.lock().expect("no panic");
        let fetched = |partition: v1::GroupPartition| v1::FetchedOffset {
            offset: committed.get(&partition.partition).copied(),
            partition: Some(partition),
            ..Default::default()
        };
        let offsets = request.partitions.into_iter().map(fetched).collect();
        Ok(Response::new(v1::FetchOffsetsResponse { offsets }))
    }

    async fn commit_offsets(
        &self,
        _: Request<v1::CommitOffsetsRequest>,
    ) -> Result<Response<v1::CommitOffsetsResponse>, Status> {
        Err(Status::unimplemented("not scripted"))
    }

    async fn delete_offsets(
        &self,
        _: Request<v1::DeleteOffsetsRequest>,
    ) -> Result<Response<v1::DeleteOffsetsResponse>, Status> {
        Err(Status::unimplemented("not scripted"))
    }

    async fn list_groups(&self, _: Request<v1::ListGroupsRequest>) -> Result<Response<v1::ListGroupsResponse>, Status> {
        Err(Status::unimplemented("not scripted"))
    }

    async fn describe_group(
        &self,
        _: Request<v1::DescribeGroupRequest>,
    ) -> Result<Response<v1::DescribeGroupResponse>, Status> {
        Err(Status::unimplemented("not scripted"))
    }

    async fn lag(&self, _: Request<v1::LagRequest>) -> Result<Response<v1::LagResponse>, Status> {
        Err(Status::unimplemented("not scripted"))
    }

    async fn delete_group(
        &self,
        _: Request<v1::DeleteGroupRequest>,
    ) -> Result<Response<v1::DeleteGroupResponse>, Status> {
        Err(Status::unimplemented("not scripted"))
    }
}
