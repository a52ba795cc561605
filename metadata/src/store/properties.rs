//! What must hold of any value that is read as a record: what is read is written as it would have been, and reads back.

use super::codec;
use crate::kv::Revision;
use bytes::Bytes;
use millpond_core::records::{
    ClusterRecord, DiskRecord, DrainRecord, DropRecord, GroupSettingsRecord, Leader, LossRecord, PartitionRecord,
    ProducerInstance, PurgedRecord, SessionRecord, ShardRecord, TombstoneRecord, TopicRecord, TopicState,
    TransactionRecord, TransactionState,
};
use millpond_log::testing::{Seed, decoding};
use millpond_log::{
    BrokerId, Incarnation, LeaderEpoch, Lsn, Offset, ProducerEpoch, ProducerId, Rid, TimestampMs, TopicId, WalGen,
};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// Reads the input as a record of each kind, and as each value that is text.
pub fn record(input: &[u8]) -> bool {
    let bytes = Bytes::copy_from_slice(input);
    let key = Bytes::from_static(b"/k");
    if let Ok(epoch) = codec::read_gc_epoch(&key, &bytes) {
        assert_eq!(codec::gc_epoch(epoch), bytes, "rule T5: order by bytes is order by number");
    }
    let _ = (codec::text::<TopicId>(&key, &bytes), codec::text::<u64>(&key, &bytes));
    [
        reads_back::<ClusterRecord>(&bytes),
        reads_back::<DiskRecord>(&bytes),
        reads_back::<SessionRecord>(&bytes),
        reads_back::<DrainRecord>(&bytes),
        reads_back::<TopicRecord>(&bytes),
        reads_back::<PartitionRecord>(&bytes),
        reads_back::<TombstoneRecord>(&bytes),
        reads_back::<PurgedRecord>(&bytes),
        reads_back::<DropRecord>(&bytes),
        reads_back::<LossRecord>(&bytes),
        reads_back::<ShardRecord>(&bytes),
        reads_back::<TransactionRecord>(&bytes),
        reads_back::<GroupSettingsRecord>(&bytes),
    ]
    .contains(&true)
}

fn reads_back<T: Serialize + DeserializeOwned + PartialEq + std::fmt::Debug>(bytes: &Bytes) -> bool {
    let read = |bytes: &Bytes| codec::record::<T>(&Bytes::from_static(b"/k"), bytes, Revision(1));
    let Ok(first) = decoding(bytes, || read(bytes)) else { return false };
    let written = codec::value(&first.value);
    let again = read(&written).expect("what is read can be written");
    assert_eq!(again.value, first.value, "what is read can be written");
    assert_eq!(codec::value(&again.value), written, "rule K5: equal records have equal values");
    true
}

/// A record of each kind.
#[must_use]
pub fn record_seeds() -> Vec<Seed> {
    let rid = |broker| Rid { broker: BrokerId(broker), wal_gen: WalGen(0xfeed << 40 | u64::from(broker)) };
    let name = || "flights".parse().expect("a name");
    let seed = |name: &str, value: Bytes| (name.to_owned(), value.to_vec());
    let topic = TopicRecord {
        name: name(),
        id: TopicId(7 << 90),
        state: TopicState::Active,
        partitions: 12,
        replication_factor: 3,
        config: [("retention.ms".to_owned(), "-1".to_owned())].into(),
    };
    let partition = PartitionRecord {
        leader: Some(Leader { rid: rid(1), inc: Incarnation(44) }),
        epoch: LeaderEpoch(5),
        isr: vec![rid(1), rid(2)],
        elr: vec![rid(3)],
        replicas: vec![BrokerId(1), BrokerId(2), BrokerId(3)],
        adding: vec![BrokerId(4)],
        removing: Vec::new(),
        min_isr: 2,
        unclean_epoch: Some(LeaderEpoch(2)),
    };
    let disk = DiskRecord {
        wal_gen: WalGen(9),
        last_inc: None,
        previous_inc: Incarnation(3),
        durable_lsn: Lsn(1 << 40),
        internal: Some("a:4".to_owned()),
    };
    let session = SessionRecord {
        wal_gen: WalGen(9),
        grpc: "a:1".to_owned(),
        kafka: "a:2".to_owned(),
        kafka_listeners: std::collections::BTreeMap::new(),
        http: "a:3".to_owned(),
        internal: Some("a:4".to_owned()),
        rack: Some("r".to_owned()),
    };
    let tombstone = TombstoneRecord { name: name(), revision: 8 };
    let purged = PurgedRecord { wal_gen: WalGen(9), revision: 8 };
    let dropped = DropRecord { objects: vec!["a/b".to_owned()], root: Some(vec![1, 2, 255]) };
    let loss = LossRecord {
        epoch: LeaderEpoch(6),
        leader: rid(1),
        lost: vec![rid(2)],
        end: Offset(10),
        known_end: Offset(20),
        tiered_end: Offset(5),
        cause: "a wiped disk".to_owned(),
    };
    let producer = |epoch| ProducerInstance { id: ProducerId(1_000), epoch: ProducerEpoch(epoch) };
    let transaction = TransactionRecord {
        producer: producer(32_766),
        next_producer: Some(ProducerId(1_001)),
        last: Some(producer(32_765)),
        ended_by: Some(producer(32_765)),
        state: TransactionState::PrepareCommit,
        partitions: [(TopicId(7 << 90), [0, 11].into())].into(),
        groups: ["billing".to_owned()].into(),
        timeout_ms: 60_000,
        started: Some(TimestampMs(1_700_000_000_000)),
        changed: TimestampMs(1_700_000_000_500),
    };
    vec![
        seed("cluster", codec::value(&ClusterRecord { id: "c".to_owned(), format: 1, feature_level: 1 })),
        seed("disk", codec::value(&disk)),
        seed("session", codec::value(&session)),
        seed("drain", codec::value(&DrainRecord { replicas: true })),
        seed("topic", codec::value(&topic)),
        seed("partition", codec::value(&partition)),
        seed("tombstone", codec::value(&tombstone)),
        seed("drop", codec::value(&dropped)),
        seed("loss", codec::value(&loss)),
        seed("shard", codec::value(&ShardRecord { owner: partition.leader, coord_epoch: 3 })),
        seed("transaction", codec::value(&transaction)),
        seed("purged", codec::value(&purged)),
        seed("group-settings", codec::value(&GroupSettingsRecord { settings: topic.config })),
        seed("refused-newer", Bytes::from_static(b"{\"v\":2,\"record\":{}}")),
        seed("refused-gc-epoch", codec::gc_epoch(26)),
    ]
}
