//! DescribeTransactions and ListTransactions: what the coordinators on this broker know.

use super::super::throttle::throttle_ms;
use super::super::wire::{requests, responses};
use crate::Broker;
use crate::clock;
use millpond_core::groups::Expression;
use millpond_core::records::{TransactionRecord, TransactionState};
use millpond_log::{ErrorCode, TimestampMs};

/// The states that there are.
const STATES: [TransactionState; 6] = [
    TransactionState::Empty,
    TransactionState::Ongoing,
    TransactionState::PrepareCommit,
    TransactionState::PrepareAbort,
    TransactionState::CompleteCommit,
    TransactionState::CompleteAbort,
];

/// Kafka's names of states that our coordinators do not have.
const OTHER_STATES: [&str; 2] = ["Dead", "PrepareEpochFence"];

requests! {
    /// Which transactional ids.
    DescribeTransactionsRequest {
        transactional_ids: Vec<String> => ..,
    }
    /// Which transactions: those that pass every filter that is given.
    ListTransactionsRequest {
        state_filters: Vec<String> => ..,
        producer_id_filters: Vec<i64> => ..,
        duration_filter: i64 = -1 => 1..,
        transactional_id_pattern: Option<String> => 2..,
    }
}

responses! {
    /// One description for each id asked for.
    DescribeTransactionsResponse {
        throttle_time_ms: i32 => ..,
        transactions: Vec<DescribedTransaction> => ..,
    }
    /// One transactional id.
    DescribedTransaction {
        error_code: i16 => ..,
        transactional_id: String => ..,
        state: String => ..,
        timeout_ms: i32 => ..,
        start_time_ms: i64 => ..,
        producer_id: i64 => ..,
        producer_epoch: i16 => ..,
        topics: Vec<DescribedTxnTopic> => ..,
    }
    /// Partitions of the transaction.
    DescribedTxnTopic {
        topic: String => ..,
        partitions: Vec<i32> => ..,
    }
    /// What passes the filters.
    ListTransactionsResponse {
        throttle_time_ms: i32 => ..,
        error_code: i16 => ..,
        unknown_state_filters: Vec<String> => ..,
        transactions: Vec<ListedTransaction> => ..,
    }
    /// One transactional id.
    ListedTransaction {
        transactional_id: String => ..,
        producer_id: i64 => ..,
        state: String => ..,
    }
}

/// Describes each id.
pub(in crate::front::kafka) async fn describe(
    broker: &Broker,
    request: DescribeTransactionsRequest,
) -> DescribeTransactionsResponse {
    let mut transactions = Vec::with_capacity(request.transactional_ids.len());
    for id in request.transactional_ids {
        let found = broker.describe_transaction(id.clone()).await;
        transactions.push(match broker.counted("DescribeTransactions", found) {
            Ok(record) => described(broker, id, &record),
            Err(error) => DescribedTransaction {
                transactional_id: id,
                error_code: error.code.kafka(),
                producer_id: -1,
                producer_epoch: -1,
                start_time_ms: -1,
                ..Default::default()
            },
        });
    }
    DescribeTransactionsResponse { throttle_time_ms: 0, transactions }
}

fn described(broker: &Broker, transactional_id: String, record: &TransactionRecord) -> DescribedTransaction {
    // A topic that is deleted has no name any more.
    let topics = record.partitions.iter().filter_map(|(topic, indexes)| {
        let topic = broker.inner().catalog.by_id(*topic)?.record.name.as_str().to_owned();
        Some(DescribedTxnTopic { topic, partitions: indexes.iter().map(|index| index.cast_signed()).collect() })
    });
    DescribedTransaction {
        error_code: 0,
        transactional_id,
        state: record.state.name().to_owned(),
        timeout_ms: record.timeout_ms.cast_signed(),
        start_time_ms: record.started.map_or(-1, |started| started.0),
        producer_id: record.producer.id.0.cast_signed(),
        producer_epoch: record.producer.epoch.0.cast_signed(),
        topics: topics.collect(),
    }
}

/// Lists what passes the filters.
pub(in crate::front::kafka) async fn list(
    broker: &Broker,
    request: ListTransactionsRequest,
) -> ListTransactionsResponse {
    let filter = match Filter::new(&request) {
        Ok(filter) => filter,
        Err(code) => return ListTransactionsResponse { error_code: code.kafka(), ..Default::default() },
    };
    let found = broker.list_transactions_here().await;
    let now = clock::wall();
    match broker.counted("ListTransactions", found) {
        Ok(found) => {
            let passing = found.found.into_iter().filter(|(id, record)| filter.passes(now, id, record));
            let transactions = passing.map(|(transactional_id, record)| ListedTransaction {
                transactional_id,
                producer_id: record.producer.id.0.cast_signed(),
                state: record.state.name().to_owned(),
            });
            let transactions = transactions.collect();
            ListTransactionsResponse {
                unknown_state_filters: filter.unknown_states,
                transactions,
                ..Default::default()
            }
        }
        Err(error) => ListTransactionsResponse {
            throttle_time_ms: throttle_ms(std::iter::once(&error)),
            error_code: told(error.code).kafka(),
            ..Default::default()
        },
    }
}

/// A shard that moved while it was asked: Java's client comes back only for what is being read back.
fn told(code: ErrorCode) -> ErrorCode {
    if code == ErrorCode::NotCoordinator { ErrorCode::CoordinatorLoadInProgress } else { code }
}

/// Which transactions are listed. What is empty lets everything pass.
struct Filter<'a> {
    request: &'a ListTransactionsRequest,
    unknown_states: Vec<String>,
    pattern: Option<Expression>,
}

impl Filter<'_> {
    /// # Errors
    /// `INVALID_REGULAR_EXPRESSION`.
    fn new(request: &ListTransactionsRequest) -> Result<Filter<'_>, ErrorCode> {
        let known = |name: &str| OTHER_STATES.contains(&name) || STATES.iter().any(|state| state.name() == name);
        let unknown_states = request.state_filters.iter().filter(|name| !known(name)).cloned().collect();
        let pattern = request.transactional_id_pattern.as_deref().filter(|pattern| !pattern.is_empty());
        let compiled = |pattern| Expression::new(pattern).ok_or(ErrorCode::InvalidRegularExpression);
        let pattern = pattern.map(compiled).transpose()?;
        Ok(Filter { request, unknown_states, pattern })
    }

    fn passes(&self, now: TimestampMs, id: &str, record: &TransactionRecord) -> bool {
        let ListTransactionsRequest { state_filters, producer_id_filters, duration_filter, .. } = self.request;
        let state = state_filters.is_empty() || state_filters.iter().any(|name| name == record.state.name());
        let producer = record.producer.id.0.cast_signed();
        let producer = producer_id_filters.is_empty() || producer_id_filters.contains(&producer);
        // As Kafka has it, what never began began at -1; but what has ended lasts no longer.
        let began = match record.started {
            Some(started) => Some(started.0),
            None => (record.state == TransactionState::Empty).then_some(-1),
        };
        let long = began.is_some_and(|began| now.0.saturating_sub(began) > *duration_filter);
        let duration = *duration_filter < 0 || long;
        state && producer && duration && self.pattern.as_ref().is_none_or(|pattern| pattern.is_match(id))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use millpond_core::records::ProducerInstance;
    use millpond_log::{ProducerEpoch, ProducerId};
    use std::collections::{BTreeMap, BTreeSet};

    fn record(state: TransactionState, started: Option<i64>) -> TransactionRecord {
        TransactionRecord {
            producer: ProducerInstance { id: ProducerId(7), epoch: ProducerEpoch(1) },
            next_producer: None,
            last: None,
            ended_by: None,
            state,
            partitions: BTreeMap::new(),
            groups: BTreeSet::new(),
            timeout_ms: 60_000,
            started: started.map(TimestampMs),
            changed: TimestampMs(0),
        }
    }

    #[test]
    fn a_shard_that_moves_while_it_is_listed_is_worth_another_try() {
        assert_eq!(told(ErrorCode::NotCoordinator), ErrorCode::CoordinatorLoadInProgress);
        assert_eq!(told(ErrorCode::CoordinatorLoadInProgress), ErrorCode::CoordinatorLoadInProgress);
        assert_eq!(told(ErrorCode::InvalidRequest), ErrorCode::InvalidRequest);
    }

    #[test]
    fn only_what_passes_every_filter_is_listed() {
        let check = |request: ListTransactionsRequest, expected| {
            let filter = Filter::new(&request).expect("a sound pattern");
            let passes = filter.passes(TimestampMs(1000), "orders-1", &record(TransactionState::Ongoing, Some(400)));
            assert_eq!(passes, expected, "{request:?}");
        };
        let long = ListTransactionsRequest { duration_filter: 0, ..Default::default() };
        let long = Filter::new(&long).expect("a sound filter");
        let lasts = |state| long.passes(TimestampMs(1000), "orders-1", &record(state, None));
        assert!(lasts(TransactionState::Empty) && !lasts(TransactionState::CompleteCommit));
        let states = |names: &[&str]| ListTransactionsRequest {
            state_filters: names.iter().map(|name| (*name).to_owned()).collect(),
            ..Default::default()
        };
        let pattern = |pattern: &str| ListTransactionsRequest {
            transactional_id_pattern: Some(pattern.to_owned()),
            ..Default::default()
        };
        check(ListTransactionsRequest::default(), true);
        check(states(&["Empty", "Ongoing"]), true);
        check(states(&["Empty"]), false);
        check(states(&["Odd"]), false);
        check(ListTransactionsRequest { producer_id_filters: vec![1, 7], ..Default::default() }, true);
        check(ListTransactionsRequest { producer_id_filters: vec![1], ..Default::default() }, false);
        check(ListTransactionsRequest { duration_filter: 599, ..Default::default() }, true);
        check(ListTransactionsRequest { duration_filter: 600, ..Default::default() }, false);
        check(pattern("orders-.*"), true);
        check(pattern(""), true);
        check(pattern("orders"), false);
        let odd = states(&["Odd", "Dead", "Ongoing"]);
        assert_eq!(Filter::new(&odd).expect("sound").unknown_states, ["Odd"]);
        assert_eq!(Filter::new(&pattern("(")).err(), Some(ErrorCode::InvalidRegularExpression));
    }
}
