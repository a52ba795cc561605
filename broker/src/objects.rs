//! The object store, with every request to it counted and timed, whoever makes it. It changes nothing about any of them.

use crate::clock;
use crate::metrics::ObjectMeters;
use async_trait::async_trait;
use bytes::Bytes;
use futures::stream::BoxStream;
use futures::{FutureExt, StreamExt};
use object_store::path::Path;
use object_store::{
    CopyOptions, Error, GetOptions, GetResult, GetResultPayload, ListResult, MultipartUpload, ObjectMeta, ObjectStore,
    PutMultipartOptions, PutOptions, PutPayload, PutResult, Result, UploadPart,
};
use std::ops::Range;
use std::sync::Arc;

/// An object store that counts.
#[derive(Debug)]
pub(crate) struct Counted {
    inner: Arc<dyn ObjectStore>,
    meters: ObjectMeters,
}

impl Counted {
    pub(crate) fn new(inner: Arc<dyn ObjectStore>, meters: ObjectMeters) -> Counted {
        Counted { inner, meters }
    }
}

impl std::fmt::Display for Counted {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.inner.fmt(f)
    }
}

/// The word for how a request ended. A request that throttling or the network ended is an `error` like others: the store's
/// client does not tell them apart.
fn outcome<T>(result: &Result<T>) -> &'static str {
    match result {
        Ok(_) => "ok",
        Err(Error::NotFound { .. }) => "not_found",
        Err(Error::PermissionDenied { .. } | Error::Unauthenticated { .. }) => "denied",
        Err(_) => "error",
    }
}

/// Counts and times one request.
async fn counted<T>(
    meters: &ObjectMeters,
    operation: &'static str,
    request: impl Future<Output = Result<T>>,
) -> Result<T> {
    let begun = clock::monotonic();
    let result = request.await;
    meters.answered(operation, outcome(&result), Some(clock::monotonic() - begun));
    result
}

#[async_trait]
impl ObjectStore for Counted {
    async fn put_opts(&self, location: &Path, payload: PutPayload, options: PutOptions) -> Result<PutResult> {
        let size = payload.content_length() as u64;
        let put = counted(&self.meters, "put", self.inner.put_opts(location, payload, options)).await?;
        self.meters.written(size);
        Ok(put)
    }

    async fn put_multipart_opts(
        &self,
        location: &Path,
        options: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        let inner = counted(&self.meters, "begin_parts", self.inner.put_multipart_opts(location, options)).await?;
        Ok(Box::new(CountedParts { inner, meters: self.meters.clone() }))
    }

    async fn get_opts(&self, location: &Path, options: GetOptions) -> Result<GetResult> {
        let operation = if options.head { "head" } else { "get" };
        let head = options.head;
        let mut got = counted(&self.meters, operation, self.inner.get_opts(location, options)).await?;
        if !head {
            got.payload = match got.payload {
                file @ GetResultPayload::File(..) => {
                    // Read where it lies, by whoever asked.
                    self.meters.read(got.range.end - got.range.start);
                    file
                }
                GetResultPayload::Stream(body) => GetResultPayload::Stream(self.body(body)),
            };
        }
        Ok(got)
    }

    async fn get_ranges(&self, location: &Path, ranges: &[Range<u64>]) -> Result<Vec<Bytes>> {
        let got = counted(&self.meters, "get", self.inner.get_ranges(location, ranges)).await?;
        self.meters.read(got.iter().map(|bytes| bytes.len() as u64).sum());
        Ok(got)
    }

    fn delete_stream(&self, locations: BoxStream<'static, Result<Path>>) -> BoxStream<'static, Result<Path>> {
        let meters = self.meters.clone();
        let deleted = self.inner.delete_stream(locations);
        deleted.inspect(move |result| meters.answered("delete", outcome(result), None)).boxed()
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        let mut listing = Listing { meters: self.meters.clone(), outcome: "ok" };
        self.inner.list(prefix).inspect(move |result| listing.note(result)).boxed()
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        counted(&self.meters, "list", self.inner.list_with_delimiter(prefix)).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        counted(&self.meters, "copy", self.inner.copy_opts(from, to, options)).await
    }
}

impl Counted {
    /// A body that counts its bytes, and as one more failed GET that it broke off.
    fn body(&self, body: BoxStream<'static, Result<Bytes>>) -> BoxStream<'static, Result<Bytes>> {
        let meters = self.meters.clone();
        body.inspect(move |chunk| match chunk {
            Ok(chunk) => meters.read(chunk.len() as u64),
            Err(_) => meters.answered("get_body", outcome(chunk), None),
        })
        .boxed()
    }
}

/// A listing under way, counted when it is over.
struct Listing {
    meters: ObjectMeters,
    outcome: &'static str,
}

impl Listing {
    fn note(&mut self, result: &Result<ObjectMeta>) {
        if result.is_err() {
            self.outcome = outcome(result);
        }
    }
}

impl Drop for Listing {
    fn drop(&mut self) {
        self.meters.answered("list", self.outcome, None);
    }
}

/// An upload in parts.
#[derive(Debug)]
struct CountedParts {
    inner: Box<dyn MultipartUpload>,
    meters: ObjectMeters,
}

#[async_trait]
impl MultipartUpload for CountedParts {
    fn put_part(&mut self, payload: PutPayload) -> UploadPart {
        let (size, meters) = (payload.content_length() as u64, self.meters.clone());
        let part = self.inner.put_part(payload);
        async move {
            counted(&meters, "put_part", part).await?;
            meters.written(size);
            Ok(())
        }
        .boxed()
    }

    async fn complete(&mut self) -> Result<PutResult> {
        counted(&self.meters, "complete_parts", self.inner.complete()).await
    }

    async fn abort(&mut self) -> Result<()> {
        counted(&self.meters, "abort_parts", self.inner.abort()).await
    }
}
