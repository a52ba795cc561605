//! Every limit of the log's formats, with unit, source and reason. Relations between them are asserted when compiling.

/// Bytes of a record batch's header, up to its first record. Fixed by Kafka's record batch v2.
pub const BATCH_HEADER_BYTES: usize = 61;

/// Largest batch a partition accepts by default, in bytes.
/// Kafka's default for `max.message.bytes`: 1 MiB and 12 bytes. Larger payloads belong in object storage, by reference.
pub const BATCH_BYTES_DEFAULT: u32 = 1_048_588;

/// Largest value `max.message.bytes` may take, in bytes. One batch has to fit a WAL file and a group several times over.
pub const BATCH_BYTES_MAX: u32 = 64 << 20;

/// Most bytes the records of one batch may decompress to. A batch of highly compressible text stays below; a bomb does not.
pub const BATCH_INFLATED_BYTES_MAX: usize = 256 << 20;

/// Most records in one batch: what fits the largest batch at Kafka's smallest record (7 bytes), rounded.
pub const BATCH_RECORDS_MAX: u32 = 16 << 20;

/// Batches remembered per producer to recognise a retry. Kafka's number: clients keep at most five requests in flight.
pub const PRODUCER_BATCHES_REMEMBERED: usize = 5;

/// Live producer ids a partition keeps (rule T4). Above it a new one gets a retriable error; none is evicted early.
pub const PARTITION_PRODUCERS_MAX: usize = 10_000;

/// Producer id expiry, in milliseconds of append time: Kafka's `producer.id.expiration.ms` default, 24 h.
pub const PRODUCER_EXPIRY_MS: i64 = 24 * 3600 * 1000;

/// Longest topic name, in bytes. Kafka's number.
pub const TOPIC_NAME_BYTES_MAX: usize = 249;

const _: () = assert!(BATCH_BYTES_DEFAULT < BATCH_BYTES_MAX);
const _: () = assert!(BATCH_BYTES_MAX as usize <= BATCH_INFLATED_BYTES_MAX);

/// How long a follower may lag and stay in sync, in milliseconds: `replica.lag.time.max.ms`. Kafka's default is 30 s; a batch is
/// pushed here, not fetched, so a third tells a lagging follower from a slow moment.
pub const REPLICA_LAG_TIME_MS: u64 = 10_000;
