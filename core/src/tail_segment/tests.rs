//! A segment says of the log at its end what a replica there would (rules P2, T4, S6).

use super::*;
use crate::replica::EndState;
use millpond_log::batch::{BatchBuilder, NewRecord, ProducerStamp};
use millpond_log::codec::Codec;
use millpond_log::limits::PRODUCER_EXPIRY_MS;
use millpond_log::segment::SegmentIndex;
use millpond_log::{LeaderEpoch, PartitionId, ProducerEpoch, ProducerId, TimestampMs, TopicId};
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

fn batch(base: Offset, producer: u64, sequence: i32) -> Batch {
    let stamp = ProducerStamp { id: ProducerId(producer), epoch: ProducerEpoch(0), base_sequence: sequence };
    let mut builder = BatchBuilder::new(Codec::None).producer(stamp);
    builder.push(NewRecord { timestamp: TimestampMs(1), key: None, value: Some(b"v"), headers: &[] });
    let mut batch = builder.build();
    batch.place(base, LeaderEpoch(1));
    batch
}

proptest! {
    /// However the log is cut into segments, each carries the state of a replica that holds the log whole: its chained hash, and
    /// its producers, of which some expire on the way and come back.
    #[test]
    fn each_segment_ends_in_the_state_of_a_replica(
        appends in prop::collection::vec((0u64..4, 0i64..3, any::<bool>()), 1..40)
    ) {
        let (mut whole, mut from) = (EndState::empty(), EndState::empty());
        let mut sequences = [0; 4];
        let mut unsent = Vec::new();
        let mut time = 0;
        for (producer, pause, cut) in appends {
            time += [1, 40_000, PRODUCER_EXPIRY_MS + 60_000][pause as usize];
            let sequence = &mut sequences[producer as usize];
            let batch = batch(whole.end, producer, *sequence);
            *sequence += 1;
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
            // What the manifest says of the segment is all that the next one starts from.
            from = EndState {
                end: built.meta.end,
                prefix_hash: built.meta.prefix_hash,
                producers,
                last_append_time: built.meta.max_append_time,
            };
        }
    }
}
