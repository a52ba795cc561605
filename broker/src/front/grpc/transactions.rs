//! The service `millpond.v1.Transactions`: each call is one request to the coordinator of a transactional id, or of a group.

use super::convert::topic_ref;
use super::groups::{commit, outcomes_of, partition, partitions_committed};
use super::status::{malformed, status};
use crate::Broker;
use crate::api::{ApiError, InTransaction, TransactionOffsets};
use crate::clock;
use crate::coordinators::Here;
use crate::hanging::Open;
use crate::partitions::open::OpenTransaction;
use millpond_core::coordinators::SHARDS;
use millpond_core::records::{ProducerInstance, TransactionRecord};
use millpond_log::transactions::TxnOutcome;
use millpond_log::{Offset, ProducerEpoch, ProducerId, TimestampMs};
use millpond_proto::v1;
use std::time::Duration;
use tokio_util::sync::CancellationToken;
use tonic::{Request, Response, Status};

/// How long a transaction may be ongoing unless the client says otherwise, in milliseconds: Kafka's default for
/// `transaction.timeout.ms`, one minute.
const TIMEOUT_DEFAULT_MS: u32 = 60_000;

/// The service.
pub(super) struct TransactionsService {
    broker: Broker,
}

impl TransactionsService {
    pub(super) fn new(broker: Broker) -> TransactionsService {
        TransactionsService { broker }
    }

    fn counted<T>(&self, api: &'static str, result: Result<T, ApiError>) -> Result<T, Status> {
        self.broker.counted(api, result).map_err(|error| status(&error))
    }
}

#[tonic::async_trait]
impl v1::transactions_server::Transactions for TransactionsService {
    async fn find_transaction_coordinator(
        &self,
        request: Request<v1::FindTransactionCoordinatorRequest>,
    ) -> Result<Response<v1::FindCoordinatorResponse>, Status> {
        let found = self.broker.transaction_coordinator(&request.into_inner().transactional_id);
        let found = self.counted("FindTransactionCoordinator", found)?;
        let (id, epoch, grpc) = (found.broker.id.0, found.epoch.0, found.broker.grpc);
        Ok(Response::new(v1::FindCoordinatorResponse { id, epoch, grpc }))
    }

    async fn init_transactions(
        &self,
        request: Request<v1::InitTransactionsRequest>,
    ) -> Result<Response<v1::InitTransactionsResponse>, Status> {
        let v1::InitTransactionsRequest { transactional_id, timeout_ms, expected } = request.into_inner();
        let timeout_ms = if timeout_ms == 0 { TIMEOUT_DEFAULT_MS } else { timeout_ms };
        // What does not fit is above what is allowed.
        let timeout_ms = i32::try_from(timeout_ms).unwrap_or(i32::MAX);
        let initialised = async {
            let expected = expected.map(|expected| instance(Some(expected))).transpose()?;
            self.broker.init_transactional(transactional_id, timeout_ms, expected).await
        };
        let producer = Some(producer(self.counted("InitTransactions", initialised.await)?));
        Ok(Response::new(v1::InitTransactionsResponse { producer }))
    }

    async fn commit_transaction_offsets(
        &self,
        request: Request<v1::CommitTransactionOffsetsRequest>,
    ) -> Result<Response<v1::CommitOffsetsResponse>, Status> {
        let v1::CommitTransactionOffsetsRequest { transactional_id, producer, offsets } = request.into_inner();
        let committed = async {
            let commit = commit(offsets.ok_or_else(|| malformed("`offsets` is missing"))?)?;
            let partitions = partitions_committed(&commit);
            let transaction = in_transaction(&transactional_id)?;
            let producer = instance(producer)?;
            let offsets = TransactionOffsets { transaction, producer, commit };
            let outcomes = self.broker.commit_offsets_in_transaction(offsets).await?;
            Ok(outcomes_of(&partitions, outcomes))
        };
        let outcomes = self.counted("CommitTransactionOffsets", committed.await)?;
        Ok(Response::new(v1::CommitOffsetsResponse { outcomes }))
    }

    async fn end_transaction(
        &self,
        request: Request<v1::EndTransactionRequest>,
    ) -> Result<Response<v1::EndTransactionResponse>, Status> {
        let v1::EndTransactionRequest { transactional_id, producer: asks, commit } = request.into_inner();
        let outcome = if commit { TxnOutcome::Commit } else { TxnOutcome::Abort };
        let ended = async {
            let (transaction, asks) = (in_transaction(&transactional_id)?, instance(asks)?);
            self.broker.end_transaction(transaction, asks, outcome).await
        };
        let producer = Some(producer(self.counted("EndTransaction", ended.await)?));
        Ok(Response::new(v1::EndTransactionResponse { producer }))
    }

    async fn list_transactions(
        &self,
        _request: Request<v1::ListTransactionsRequest>,
    ) -> Result<Response<v1::ListTransactionsResponse>, Status> {
        let listed = self.counted("ListTransactions", self.broker.list_transactions_here().await)?;
        let Here { shards, found } = listed;
        let transactions = found.into_iter().map(|(id, record)| transaction(id, record)).collect();
        Ok(Response::new(v1::ListTransactionsResponse { transactions, shards, shards_total: SHARDS }))
    }

    async fn describe_transaction(
        &self,
        request: Request<v1::DescribeTransactionRequest>,
    ) -> Result<Response<v1::DescribeTransactionResponse>, Status> {
        let id = request.into_inner().transactional_id;
        let record = self.counted("DescribeTransaction", self.broker.describe_transaction(id.clone()).await)?;
        Ok(Response::new(v1::DescribeTransactionResponse { transaction: Some(transaction(id, record)) }))
    }

    async fn abort_transaction(
        &self,
        request: Request<v1::AbortTransactionRequest>,
    ) -> Result<Response<v1::AbortTransactionResponse>, Status> {
        let id = request.into_inner().transactional_id;
        self.counted("AbortTransaction", self.broker.terminate_transaction(id).await)?;
        Ok(Response::new(v1::AbortTransactionResponse {}))
    }

    async fn list_open_transactions(
        &self,
        request: Request<v1::ListOpenTransactionsRequest>,
    ) -> Result<Response<v1::ListOpenTransactionsResponse>, Status> {
        let v1::ListOpenTransactionsRequest { topic, partition, idle_ms } = request.into_inner();
        let listed = async {
            let topic = topic.map(|topic| topic_ref(Some(topic))).transpose()?;
            if topic.is_none() && partition.is_some() {
                return Err(malformed("`partition` is given without `topic`"));
            }
            self.broker.open_transactions(topic, partition, Duration::from_millis(idle_ms)).await
        };
        let Open { transactions, more } = self.counted("ListOpenTransactions", listed.await)?;
        let transactions = transactions.into_iter().map(open).collect();
        Ok(Response::new(v1::ListOpenTransactionsResponse { transactions, more }))
    }

    async fn abort_open_transaction(
        &self,
        request: Request<v1::AbortOpenTransactionRequest>,
    ) -> Result<Response<v1::AbortOpenTransactionResponse>, Status> {
        let v1::AbortOpenTransactionRequest { topic, partition, producer, first } = request.into_inner();
        let aborted = async {
            let (topic, producer) = (topic_ref(topic)?, instance(producer)?);
            self.broker.abort_open_transaction(&topic, partition, producer, Offset(first)).await
        };
        self.counted("AbortOpenTransaction", aborted.await)?;
        Ok(Response::new(v1::AbortOpenTransactionResponse {}))
    }
}

fn in_transaction(id: &str) -> Result<InTransaction, ApiError> {
    match id {
        "" => Err(malformed("`transactional_id` is missing")),
        id => Ok(InTransaction { id: id.into(), epoch_per_transaction: true, hung_up: CancellationToken::new() }),
    }
}

fn instance(producer: Option<v1::Producer>) -> Result<ProducerInstance, ApiError> {
    let v1::Producer { id, epoch } =
        producer.ok_or_else(|| malformed("`producer` is missing: name its id and epoch"))?;
    let epoch =
        u16::try_from(epoch).map_err(|_| malformed(format!("`producer.epoch` is {epoch}; it ends at 32767")))?;
    Ok(ProducerInstance { id: ProducerId(id), epoch: ProducerEpoch(epoch) })
}

fn producer(instance: ProducerInstance) -> v1::Producer {
    v1::Producer { id: instance.id.0, epoch: instance.epoch.0.into() }
}

/// Milliseconds since then, by the wall clock; 0 for what is to come.
fn since(then: TimestampMs) -> u64 {
    u64::try_from(clock::wall().0.saturating_sub(then.0)).unwrap_or(0)
}

fn open((topic, found): (String, OpenTransaction)) -> v1::OpenTransaction {
    let OpenTransaction { partition: id, producer: who, first, written } = found;
    v1::OpenTransaction {
        partition: Some(partition(id)),
        topic,
        producer: Some(producer(who)),
        first: first.0,
        written_ms: written.0,
        idle_ms: since(written),
    }
}

fn transaction(transactional_id: String, record: TransactionRecord) -> v1::Transaction {
    v1::Transaction {
        transactional_id,
        state: record.state.name().to_owned(),
        producer: Some(producer(record.producer)),
        timeout_ms: record.timeout_ms,
        started_ms: record.started.map(|at| at.0),
        open_ms: record.started.map(since),
        changed_ms: record.changed.0,
        partitions: record.partition_ids().map(partition).collect(),
        groups: record.groups.into_iter().collect(),
    }
}
