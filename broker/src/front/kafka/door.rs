//! From a decoded request to its handler, and from the handler's answer to a frame.

use super::connection::{Outcome, Service};
use super::refused::RefusedHere;
use super::request::{Api, Body, Request, RequestError};
use super::versions::ApiVersionsResponse;
use super::wire::{Frame, ToWire, Writer};
use super::{
    active_producers, configs, coordinator, describe, elections, epochs, fetch, groups, log_dirs, metadata, offsets,
    partitions, produce, producers, reassignments, topics, transactions,
};
use crate::Broker;
use crate::api::ApiError;
use crate::budget::Pool;
use crate::metrics;
use bytes::Buf;
use futures::FutureExt;
use futures::future::BoxFuture;
use groups::Turns;
use millpond_core::records::groups::Client;
use millpond_log::ErrorCode;
use std::net::SocketAddr;
use std::sync::Arc;
use tokio_util::sync::CancellationToken;
use tracing::Instrument;

/// Answers up to this size take no room: as many as a connection may have under way are a quarter of a MiB, and no heartbeat waits for
/// those who do not read.
const SMALL_ANSWER_BYTES: usize = 4 << 10;

/// The broker, behind the Kafka protocol, for one connection.
#[derive(Clone)]
pub(super) struct Door {
    broker: Broker,
    /// Name of the listener that the client came in by.
    listener: Arc<str>,
    /// Where the client is.
    peer: SocketAddr,
    /// Requests about groups are carried out one after the other.
    turns: Turns,
    /// The session of its fetches.
    sessions: fetch::Sessions,
    /// Batches that go before those that follow them.
    refused: RefusedHere,
    /// Cancelled once nothing more is read of the connection.
    hung_up: CancellationToken,
}

/// What an answer takes over from its request.
#[derive(Clone, Copy)]
struct Envelope {
    api: Api,
    version: i16,
    correlation_id: i32,
}

impl Envelope {
    fn seal(self, body: &impl ToWire) -> Frame {
        let Envelope { api, version, correlation_id } = self;
        let header = api.flexible_answer_header(version);
        let mut w = Writer::new(version, api.flexible(version), header, correlation_id);
        body.write(&mut w);
        w.finish()
    }
}

impl Door {
    pub(super) fn new(broker: Broker, listener: Arc<str>, peer: SocketAddr) -> Door {
        let (turns, sessions, refused, hung_up) = Default::default();
        Door { broker, listener, peer, turns, sessions, refused, hung_up }
    }

    /// Who asks, as groups note it of their members.
    fn client(&self, id: Option<&str>) -> Client {
        Client { id: id.unwrap_or_default().to_owned(), host: self.peer.ip().to_canonical().to_string() }
    }

    /// `bytes` is the size of the request's frame.
    async fn dispatch(
        &self,
        envelope: Envelope,
        client_id: Option<&str>,
        bytes: usize,
        body: Body,
    ) -> BoxFuture<'static, Outcome> {
        let (broker, listener) = (self.broker.clone(), Arc::clone(&self.listener));
        let version = envelope.version;
        // No catch-all: a request in the table without a handler does not build.
        match body {
            Body::Produce(request) => {
                let connection = produce::Connection { hung_up: &self.hung_up, refused: &self.refused };
                let settled = produce::begin(&broker, &listener, connection, version, bytes, request).await;
                let outcome = move |settled: Result<Option<produce::ProduceResponse>, ApiError>| match settled {
                    Ok(Some(answer)) => Outcome::Answer(envelope.seal(&answer)),
                    Ok(None) => Outcome::Silence,
                    Err(error) => Outcome::Close(error.to_string()),
                };
                settled.map(outcome).boxed()
            }
            Body::Fetch(request) => {
                let sessions = self.sessions.clone();
                async move {
                    let (body, held) = fetch::answer(&broker, &listener, version, request, &sessions).await;
                    Outcome::Answer(envelope.seal(&body).holding(held))
                }
                .boxed()
            }
            Body::ListOffsets(request) => {
                self.answer(envelope, async move { offsets::answer(&broker, version, request).await })
            }
            Body::OffsetForLeaderEpoch(request) => {
                self.answer(envelope, async move { epochs::answer(&broker, request) })
            }
            Body::Metadata(request) => {
                let lists = self.clone();
                async move {
                    let not_made = metadata::create_missing(&broker, version, &request).await;
                    let body = async move { metadata::answer(&broker, &listener, version, request, &not_made) };
                    lists.list(envelope, body).await
                }
                .boxed()
            }
            Body::FindCoordinator(request) => {
                self.answer(envelope, async move { coordinator::answer(&broker, &listener, version, request) })
            }
            Body::ApiVersions(request) => {
                tracing::debug!(
                    name = request.client_software_name,
                    version = request.client_software_version,
                    "client"
                );
                self.answer(envelope, std::future::ready(supported(None)))
            }
            Body::CreateTopics(request) => self.answer(envelope, async move { topics::create(&broker, request).await }),
            Body::DeleteTopics(request) => {
                self.answer(envelope, async move { topics::delete(&broker, version, request).await })
            }
            Body::CreatePartitions(request) => {
                self.answer(envelope, async move { partitions::create(&broker, request).await })
            }
            Body::DeleteRecords(request) => {
                self.answer(envelope, async move { partitions::delete_records(&broker, request).await })
            }
            Body::DescribeConfigs(request) => self.list(envelope, async move { configs::describe(&broker, request) }),
            Body::ListConfigResources(request) => {
                self.list(envelope, async move { configs::list(&broker, version, &request) })
            }
            Body::AlterConfigs(request) => {
                self.answer(envelope, async move { configs::replace(&broker, request).await })
            }
            Body::IncrementalAlterConfigs(request) => {
                self.answer(envelope, async move { configs::incremental(&broker, request).await })
            }
            Body::ElectLeaders(request) => {
                self.answer(envelope, async move { elections::answer(&broker, request).await })
            }
            Body::AlterPartitionReassignments(request) => {
                self.answer(envelope, async move { reassignments::alter(&broker, request).await })
            }
            Body::ListPartitionReassignments(request) => {
                self.list(envelope, async move { reassignments::list(&broker, request) })
            }
            Body::DescribeLogDirs(request) => {
                self.list(envelope, async move { log_dirs::answer(&broker, request).await })
            }
            Body::DescribeCluster(request) => {
                self.list(envelope, async move { describe::cluster(&broker, &listener, version, &request) })
            }
            Body::DescribeTopicPartitions(request) => {
                self.list(envelope, async move { describe::topic_partitions(&broker, request) })
            }
            Body::AddPartitionsToTxn(request) => {
                self.answer(envelope, async move { transactions::add_partitions(&broker, version, request).await })
            }
            Body::AddOffsetsToTxn(request) => {
                self.answer(envelope, async move { transactions::add_offsets(&broker, version, request).await })
            }
            Body::EndTxn(request) => {
                self.answer(envelope, async move { transactions::end(&broker, version, request).await })
            }
            Body::TxnOffsetCommit(request) => {
                let hung_up = self.hung_up.clone();
                self.answer(envelope, async move { transactions::commit(&broker, hung_up, version, request).await })
            }
            Body::WriteTxnMarkers(request) => {
                self.answer(envelope, async move { transactions::write_markers(&broker, request).await })
            }
            Body::DescribeTransactions(request) => {
                self.in_turn(envelope, async move { transactions::describe(&broker, request).await })
            }
            Body::ListTransactions(request) => {
                self.in_turn(envelope, async move { transactions::list(&broker, request).await })
            }
            Body::DescribeProducers(request) => {
                self.list(envelope, async move { active_producers::answer(&broker, request).await })
            }
            Body::InitProducerId(request) => {
                self.answer(envelope, async move { producers::answer(&broker, version, request).await })
            }
            Body::JoinGroup(request) => {
                let client = self.client(client_id);
                self.in_turn(envelope, async move { groups::join(&broker, version, client, request).await })
            }
            Body::SyncGroup(request) => {
                self.in_turn(envelope, async move { groups::sync(&broker, version, request).await })
            }
            Body::Heartbeat(request) => {
                self.in_turn(envelope, async move { groups::heartbeat(&broker, request).await })
            }
            Body::LeaveGroup(request) => {
                self.in_turn(envelope, async move { groups::leave(&broker, version, request).await })
            }
            Body::OffsetCommit(request) => {
                self.in_turn(envelope, async move { groups::commit(&broker, version, request).await })
            }
            Body::OffsetFetch(request) => {
                self.in_turn(envelope, async move { groups::fetch(&broker, version, request).await })
            }
            Body::OffsetDelete(request) => {
                self.in_turn(envelope, async move { groups::delete_offsets(&broker, request).await })
            }
            Body::ConsumerGroupHeartbeat(request) => {
                let client = self.client(client_id);
                self.in_turn(
                    envelope,
                    async move { groups::consumer_heartbeat(&broker, version, client, request).await },
                )
            }
            Body::DescribeGroups(request) => {
                self.in_turn(envelope, async move { groups::describe_groups(&broker, version, request).await })
            }
            Body::ConsumerGroupDescribe(request) => {
                self.in_turn(envelope, async move { groups::describe_consumer_groups(&broker, request).await })
            }
            Body::ListGroups(request) => self.in_turn(envelope, async move { groups::list(&broker, request).await }),
            Body::DeleteGroups(request) => {
                self.in_turn(envelope, async move { groups::delete_groups(&broker, request).await })
            }
        }
    }

    /// An answer that is worked on once those to earlier requests about groups are made.
    fn in_turn<T: ToWire + Send + 'static>(
        &self,
        envelope: Envelope,
        body: impl Future<Output = T> + Send + 'static,
    ) -> BoxFuture<'static, Outcome> {
        let answers = self.broker.inner().budget.answers.clone();
        // Until it has its room: so one answer of a connection waits for some, and no more.
        self.turns.take().run(async move { sealed(envelope, body.await, &answers).await }).map(Outcome::Answer).boxed()
    }

    /// An answer that is about as large as its request.
    fn answer<T: ToWire + Send + 'static>(
        &self,
        envelope: Envelope,
        body: impl Future<Output = T> + Send + 'static,
    ) -> BoxFuture<'static, Outcome> {
        let answers = self.broker.inner().budget.answers.clone();
        async move { Outcome::Answer(sealed(envelope, body.await, &answers).await) }.boxed()
    }

    /// An answer that may be far larger than its request, and whose making waits for nobody: few are made at once, of all connections.
    fn list<T: ToWire + Send + 'static>(
        &self,
        envelope: Envelope,
        body: impl Future<Output = T> + Send + 'static,
    ) -> BoxFuture<'static, Outcome> {
        let budget = self.broker.inner().budget.clone();
        async move {
            let _place = budget.lists.take(1).await;
            Outcome::Answer(sealed(envelope, body.await, &budget.answers).await)
        }
        .boxed()
    }
}

/// The answer as a frame that keeps room in `answers` until it was sent, waiting for it.
async fn sealed(envelope: Envelope, body: impl ToWire, answers: &Pool) -> Frame {
    let frame = envelope.seal(&body);
    drop(body);
    if frame.remaining() <= SMALL_ANSWER_BYTES {
        return frame;
    }
    let room = answers.take(frame.remaining()).await;
    frame.holding(room)
}

impl Service for Door {
    async fn begin(&self, request: Request) -> BoxFuture<'static, Outcome> {
        let Request { api, version, correlation_id, client_id, bytes, body } = request;
        self.broker.metrics().request(metrics::Door::Kafka, api.name());
        let span = tracing::debug_span!(
            "kafka",
            api = api.name(),
            version,
            correlation_id,
            client = client_id.as_deref(),
            otel.kind = "server"
        );
        let envelope = Envelope { api, version, correlation_id };
        let begun = self.dispatch(envelope, client_id.as_deref(), bytes, body).instrument(span.clone()).await;
        begun.instrument(span).boxed()
    }

    fn refuse(&self, error: &RequestError) -> Option<Frame> {
        let &RequestError::UnknownApiVersions { correlation_id, .. } = error else { return None };
        let envelope = Envelope { api: Api::ApiVersions, version: 0, correlation_id };
        Some(envelope.seal(&supported(Some(ErrorCode::UnsupportedVersion))))
    }

    fn hung_up(&self) {
        self.hung_up.cancel();
    }
}

fn supported(error: Option<ErrorCode>) -> ApiVersionsResponse {
    let error_code = error.map_or(0, ErrorCode::kafka);
    ApiVersionsResponse { error_code, api_keys: Api::advertised(), ..ApiVersionsResponse::with_features() }
}

#[cfg(test)]
mod tests;
