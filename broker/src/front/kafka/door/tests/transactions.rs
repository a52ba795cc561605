//! Answers about transactions, as the independent decoder reads them.

use super::super::super::active_producers::{
    ActiveProducer, DescribeProducersResponse, ProducersOfPartition, ProducersTopicResult,
};
use super::super::super::transactions::answers::*;
use super::*;

#[test]
fn active_producers_are_read() {
    let producer = ActiveProducer {
        producer_id: 1,
        producer_epoch: 2,
        last_sequence: 3,
        last_timestamp: 4,
        coordinator_epoch: 5,
        transaction_start: 6,
    };
    let partition =
        ProducersOfPartition { index: 7, error_code: 8, error_message: some("why"), producers: vec![producer] };
    let topics = vec![ProducersTopicResult { name: "t".to_owned(), partitions: vec![partition] }];
    let answer = DescribeProducersResponse { throttle_time_ms: 9, topics };
    check(Api::DescribeProducers, &answer, |_, read: theirs::DescribeProducersResponse| {
        assert_eq!((read.throttle_time_ms, read.topics[0].name.as_str()), (9, "t"));
        let partition = &read.topics[0].partitions[0];
        assert_eq!((partition.partition_index, partition.error_code), (7, 8));
        assert_eq!(partition.error_message.as_deref(), Some("why"));
        let producer = &partition.active_producers[0];
        assert_eq!((producer.producer_id.0, producer.producer_epoch, producer.last_sequence), (1, 2, 3));
        let rest = (producer.last_timestamp, producer.coordinator_epoch, producer.current_txn_start_offset);
        assert_eq!(rest, (4, 5, 6));
    });
}

#[test]
fn added_partitions_are_read() {
    let topic = || AddedTopicResult {
        name: "t".to_owned(),
        partitions: vec![AddedPartitionResult { index: 3, error_code: 4 }],
    };
    let transactions = vec![AddedTransactionResult { transactional_id: "x".to_owned(), topics: vec![topic()] }];
    let answer = AddPartitionsToTxnResponse { throttle_time_ms: 1, error_code: 2, transactions, topics: vec![topic()] };
    check(Api::AddPartitionsToTxn, &answer, |version, read: theirs::AddPartitionsToTxnResponse| {
        assert_eq!((read.throttle_time_ms, read.error_code), (1, if version >= 4 { 2 } else { 0 }));
        let topics = match version >= 4 {
            true => {
                assert_eq!(read.results_by_transaction[0].transactional_id.as_str(), "x");
                &read.results_by_transaction[0].topic_results
            }
            false => &read.results_by_topic_v3_and_below,
        };
        let partition = &topics[0].results_by_partition[0];
        assert_eq!(topics[0].name.as_str(), "t");
        assert_eq!((partition.partition_index, partition.partition_error_code), (3, 4));
    });
}

#[test]
fn added_groups_are_read() {
    let answer = AddOffsetsToTxnResponse { throttle_time_ms: 1, error_code: 2 };
    check(Api::AddOffsetsToTxn, &answer, |_, read: theirs::AddOffsetsToTxnResponse| {
        assert_eq!((read.throttle_time_ms, read.error_code), (1, 2));
    });
}

#[test]
fn ends_of_transactions_are_read() {
    let answer = EndTxnResponse { throttle_time_ms: 1, error_code: 2, producer_id: 3, producer_epoch: 4 };
    check(Api::EndTxn, &answer, |version, read: theirs::EndTxnResponse| {
        assert_eq!((read.throttle_time_ms, read.error_code), (1, 2));
        let producer = (read.producer_id.0, read.producer_epoch);
        assert_eq!(producer, if version >= 5 { (3, 4) } else { (-1, -1) });
    });
}

#[test]
fn written_markers_are_read() {
    let partitions = vec![MarkedPartitionResult { index: 3, error_code: 4 }];
    let topics = vec![MarkedTopicResult { name: "t".to_owned(), partitions }];
    let answer = WriteTxnMarkersResponse { markers: vec![WrittenMarkerResult { producer_id: 5, topics }] };
    check(Api::WriteTxnMarkers, &answer, |_, read: theirs::WriteTxnMarkersResponse| {
        let marker = &read.markers[0];
        assert_eq!((marker.producer_id.0, marker.topics[0].name.as_str()), (5, "t"));
        let partition = &marker.topics[0].partitions[0];
        assert_eq!((partition.partition_index, partition.error_code), (3, 4));
    });
}

#[test]
fn offsets_committed_in_a_transaction_are_read() {
    let partitions = vec![TxnOffsetResult { index: 3, error_code: 4 }];
    let topics = vec![TxnOffsetTopicResult { name: "t".to_owned(), partitions }];
    let answer = TxnOffsetCommitResponse { throttle_time_ms: 1, topics };
    check(Api::TxnOffsetCommit, &answer, |_, read: theirs::TxnOffsetCommitResponse| {
        assert_eq!((read.throttle_time_ms, read.topics[0].name.as_str()), (1, "t"));
        let partition = &read.topics[0].partitions[0];
        assert_eq!((partition.partition_index, partition.error_code), (3, 4));
    });
}

#[test]
fn described_transactions_are_read() {
    let described = DescribedTransaction {
        error_code: 1,
        transactional_id: "x".to_owned(),
        state: "Ongoing".to_owned(),
        timeout_ms: 2,
        start_time_ms: 3,
        producer_id: 4,
        producer_epoch: 5,
        topics: vec![DescribedTxnTopic { topic: "t".to_owned(), partitions: vec![6, 7] }],
    };
    let answer = DescribeTransactionsResponse { throttle_time_ms: 8, transactions: vec![described] };
    check(Api::DescribeTransactions, &answer, |_, read: theirs::DescribeTransactionsResponse| {
        let found = &read.transaction_states[0];
        assert_eq!((read.throttle_time_ms, found.error_code, found.transactional_id.as_str()), (8, 1, "x"));
        assert_eq!((found.transaction_state.as_str(), found.transaction_timeout_ms), ("Ongoing", 2));
        assert_eq!(found.transaction_start_time_ms, 3);
        assert_eq!((found.producer_id.0, found.producer_epoch), (4, 5));
        assert_eq!((found.topics[0].topic.as_str(), &found.topics[0].partitions[..]), ("t", &[6, 7][..]));
    });
}

#[test]
fn listed_transactions_are_read() {
    let listed =
        ListedTransaction { transactional_id: "x".to_owned(), producer_id: 4, state: "CompleteCommit".to_owned() };
    let answer = ListTransactionsResponse {
        throttle_time_ms: 1,
        error_code: 2,
        unknown_state_filters: vec!["Odd".to_owned()],
        transactions: vec![listed],
    };
    check(Api::ListTransactions, &answer, |_, read: theirs::ListTransactionsResponse| {
        assert_eq!((read.throttle_time_ms, read.error_code), (1, 2));
        assert_eq!(read.unknown_state_filters[0].as_str(), "Odd");
        let found = &read.transaction_states[0];
        assert_eq!((found.transactional_id.as_str(), found.producer_id.0), ("x", 4));
        assert_eq!(found.transaction_state.as_str(), "CompleteCommit");
    });
}
