//! A segment says of the log at its end what a replica there would (rules P2, T4, S6).

use super::*;
use crate::replica::EndState;
use millpond_log::batch::{BatchBuilder, NewRecord, ProducerStamp};
use millpond_log::codec::Codec;
use millpond_log::limits::PRODUCER_EXPIRY_MS;
use millpond_log::segment::SegmentIndex;
use millpond_log::transactions::{EndMarker, Marker, OpenTxn, TxnOutcome};
use millpond_log::{CoordinatorEpoch, LeaderEpoch, PartitionId, ProducerEpoch, ProducerId, TimestampMs, TopicId};
use proptest::prelude::*;

const IDENTITY: PartitionId = PartitionId { topic: TopicId(1), index: 0 };

fn segment(from: EndState, end: Offset) -> TailSegment {
    let identity = SegmentIdentity {
        cluster: "c".to_owned(),
        partition: IDENTITY,
        topic_name: "t".to_owned(),
        epoch: LeaderEpoch(1),
    };
    TailSegment::new(identity, from, end)
}

/// What is appended.
#[derive(Clone, Copy, Debug)]
enum Kind {
    Plain,
    Transactional,
    Abort,
    Commit,
}

fn batch(base: Offset, producer: u64, sequence: i32, kind: Kind) -> Batch {
    let id = ProducerId(producer);
    let stamp = ProducerStamp { id, epoch: ProducerEpoch(0), base_sequence: sequence };
    let marker = |outcome| {
        let end = EndMarker { outcome, coordinator_epoch: CoordinatorEpoch(1) };
        let marker = Marker { producer: id, epoch: ProducerEpoch(0), raised: false, end };
        Batch::of_marker(&marker, TimestampMs(1))
    };
    let records = |builder: BatchBuilder| {
        let mut builder = builder.producer(stamp);
        builder.push(NewRecord { timestamp: TimestampMs(1), key: None, value: Some(b"v"), headers: &[] });
        builder.build()
    };
    let mut batch = match kind {
        Kind::Plain => records(BatchBuilder::new(Codec::None)),
        Kind::Transactional => records(BatchBuilder::new(Codec::None).transactional()),
        Kind::Abort => marker(TxnOutcome::Abort),
        Kind::Commit => marker(TxnOutcome::Commit),
    };
    batch.place(base, LeaderEpoch(1));
    batch
}

proptest! {
    /// However the log is cut into segments, each carries the state of a replica that holds the log whole: its chained hash, its
    /// producers, of which some expire on the way and come back, and its transactions: those that its own markers abort, and those that
    /// are open at its end (rule T4).
    #[test]
    fn each_segment_ends_in_the_state_of_a_replica(
        appends in prop::collection::vec((0u64..4, 0i64..3, 0usize..6, any::<bool>()), 1..40)
    ) {
        let (mut whole, mut from) = (EndState::empty(), EndState::empty());
        let mut sequences = [0; 4];
        let mut unsent = Vec::new();
        let mut open: Vec<OpenTxn> = Vec::new();
        let mut aborted = Vec::new();
        let mut time = 0;
        for (id, pause, kind, cut) in appends {
            use Kind::{Abort, Commit, Plain, Transactional};
            let producer = ProducerId(id);
            let in_txn = open.iter().position(|txn| txn.producer == producer);
            let kind = [Plain, Transactional, Transactional, Transactional, Abort, Commit][kind];
            // Outside of its transaction a producer writes nothing.
            let kind = if matches!(kind, Plain) && in_txn.is_some() { Transactional } else { kind };
            time += [1, 40_000, PRODUCER_EXPIRY_MS + 60_000][pause as usize];
            let batch = batch(whole.end, id, sequences[id as usize], kind);
            match (kind, in_txn) {
                (Transactional, None) => open.push(OpenTxn { first: whole.end, producer }),
                (Abort, Some(at)) => {
                    let first = open.remove(at).first;
                    aborted.push(AbortedTxn { marker: whole.end, first, producer });
                }
                (Commit, Some(at)) => drop(open.remove(at)),
                _ => {}
            }
            if matches!(kind, Plain | Transactional) {
                sequences[id as usize] += 1;
            }
            whole.absorb(&batch, TimestampMs(time));
            unsent.push((batch, TimestampMs(time)));
            if !cut {
                continue;
            }
            let mut tail = segment(from, whole.end);
            for (batch, append_time) in unsent.drain(..) {
                tail.push(&batch, append_time, TimestampMs(1)).expect("it is the next");
            }
            prop_assert_eq!(tail.prefix_hash(), whole.prefix_hash);
            let (built, producers) = tail.finish();
            prop_assert_eq!(built.meta.prefix_hash, whole.prefix_hash, "S6");
            prop_assert_eq!(producers.encode(), whole.producers.encode(), "rules P2, T4");
            let index = SegmentIndex::parse(&built.parts.concat()).expect("sound");
            prop_assert_eq!(index.meta(&built.parts.concat()[..built.meta.index_length as usize], built.meta.crc), built.meta.clone());
            prop_assert_eq!(index.open(), &open[..]);
            prop_assert_eq!(index.aborted(), &std::mem::take(&mut aborted)[..]);
            // What the manifest says of the segment is all that the next one starts from.
            let (end, prefix_hash) = (built.meta.end, built.meta.prefix_hash);
            from = EndState { end, prefix_hash, producers, last_append_time: built.meta.max_append_time, ..EndState::empty() };
        }
    }
}
