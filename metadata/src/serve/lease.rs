//! etcd's Lease service over the embedded store: decode, one call, encode.

use super::Door;
use super::convert;
use super::status::{self, absent};
use crate::kv::Kv as _;
use etcd_client::proto::{
    PbLeaseGrantRequest, PbLeaseGrantResponse, PbLeaseKeepAliveRequest, PbLeaseKeepAliveResponse, PbLeaseLeasesRequest,
    PbLeaseLeasesResponse, PbLeaseRevokeRequest, PbLeaseRevokeResponse, PbLeaseService, PbLeaseTimeToLiveRequest,
    PbLeaseTimeToLiveResponse,
};
use futures::stream::BoxStream;
use std::time::Duration;
use tonic::{Request, Response, Status, Streaming};

/// Longest lease, in seconds: etcd's own.
const TTL_SECONDS_MAX: u64 = 9_000_000_000;

/// What etcd says of the time of a lease that is not there.
const GONE: i64 = -1;

impl Door {
    async fn keep_alive(&self, request: PbLeaseKeepAliveRequest) -> Result<PbLeaseKeepAliveResponse, Status> {
        let renewal = self.store.keep_alive(convert::lease_id(request.id)).await.map_err(|error| status::of(&error))?;
        // 0 says that the lease has ended (rule B3).
        let ttl = renewal.map_or(0, |renewal| seconds(renewal.left));
        Ok(PbLeaseKeepAliveResponse { header: Some(self.header_now()), id: request.id, ttl })
    }
}

fn seconds(time: Duration) -> i64 {
    i64::try_from(time.as_secs()).unwrap_or(i64::MAX)
}

#[tonic::async_trait]
impl PbLeaseService for Door {
    async fn lease_grant(
        &self,
        request: Request<PbLeaseGrantRequest>,
    ) -> Result<Response<PbLeaseGrantResponse>, Status> {
        let PbLeaseGrantRequest { ttl, id } = request.into_inner();
        if id != 0 {
            return Err(absent("leases whose id the client chooses"));
        }
        let ttl = u64::try_from(ttl).unwrap_or(0);
        if ttl > TTL_SECONDS_MAX {
            return Err(status::ttl_too_large());
        }
        let lease = self.store.grant(Duration::from_secs(ttl)).await.map_err(|error| status::of(&error))?;
        Ok(Response::new(PbLeaseGrantResponse {
            header: Some(self.header_now()),
            id: lease.id.0.cast_signed(),
            ttl: seconds(lease.ttl),
            error: String::new(),
        }))
    }

    async fn lease_revoke(
        &self,
        request: Request<PbLeaseRevokeRequest>,
    ) -> Result<Response<PbLeaseRevokeResponse>, Status> {
        let lease = convert::lease_id(request.into_inner().id);
        self.store.revoke(lease).await.map_err(|error| status::of(&error))?;
        Ok(Response::new(PbLeaseRevokeResponse { header: Some(self.header_now()) }))
    }

    type LeaseKeepAliveStream = BoxStream<'static, Result<PbLeaseKeepAliveResponse, Status>>;

    async fn lease_keep_alive(
        &self,
        request: Request<Streaming<PbLeaseKeepAliveRequest>>,
    ) -> Result<Response<Self::LeaseKeepAliveStream>, Status> {
        // Ends with the client's stream, with the first error, or with the server.
        let state = Some((self.clone(), request.into_inner()));
        let answers = futures::stream::unfold(state, |state| async {
            let (door, mut requests) = state?;
            let asked = tokio::select! {
                asked = requests.message() => asked,
                () = door.stop.cancelled() => Err(status::stopped()),
            };
            let answer = match asked {
                Ok(Some(request)) => door.keep_alive(request).await,
                Ok(None) => return None,
                Err(error) => Err(error),
            };
            let next = answer.is_ok().then_some((door, requests));
            Some((answer, next))
        });
        Ok(Response::new(Box::pin(answers)))
    }

    async fn lease_time_to_live(
        &self,
        request: Request<PbLeaseTimeToLiveRequest>,
    ) -> Result<Response<PbLeaseTimeToLiveResponse>, Status> {
        let PbLeaseTimeToLiveRequest { id, keys } = request.into_inner();
        let state = self.store.lease_state(convert::lease_id(id)).await.map_err(|error| status::of(&error))?;
        let answer = PbLeaseTimeToLiveResponse { header: Some(self.header_now()), id, ttl: GONE, ..Default::default() };
        Ok(Response::new(match state {
            None => answer,
            Some(state) => PbLeaseTimeToLiveResponse {
                ttl: seconds(state.left),
                granted_ttl: seconds(state.ttl),
                keys: state.keys.into_iter().filter(|_| keys).map(Into::into).collect(),
                ..answer
            },
        }))
    }

    async fn lease_leases(
        &self,
        _request: Request<PbLeaseLeasesRequest>,
    ) -> Result<Response<PbLeaseLeasesResponse>, Status> {
        Err(absent("a list of leases"))
    }
}
