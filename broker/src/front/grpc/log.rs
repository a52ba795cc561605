//! The service `millpond.v1.Log`: one method of `Broker` for each call.

use super::intake::Receipts;
use super::produce::{Admitted, Committed};
use super::status::{in_stream, status};
use super::{convert, fetch, produce, taken};
use crate::Broker;
use crate::api::{ApiError, Isolation, NewTopic, ProduceRequest, TopicDescription, TopicRef};
use crate::driven::driven;
use crate::telemetry::Parent;
use futures::StreamExt;
use futures::stream::BoxStream;
use millpond_log::{ErrorCode, LeaderEpoch};
use millpond_proto::v1;
use tokio_util::sync::CancellationToken;
use tonic::{Request, Response, Status, Streaming};
use tracing::Instrument;

/// Lookups of one `ListOffsets` that run at once. Each may read from object storage.
const LOOKUPS_AT_ONCE: usize = 16;

/// The service.
pub(super) struct LogService {
    broker: Broker,
    stop: CancellationToken,
}

impl LogService {
    pub(super) fn new(broker: Broker, stop: CancellationToken) -> LogService {
        LogService { broker, stop }
    }

    fn admit(&self) -> impl Fn(ProduceRequest) -> Admitted + Send + 'static {
        let broker = self.broker.clone();
        move |request| {
            let broker = broker.clone();
            Box::pin(async move { broker.produce(request).await.map(|committed| Box::pin(committed) as Committed) })
        }
    }

    /// As `admit`, for the requests of a stream, of which each is one in the eyes of an operator.
    fn admit_of_stream(&self, parent: Parent) -> impl Fn(ProduceRequest) -> Admitted + Send + 'static {
        let (broker, admit) = (self.broker.clone(), self.admit());
        move |request| {
            let span = taken::message(broker.metrics(), "Produce", &parent);
            let admitted = span.in_scope(|| admit(request)).instrument(span.clone());
            let admitted =
                async move { admitted.await.map(|committed| Box::pin(committed.instrument(span)) as Committed) };
            // The memory that it waits for is everybody's.
            Box::pin(driven(Box::pin(admitted)))
        }
    }

    /// A topic for a client's metadata, created if it may be.
    async fn topic(&self, topic: Option<v1::TopicRef>, create: bool) -> Result<TopicDescription, ApiError> {
        let topic = convert::topic_ref(topic)?;
        let missing = match self.broker.topic(&topic) {
            Err(error) if error.code == ErrorCode::UnknownTopicOrPartition => error,
            found => return found,
        };
        let TopicRef::Name(name) = &topic else { return Err(missing) };
        if !create || !self.broker.auto_create() {
            return Err(missing);
        }
        match self.broker.create_topic(NewTopic { name: name.clone(), ..NewTopic::default() }).await {
            // Somebody else was quicker.
            Err(error) if error.code == ErrorCode::TopicAlreadyExists => self.broker.topic(&topic),
            created => created.map(|made| made.topic),
        }
    }

    async fn lookup(&self, query: v1::OffsetQuery, isolation: Isolation) -> v1::OffsetResult {
        let find = async {
            let topic = convert::topic_ref(query.topic)?;
            let spec = convert::offset_spec(query.spec)?;
            let known = query.current_leader_epoch.map(LeaderEpoch);
            self.broker.list_offsets(&topic, query.partition, known, spec, isolation).await
        };
        convert::offset_result(find.await)
    }
}

#[tonic::async_trait]
impl v1::log_server::Log for LogService {
    type ProduceStream = BoxStream<'static, Result<v1::ProduceResponse, Status>>;
    type FetchStream = BoxStream<'static, Result<v1::FetchResponse, Status>>;

    async fn metadata(&self, request: Request<v1::MetadataRequest>) -> Result<Response<v1::MetadataResponse>, Status> {
        let v1::MetadataRequest { topics, allow_auto_create } = request.into_inner();
        let mut answers = Vec::with_capacity(topics.len());
        for topic in topics {
            let result = match self.topic(Some(topic), allow_auto_create).await {
                Ok(topic) => v1::topic_metadata::Result::Topic(convert::topic(topic)),
                Err(error) => v1::topic_metadata::Result::Error(in_stream(&error)),
            };
            answers.push(v1::TopicMetadata { result: Some(result) });
        }
        let cluster = self.broker.describe_cluster();
        Ok(Response::new(v1::MetadataResponse {
            cluster_id: cluster.id,
            controller: cluster.controller.map(|broker| broker.0),
            brokers: cluster.brokers.into_iter().map(convert::broker).collect(),
            topics: answers,
        }))
    }

    async fn produce(
        &self,
        request: Request<Streaming<v1::ProduceRequest>>,
    ) -> Result<Response<Self::ProduceStream>, Status> {
        let (receipts, parent) = (Receipts::of(&request), Parent::of(request.metadata().as_ref()));
        let requests = request.into_inner().map(move |message| message.map(|message| (message, receipts.take())));
        let answers = produce::answer(requests, self.admit_of_stream(parent), self.stop.clone());
        Ok(Response::new(answers.boxed()))
    }

    async fn produce_one(&self, request: Request<v1::ProduceRequest>) -> Result<Response<v1::Produced>, Status> {
        let arrived_bytes = Receipts::of(&request).next_bytes();
        let request = convert::produce_request(request.into_inner(), arrived_bytes).map_err(|error| status(&error))?;
        let produced = produce::one(request, self.admit()).await;
        produced.map(Response::new).map_err(|error| status(&error))
    }

    async fn fetch(
        &self,
        request: Request<Streaming<v1::FetchRequest>>,
    ) -> Result<Response<Self::FetchStream>, Status> {
        let (broker, parent) = (self.broker.clone(), Parent::of(request.metadata().as_ref()));
        let fetch = move |request| {
            let broker = broker.clone();
            let span = taken::message(broker.metrics(), "Fetch", &parent);
            let fetched = async move { broker.fetch_held(request).await }.instrument(span);
            // It waits for memory, and reads manifests that others wait for.
            Box::pin(driven(Box::pin(fetched))) as fetch::Fetched
        };
        let receipts = Receipts::of(&request);
        // A command is carried out at once, and takes no memory.
        let commands = request.into_inner().inspect(move |_| drop(receipts.take()));
        Ok(Response::new(fetch::push(commands, fetch, self.stop.clone()).boxed()))
    }

    async fn fetch_one(&self, request: Request<v1::FetchOneRequest>) -> Result<Response<v1::FetchOneResponse>, Status> {
        let request = convert::fetch_one(request.into_inner()).map_err(|error| status(&error))?;
        let fetched = self.broker.fetch(request).await.pop();
        let fetched = fetched.ok_or_else(|| ApiError::new(ErrorCode::UnknownServerError, "the read gave no answer"));
        fetched.and_then(convert::fetched_one).map(Response::new).map_err(|error| status(&error))
    }

    async fn list_offsets(
        &self,
        request: Request<v1::ListOffsetsRequest>,
    ) -> Result<Response<v1::ListOffsetsResponse>, Status> {
        let v1::ListOffsetsRequest { queries, isolation } = request.into_inner();
        let isolation = convert::isolation(isolation).map_err(|error| status(&error))?;
        let lookups = futures::stream::iter(queries).map(|query| self.lookup(query, isolation));
        let results = lookups.buffered(LOOKUPS_AT_ONCE).collect().await;
        Ok(Response::new(v1::ListOffsetsResponse { results }))
    }

    async fn init_producer(
        &self,
        _request: Request<v1::InitProducerRequest>,
    ) -> Result<Response<v1::InitProducerResponse>, Status> {
        let producer = self.broker.init_producer().await.map_err(|error| status(&error))?;
        let (producer_id, producer_epoch) = (producer.id.0, producer.epoch.0.into());
        Ok(Response::new(v1::InitProducerResponse { producer_id, producer_epoch }))
    }
}
