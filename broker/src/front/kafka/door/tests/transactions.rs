//! Answers about transactions, as the independent decoder reads them.

use super::super::super::active_producers::{
    ActiveProducer, DescribeProducersResponse, ProducersOfPartition, ProducersTopicResult,
};
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
