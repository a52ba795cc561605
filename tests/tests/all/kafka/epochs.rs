//! Leader epochs that clients send with reads, through both doors (rules F2, F4 and F5; KIP-320 and KIP-595).

use super::wire::{Connection, bases, batch, fetch, name};
use kafka_protocol::messages as kafka;
use millpond_proto::v1;
use millpond_proto::v1::log_client::LogClient;
use millpond_sdk::{Admin, Client};
use millpond_tests::broker::{TestBroker, config};
use object_store::memory::InMemory;
use std::sync::Arc;
use tempfile::TempDir;
use tonic::transport::Channel;

const FENCED_LEADER_EPOCH: i16 = 74;
const UNKNOWN_LEADER_EPOCH: i16 = 75;

/// A topic `t` with the records 0 and 1 of one leader epoch, 2 and 3 of the next, and a leader in that epoch.
struct TwoEpochs {
    broker: TestBroker,
    kafka: Connection,
    grpc: LogClient<Channel>,
    first: u32,
    second: u32,
    _dir: TempDir,
}

impl TwoEpochs {
    async fn start() -> TwoEpochs {
        let dir = tempfile::tempdir().expect("a temporary folder");
        let objects = Arc::new(InMemory::new());
        let broker = TestBroker::start(config(dir.path()), objects.clone()).await;
        let mut kafka = Connection::to(broker.kafka()).await;
        kafka.create("t", 1, &[]).await;
        assert_eq!(kafka.produce("t", 0, batch(&[1, 2], b"v")).await.error_code, 0);
        let first = epoch(&mut kafka).await;
        broker.stop().await;
        let broker = TestBroker::start(config(dir.path()), objects).await;
        let mut kafka = Connection::to(broker.kafka()).await;
        assert_eq!(kafka.produce("t", 0, batch(&[3, 4], b"v")).await.error_code, 0);
        let second = epoch(&mut kafka).await;
        assert!(second > first, "rule B2: a restarted broker leads in a later epoch");
        let address = format!("http://{}", broker.grpc());
        let grpc = LogClient::connect(address).await.expect("the gRPC door is open");
        TwoEpochs { broker, kafka, grpc, first, second, _dir: dir }
    }

    /// Error, diverging epoch and its end, and bases of the batches, as Kafka answers in every version that asks.
    async fn fetch_kafka(&mut self, offset: i64, fetched: i32) -> (i16, Option<(i32, i64)>, Vec<u64>) {
        let mut request = fetch("t", &[(0, offset)], 1 << 20, 1 << 20);
        request.topics[0].partitions[0].last_fetched_epoch = fetched;
        let answer = self.kafka.call(12, &request).await;
        let data = &answer.responses[0].partitions[0];
        let end = &data.diverging_epoch;
        let diverging = (end.end_offset != -1).then_some((end.epoch, end.end_offset));
        let bases = bases(data);
        (data.error_code, diverging, bases)
    }

    async fn fetch_one(
        &mut self,
        offset: u64,
        current: Option<u32>,
        fetched: Option<u32>,
    ) -> Result<v1::FetchOneResponse, String> {
        let request = v1::FetchOneRequest {
            topic: Some(v1::TopicRef::name("t")),
            offset,
            current_leader_epoch: current,
            last_fetched_epoch: fetched,
            ..Default::default()
        };
        let answer = self.grpc.fetch_one(request).await;
        answer.map(tonic::Response::into_inner).map_err(|status| status.message().to_owned())
    }
}

async fn epoch(kafka: &mut Connection) -> u32 {
    let asked = kafka::metadata_request::MetadataRequestTopic::default().with_name(Some(name("t")));
    let answer = kafka.call(12, &kafka::MetadataRequest::default().with_topics(Some(vec![asked]))).await;
    answer.topics[0].partitions[0].leader_epoch.try_into().expect("it has a leader")
}

async fn latest(kafka: &mut Connection, version: i16, current: i32) -> (i16, i64) {
    let partition = kafka::list_offsets_request::ListOffsetsPartition::default()
        .with_timestamp(-1)
        .with_current_leader_epoch(if version >= 4 { current } else { -1 });
    let asked =
        kafka::list_offsets_request::ListOffsetsTopic::default().with_name(name("t")).with_partitions(vec![partition]);
    let request = kafka::ListOffsetsRequest::default().with_replica_id((-1).into()).with_topics(vec![asked]);
    let answer = kafka.call(version, &request).await;
    let found = &answer.topics[0].partitions[0];
    (found.error_code, found.offset)
}

/// Where epoch `asked` ends, for a client that knows `current`: error, epoch and offset.
async fn end_of(kafka: &mut Connection, version: i16, current: i32, asked: i32) -> (i16, i32, i64) {
    let partition = kafka::offset_for_leader_epoch_request::OffsetForLeaderPartition::default()
        .with_current_leader_epoch(current)
        .with_leader_epoch(asked);
    let asked = kafka::offset_for_leader_epoch_request::OffsetForLeaderTopic::default()
        .with_topic(name("t"))
        .with_partitions(vec![partition]);
    let request = kafka::OffsetForLeaderEpochRequest::default().with_topics(vec![asked]);
    let answer = kafka.call(version, &request).await;
    let end = &answer.topics[0].partitions[0];
    (end.error_code, end.leader_epoch, end.end_offset)
}

/// Case F18; rules F2 and R1.
#[tokio::test]
async fn a_reader_is_told_where_the_epoch_ends_that_it_has_read() {
    let mut log = TwoEpochs::start().await;
    let (first, second) = (log.first as i32, log.second as i32);
    assert!(first > 0, "there is an epoch before the first");
    for tiered in [false, true] {
        if tiered {
            let client = Client::connect(log.broker.grpc()).await.expect("the broker is up");
            Admin::new(&client).flush_topic("t").await.expect("the object store is there");
        }
        for (current, asked, expected) in [
            (second, first, (0, first, 2)),
            (-1, first, (0, first, 2)),
            (second, second, (0, second, 4)),
            // An epoch without records between the two ends where the one before it does; one before all, where the log begins.
            (second, second - 1, (0, if second - 1 > first { first } else { second - 1 }, 2)),
            (second, first - 1, (0, first - 1, 0)),
            (second, -1, (0, -1, -1)),
            (first, first, (FENCED_LEADER_EPOCH, -1, -1)),
            (second + 1, second, (UNKNOWN_LEADER_EPOCH, -1, -1)),
            // Nobody may take it for a loss that this leader has not heard of a later epoch.
            (-1, second + 1, (UNKNOWN_LEADER_EPOCH, -1, -1)),
        ] {
            for version in 2..=4 {
                let found = end_of(&mut log.kafka, version, current, asked).await;
                assert_eq!(found, expected, "epoch {asked} of a client in {current}, version {version}");
            }
        }
    }
    log.broker.stop().await;
}

#[tokio::test]
async fn a_client_that_knows_another_leader_epoch_gets_no_offset_and_no_record() {
    let mut log = TwoEpochs::start().await;
    let (older, current, newer) = (log.first, log.second, log.second + 1);
    for version in 1..=10 {
        let fenced = if version >= 4 { (FENCED_LEADER_EPOCH, -1) } else { (0, 4) };
        let unknown = if version >= 4 { (UNKNOWN_LEADER_EPOCH, -1) } else { (0, 4) };
        assert_eq!(latest(&mut log.kafka, version, older as i32).await, fenced, "rule F2, version {version}");
        assert_eq!(latest(&mut log.kafka, version, newer as i32).await, unknown, "rule F2, version {version}");
        assert_eq!(latest(&mut log.kafka, version, current as i32).await, (0, 4));
        assert_eq!(latest(&mut log.kafka, version, -1).await, (0, 4), "one that knows none is not held to any");
    }
    for (known, reason) in [
        (Some(older), Some("FENCED_LEADER_EPOCH")),
        (Some(newer), Some("UNKNOWN_LEADER_EPOCH")),
        (Some(current), None),
        (None, None),
    ] {
        let query = v1::OffsetQuery {
            topic: Some(v1::TopicRef::name("t")),
            partition: 0,
            spec: Some(v1::offset_query::Spec::Position(v1::OffsetPosition::Latest.into())),
            current_leader_epoch: known,
        };
        let request = v1::ListOffsetsRequest { queries: vec![query], isolation: 0 };
        let result = log.grpc.list_offsets(request).await.expect("the door answers").into_inner().results.remove(0);
        let expected_offset = reason.is_none().then_some(4);
        assert_eq!((result.error.map(|error| error.reason).as_deref(), result.offset), (reason, expected_offset));
        assert_eq!(log.fetch_one(0, known, None).await.is_err(), reason.is_some(), "rule F2, epoch {known:?}");
    }
    log.broker.stop().await;
}

#[tokio::test]
async fn a_reader_whose_history_is_not_the_logs_is_told_where_they_part() {
    let mut log = TwoEpochs::start().await;
    let (first, second) = (log.first, log.second);
    for tiered in [false, true] {
        if tiered {
            let client = Client::connect(log.broker.grpc()).await.expect("the broker is up");
            Admin::new(&client).flush_topic("t").await.expect("the object store is there");
        }
        for (offset, fetched, diverging, read) in [
            (2, first, None, vec![2]),
            (4, second, None, vec![]),
            // Between two batches of the second epoch.
            (3, second, None, vec![2]),
            // It read a third record of the first epoch, which this log does not have.
            (3, first, Some((first, 2)), vec![]),
            (4, first, Some((first, 2)), vec![]),
        ] {
            let expected = (0, diverging.map(|(epoch, end): (u32, u64)| (epoch as i32, end as i64)), read.clone());
            assert_eq!(log.fetch_kafka(offset, fetched as i32).await, expected, "offset {offset} after {fetched}");
            let answer = log.fetch_one(offset as u64, None, Some(fetched)).await.expect("no error");
            let end = answer.diverging.map(|end| (end.leader_epoch, end.end_offset));
            let bytes = answer.records.unwrap_or_default().into_bytes();
            assert_eq!((end, bytes.is_empty()), (diverging, read.is_empty()), "offset {offset} after {fetched}");
        }
        // Nobody read a record of an epoch that never was.
        assert_eq!(log.fetch_kafka(4, second as i32 + 1).await.0, 1);
        assert!(log.fetch_one(4, None, Some(second + 1)).await.is_err());
        // Out of range comes before divergence.
        assert_eq!(log.fetch_kafka(9, first as i32).await, (1, None, vec![]));
    }
    log.broker.stop().await;
}

#[tokio::test]
async fn a_fetch_stream_ends_a_subscription_that_diverges_and_says_where() {
    let mut log = TwoEpochs::start().await;
    let subscribe = |id, offset, fetched| {
        v1::fetch_request::Command::Subscribe(v1::FetchSubscribe {
            subscription_id: id,
            topic: Some(v1::TopicRef::name("t")),
            partition: 0,
            offset,
            current_leader_epoch: None,
            last_fetched_epoch: Some(fetched),
            rack: None,
        })
    };
    let credit = v1::fetch_request::Command::Credit(v1::FetchCredit { bytes: 1 << 20 });
    let commands = [subscribe(1, 3, log.first), subscribe(2, 2, log.first), credit];
    let commands = commands.map(|command| v1::FetchRequest { command: Some(command) });
    // The broker ends the stream itself only when it stops: the client's side stays open.
    let open = futures::StreamExt::chain(futures::stream::iter(commands), futures::stream::pending());
    let mut pushes = log.grpc.fetch(open).await.expect("the door is open").into_inner();
    let mut told = (None, None);
    while told.0.is_none() || told.1.is_none() {
        let push = pushes.message().await.expect("the stream goes on").expect("it does not end");
        assert_eq!(push.error, None);
        match push.subscription_id {
            1 => told.0 = push.diverging.map(|end| (end.leader_epoch, end.end_offset)),
            _ => told.1 = push.records.filter(|records| records.size() > 0),
        }
    }
    assert_eq!(told.0, Some((log.first, 2)));
    drop(pushes);
    log.broker.stop().await;
}

/// Rules F4 and F5: from the tail and from object storage, an offset inside a batch brings the whole batch, and the offsets
/// of an answer are those of the view that its records came from.
#[tokio::test]
async fn an_offset_inside_a_batch_brings_the_whole_batch_and_offsets_that_fit_it() {
    let mut log = TwoEpochs::start().await;
    let mut before = Vec::new();
    for tiered in [false, true] {
        if tiered {
            let client = Client::connect(log.broker.grpc()).await.expect("the broker is up");
            Admin::new(&client).flush_topic("t").await.expect("the object store is there");
        }
        for offset in 0..4u64 {
            for isolation in [0, 1] {
                let request = fetch("t", &[(0, offset as i64)], 1 << 20, 1 << 20).with_isolation_level(isolation as i8);
                let answer = log.kafka.call(12, &request).await;
                let data = &answer.responses[0].partitions[0];
                assert_eq!(bases(data).first(), Some(&(offset / 2 * 2)), "rule F4");
                assert_eq!((data.high_watermark, data.last_stable_offset, data.log_start_offset), (4, 4, 0), "rule F5");
                let no_transactions = (isolation == 1).then(Vec::new);
                assert_eq!(data.aborted_transactions, no_transactions, "rule F5: listed exactly when asked for");
                let request = v1::FetchOneRequest {
                    topic: Some(v1::TopicRef::name("t")),
                    offset,
                    isolation,
                    ..Default::default()
                };
                let one = log.grpc.fetch_one(request).await.expect("the door answers").into_inner();
                assert_eq!((one.high_watermark, one.last_stable, one.log_start), (4, 4, 0), "rule F5");
                let bytes = one.records.unwrap_or_default().into_bytes();
                assert_eq!(Some(&bytes), data.records.as_ref(), "both doors bring the same bytes");
                before.push(bytes);
            }
        }
    }
    let (tail, tiered) = before.split_at(before.len() / 2);
    assert_eq!(tail, tiered, "rule F4: the same batches from object storage");
    log.broker.stop().await;
}
