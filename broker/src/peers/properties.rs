//! What must hold of any bytes that another broker sends as a frame of pushes: memory bounded by what was sent, no panic, and
//! nothing taken that a replica or the WAL could not take.

use super::wire::{push_in, push_out};
use bytes::Bytes;
use millpond_core::replica::{Cursor, Placed, Push, PushHead};
use millpond_log::batch::{BatchBuilder, NewRecord};
use millpond_log::codec::Codec;
use millpond_log::testing::{Seed, memory};
use millpond_log::{BrokerId, Incarnation, LeaderEpoch, Offset, PartitionId, Rid, TimestampMs, TopicId, WalGen};
use millpond_proto::internal::PushFrame;
use prost::Message;

/// What a frame may become: an empty push of two bytes becomes a structure, in a list that doubles.
const GROWTH_MAX: usize = 512;

/// Largest batch that the broker of the property takes.
const BATCH_BYTES_MAX: usize = 1 << 16;

const LEADER: Rid = Rid { broker: BrokerId(1), wal_gen: WalGen(9) };

/// Reads the input as a frame. Whether it is one, with nothing in it that a leader does not send.
pub fn push_frame(input: &[u8]) -> bool {
    let wire = Bytes::copy_from_slice(input);
    let Ok(frame) = memory::within(4096 + GROWTH_MAX * input.len(), || PushFrame::decode(wire)) else { return false };
    let mut all = true;
    for push in frame.pushes {
        match push_in(push, LEADER, BATCH_BYTES_MAX) {
            Ok((partition, push)) => check(partition, &push),
            Err(_) => all = false,
        }
    }
    all
}

fn check(partition: PartitionId, push: &Push) {
    let mut end = push.prev_offset;
    let mut epoch = push.prev_epoch;
    for placed in &push.batches {
        assert_eq!(placed.batch.base_offset(), end, "batches adjoin");
        assert!(Some(placed.batch.leader_epoch()) >= epoch && placed.batch.leader_epoch() <= push.head.epoch);
        assert!(placed.batch.verify_crc().is_ok() && placed.batch.size() <= BATCH_BYTES_MAX);
        (end, epoch) = (placed.batch.end_offset(), Some(placed.batch.leader_epoch()));
    }
    // What was taken can be sent on, and is the same.
    let Push { head, nonce, start, prev_offset, prev_epoch, batches } = push.clone();
    let cursor = Cursor { to: BrokerId(2), nonce, from: prev_offset, prev_epoch };
    let again = push_in(push_out(partition, &cursor, &head, start, batches), LEADER, BATCH_BYTES_MAX);
    assert_eq!(again, Ok((partition, push.clone())));
}

/// Frames without pushes, with what moved only, and with batches; one whose epochs fall is refused.
#[must_use]
pub fn push_frame_seeds() -> Vec<Seed> {
    let placed = |base: u64, epoch: u32| {
        let mut builder = BatchBuilder::new(Codec::None);
        builder.push(NewRecord { timestamp: TimestampMs(5), key: None, value: Some(b"value"), headers: &[] });
        let mut batch = builder.build();
        batch.place(Offset(base), LeaderEpoch(epoch));
        Placed { batch, append_time: TimestampMs(7), latest: TimestampMs(5), prefix_hash: 1 << 40 }
    };
    let push = |prev_epoch: Option<u32>, batches: Vec<Placed>| {
        let partition = PartitionId { topic: TopicId(3), index: 4 };
        let head = PushHead {
            epoch: LeaderEpoch(6),
            leader: millpond_core::records::Leader { rid: LEADER, inc: Incarnation(8) },
            unclean_epoch: Some(LeaderEpoch(2)),
            hw: Offset(9),
            log_start: Offset(1),
            tiered_end: Offset(2),
        };
        let prev_epoch = prev_epoch.map(LeaderEpoch);
        let cursor = Cursor { to: BrokerId(2), nonce: 3, from: Offset(10), prev_epoch };
        push_out(partition, &cursor, &head, Offset(1), batches)
    };
    let frame = |pushes| PushFrame { hello: None, pushes }.encode_to_vec();
    vec![
        ("none".to_owned(), frame(Vec::new())),
        ("moved".to_owned(), frame(vec![push(None, Vec::new()), push(Some(6), Vec::new())])),
        ("batches".to_owned(), frame(vec![push(Some(4), vec![placed(10, 4), placed(11, 6)]), push(None, Vec::new())])),
        ("refused-epochs".to_owned(), frame(vec![push(Some(5), vec![placed(10, 4)])])),
    ]
}
