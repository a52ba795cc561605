//! etcd's Watch service: opens a session for each stream. What a session says is its own.

use super::Door;
use super::session::Session;
use etcd_client::proto::{PbWatchRequest, PbWatchResponse, PbWatchService};
use futures::stream::BoxStream;
use tonic::{Request, Response, Status, Streaming};

#[tonic::async_trait]
impl PbWatchService for Door {
    type WatchStream = BoxStream<'static, Result<PbWatchResponse, Status>>;

    async fn watch(&self, request: Request<Streaming<PbWatchRequest>>) -> Result<Response<Self::WatchStream>, Status> {
        // Pulled by the connection: a client that does not read costs no memory, and misses nothing.
        let session = Session::new(self.clone(), request.into_inner());
        let responses = futures::stream::unfold(Some(session), |session| async {
            let mut session = session?;
            let response = session.next().await?;
            let next = response.is_ok().then_some(session);
            Some((response, next))
        });
        Ok(Response::new(Box::pin(responses)))
    }
}
