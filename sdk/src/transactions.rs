//! Transactions, for operators and tools: what their coordinators know, what is open in partitions, and what hangs.

use crate::admin::Admin;
use crate::client::answer;
use crate::coordinator::{Coordinator, Service};
use crate::error::Error;
use crate::record::TopicPartition;
use crate::shards::{OfShards, of_every_shard};
use millpond_log::{ErrorCode, Offset, TimestampMs, TopicId};
use millpond_proto::v1;
use millpond_proto::v1::transactions_client::TransactionsClient;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use tokio::time::Instant;

/// A transactional id, and where its newest transaction stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TransactionDescription {
    /// The transactional id.
    pub transactional_id: String,
    /// Kafka's name: `Empty`, `Ongoing`, `PrepareCommit`, `PrepareAbort`, `CompleteCommit` or `CompleteAbort`.
    pub state: String,
    /// Id of its producer.
    pub producer_id: u64,
    /// Epoch of its producer.
    pub producer_epoch: u32,
    /// How long a transaction of it may be under way.
    pub timeout: Duration,
    /// When the one that is under way began, if one is.
    pub started: Option<TimestampMs>,
    /// For how long it has been under way, as its coordinator reads the clock.
    pub open: Option<Duration>,
    /// When the state changed last.
    pub changed: TimestampMs,
    /// The partitions that belong to it, while it is under way.
    pub partitions: Vec<TransactionPartition>,
    /// The groups whose offsets belong to it, while it is under way.
    pub groups: Vec<String>,
}

/// A partition of a transaction.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct TransactionPartition {
    /// Name of its topic; `None` if that was deleted.
    pub topic: Option<String>,
    /// Id of its topic.
    pub topic_id: TopicId,
    /// Its index.
    pub partition: u32,
}

/// Where open transactions are looked for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OpenIn {
    /// In this topic; in all if `None`.
    pub topic: Option<String>,
    /// In this partition of it; in all if `None`.
    pub partition: Option<u32>,
}

/// What a transaction has open in one partition, as its leader knows.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct OpenTransaction {
    /// Name of the topic.
    pub topic: String,
    /// Id of the topic.
    pub topic_id: TopicId,
    /// The partition.
    pub partition: u32,
    /// First offset of it: readers of committed records do not pass this.
    pub first: Offset,
    /// Id of the producer that writes it.
    pub producer_id: u64,
    /// Epoch of that.
    pub producer_epoch: u32,
    /// When its newest record was written.
    pub written: TimestampMs,
    /// For how long nothing was written since, as the leader reads the clock.
    pub idle: Duration,
}

/// What is open in a partition and has no coordinator that would ever end it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HangingTransaction {
    /// What is open.
    pub open: OpenTransaction,
    /// The transactional id of its producer, if a coordinator still knows one.
    pub transactional_id: Option<String>,
}

impl Admin {
    /// The transactional ids of all coordinators, in order of id.
    ///
    /// # Errors
    /// If some coordinator does not answer for long: the list would not be whole.
    pub async fn list_transactions(&self) -> Result<Vec<TransactionDescription>, Error> {
        let call = |channel| async move {
            let told =
                answer(TransactionsClient::over(channel).list_transactions(v1::ListTransactionsRequest {}).await)?;
            let v1::ListTransactionsResponse { transactions, shards, shards_total } = told;
            Ok(OfShards { found: transactions, shards, total: shards_total })
        };
        let listed = of_every_shard(self, call).await?;
        let by_id: BTreeMap<String, v1::Transaction> =
            listed.into_iter().map(|one| (one.transactional_id.clone(), one)).collect();
        self.described(by_id.into_values().collect()).await
    }

    /// Describes a transactional id.
    ///
    /// # Errors
    /// `TransactionalIdNotFound`.
    pub async fn describe_transaction(&self, transactional_id: &str) -> Result<TransactionDescription, Error> {
        let call = |mut transactions: TransactionsClient<_>| async move {
            let request = v1::DescribeTransactionRequest { transactional_id: transactional_id.to_owned() };
            answer(transactions.describe_transaction(request).await)
        };
        let told = Coordinator::of_transactional_id(&self.client, transactional_id).ask(call).await?;
        let described = self.described(told.transaction.into_iter().collect()).await?.pop();
        described
            .ok_or_else(|| Error::new(ErrorCode::UnknownServerError, "the broker answered without the transaction"))
    }

    /// Aborts what is ongoing of a transactional id, and fences its producer.
    ///
    /// # Errors
    /// `TransactionalIdNotFound`. `ConcurrentTransactions`: it is being ended.
    pub async fn abort_transaction(&self, transactional_id: &str) -> Result<(), Error> {
        let call = |mut transactions: TransactionsClient<_>| async move {
            let request = v1::AbortTransactionRequest { transactional_id: transactional_id.to_owned() };
            answer(transactions.abort_transaction(request).await)
        };
        Coordinator::of_transactional_id(&self.client, transactional_id).ask(call).await.map(|_| ())
    }

    /// What transactions have open in partitions, and was not written to for `idle`; in order of topic, partition and offset. Partitions without a
    /// leader are not looked at.
    ///
    /// # Errors
    /// `UnknownTopicOrPartition`. If a broker does not answer. `InvalidRequest`: more than 10 000 are open on one broker.
    pub async fn open_transactions(&self, place: &OpenIn, idle: Duration) -> Result<Vec<OpenTransaction>, Error> {
        let request = v1::ListOpenTransactionsRequest {
            topic: place.topic.as_deref().map(v1::TopicRef::name),
            partition: place.partition,
            idle_ms: u64::try_from(idle.as_millis()).unwrap_or(u64::MAX),
        };
        let mut open = BTreeSet::new();
        for broker in self.describe_cluster().await?.brokers {
            let call = |channel| {
                let request = request.clone();
                async move { answer(TransactionsClient::over(channel).list_open_transactions(request).await) }
            };
            let told = self.client.call_once(broker.grpc, call).await?;
            if told.more {
                let message = format!("broker {} has more than 10 000 open transactions; name a topic", broker.id);
                return Err(Error::new(ErrorCode::InvalidRequest, message));
            }
            for transaction in told.transactions {
                open.insert(OpenTransaction::try_from(transaction)?);
            }
        }
        Ok(open.into_iter().collect())
    }

    /// Transactions that hang: open in a partition, not written to for `idle`, and unknown to every coordinator as a part of what is under way.
    /// Nothing will end them, and readers of committed records wait there. In order of topic, partition and offset.
    ///
    /// # Errors
    /// As `open_transactions` and `list_transactions`.
    pub async fn hanging_transactions(&self, place: &OpenIn, idle: Duration) -> Result<Vec<HangingTransaction>, Error> {
        let before = self.open_transactions(place, idle).await?;
        if before.is_empty() {
            return Ok(Vec::new());
        }
        let known = self.list_transactions().await?;
        // What ended between the two was not known to its coordinator any more either.
        let still: BTreeSet<Place> =
            self.open_transactions(place, Duration::ZERO).await?.iter().map(Place::of).collect();
        Ok(hanging(before, &known, &still))
    }

    /// Aborts a transaction that hangs, in the one partition where it was found.
    ///
    /// # Errors
    /// `InvalidTxnState`: nothing that begins there hangs: it has ended, or its coordinator has it under way and would be contradicted.
    pub async fn abort_hanging_transaction(&self, at: &TopicPartition, first: Offset) -> Result<(), Error> {
        let place = OpenIn { topic: Some(at.topic.to_string()), partition: Some(at.partition) };
        let found = self.open_transactions(&place, Duration::ZERO).await?;
        let Some(open) = found.into_iter().find(|open| open.first == first) else {
            let message = format!("no transaction that begins at offset {first} is open in {at}");
            return Err(Error::new(ErrorCode::InvalidTxnState, message));
        };
        let known = self.list_transactions().await?;
        if let Some(owner) = known.iter().find(|known| tracks(known, &open)) {
            let message = format!(
                "what begins at offset {first} in {at} belongs to the transaction that `{}` has under way; abort that by its id",
                owner.transactional_id
            );
            return Err(Error::new(ErrorCode::InvalidTxnState, message));
        }
        let request = v1::AbortOpenTransactionRequest {
            topic: Some(v1::TopicRef::name(at.topic.as_ref())),
            partition: at.partition,
            producer: Some(v1::Producer { id: open.producer_id, epoch: open.producer_epoch }),
            first: first.0,
        };
        let call = |channel| {
            let request = request.clone();
            async move { answer(TransactionsClient::over(channel).abort_open_transaction(request).await) }
        };
        self.client.call_leader(&at.topic, at.partition, call).await.map(|_| ())
    }

    /// Puts names to the topics.
    async fn described(&self, told: Vec<v1::Transaction>) -> Result<Vec<TransactionDescription>, Error> {
        let all = told.iter().flat_map(|one| &one.partitions);
        let ids = all.map(|place| topic_id(&place.topic_id)).collect::<Result<BTreeSet<TopicId>, Error>>()?;
        let deadline = Instant::now() + self.client.config().api_timeout;
        let names = self.client.topic_names(&ids, deadline).await?;
        told.into_iter().map(|one| described(one, &names)).collect()
    }
}

/// What tells one open transaction from every other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Place {
    topic_id: TopicId,
    partition: u32,
    producer_id: u64,
    first: Offset,
}

impl Place {
    fn of(open: &OpenTransaction) -> Place {
        let OpenTransaction { topic_id, partition, producer_id, first, .. } = *open;
        Place { topic_id, partition, producer_id, first }
    }
}

/// Whether the coordinator knows what is open as a part of a transaction that it will end.
fn tracks(known: &TransactionDescription, open: &OpenTransaction) -> bool {
    let there = |place: &TransactionPartition| (place.topic_id, place.partition) == (open.topic_id, open.partition);
    known.producer_id == open.producer_id && known.partitions.iter().any(there)
}

/// Of what was open before coordinators were asked: what none of them tracks, and is open after.
fn hanging(
    before: Vec<OpenTransaction>,
    known: &[TransactionDescription],
    still: &BTreeSet<Place>,
) -> Vec<HangingTransaction> {
    let hangs = |open: &OpenTransaction| still.contains(&Place::of(open)) && !known.iter().any(|one| tracks(one, open));
    let found = before.into_iter().filter(hangs);
    let with_id = found.map(|open| {
        let of = known.iter().find(|known| known.producer_id == open.producer_id);
        HangingTransaction { transactional_id: of.map(|known| known.transactional_id.clone()), open }
    });
    with_id.collect()
}

fn described(told: v1::Transaction, names: &BTreeMap<TopicId, String>) -> Result<TransactionDescription, Error> {
    let place = |place: &v1::GroupPartition| {
        let topic_id = topic_id(&place.topic_id)?;
        Ok(TransactionPartition { topic: names.get(&topic_id).cloned(), topic_id, partition: place.partition })
    };
    let mut partitions = told.partitions.iter().map(place).collect::<Result<Vec<_>, Error>>()?;
    partitions.sort();
    let v1::Producer { id, epoch } = told.producer.unwrap_or_default();
    Ok(TransactionDescription {
        transactional_id: told.transactional_id,
        state: told.state,
        producer_id: id,
        producer_epoch: epoch,
        timeout: Duration::from_millis(told.timeout_ms.into()),
        started: told.started_ms.map(TimestampMs),
        open: told.open_ms.map(Duration::from_millis),
        changed: TimestampMs(told.changed_ms),
        partitions,
        groups: told.groups,
    })
}

impl TryFrom<v1::OpenTransaction> for OpenTransaction {
    type Error = Error;

    fn try_from(told: v1::OpenTransaction) -> Result<OpenTransaction, Error> {
        let v1::OpenTransaction { partition, topic, producer, first, written_ms, idle_ms } = told;
        let place = partition.unwrap_or_default();
        let v1::Producer { id, epoch } = producer.unwrap_or_default();
        Ok(OpenTransaction {
            topic,
            topic_id: topic_id(&place.topic_id)?,
            partition: place.partition,
            first: Offset(first),
            producer_id: id,
            producer_epoch: epoch,
            written: TimestampMs(written_ms),
            idle: Duration::from_millis(idle_ms),
        })
    }
}

fn topic_id(text: &str) -> Result<TopicId, Error> {
    text.parse().map_err(|_| Error::new(ErrorCode::UnknownServerError, format!("`{text}` is no topic id")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn open(partition: u32, producer_id: u64, first: u64) -> OpenTransaction {
        OpenTransaction {
            topic: "t".to_owned(),
            topic_id: TopicId(7),
            partition,
            first: Offset(first),
            producer_id,
            producer_epoch: 1,
            written: TimestampMs(0),
            idle: Duration::from_secs(1000),
        }
    }

    fn known(id: &str, producer_id: u64, partitions: &[u32]) -> TransactionDescription {
        let place = |partition: &u32| TransactionPartition { topic: None, topic_id: TopicId(7), partition: *partition };
        TransactionDescription {
            transactional_id: id.to_owned(),
            state: "Ongoing".to_owned(),
            producer_id,
            producer_epoch: 1,
            timeout: Duration::from_secs(60),
            started: None,
            open: None,
            changed: TimestampMs(0),
            partitions: partitions.iter().map(place).collect(),
            groups: Vec::new(),
        }
    }

    #[test]
    fn what_no_coordinator_tracks_and_stays_open_hangs() {
        let still = |open: &[OpenTransaction]| open.iter().map(Place::of).collect::<BTreeSet<Place>>();
        let check = |before: &[OpenTransaction], after: &[OpenTransaction], expected: &[(u32, Option<&str>)]| {
            let known = [known("a", 1, &[0, 1]), known("b", 2, &[])];
            let found = hanging(before.to_vec(), &known, &still(after));
            let found: Vec<_> =
                found.iter().map(|found| (found.open.partition, found.transactional_id.as_deref())).collect();
            assert_eq!(found, expected, "{before:?} {after:?}");
        };
        let tracked = [open(0, 1, 5), open(1, 1, 9)];
        check(&tracked, &tracked, &[]);
        // In a partition that its coordinator does not know of; of a producer that has nothing under way; of one that nobody knows.
        let lost = [open(2, 1, 5), open(0, 2, 6), open(0, 3, 7)];
        check(&lost, &lost, &[(2, Some("a")), (0, Some("b")), (0, None)]);
        // What has ended meanwhile, and what began at another offset since.
        check(&lost, &lost[..1], &[(2, Some("a"))]);
        check(&[open(0, 3, 7)], &[open(0, 3, 8)], &[]);
    }
}
