//! Between the messages of `millpond.internal.v1` and the vocabulary of replicas. What was read is the world: whatever a replica
//! or the WAL relies on is checked here, and what does not hold is an error. It decides nothing.

use crate::partitions::ends::{End, EndWanted};
use crate::partitions::links::Answer;
use bytes::Bytes;
use millpond_core::election::Holds;
use millpond_core::records::Leader;
use millpond_core::replica::{Cursor, Live, Placed, Push, PushHead, PushReply, Said, Transfer};
use millpond_log::{Batch, Incarnation, LeaderEpoch, Offset, PartitionId, Rid, TimestampMs, TopicId, WalGen};
use millpond_proto::internal as proto;

/// Version of the messages. Raised when a broker could misread an older one's.
pub(super) const FORMAT: u32 = 1;

/// A peer said what no broker of this version says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub(super) struct Nonsense(pub(super) &'static str);

pub(super) type Read<T> = Result<T, Nonsense>;

pub(super) fn replica_out(rid: Rid, inc: Incarnation) -> proto::Replica {
    proto::Replica { broker: rid.broker.0, wal_gen: rid.wal_gen.0, incarnation: inc.0 }
}

pub(super) fn replica_in(replica: &proto::Replica) -> (Rid, Incarnation) {
    let rid = Rid { broker: millpond_log::BrokerId(replica.broker), wal_gen: WalGen(replica.wal_gen) };
    (rid, Incarnation(replica.incarnation))
}

pub(super) fn topic_out(topic: TopicId) -> Bytes {
    Bytes::copy_from_slice(&topic.0.to_be_bytes())
}

pub(super) fn partition_in(topic: &[u8], index: u32) -> Read<PartitionId> {
    let topic = topic.try_into().map_err(|_| Nonsense("a topic id is 16 bytes"))?;
    Ok(PartitionId { topic: TopicId(u128::from_be_bytes(topic)), index })
}

fn offset(value: u64) -> Read<Offset> {
    if i64::try_from(value).is_ok() { Ok(Offset(value)) } else { Err(Nonsense("offsets stay below 2^63")) }
}

pub(super) fn epoch(value: u32) -> Read<LeaderEpoch> {
    if i32::try_from(value).is_ok() { Ok(LeaderEpoch(value)) } else { Err(Nonsense("epochs stay below 2^31")) }
}

/// What is said of a partition from `cursor` on; `start` is the first offset in the WAL.
pub(super) fn push_out(
    partition: PartitionId,
    cursor: &Cursor,
    head: &PushHead,
    start: Offset,
    placed: Vec<Placed>,
) -> proto::Push {
    let append_times = placed.iter().map(|placed| placed.append_time.0).collect();
    let latest_timestamps = placed.iter().map(|placed| placed.latest.0).collect();
    let prefix_hashes = placed.iter().map(|placed| placed.prefix_hash).collect();
    let batches: Vec<Batch> = placed.into_iter().map(|placed| placed.batch).collect();
    proto::Push {
        topic: topic_out(partition.topic),
        partition: partition.index,
        epoch: head.epoch.0,
        leader_incarnation: head.leader.inc.0,
        unclean_epoch: head.unclean_epoch.map(|epoch| epoch.0),
        high_watermark: head.hw.0,
        log_start: head.log_start.0,
        tiered_end: head.tiered_end.0,
        nonce: cursor.nonce,
        start: start.0,
        prev_offset: cursor.from.0,
        prev_epoch: cursor.prev_epoch.map(|epoch| epoch.0),
        batches: (!batches.is_empty()).then(|| batches.into()),
        append_times,
        latest_timestamps,
        prefix_hashes,
    }
}

/// A push of the leader `leader`, whose batches adjoin, are whole (rule R13), rise in epoch and fit the WAL.
pub(super) fn push_in(push: proto::Push, leader: Rid, batch_bytes_max: usize) -> Read<(PartitionId, Push)> {
    let partition = partition_in(&push.topic, push.partition)?;
    let head = PushHead {
        epoch: epoch(push.epoch)?,
        leader: Leader { rid: leader, inc: Incarnation(push.leader_incarnation) },
        unclean_epoch: push.unclean_epoch.map(epoch).transpose()?,
        hw: offset(push.high_watermark)?,
        log_start: offset(push.log_start)?,
        tiered_end: offset(push.tiered_end)?,
    };
    let (prev_offset, prev_epoch) = (offset(push.prev_offset)?, push.prev_epoch.map(epoch).transpose()?);
    if prev_epoch.is_some() && prev_offset == Offset(0) {
        return Err(Nonsense("nothing comes before offset 0"));
    }
    let count = push.append_times.len();
    if push.latest_timestamps.len() != count || push.prefix_hashes.len() != count {
        return Err(Nonsense("as many times and hashes as batches"));
    }
    let mut bytes = push.batches.map(millpond_proto::RecordBatches::into_bytes).unwrap_or_default();
    let mut batches = Vec::with_capacity(count);
    let (mut end, mut newest) = (prev_offset, prev_epoch);
    for at in 0..count {
        let batch = Batch::take(&mut bytes).map_err(|_| Nonsense("a batch is malformed"))?;
        let batch = batch.ok_or(Nonsense("as many batches as times"))?;
        batch.verify_crc().map_err(|_| Nonsense("a batch does not match its checksum (rule R13)"))?;
        if batch.base_offset() != end || batch.end_offset() <= end {
            return Err(Nonsense("batches adjoin"));
        }
        if Some(batch.leader_epoch()) < newest || batch.leader_epoch() > head.epoch {
            return Err(Nonsense("epochs rise along a log, up to the leader's"));
        }
        if batch.size() > batch_bytes_max {
            return Err(Nonsense("a batch is larger than this broker's WAL files allow"));
        }
        (end, newest) = (batch.end_offset(), Some(batch.leader_epoch()));
        batches.push(Placed {
            batch,
            append_time: TimestampMs(push.append_times[at]),
            latest: TimestampMs(push.latest_timestamps[at]),
            prefix_hash: push.prefix_hashes[at],
        });
    }
    if !bytes.is_empty() {
        return Err(Nonsense("as many times as batches"));
    }
    let (nonce, start) = (push.nonce, offset(push.start)?);
    Ok((partition, Push { head, nonce, start, prev_offset, prev_epoch, batches }))
}

pub(super) fn answer_out(answer: &Answer) -> proto::Answer {
    use proto::answer::Said as Wire;
    let (partition, inc, epoch, nonce, said) = match *answer {
        Answer::Unknown { partition, nonce } => (partition, 0, 0, nonce, Wire::Unknown(true)),
        Answer::Said { partition, reply } => {
            let said = match reply.said {
                Said::Matched { end } => Wire::Matched(end.0),
                Said::Mismatch { end, epoch } => {
                    Wire::Mismatch(proto::Mismatch { end: end.0, epoch: epoch.map(|epoch| epoch.0) })
                }
                Said::Stale { seen } => Wire::Stale(seen.0),
            };
            (partition, reply.inc.0, reply.epoch.0, reply.nonce, said)
        }
    };
    proto::Answer {
        topic: topic_out(partition.topic),
        partition: partition.index,
        incarnation: inc,
        epoch,
        nonce,
        said: Some(said),
    }
}

/// An answer of the replica `rid`.
pub(super) fn answer_in(answer: &proto::Answer, rid: Rid) -> Read<Answer> {
    use proto::answer::Said as Wire;
    let partition = partition_in(&answer.topic, answer.partition)?;
    let nonce = answer.nonce;
    let said = match answer.said.as_ref().ok_or(Nonsense("an answer says something"))? {
        Wire::Unknown(_) => return Ok(Answer::Unknown { partition, nonce }),
        Wire::Matched(end) => Said::Matched { end: offset(*end)? },
        Wire::Mismatch(mismatch) => {
            Said::Mismatch { end: offset(mismatch.end)?, epoch: mismatch.epoch.map(epoch).transpose()? }
        }
        Wire::Stale(seen) => Said::Stale { seen: epoch(*seen)? },
    };
    let (inc, epoch) = (Incarnation(answer.incarnation), epoch(answer.epoch)?);
    Ok(Answer::Said { partition, reply: PushReply { rid, inc, epoch, nonce, said } })
}

pub(super) fn held_out(partition: PartitionId, holds: Holds) -> proto::Held {
    proto::Held {
        topic: topic_out(partition.topic),
        partition: partition.index,
        last_epoch: (holds.durable > Offset(0)).then_some(holds.last_epoch.0),
        durable_end: holds.durable.0,
        high_watermark: holds.hw.0,
        known_end: holds.known_end.0,
    }
}

pub(super) fn end_wanted_out(wanted: &EndWanted) -> proto::EndWanted {
    let EndWanted { partition, position } = *wanted;
    proto::EndWanted { topic: topic_out(partition.topic), partition: partition.index, position: position.0 }
}

pub(super) fn end_wanted_in(wanted: &proto::EndWanted) -> Read<EndWanted> {
    let partition = partition_in(&wanted.topic, wanted.partition)?;
    Ok(EndWanted { partition, position: offset(wanted.position)? })
}

pub(super) fn end_out((partition, end): &(PartitionId, End)) -> proto::End {
    proto::End {
        topic: topic_out(partition.topic),
        partition: partition.index,
        log_start: end.log_start.0,
        high_watermark: end.high_watermark.0,
        last_stable: end.last_stable.0,
        appended_ms: end.appended.map(|appended| appended.0),
        tiered_end: end.tiered_end.0,
        log_end: end.log_end.0,
        tail_bytes: end.tail_bytes,
        tiered_bytes: end.tiered_bytes,
    }
}

pub(super) fn end_in(end: &proto::End) -> Read<(PartitionId, End)> {
    let found = End {
        log_start: offset(end.log_start)?,
        high_watermark: offset(end.high_watermark)?,
        last_stable: offset(end.last_stable)?,
        appended: end.appended_ms.map(TimestampMs),
        tiered_end: offset(end.tiered_end)?,
        log_end: offset(end.log_end)?,
        tail_bytes: end.tail_bytes,
        tiered_bytes: end.tiered_bytes,
    };
    Ok((partition_in(&end.topic, end.partition)?, found))
}

pub(super) fn wish_out(partition: PartitionId, wish: &Transfer) -> proto::Handover {
    proto::Handover {
        topic: topic_out(partition.topic),
        partition: partition.index,
        epoch: wish.epoch.0,
        to: Some(replica_out(wish.to.rid, wish.to.inc)),
        within_ms: u32::try_from(wish.within_ms).unwrap_or(u32::MAX),
    }
}

pub(super) fn wish_in(wish: &proto::Handover) -> Read<(PartitionId, Transfer)> {
    let (rid, inc) = replica_in(wish.to.as_ref().ok_or(Nonsense("a transfer says to whom"))?);
    let within_ms = u64::from(wish.within_ms);
    let transfer = Transfer { epoch: epoch(wish.epoch)?, to: Live { rid, inc }, within_ms };
    Ok((partition_in(&wish.topic, wish.partition)?, transfer))
}

pub(super) fn held_in(held: &proto::Held) -> Read<(PartitionId, Holds)> {
    let holds = Holds {
        last_epoch: epoch(held.last_epoch.unwrap_or_default())?,
        durable: offset(held.durable_end)?,
        hw: offset(held.high_watermark)?,
        known_end: offset(held.known_end)?,
    };
    Ok((partition_in(&held.topic, held.partition)?, holds))
}
