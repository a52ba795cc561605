//! One raw connection to the Kafka door. Encodes and decodes with the `kafka-protocol` crate, which the broker does not use.

use bytes::{Buf, Bytes, BytesMut};
use kafka_protocol::messages as kafka;
use kafka_protocol::protocol::{Decodable, Encodable, HeaderVersion, Request, StrBytes};
use millpond_log::batch::{BatchBuilder, NewRecord, ProducerStamp};
use millpond_log::codec::Codec;
use millpond_log::{Batch, TimestampMs};
use millpond_tests::broker::{TestBroker, config};
use object_store::memory::InMemory;
use std::sync::Arc;
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// A broker and the folder it lives in.
pub(crate) struct Served {
    pub(crate) broker: TestBroker,
    _dir: TempDir,
}

impl Served {
    pub(crate) async fn start() -> Served {
        let dir = tempfile::tempdir().expect("a temporary folder");
        let broker = TestBroker::start(config(dir.path()), Arc::new(InMemory::new())).await;
        Served { broker, _dir: dir }
    }

    pub(crate) async fn connect(&self) -> Connection {
        Connection::to(self.broker.kafka()).await
    }
}

/// A client's end of a connection.
pub(crate) struct Connection {
    pub(crate) stream: TcpStream,
    next: i32,
}

pub(crate) fn text(text: &str) -> StrBytes {
    StrBytes::from_string(text.to_owned())
}

pub(crate) fn name(name: &str) -> kafka::TopicName {
    text(name).into()
}

/// A request's frame, length in front.
pub(crate) fn frame<R: Request>(version: i16, correlation_id: i32, request: &R) -> Bytes {
    frame_as(version, version, correlation_id, request)
}

/// The frame of a request of `version` that has the fields of version `layout`.
fn frame_as<R: Request>(version: i16, layout: i16, correlation_id: i32, request: &R) -> Bytes {
    let mut body = BytesMut::new();
    let header = kafka::RequestHeader::default()
        .with_request_api_key(R::KEY)
        .with_request_api_version(version)
        .with_correlation_id(correlation_id)
        .with_client_id(Some(text("raw")));
    header.encode(&mut body, R::header_version(layout)).expect("a header");
    request.encode(&mut body, layout).expect("the version has every field that is set");
    framed(&body)
}

/// Puts the length in front.
pub(crate) fn framed(body: &[u8]) -> Bytes {
    let size = i32::try_from(body.len()).expect("small");
    [&size.to_be_bytes(), body].concat().into()
}

impl Connection {
    pub(crate) async fn to(address: &str) -> Connection {
        let stream = TcpStream::connect(address).await.expect("the Kafka door is open");
        Connection { stream, next: 1 }
    }

    pub(crate) async fn send(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).await.expect("the broker reads");
    }

    /// The next frame without its length; `None` when the broker has closed the connection.
    pub(crate) async fn receive(&mut self) -> Option<Bytes> {
        let size = self.stream.read_i32().await.ok()?;
        let mut frame = vec![0; usize::try_from(size).expect("a length")];
        self.stream.read_exact(&mut frame).await.expect("frames are whole");
        Some(frame.into())
    }

    /// Sends a request and reads its answer, all of it.
    pub(crate) async fn call<R: Request>(&mut self, version: i16, request: &R) -> R::Response {
        self.call_as(version, version, request).await
    }

    /// The same in a version that `kafka-protocol` lacks, and that has the fields of version `layout`.
    pub(crate) async fn call_as<R: Request>(&mut self, version: i16, layout: i16, request: &R) -> R::Response {
        let id = self.next;
        self.next += 1;
        self.send(&frame_as(version, layout, id, request)).await;
        let mut answer = self.receive().await.expect("the broker answers");
        let header = R::Response::header_version(layout);
        let header = kafka::ResponseHeader::decode(&mut answer, header).expect("a header");
        assert_eq!(header.correlation_id, id);
        let read = R::Response::decode(&mut answer, layout).expect("an answer of this version");
        assert!(!answer.has_remaining(), "key {} version {version} leaves {} bytes", R::KEY, answer.remaining());
        read
    }

    pub(crate) async fn create(&mut self, topic: &str, partitions: i32, configs: &[(&str, &str)]) {
        let configs = configs.iter().map(|&(name, value)| {
            kafka::create_topics_request::CreatableTopicConfig::default()
                .with_name(text(name))
                .with_value(Some(text(value)))
        });
        let topic = kafka::create_topics_request::CreatableTopic::default()
            .with_name(name(topic))
            .with_num_partitions(partitions)
            .with_replication_factor(-1)
            .with_configs(configs.collect());
        let request = kafka::CreateTopicsRequest::default().with_topics(vec![topic]).with_timeout_ms(10_000);
        let created = &self.call(7, &request).await.topics[0];
        assert_eq!(created.error_code, 0, "{created:?}");
    }

    /// Produces with acks=all in version 9.
    pub(crate) async fn produce(&mut self, topic: &str, partition: i32, records: Bytes) -> Landed {
        let request = produce(-1, topic, &[(partition, records)]);
        self.call(9, &request).await.responses[0].partition_responses[0].clone()
    }

    /// Fetches one partition in version 12, waiting for nothing.
    pub(crate) async fn fetch(&mut self, topic: &str, partition: i32, offset: i64) -> Fetched {
        let request = fetch(topic, &[(partition, offset)], 1 << 20, 1 << 20);
        self.call(12, &request).await.responses[0].partitions[0].clone()
    }
}

pub(crate) type Landed = kafka::produce_response::PartitionProduceResponse;
pub(crate) type Fetched = kafka::fetch_response::PartitionData;

pub(crate) fn produce(acks: i16, topic: &str, partitions: &[(i32, Bytes)]) -> kafka::ProduceRequest {
    let data = partitions.iter().map(|(index, records)| {
        kafka::produce_request::PartitionProduceData::default().with_index(*index).with_records(Some(records.clone()))
    });
    let data =
        kafka::produce_request::TopicProduceData::default().with_name(name(topic)).with_partition_data(data.collect());
    kafka::ProduceRequest::default().with_acks(acks).with_timeout_ms(10_000).with_topic_data(vec![data])
}

/// A fetch by name, for versions up to 12.
pub(crate) fn fetch(
    topic: &str,
    partitions: &[(i32, i64)],
    bytes_max: i32,
    partition_bytes_max: i32,
) -> kafka::FetchRequest {
    let partitions = partitions.iter().map(|&(partition, offset)| {
        kafka::fetch_request::FetchPartition::default()
            .with_partition(partition)
            .with_fetch_offset(offset)
            .with_partition_max_bytes(partition_bytes_max)
    });
    let topic =
        kafka::fetch_request::FetchTopic::default().with_topic(name(topic)).with_partitions(partitions.collect());
    kafka::FetchRequest::default().with_max_bytes(bytes_max).with_session_epoch(-1).with_topics(vec![topic])
}

/// A batch with one record for each timestamp.
pub(crate) fn batch(timestamps: &[i64], value: &[u8]) -> Bytes {
    bytes_of(&build(BatchBuilder::new(Codec::None), timestamps, value))
}

/// The same, of an idempotent producer.
pub(crate) fn idempotent(stamp: ProducerStamp, timestamps: &[i64]) -> Bytes {
    bytes_of(&build(BatchBuilder::new(Codec::None).producer(stamp), timestamps, b"v"))
}

/// A transactional batch of so many records.
pub(crate) fn transactional(stamp: ProducerStamp, records: usize) -> Bytes {
    let builder = BatchBuilder::new(Codec::None).producer(stamp).transactional();
    bytes_of(&build(builder, &vec![1; records], b"v"))
}

fn build(mut builder: BatchBuilder, timestamps: &[i64], value: &[u8]) -> Batch {
    for &timestamp in timestamps {
        builder.push(NewRecord { timestamp: TimestampMs(timestamp), key: None, value: Some(value), headers: &[] });
    }
    builder.build()
}

pub(crate) fn bytes_of(batch: &Batch) -> Bytes {
    let mut bytes = Vec::new();
    batch.put(&mut bytes);
    bytes.into()
}

/// First offset of each batch in an answer.
pub(crate) fn bases(fetched: &Fetched) -> Vec<u64> {
    batches(fetched).iter().map(|batch| batch.base_offset().0).collect()
}

pub(crate) fn batches(fetched: &Fetched) -> Vec<Batch> {
    let mut records = fetched.records.clone().expect("records are never null");
    std::iter::from_fn(|| Batch::take(&mut records).expect("only whole batches are sent")).collect()
}
