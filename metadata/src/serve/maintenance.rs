//! Of etcd's Maintenance service the status alone: what tells a client which version it speaks to.

use super::status::absent;
use super::{Door, MEMBER, TERM};
use etcd_client::proto::{
    PbAlarmRequest, PbAlarmResponse, PbDefragmentRequest, PbDefragmentResponse, PbDowngradeRequest,
    PbDowngradeResponse, PbHashKvRequest, PbHashKvResponse, PbHashRequest, PbHashResponse, PbMaintenanceService,
    PbMoveLeaderRequest, PbMoveLeaderResponse, PbSnapshotRequest, PbSnapshotResponse, PbStatusRequest,
    PbStatusResponse,
};
use futures::stream::Empty;
use tonic::{Request, Response, Status};

/// The version of etcd whose promises are kept here: the first that users should run (rule Z5).
const VERSION: &str = "3.5.12";

type Answer<T> = Result<Response<T>, Status>;

#[tonic::async_trait]
impl PbMaintenanceService for Door {
    async fn status(&self, _request: Request<PbStatusRequest>) -> Answer<PbStatusResponse> {
        let header = self.header_now();
        // Every revision is one entry of the log that this store does not have.
        let index = u64::try_from(header.revision).unwrap_or(0);
        Ok(Response::new(PbStatusResponse {
            header: Some(header),
            version: VERSION.to_owned(),
            leader: MEMBER,
            raft_index: index,
            raft_term: TERM,
            raft_applied_index: index,
            ..PbStatusResponse::default()
        }))
    }

    async fn alarm(&self, _request: Request<PbAlarmRequest>) -> Answer<PbAlarmResponse> {
        Err(absent("alarms"))
    }

    async fn defragment(&self, _request: Request<PbDefragmentRequest>) -> Answer<PbDefragmentResponse> {
        Err(absent("defragmentation"))
    }

    async fn hash(&self, _request: Request<PbHashRequest>) -> Answer<PbHashResponse> {
        Err(absent("hashes"))
    }

    async fn hash_kv(&self, _request: Request<PbHashKvRequest>) -> Answer<PbHashKvResponse> {
        Err(absent("hashes"))
    }

    type SnapshotStream = Empty<Result<PbSnapshotResponse, Status>>;

    async fn snapshot(&self, _request: Request<PbSnapshotRequest>) -> Answer<Self::SnapshotStream> {
        Err(absent("snapshots"))
    }

    async fn move_leader(&self, _request: Request<PbMoveLeaderRequest>) -> Answer<PbMoveLeaderResponse> {
        Err(absent("another member"))
    }

    async fn downgrade(&self, _request: Request<PbDowngradeRequest>) -> Answer<PbDowngradeResponse> {
        Err(absent("downgrades"))
    }
}
