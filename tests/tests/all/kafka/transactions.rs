//! Transactions through the Kafka door, spoken raw (cases T1, T3, T4, T5, T7, T9): each client floor gets the codes it
//! knows.

mod clients;

use super::wire::{Connection, Fetched, Served, bases, fetch, name, produce, text, transactional};
use kafka_protocol::messages as kafka;
use millpond_broker::api::TopicRef;
use millpond_log::batch::ProducerStamp;
use millpond_log::{ProducerEpoch, ProducerId};
use millpond_sdk::{
    Admin, Client, Consumer, ConsumerConfig, IsolationLevel, Offset, OffsetSpec, StartAt, TopicPartition,
};
use std::time::Duration;

const INVALID_PRODUCER_EPOCH: i16 = 47;
const INVALID_TXN_STATE: i16 = 48;
const INVALID_PRODUCER_ID_MAPPING: i16 = 49;
const INVALID_TRANSACTION_TIMEOUT: i16 = 50;
const OPERATION_NOT_ATTEMPTED: i16 = 55;
const UNKNOWN_TOPIC_OR_PARTITION: i16 = 3;
const UNSTABLE_OFFSET_COMMIT: i16 = 88;
const PRODUCER_FENCED: i16 = 90;
const TRANSACTIONAL_ID_NOT_FOUND: i16 = 105;
const TRANSACTION_ABORTABLE: i16 = 120;

/// A producer's identity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Identity {
    id: i64,
    epoch: i16,
}

impl Identity {
    /// A transactional batch of so many records.
    fn batch(self, sequence: i32, records: usize) -> bytes::Bytes {
        let id = ProducerId(self.id.cast_unsigned());
        let stamp = ProducerStamp { id, epoch: ProducerEpoch(self.epoch.cast_unsigned()), base_sequence: sequence };
        transactional(stamp, records)
    }
}

/// `COORDINATOR_LOAD_IN_PROGRESS`, `COORDINATOR_NOT_AVAILABLE`, `NOT_COORDINATOR`, `CONCURRENT_TRANSACTIONS`.
const PASSING: [i16; 4] = [14, 15, 16, 51];

/// Asks until the answer is another than that the coordinator is on its way, or that the transaction before is being ended.
async fn settled<T>(mut ask: impl AsyncFnMut() -> T, code: impl Fn(&T) -> i16) -> T {
    loop {
        let answer = ask().await;
        if !PASSING.contains(&code(&answer)) {
            return answer;
        }
        tokio::task::yield_now().await;
    }
}

async fn init_in(
    kafka: &mut Connection,
    version: i16,
    id: &str,
    timeout_ms: i32,
    known: Option<Identity>,
) -> Result<Identity, i16> {
    let mut request = kafka::InitProducerIdRequest::default()
        .with_transactional_id(Some(text(id).into()))
        .with_transaction_timeout_ms(timeout_ms);
    if let Some(known) = known {
        request = request.with_producer_id(known.id.into()).with_producer_epoch(known.epoch);
    }
    let answer = settled(async || kafka.call(version, &request).await, |answer| answer.error_code).await;
    match answer.error_code {
        0 => Ok(Identity { id: answer.producer_id.0, epoch: answer.producer_epoch }),
        code => Err(code),
    }
}

async fn init(kafka: &mut Connection, id: &str) -> Identity {
    init_in(kafka, 4, id, 60_000, None).await.expect("it is granted")
}

/// Adds partitions of topic `t` in a version below 4; the code of each.
async fn add_in(
    kafka: &mut Connection,
    version: i16,
    id: &str,
    producer: Identity,
    topics: &[(&str, &[i32])],
) -> Vec<i16> {
    let topics = topics.iter().map(|(topic, partitions)| {
        kafka::add_partitions_to_txn_request::AddPartitionsToTxnTopic::default()
            .with_name(name(topic))
            .with_partitions(partitions.to_vec())
    });
    let request = kafka::AddPartitionsToTxnRequest::default()
        .with_v3_and_below_transactional_id(text(id).into())
        .with_v3_and_below_producer_id(producer.id.into())
        .with_v3_and_below_producer_epoch(producer.epoch)
        .with_v3_and_below_topics(topics.collect());
    let codes = |answer: &kafka::AddPartitionsToTxnResponse| {
        let partitions = answer.results_by_topic_v3_and_below.iter().flat_map(|topic| &topic.results_by_partition);
        partitions.map(|partition| partition.partition_error_code).collect::<Vec<_>>()
    };
    let answer = settled(async || kafka.call(version, &request).await, |answer| codes(answer)[0]).await;
    codes(&answer)
}

async fn add(kafka: &mut Connection, id: &str, producer: Identity, partition: i32) {
    assert_eq!(add_in(kafka, 3, id, producer, &[("t", &[partition])]).await, [0]);
}

/// Writes a transactional batch to `t`; its code and base offset.
async fn write_in(kafka: &mut Connection, version: i16, id: &str, partition: i32, records: bytes::Bytes) -> (i16, i64) {
    let request = produce(-1, "t", &[(partition, records)]).with_transactional_id(Some(text(id).into()));
    let answer = kafka.call(version, &request).await;
    let landed = &answer.responses[0].partition_responses[0];
    (landed.error_code, landed.base_offset)
}

/// Ends a transaction; what it says of the producer from version 5 on.
async fn end_in(
    kafka: &mut Connection,
    version: i16,
    id: &str,
    producer: Identity,
    committed: bool,
) -> Result<Identity, i16> {
    let request = kafka::EndTxnRequest::default()
        .with_transactional_id(text(id).into())
        .with_producer_id(producer.id.into())
        .with_producer_epoch(producer.epoch)
        .with_committed(committed);
    let answer = settled(async || kafka.call(version, &request).await, |answer| answer.error_code).await;
    match answer.error_code {
        0 => Ok(Identity { id: answer.producer_id.0, epoch: answer.producer_epoch }),
        code => Err(code),
    }
}

async fn read_in(kafka: &mut Connection, version: i16, partition: i32, offset: i64, isolation: i8) -> Fetched {
    let request = fetch("t", &[(partition, offset)], 1 << 20, 1 << 20).with_isolation_level(isolation);
    kafka.call(version, &request).await.responses[0].partitions[0].clone()
}

/// What is stable in a partition of `t` reaches `offset`.
async fn stable(kafka: &mut Connection, partition: i32, offset: i64) {
    loop {
        let fetched = read_in(kafka, 12, partition, 0, 1).await;
        assert_eq!(fetched.error_code, 0);
        if fetched.last_stable_offset >= offset {
            return;
        }
        tokio::task::yield_now().await;
    }
}

fn listed(fetched: &Fetched) -> Option<Vec<(i64, i64)>> {
    let list = fetched.aborted_transactions.as_ref()?;
    Some(list.iter().map(|txn| (txn.producer_id.0, txn.first_offset)).collect())
}

async fn served(partitions: i32) -> (Served, Connection) {
    let served = Served::start().await;
    let mut kafka = served.connect().await;
    kafka.create("t", partitions, &[]).await;
    (served, kafka)
}

/// Case T1.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn t1_aborted_transactions_are_listed_in_every_version_of_fetch() {
    let (served, mut kafka) = served(1).await;
    let (a, b) = (init(&mut kafka, "a").await, init(&mut kafka, "b").await);
    add(&mut kafka, "a", a, 0).await;
    assert_eq!(write_in(&mut kafka, 9, "a", 0, a.batch(0, 5)).await, (0, 0));
    let open = read_in(&mut kafka, 12, 0, 0, 1).await;
    assert_eq!((open.last_stable_offset, open.high_watermark, bases(&open).len()), (0, 5, 0), "rule X6");
    end_in(&mut kafka, 3, "a", a, false).await.expect("it is open");
    stable(&mut kafka, 0, 6).await;
    add(&mut kafka, "b", b, 0).await;
    assert_eq!(write_in(&mut kafka, 9, "b", 0, b.batch(0, 4)).await, (0, 6));
    end_in(&mut kafka, 3, "b", b, true).await.expect("it is open");
    stable(&mut kafka, 0, 11).await;
    // In the tail, and in object storage.
    for flush in [false, true] {
        if flush {
            let topic = TopicRef::Name("t".to_owned());
            served.broker.handle().flush_topic(&topic).await.expect("it is led here");
        }
        for version in 4..=12 {
            for (from, isolation, expected) in
                [(0, 1, Some(vec![(a.id, 0)])), (3, 1, Some(vec![(a.id, 0)])), (6, 1, Some(vec![])), (0, 0, None)]
            {
                let fetched = read_in(&mut kafka, version, 0, from, isolation).await;
                assert_eq!(listed(&fetched), expected, "version {version} from {from} at isolation {isolation}");
                assert_eq!((fetched.last_stable_offset, fetched.high_watermark), (11, 11));
            }
        }
    }
    served.broker.stop().await;
}

/// Case T4: an expired transaction fences its producer, which goes on with a higher epoch; cases T3 and T5 by the way.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn t4_a_transaction_that_times_out_fences_its_producer() {
    let (served, mut kafka) = served(1).await;
    let old = init_in(&mut kafka, 4, "slow", 500, None).await.expect("it is granted");
    add(&mut kafka, "slow", old, 0).await;
    assert_eq!(write_in(&mut kafka, 9, "slow", 0, old.batch(0, 1)).await, (0, 0));
    // The marker of the abort is there when what is stable moves past it.
    stable(&mut kafka, 0, 2).await;
    assert_eq!(write_in(&mut kafka, 9, "slow", 0, old.batch(1, 1)).await.0, INVALID_PRODUCER_EPOCH, "a late write");
    assert_eq!(end_in(&mut kafka, 1, "slow", old, true).await, Err(INVALID_PRODUCER_EPOCH), "below version 2");
    assert_eq!(end_in(&mut kafka, 2, "slow", old, true).await, Err(PRODUCER_FENCED));
    assert_eq!(add_in(&mut kafka, 1, "slow", old, &[("t", &[0])]).await, [INVALID_PRODUCER_EPOCH]);
    assert_eq!(add_in(&mut kafka, 2, "slow", old, &[("t", &[0])]).await, [PRODUCER_FENCED]);
    let new = init_in(&mut kafka, 4, "slow", 60_000, Some(old)).await.expect("KIP-360: it recovers");
    assert!(new.id == old.id && new.epoch > old.epoch, "{new:?} after {old:?}");
    let fetched = read_in(&mut kafka, 12, 0, 0, 1).await;
    assert_eq!(listed(&fetched), Some(vec![(old.id, 0)]), "what was written before is aborted");
    served.broker.stop().await;
}

/// Case T5: of two producers with one transactional id the older one is fenced, by the codes that its version knows.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn t5_the_older_of_two_producers_is_fenced() {
    let (served, mut kafka) = served(1).await;
    let older = init(&mut kafka, "x").await;
    add(&mut kafka, "x", older, 0).await;
    assert_eq!(write_in(&mut kafka, 9, "x", 0, older.batch(0, 1)).await.0, 0);
    let newer = init(&mut kafka, "x").await;
    assert!(newer.epoch > older.epoch);
    for version in [3, 9] {
        assert_eq!(write_in(&mut kafka, version, "x", 0, older.batch(1, 1)).await.0, INVALID_PRODUCER_EPOCH);
    }
    assert_eq!(end_in(&mut kafka, 1, "x", older, true).await, Err(INVALID_PRODUCER_EPOCH));
    assert_eq!(end_in(&mut kafka, 3, "x", older, true).await, Err(PRODUCER_FENCED));
    for (version, code) in [(3, INVALID_PRODUCER_EPOCH), (4, PRODUCER_FENCED)] {
        assert_eq!(init_in(&mut kafka, version, "x", 60_000, Some(older)).await, Err(code), "version {version}");
    }
    add(&mut kafka, "x", newer, 0).await;
    assert_eq!(write_in(&mut kafka, 9, "x", 0, newer.batch(0, 1)).await.0, 0);
    end_in(&mut kafka, 3, "x", newer, true).await.expect("it is open");
    assert_eq!(end_in(&mut kafka, 3, "x", newer, true).await.err(), None, "rule X4: asked again");
    assert_eq!(end_in(&mut kafka, 3, "x", newer, false).await, Err(INVALID_TXN_STATE));
    served.broker.stop().await;
}

/// Case T7.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn t7_timeouts_of_transactions_have_bounds() {
    let (served, mut kafka) = served(1).await;
    for version in 0..=5 {
        for (timeout_ms, expected) in
            [(900_001, Some(INVALID_TRANSACTION_TIMEOUT)), (900_000, None), (0, Some(INVALID_TRANSACTION_TIMEOUT))]
        {
            let granted = init_in(&mut kafka, version, "x", timeout_ms, None).await;
            assert_eq!(granted.err(), expected, "version {version}, {timeout_ms} ms");
        }
    }
    let request = kafka::InitProducerIdRequest::default().with_transactional_id(None).with_transaction_timeout_ms(0);
    assert_eq!(kafka.call(4, &request).await.error_code, 0, "without a transactional id it is ignored");
    served.broker.stop().await;
}

/// Commits an offset of partition 0 of `t` inside a transaction; its code.
async fn commit_offset(kafka: &mut Connection, version: i16, id: &str, producer: Identity, offset: i64) -> i16 {
    use kafka::txn_offset_commit_request::{TxnOffsetCommitRequestPartition, TxnOffsetCommitRequestTopic};
    let partition = TxnOffsetCommitRequestPartition::default().with_partition_index(0).with_committed_offset(offset);
    let topic = TxnOffsetCommitRequestTopic::default().with_name(name("t")).with_partitions(vec![partition]);
    let request = kafka::TxnOffsetCommitRequest::default()
        .with_transactional_id(text(id).into())
        .with_group_id(text("g").into())
        .with_producer_id(producer.id.into())
        .with_producer_epoch(producer.epoch)
        .with_topics(vec![topic]);
    let code = |answer: &kafka::TxnOffsetCommitResponse| answer.topics[0].partitions[0].error_code;
    code(&settled(async || kafka.call(version, &request).await, code).await)
}

/// The offset that group `g` has for partition 0 of `t`, once it is stable; -1 for none.
async fn committed_offset(kafka: &mut Connection) -> i64 {
    let topic = kafka::offset_fetch_request::OffsetFetchRequestTopic::default()
        .with_name(name("t"))
        .with_partition_indexes(vec![0]);
    let request = kafka::OffsetFetchRequest::default()
        .with_group_id(text("g").into())
        .with_topics(Some(vec![topic]))
        .with_require_stable(true);
    loop {
        let answer = settled(async || kafka.call(7, &request).await, |answer| answer.error_code).await;
        let partition = &answer.topics[0].partitions[0];
        if partition.error_code != UNSTABLE_OFFSET_COMMIT {
            assert_eq!(partition.error_code, 0);
            return partition.committed_offset;
        }
        tokio::task::yield_now().await;
    }
}

/// Case T9: adding a group begins a transaction; its end applies the offsets or drops them, and none leaks into the next.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn t9_a_transaction_that_only_commits_offsets_applies_or_drops_them() {
    let (served, mut kafka) = served(1).await;
    let mut producer = init(&mut kafka, "x").await;
    assert_eq!(commit_offset(&mut kafka, 3, "x", producer, 5).await, INVALID_TXN_STATE, "the group was not added");
    let group = |producer: Identity| {
        kafka::AddOffsetsToTxnRequest::default()
            .with_transactional_id(text("x").into())
            .with_producer_id(producer.id.into())
            .with_producer_epoch(producer.epoch)
            .with_group_id(text("g").into())
    };
    for (offset, committed, expected) in [(7, false, -1), (8, true, 8), (9, false, 8)] {
        let added = settled(async || kafka.call(3, &group(producer)).await, |answer| answer.error_code).await;
        assert_eq!((added.error_code, commit_offset(&mut kafka, 3, "x", producer, offset).await), (0, 0));
        end_in(&mut kafka, 3, "x", producer, committed).await.expect("adding the group began it");
        assert_eq!(committed_offset(&mut kafka).await, expected);
    }
    // Clients of transactions V2 leave adding the group to its coordinator.
    for (offset, committed, expected) in [(10, true, 10), (11, false, 10)] {
        assert_eq!(commit_offset(&mut kafka, 5, "x", producer, offset).await, 0);
        producer = end_in(&mut kafka, 5, "x", producer, committed).await.expect("the commit began it");
        assert_eq!(committed_offset(&mut kafka).await, expected);
    }
    let stale = Identity { epoch: producer.epoch - 1, ..producer };
    assert_eq!(commit_offset(&mut kafka, 5, "x", stale, 12).await, INVALID_PRODUCER_EPOCH);
    served.broker.stop().await;
}

/// KIP-890: a client of Produce 12 adds partitions by writing, and gets its next epoch with the end of each transaction.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_of_transactions_v2_adds_by_writing_and_is_given_an_epoch_per_transaction() {
    let (served, mut kafka) = served(2).await;
    let mut producer = init_in(&mut kafka, 5, "v2", 60_000, None).await.expect("it is granted");
    for round in 0..3 {
        for partition in 0..2 {
            let (code, _) = write_in(&mut kafka, 12, "v2", partition, producer.batch(0, 2)).await;
            assert_eq!(code, 0, "round {round}");
        }
        let next = end_in(&mut kafka, 5, "v2", producer, round % 2 == 0).await.expect("it is open");
        assert_eq!(next, Identity { epoch: producer.epoch + 1, ..producer }, "rule X1");
        assert_eq!(end_in(&mut kafka, 5, "v2", producer, round % 2 == 0).await, Ok(next), "rule X4: asked again");
        producer = next;
    }
    for partition in 0..2 {
        stable(&mut kafka, partition, 9).await;
        let fetched = read_in(&mut kafka, 12, partition, 0, 1).await;
        assert_eq!(listed(&fetched), Some(vec![(producer.id, 3)]), "the second was aborted");
    }
    served.broker.stop().await;
}

/// Below Produce 12 what was not added is refused, by a code that the version knows.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_partition_that_was_not_added_is_refused_to_older_clients() {
    let (served, mut kafka) = served(2).await;
    let producer = init(&mut kafka, "x").await;
    add(&mut kafka, "x", producer, 0).await;
    assert_eq!(write_in(&mut kafka, 9, "x", 1, producer.batch(0, 1)).await.0, INVALID_TXN_STATE);
    assert_eq!(write_in(&mut kafka, 11, "x", 1, producer.batch(0, 1)).await.0, TRANSACTION_ABORTABLE);
    let stranger = Identity { id: producer.id + 1000, epoch: 0 };
    assert_eq!(add_in(&mut kafka, 3, "x", stranger, &[("t", &[0])]).await, [INVALID_PRODUCER_ID_MAPPING]);
    let both = add_in(&mut kafka, 3, "x", producer, &[("t", &[1]), ("absent", &[0])]).await;
    assert_eq!(both, [OPERATION_NOT_ATTEMPTED, UNKNOWN_TOPIC_OR_PARTITION], "all of them or none");
    served.broker.stop().await;
}

/// Operators' tools: who has a transaction open, what coordinators know, and a marker that ends what hangs (case T3).
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn t3_a_hanging_transaction_is_found_and_aborted_by_its_marker() {
    let (served, mut kafka) = served(1).await;
    let producer = init(&mut kafka, "hangs").await;
    add(&mut kafka, "hangs", producer, 0).await;
    assert_eq!(write_in(&mut kafka, 9, "hangs", 0, producer.batch(0, 2)).await.0, 0);
    let asked =
        kafka::describe_producers_request::TopicRequest::default().with_name(name("t")).with_partition_indexes(vec![0]);
    let request = kafka::DescribeProducersRequest::default().with_topics(vec![asked]);
    let found = kafka.call(0, &request).await.topics[0].partitions[0].clone();
    let [active] = &found.active_producers[..] else { panic!("{found:?}") };
    assert_eq!((active.producer_id.0, active.producer_epoch), (producer.id, i32::from(producer.epoch)));
    assert_eq!((active.current_txn_start_offset, active.last_sequence), (0, 1));
    let list = |filters: &[&'static str], pattern: Option<&'static str>| {
        kafka::ListTransactionsRequest::default()
            .with_state_filters(filters.iter().map(|filter| text(filter)).collect())
            .with_transactional_id_pattern(pattern.map(text))
    };
    let listed = kafka.call(2, &list(&["Ongoing"], Some("ha.*"))).await;
    let states: Vec<_> = listed.transaction_states.iter().map(|state| state.transactional_id.as_str()).collect();
    assert_eq!(states, ["hangs"]);
    assert_eq!(kafka.call(2, &list(&["CompleteCommit"], None)).await.transaction_states.len(), 0);
    assert_eq!(kafka.call(2, &list(&[], Some("a"))).await.transaction_states.len(), 0, "all of the id has to match");
    let unknown = kafka.call(2, &list(&["Odd"], None)).await;
    assert_eq!(unknown.unknown_state_filters, [text("Odd")]);
    let request = kafka::DescribeTransactionsRequest::default()
        .with_transactional_ids(vec![text("hangs").into(), text("absent").into()]);
    let described = kafka.call(0, &request).await.transaction_states;
    assert_eq!((described[0].transaction_state.as_str(), described[0].error_code), ("Ongoing", 0));
    assert_eq!((described[0].topics[0].topic.as_str(), &described[0].topics[0].partitions[..]), ("t", &[0][..]));
    assert_eq!(described[1].error_code, TRANSACTIONAL_ID_NOT_FOUND);
    let topic = kafka::write_txn_markers_request::WritableTxnMarkerTopic::default()
        .with_name(name("t"))
        .with_partition_indexes(vec![0]);
    let marker = kafka::write_txn_markers_request::WritableTxnMarker::default()
        .with_producer_id(producer.id.into())
        .with_producer_epoch(producer.epoch)
        .with_transaction_result(false)
        .with_coordinator_epoch(active.coordinator_epoch.max(0))
        .with_topics(vec![topic]);
    let request = kafka::WriteTxnMarkersRequest::default().with_markers(vec![marker]);
    let written = kafka.call(1, &request).await;
    assert_eq!(written.markers[0].topics[0].partitions[0].error_code, 0);
    stable(&mut kafka, 0, 3).await;
    let fetched = read_in(&mut kafka, 12, 0, 0, 1).await;
    assert_eq!(self::listed(&fetched), Some(vec![(producer.id, 0)]));
    served.broker.stop().await;
}

/// Rules X6, C1: whoever reads committed records is sent to no offset that the log holds no more, and would only ask again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_end_of_committed_records_is_in_the_log_though_records_of_an_open_transaction_are_deleted() {
    let (served, mut kafka) = served(1).await;
    let producer = init(&mut kafka, "open").await;
    add(&mut kafka, "open", producer, 0).await;
    assert_eq!(write_in(&mut kafka, 9, "open", 0, producer.batch(0, 5)).await.0, 0);
    assert_eq!(latest_committed(&mut kafka).await, (0, 0));
    let cut = kafka::delete_records_request::DeleteRecordsPartition::default().with_partition_index(0).with_offset(3);
    let topic =
        kafka::delete_records_request::DeleteRecordsTopic::default().with_name(name("t")).with_partitions(vec![cut]);
    let request = kafka::DeleteRecordsRequest::default().with_topics(vec![topic]).with_timeout_ms(10_000);
    let cut = kafka.call(2, &request).await.topics[0].partitions[0].clone();
    assert_eq!((cut.error_code, cut.low_watermark), (0, 3));
    assert_eq!(latest_committed(&mut kafka).await, (0, 3));
    let fetched = read_in(&mut kafka, 12, 0, 3, 1).await;
    let stands = (fetched.log_start_offset, fetched.last_stable_offset, fetched.high_watermark);
    assert_eq!((fetched.error_code, stands), (0, (3, 3, 5)));
    end_in(&mut kafka, 3, "open", producer, true).await.expect("it is open");
    let fetched = loop {
        let fetched = read_in(&mut kafka, 12, 0, 3, 1).await;
        assert_eq!(fetched.error_code, 0);
        if fetched.last_stable_offset == 6 {
            break fetched;
        }
        tokio::task::yield_now().await;
    };
    assert!(fetched.records.is_some_and(|records| !records.is_empty()), "it reads on from there");
    served.broker.stop().await;
}

/// Code and offset of the end of committed records.
async fn latest_committed(kafka: &mut Connection) -> (i16, i64) {
    let partition = kafka::list_offsets_request::ListOffsetsPartition::default().with_timestamp(-1);
    let asked =
        kafka::list_offsets_request::ListOffsetsTopic::default().with_name(name("t")).with_partitions(vec![partition]);
    let request = kafka::ListOffsetsRequest::default()
        .with_replica_id((-1).into())
        .with_isolation_level(1)
        .with_topics(vec![asked]);
    let answer = kafka.call(7, &request).await;
    let found = &answer.topics[0].partitions[0];
    (found.error_code, found.offset)
}

/// Written through the Kafka door, read by the SDK through the other.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_sdk_sees_committed_records_alone_and_moves_past_the_rest() {
    let (served, mut kafka) = served(1).await;
    for (id, records, committed) in [("a", 5, Some(false)), ("b", 4, Some(true)), ("c", 2, None)] {
        let producer = init(&mut kafka, id).await;
        add(&mut kafka, id, producer, 0).await;
        assert_eq!(write_in(&mut kafka, 9, id, 0, producer.batch(0, records)).await.0, 0);
        if let Some(committed) = committed {
            end_in(&mut kafka, 3, id, producer, committed).await.expect("it is open");
        }
    }
    stable(&mut kafka, 0, 11).await;
    let client = Client::connect(served.broker.grpc()).await.expect("it is up");
    let (admin, place) = (Admin::new(&client), TopicPartition::new("t", 0));
    let all = [0, 1, 2, 3, 4, 6, 7, 8, 9, 11, 12];
    for (isolation, end, expected) in
        [(IsolationLevel::ReadCommitted, 11, &all[5..9]), (IsolationLevel::ReadUncommitted, 13, &all[..])]
    {
        let latest = admin.list_offset_seen_by(isolation, "t", 0, OffsetSpec::Latest).await.expect("it is led");
        assert_eq!(latest.map(|found| found.offset), Some(Offset(end)));
        let config = ConsumerConfig { isolation, ..ConsumerConfig::default() };
        let mut consumer = Consumer::new(&client, config);
        consumer.assign([(place.clone(), StartAt::Earliest)]).await.expect("the topic is there");
        let mut seen = Vec::new();
        while consumer.position(&place) < Some(Offset(end)) {
            let records = consumer.poll(Duration::from_millis(100)).await.expect("nothing fails");
            seen.extend(records.iter().map(|record| record.offset.0));
        }
        assert_eq!(seen, expected, "{isolation:?}");
    }
    served.broker.stop().await;
}
