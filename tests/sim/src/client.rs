//! An idempotent producer of one partition: a few batches in flight, sent again in order until each is acknowledged.

use crate::rng::Rng;
use millpond_core::replica::{Appended, Refusal};
use millpond_log::batch::{BatchBuilder, NewRecord, ProducerStamp};
use millpond_log::codec::Codec;
use millpond_log::{Batch, PartitionId, ProducerEpoch, ProducerId, TimestampMs};
use std::collections::BTreeMap;

/// Batches in flight: as many as a broker remembers.
const IN_FLIGHT_MAX: usize = 5;

/// Records a client sends in one run, so that runs end.
const RECORDS_MAX: i32 = 60;

pub(crate) struct Client {
    id: u64,
    pub(crate) partition: PartitionId,
    next_sequence: i32,
    records_max: i32,
    /// Sequence and count of what is not acknowledged.
    unacked: BTreeMap<i32, u32>,
    /// Sequence, count and base offset of what is.
    pub(crate) acked: BTreeMap<i32, (u32, Appended)>,
}

impl Client {
    pub(crate) fn new(id: u64, partition: PartitionId) -> Client {
        let (unacked, acked) = (BTreeMap::new(), BTreeMap::new());
        Client { id, partition, next_sequence: 0, records_max: RECORDS_MAX, unacked, acked }
    }

    pub(crate) fn producer(&self) -> ProducerId {
        ProducerId(self.id)
    }

    /// Allows more records, so that progress can be seen.
    pub(crate) fn resume(&mut self) {
        self.records_max += 20;
    }

    /// Whether everything it sent is answered (L3).
    pub(crate) fn is_done(&self) -> bool {
        self.unacked.is_empty()
    }

    /// What to send now: everything unacknowledged, oldest first, and perhaps one batch more, unless nothing fresh is wanted.
    pub(crate) fn batches(&mut self, rng: &mut Rng, fresh: bool) -> Vec<Batch> {
        // As a broker remembers the newest five batches, the oldest unacknowledged one has to be among them.
        let oldest = self.unacked.first_key_value().map_or(self.next_sequence, |(sequence, _)| *sequence);
        let since = self.unacked.len() + self.acked.range(oldest..).count();
        if fresh && since < IN_FLIGHT_MAX && self.next_sequence < self.records_max && (since == 0 || rng.per_mille(600))
        {
            let count = 1 + u32::try_from(rng.below(3)).expect("small");
            self.unacked.insert(self.next_sequence, count);
            self.next_sequence += i32::try_from(count).expect("small");
        }
        // A partition lets a producer it does not know begin anywhere, as Kafka's do: nothing may overtake its first batch.
        let window = if self.acked.is_empty() { 1 } else { IN_FLIGHT_MAX };
        self.unacked.iter().take(window).map(|(sequence, count)| self.batch(*sequence, *count)).collect()
    }

    fn batch(&self, sequence: i32, count: u32) -> Batch {
        let stamp = ProducerStamp { id: self.producer(), epoch: ProducerEpoch(0), base_sequence: sequence };
        let mut builder = BatchBuilder::new(Codec::None).producer(stamp);
        for record in 0..count {
            let value =
                [self.id.to_le_bytes(), (u64::from(record) << 32 | u64::from(sequence.unsigned_abs())).to_le_bytes()]
                    .concat();
            builder.push(NewRecord { timestamp: TimestampMs(1), key: None, value: Some(&value), headers: &[] });
        }
        builder.build()
    }

    pub(crate) fn answered(&mut self, sequence: i32, result: &Result<Appended, Refusal>) {
        if let (Ok(appended), Some(count)) = (result, self.unacked.get(&sequence).copied()) {
            self.unacked.remove(&sequence);
            self.acked.insert(sequence, (count, *appended));
        }
    }
}
