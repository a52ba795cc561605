//! etcd's KV service over the embedded store: decode, one call, encode.

use super::Door;
use super::convert::{self, Read};
use super::status::{self, absent};
use crate::embedded::Applied;
use crate::kv::{Kv as _, Ranged, Revision, Txn, Write};
use etcd_client::proto::{
    PbCompactionRequest, PbCompactionResponse, PbDeleteRequest, PbDeleteResponse, PbKvService, PbPutRequest,
    PbPutResponse, PbRangeRequest, PbRangeResponse, PbRangeStreamResponse, PbResponseOp, PbTxnOpResponse, PbTxnRequest,
    PbTxnResponse,
};
use futures::stream::Empty;
use tonic::{Request, Response, Status};

impl Door {
    /// Makes one change without a condition; the answer's revision, and how many keys were deleted.
    async fn change(&self, write: Write) -> Result<(Revision, u64), Status> {
        let txn = Txn { then: vec![write], ..Txn::default() };
        match self.store.apply(txn).await.map_err(|error| status::of(&error))? {
            Applied::Succeeded { revision, deleted } => Ok((revision, deleted.into_iter().sum())),
            Applied::Failed { .. } => Err(Status::internal("a change without a condition failed")),
        }
    }

    /// What a transaction read. Of a range that was cut off, the count is one more than was found: there is one at least.
    fn read_in_txn(&self, ranged: Ranged) -> PbRangeResponse {
        let count = ranged.found.len() + usize::from(ranged.more);
        PbRangeResponse {
            header: Some(self.header(ranged.revision)),
            kvs: ranged.found.into_iter().map(convert::key_value).collect(),
            more: ranged.more,
            count: count_of(count),
        }
    }
}

fn count_of(count: impl TryInto<i64>) -> i64 {
    count.try_into().unwrap_or(i64::MAX)
}

#[tonic::async_trait]
impl PbKvService for Door {
    async fn range(&self, request: Request<PbRangeRequest>) -> Result<Response<PbRangeResponse>, Status> {
        let Read { mut range, revision, count_only, keys_only } = convert::read(request.into_inner())?;
        if count_only {
            range.limit = 0;
        }
        let page = self.store.page(range, revision).await.map_err(|error| status::of_revision(&error))?;
        let kvs = page.ranged.found.into_iter().map(|mut kv| {
            if keys_only {
                kv.value.clear();
            }
            convert::key_value(kv)
        });
        Ok(Response::new(PbRangeResponse {
            header: Some(self.header(page.newest)),
            kvs: kvs.collect(),
            more: page.ranged.more && !count_only,
            count: count_of(page.count),
        }))
    }

    type RangeStreamStream = Empty<Result<PbRangeStreamResponse, Status>>;

    async fn range_stream(
        &self,
        _request: Request<PbRangeRequest>,
    ) -> Result<Response<Self::RangeStreamStream>, Status> {
        Err(absent("streamed ranges"))
    }

    async fn put(&self, request: Request<PbPutRequest>) -> Result<Response<PbPutResponse>, Status> {
        let (revision, _) = self.change(convert::put(request.into_inner())?).await?;
        Ok(Response::new(PbPutResponse { header: Some(self.header(revision)), prev_kv: None }))
    }

    async fn delete_range(&self, request: Request<PbDeleteRequest>) -> Result<Response<PbDeleteResponse>, Status> {
        let (revision, deleted) = self.change(convert::delete(request.into_inner())?).await?;
        let header = Some(self.header(revision));
        Ok(Response::new(PbDeleteResponse { header, deleted: count_of(deleted), prev_kvs: Vec::new() }))
    }

    async fn txn(&self, request: Request<PbTxnRequest>) -> Result<Response<PbTxnResponse>, Status> {
        let txn = convert::txn(request.into_inner())?;
        let deletes: Vec<bool> = txn.then.iter().map(|write| matches!(write, Write::Delete(_))).collect();
        let applied = self.store.apply(txn).await.map_err(|error| status::of(&error))?;
        let (revision, succeeded, responses): (_, _, Vec<PbTxnOpResponse>) = match applied {
            Applied::Succeeded { revision, deleted } => {
                let header = Some(self.header(revision));
                let answer = |(deletes, deleted): (bool, u64)| match deletes {
                    true => PbTxnOpResponse::ResponseDeleteRange(PbDeleteResponse {
                        header,
                        deleted: count_of(deleted),
                        prev_kvs: Vec::new(),
                    }),
                    false => PbTxnOpResponse::ResponsePut(PbPutResponse { header, prev_kv: None }),
                };
                (revision, true, deletes.into_iter().zip(deleted).map(answer).collect())
            }
            Applied::Failed { revision, found } => {
                let read = |ranged| PbTxnOpResponse::ResponseRange(self.read_in_txn(ranged));
                (revision, false, found.into_iter().map(read).collect())
            }
        };
        let responses = responses.into_iter().map(|response| PbResponseOp { response: Some(response) }).collect();
        Ok(Response::new(PbTxnResponse { header: Some(self.header(revision)), succeeded, responses }))
    }

    async fn compact(&self, request: Request<PbCompactionRequest>) -> Result<Response<PbCompactionResponse>, Status> {
        let revision = convert::unsigned(request.into_inner().revision);
        self.store.compact(revision).await.map_err(|error| status::of_revision(&error))?;
        Ok(Response::new(PbCompactionResponse { header: Some(self.header_now()) }))
    }
}
