//! A producer of transactions: records of several partitions, and offsets of groups, that become visible whole or not at all.
//!
//! It holds one transaction at a time and checks what may follow what; the outcome is the coordinator's to decide.

use crate::admin::Admin;
use crate::client::{Client, answer};
use crate::coordinator::Coordinator;
use crate::error::Error;
use crate::producer::{Delivery, Identity, Producer, ProducerConfig};
use crate::record::CommitOffset;
use crate::record::{ProducerRecord, TopicPartition};
use millpond_log::{ErrorCode, ProducerEpoch, ProducerId, TopicId};
use millpond_proto::v1;
use millpond_proto::v1::transactions_client::TransactionsClient;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

/// How a producer of transactions behaves.
#[derive(Clone, Debug)]
pub struct TransactionalConfig {
    /// Names the producer over its restarts: a new one of the same id fences the one before. `transactional.id`.
    pub transactional_id: String,
    /// How long a transaction may be open before the cluster aborts it. At most 15 minutes. `transaction.timeout.ms`.
    pub timeout: Duration,
    /// How its records are written. Idempotent, with `Acks::All`.
    pub producer: ProducerConfig,
}

impl TransactionalConfig {
    /// The defaults, for this id.
    #[must_use]
    pub fn new(transactional_id: &str) -> TransactionalConfig {
        let transactional_id = transactional_id.to_owned();
        TransactionalConfig { transactional_id, timeout: Duration::from_secs(60), producer: ProducerConfig::default() }
    }
}

/// Who commits offsets inside a transaction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OffsetsOf {
    /// The group.
    pub group: String,
    /// The member that has read, and its epoch; none for a consumer that is no member.
    pub member: Option<(String, i32)>,
}

/// Writes records in transactions.
///
/// Each call says in its error whether it may be made again (`retriable`). Any other failure inside a transaction is answered by
/// `abort`, and one that `needs_new_producer` by making another producer.
#[derive(Debug)]
pub struct TransactionalProducer {
    client: Client,
    config: TransactionalConfig,
    id: Arc<str>,
    coordinator: Coordinator,
    identity: Identity,
    state: State,
    topics: BTreeMap<String, TopicId>,
    /// The coordinators of groups whose offsets were sent.
    groups: BTreeMap<String, Coordinator>,
}

/// What may be called.
#[derive(Debug)]
enum State {
    /// `begin`.
    Ready,
    /// Everything but `begin`.
    Open(Open),
    /// The same end again: it is not known whether it was heard, or it could not be done yet.
    Ending {
        commit: bool,
        /// Whether it may have been done, for all that was answered so far.
        in_doubt: bool,
    },
    /// Nothing.
    Over(Error),
}

/// A transaction that is open.
#[derive(Debug)]
struct Open {
    producer: Producer,
    /// Whether anything may belong to it yet.
    begun: bool,
    /// Offsets that may belong to it or not, since no answer said so: their groups and partitions.
    in_doubt: BTreeSet<(String, TopicPartition)>,
    /// Why it can only be aborted.
    failed: Option<Error>,
}

impl TransactionalProducer {
    /// Becomes the producer of its transactional id. Whoever was is fenced, and its transaction is aborted: this waits for that. Must be
    /// called inside a Tokio runtime.
    ///
    /// # Errors
    /// `InvalidConfig` when the settings contradict each other; `InvalidTransactionTimeout`.
    pub async fn new(client: &Client, config: TransactionalConfig) -> Result<TransactionalProducer, Error> {
        if config.producer.acks != crate::Acks::All || config.producer.idempotence == Some(false) {
            let message = "transactions need acks=all and idempotence; leave both at their defaults";
            return Err(Error::new(ErrorCode::InvalidConfig, message));
        }
        let request = v1::InitTransactionsRequest {
            transactional_id: config.transactional_id.clone(),
            timeout_ms: u32::try_from(config.timeout.as_millis()).unwrap_or(u32::MAX),
            expected: None,
        };
        let id: Arc<str> = config.transactional_id.as_str().into();
        let coordinator = Coordinator::of_transactional_id(client, &id);
        let told = coordinator.ask(|mut transactions: TransactionsClient<_>| {
            let request = request.clone();
            async move { answer(transactions.init_transactions(request).await) }
        });
        let identity = identity(told.await?.producer)?;
        let (client, topics, groups) = (client.clone(), BTreeMap::new(), BTreeMap::new());
        Ok(TransactionalProducer { client, config, id, coordinator, identity, state: State::Ready, topics, groups })
    }

    /// Begins a transaction.
    ///
    /// # Errors
    /// `InvalidTxnState`: one is open, or its end is not known.
    pub fn begin(&mut self) -> Result<(), Error> {
        match &self.state {
            State::Ready => {
                let (config, id) = (self.config.producer.clone(), Arc::clone(&self.id));
                let producer = Producer::of_transaction(&self.client, config, id, self.identity)?;
                self.state = State::Open(Open { producer, begun: false, in_doubt: BTreeSet::new(), failed: None });
                Ok(())
            }
            State::Open(_) => Err(state("a transaction is open; commit or abort it first")),
            State::Ending { .. } => {
                Err(state("the last transaction is not known to have ended; call the same end again"))
            }
            State::Over(error) => Err(error.clone()),
        }
    }

    /// Takes a record into the transaction, and returns the future of its delivery. `commit` waits for all of them.
    ///
    /// # Errors
    /// As `Producer::send`. What was taken and cannot be written is told by the delivery, and by `commit`.
    pub async fn send(&mut self, record: ProducerRecord) -> Result<Delivery, Error> {
        let Open { producer, begun, failed, .. } = self.open()?;
        let delivery = producer.send(record).await.inspect_err(|error| *failed = Some(error.clone()))?;
        *begun = true;
        Ok(delivery)
    }

    /// Lets offsets of a group be part of the transaction: of each partition where the group goes on, an `Offset` or a `CommitOffset`, which
    /// has the leader epoch and metadata too.
    ///
    /// If the future is dropped, they may be part of it or not: send them again, or abort.
    ///
    /// # Errors
    /// What the coordinators say; then the transaction can only be aborted, unless the error is `retriable`: then send them again.
    pub async fn send_offsets<O>(&mut self, of: &OffsetsOf, offsets: &[(TopicPartition, O)]) -> Result<(), Error>
    where
        O: Clone + Into<CommitOffset>,
    {
        let offsets: Vec<(TopicPartition, CommitOffset)> =
            offsets.iter().map(|(at, offset)| (at.clone(), offset.clone().into())).collect();
        let sent = || offsets.iter().map(|(at, _)| (of.group.clone(), at.clone()));
        let Open { begun, in_doubt, .. } = self.open()?;
        // Before anything is sent: whoever drops the future does not hear what has arrived.
        *begun = true;
        in_doubt.extend(sent());
        let committed = self.commit_offsets(of, &offsets).await;
        let Open { in_doubt, failed, .. } = self.open()?;
        match &committed {
            Ok(()) => {
                let known: BTreeSet<(String, TopicPartition)> = sent().collect();
                in_doubt.retain(|offset| !known.contains(offset));
            }
            Err(error) if !error.retriable => *failed = Some(error.clone()),
            Err(_) => {}
        }
        committed
    }

    /// Commits the transaction: waits until all its records are written, and has it decided. Once this returns, readers of committed
    /// records will see all of it.
    ///
    /// If the future is dropped, it may be committed or not: call `commit` again.
    ///
    /// # Errors
    /// Nothing of it was committed, and `abort` is due, unless the error is `retriable` or `maybe_done`. If `retriable`, call `commit`
    /// again. If only `maybe_done`, it may be committed or not, and nobody will tell this producer: another took over its id before an
    /// answer came. After `needs_new_producer` make a new producer. `InvalidTxnState` also if it is not known whether offsets that were sent
    /// are part of it: it may be committed once they were sent again.
    pub async fn commit(&mut self) -> Result<(), Error> {
        self.end(true).await
    }

    /// Aborts the transaction: nothing of it will be seen by readers of committed records.
    ///
    /// # Errors
    /// `retriable`: call `abort` again. After `needs_new_producer` the transaction is aborted all the same, unless `commit` was called
    /// before and its error was `maybe_done`: then this one's is, too.
    pub async fn abort(&mut self) -> Result<(), Error> {
        self.end(false).await
    }

    fn open(&mut self) -> Result<&mut Open, Error> {
        match &mut self.state {
            State::Open(Open { failed: Some(error), .. }) => Err(error.clone().given_up()),
            State::Open(open) => Ok(open),
            State::Ready => Err(state("no transaction is open; begin one first")),
            State::Ending { .. } => Err(state("the transaction is being ended")),
            State::Over(error) => Err(error.clone()),
        }
    }

    async fn end(&mut self, commit: bool) -> Result<(), Error> {
        match &mut self.state {
            State::Ready => return Err(state("no transaction is open; begin one first")),
            State::Over(error) => return Err(error.clone()),
            State::Ending { commit: before, .. } if *before != commit => {
                return Err(state("the other outcome was asked for, and may be decided; ask for that again"));
            }
            State::Ending { .. } => {}
            State::Open(Open { producer, begun, in_doubt, failed }) => {
                if commit {
                    if let (Some((group, at)), None) = (in_doubt.first(), &failed) {
                        return Err(state(&format!(
                            "the offset of {at} in group `{group}` may be part of the transaction or not; send it again, or abort"
                        )));
                    }
                    let settled = producer.settle().await;
                    if let Some(error) = failed.clone().or(settled.err()) {
                        *failed = Some(error.clone());
                        // A record may be written; the commit was not asked for.
                        return Err(Error { maybe_done: false, ..error.given_up() });
                    }
                } else {
                    // What is not written yet is not wanted; what is in flight is fenced by the end.
                    producer.abort();
                }
                if !*begun {
                    self.state = State::Ready;
                    return Ok(());
                }
                self.state = State::Ending { commit, in_doubt: false };
            }
        }
        let State::Ending { in_doubt, .. } = &mut self.state else { unreachable!("all others have returned") };
        // From now on, for whoever drops the future.
        let was_in_doubt = std::mem::replace(in_doubt, true);
        let Identity { id, epoch } = self.identity;
        let request = v1::EndTransactionRequest {
            transactional_id: self.config.transactional_id.clone(),
            producer: Some(v1::Producer { id: id.0, epoch: epoch.0.into() }),
            commit,
        };
        let ended = self.coordinator.ask(|mut transactions: TransactionsClient<_>| {
            let request = request.clone();
            async move { answer(transactions.end_transaction(request).await) }
        });
        match ended.await.and_then(|told| identity(told.producer)) {
            Ok(identity) => {
                (self.identity, self.state) = (identity, State::Ready);
                Ok(())
            }
            Err(error) => {
                // Not known, or not yet: the same end settles it. But whoever was replaced is told nothing else.
                let retriable = error.retriable || (error.maybe_done && !error.needs_new_producer());
                // What was refused now may have been done by an earlier call, of which no answer came.
                let in_doubt = was_in_doubt || error.maybe_done;
                let error = Error { retriable, maybe_done: in_doubt, ..error };
                self.state = match retriable {
                    true => State::Ending { commit, in_doubt },
                    false => State::Over(error.clone()),
                };
                Err(error)
            }
        }
    }

    async fn commit_offsets(
        &mut self,
        of: &OffsetsOf,
        offsets: &[(TopicPartition, CommitOffset)],
    ) -> Result<(), Error> {
        let mut to_commit = Vec::new();
        for (at, CommitOffset { offset, leader_epoch, metadata }) in offsets {
            let topic_id = self.topic_id(&at.topic).await?.to_string();
            let partition = Some(v1::GroupPartition { topic_id, partition: at.partition });
            let (leader_epoch, metadata) = (leader_epoch.map(|epoch| epoch.0), metadata.clone());
            to_commit.push(v1::OffsetToCommit { partition, offset: offset.0, leader_epoch, metadata });
        }
        let (member, epoch) = of.member.clone().unwrap_or((String::new(), -1));
        let group = of.group.clone();
        let offsets =
            v1::CommitOffsetsRequest { group, member, epoch, instance: None, offsets: to_commit, number: None };
        let Identity { id, epoch } = self.identity;
        let request = v1::CommitTransactionOffsetsRequest {
            transactional_id: self.config.transactional_id.clone(),
            producer: Some(v1::Producer { id: id.0, epoch: epoch.0.into() }),
            offsets: Some(offsets),
        };
        let fresh = || Coordinator::of_group(&self.client, &of.group);
        let coordinator = self.groups.entry(of.group.clone()).or_insert_with(fresh);
        let call = |mut transactions: TransactionsClient<_>| {
            let request = request.clone();
            async move { answer(transactions.commit_transaction_offsets(request).await) }
        };
        let committed = coordinator.ask(call).await?;
        let refused = committed.outcomes.iter().find(|outcome| !outcome.error.is_empty());
        refused.map_or(Ok(()), |outcome| {
            let code = ErrorCode::from_name(&outcome.error).unwrap_or(ErrorCode::UnknownServerError);
            if matches!(code, ErrorCode::UnknownTopicOrPartition | ErrorCode::UnknownTopicId) {
                // A topic that was made anew has another id: it is asked for again.
                self.topics.clear();
            }
            let place = outcome.partition.clone().unwrap_or_default();
            let message = format!("offset of partition {} of {}: {}", place.partition, place.topic_id, outcome.error);
            Err(Error::new(code, message))
        })
    }

    async fn topic_id(&mut self, topic: &str) -> Result<TopicId, Error> {
        if let Some(id) = self.topics.get(topic) {
            return Ok(*id);
        }
        let id = Admin::new(&self.client).describe_topic(topic).await?.id;
        self.topics.insert(topic.to_owned(), id);
        Ok(id)
    }
}

fn state(message: &str) -> Error {
    Error::new(ErrorCode::InvalidTxnState, message)
}

fn identity(producer: Option<v1::Producer>) -> Result<Identity, Error> {
    let told = producer.and_then(|told| Some((told.id, u16::try_from(told.epoch).ok()?)));
    let (id, epoch) = told.ok_or_else(|| {
        Error::new(ErrorCode::UnknownServerError, "the broker gave no producer id, or an impossible epoch")
    })?;
    Ok(Identity { id: ProducerId(id), epoch: ProducerEpoch(epoch) })
}
