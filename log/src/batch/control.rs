//! Control batches: the markers that end transactions, byte for byte as Kafka writes them (rule X5).
//!
//! Only leaders make them; what producers send is refused by `admit`. What is read back may be of a newer writer or thinned out
//! by compaction, so what is not understood ends nothing.

use super::layout::{self, attribute};
use super::{Batch, BatchBuilder, BatchError, NewRecord, ProducerStamp};
use crate::codec::Codec;
use crate::ids::{CoordinatorEpoch, TimestampMs};
use crate::transactions::{EndMarker, Marker, TxnOutcome};

/// Version of a control record's key and of a marker's value. Kafka's; later ones only add fields behind these.
const VERSION: i16 = 0;
const ABORT: i16 = 0;
const COMMIT: i16 = 1;

/// What a batch is to the state of its producer: all that a replay needs of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProducerWrite {
    /// Who wrote it, and where in its sequence.
    pub stamp: ProducerStamp,
    /// What it is.
    pub kind: WriteKind,
}

impl ProducerWrite {
    /// Whether it is of its producer as one that writes in transactions, which is another than the one that does not (rule P1).
    #[must_use]
    pub fn in_transactions(&self) -> bool {
        matches!(self.kind, WriteKind::Transactional | WriteKind::End(_))
    }

    /// What the header at the front of `bytes` says of a client's batch, of which nothing is checked; `None` if it has no producer, or no
    /// sequence.
    #[must_use]
    pub fn of_unchecked(bytes: &[u8]) -> Option<ProducerWrite> {
        let head = bytes.first_chunk()?;
        let stamp = ProducerStamp::of_header(head).filter(|stamp| stamp.base_sequence >= 0)?;
        let transactional = layout::ATTRIBUTES.get(head).cast_unsigned() & attribute::TRANSACTIONAL != 0;
        let kind = if transactional { WriteKind::Transactional } else { WriteKind::Plain };
        Some(ProducerWrite { stamp, kind })
    }
}

/// What a producer's batch is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriteKind {
    /// Records outside of any transaction.
    Plain,
    /// Records of a transaction; the first of them opens it.
    Transactional,
    /// A marker: it ends the transaction.
    End(EndMarker),
    /// A control batch that ends nothing: what it held was compacted away, or is of a kind not known here.
    Control,
}

impl ProducerWrite {
    /// Records outside of any transaction.
    #[must_use]
    pub fn plain(stamp: ProducerStamp) -> ProducerWrite {
        ProducerWrite { stamp, kind: WriteKind::Plain }
    }

    /// Records of a transaction.
    #[must_use]
    pub fn transactional(stamp: ProducerStamp) -> ProducerWrite {
        ProducerWrite { stamp, kind: WriteKind::Transactional }
    }

    /// A marker.
    #[must_use]
    pub fn marker(marker: &Marker) -> ProducerWrite {
        let stamp = ProducerStamp { id: marker.producer, epoch: marker.epoch, base_sequence: -1 };
        ProducerWrite { stamp, kind: WriteKind::End(marker.end) }
    }
}

impl Batch {
    /// The batch of a marker: one control record.
    ///
    /// Panics past 2^31 coordinator epochs, which Kafka's wire cannot carry.
    #[must_use]
    pub fn of_marker(marker: &Marker, now: TimestampMs) -> Batch {
        let outcome = match marker.end.outcome {
            TxnOutcome::Abort => ABORT,
            TxnOutcome::Commit => COMMIT,
        };
        let epoch = i32::try_from(marker.end.coordinator_epoch.0).expect("coordinator epochs stay below 2^31");
        let key = [VERSION.to_be_bytes(), outcome.to_be_bytes()].concat();
        let value = [&VERSION.to_be_bytes()[..], &epoch.to_be_bytes()].concat();
        let stamp = ProducerWrite::marker(marker).stamp;
        let mut builder = BatchBuilder::new(Codec::None).producer(stamp).transactional().control();
        builder.push(NewRecord { timestamp: now, key: Some(&key), value: Some(&value), headers: &[] });
        builder.build()
    }

    /// What the marker in a control batch says; `None` if it holds no marker.
    ///
    /// # Errors
    /// As `records`; `Malformed` if its first record is a marker that cannot be read.
    pub fn end_marker(&self) -> Result<Option<EndMarker>, BatchError> {
        if !self.is_control() {
            return Ok(None);
        }
        let Some(record) = self.records()?.next().transpose()? else { return Ok(None) };
        let key = record.key.as_deref().unwrap_or_default();
        let (Some(version), Some(kind)) = (number::<2>(key, 0), number::<2>(key, 2)) else {
            return Err(BatchError::Malformed("key of a control record"));
        };
        if i16::from_be_bytes(version) < VERSION {
            return Err(BatchError::Malformed("version of a control record"));
        }
        let outcome = match i16::from_be_bytes(kind) {
            ABORT => TxnOutcome::Abort,
            COMMIT => TxnOutcome::Commit,
            _ => return Ok(None),
        };
        let value = record.value.as_deref().unwrap_or_default();
        let (Some(version), Some(epoch)) = (number::<2>(value, 0), number::<4>(value, 2)) else {
            return Err(BatchError::Malformed("value of a marker"));
        };
        match (i16::from_be_bytes(version), u32::try_from(i32::from_be_bytes(epoch))) {
            (VERSION.., Ok(epoch)) => Ok(Some(EndMarker { outcome, coordinator_epoch: CoordinatorEpoch(epoch) })),
            _ => Err(BatchError::Malformed("version or coordinator epoch of a marker")),
        }
    }

    /// What it is to the state of its producer, if it has one. All replicas see the same in the same bytes (rule P2).
    #[must_use]
    pub fn producer_write(&self) -> Option<ProducerWrite> {
        let stamp = self.producer()?;
        let kind = match () {
            () if self.is_control() => self.end_marker().ok().flatten().map_or(WriteKind::Control, WriteKind::End),
            () if self.is_transactional() => WriteKind::Transactional,
            () => WriteKind::Plain,
        };
        Some(ProducerWrite { stamp, kind })
    }
}

fn number<const LEN: usize>(bytes: &[u8], at: usize) -> Option<[u8; LEN]> {
    bytes.get(at..)?.first_chunk().copied()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::{ProducerEpoch, ProducerId};
    use bytes::BytesMut;

    fn marker(outcome: TxnOutcome) -> Marker {
        Marker {
            producer: ProducerId(0x0102_0304),
            epoch: ProducerEpoch(5),
            raised: true,
            end: EndMarker { outcome, coordinator_epoch: CoordinatorEpoch(0x0a0b) },
        }
    }

    fn control(key: &[u8], value: &[u8]) -> Batch {
        let stamp = ProducerStamp { id: ProducerId(1), epoch: ProducerEpoch(0), base_sequence: -1 };
        let mut builder = BatchBuilder::new(Codec::None).producer(stamp).transactional().control();
        builder.push(NewRecord { timestamp: TimestampMs(1), key: Some(key), value: Some(value), headers: &[] });
        builder.build()
    }

    /// The bytes that Kafka 4.3 writes for a marker, after the fields that the log sets.
    #[test]
    fn marker_bytes_are_kafkas() {
        for (outcome, kind) in [(TxnOutcome::Abort, 0), (TxnOutcome::Commit, 1)] {
            let batch = Batch::of_marker(&marker(outcome), TimestampMs(0x11));
            let mut bytes = BytesMut::new();
            batch.put(&mut bytes);
            // Attributes: transactional and control. Last offset delta 0.
            assert_eq!(bytes[21..27], [0, 0x30, 0, 0, 0, 0]);
            // Base and largest timestamp, producer id and epoch, no sequence, one record.
            let times = [0, 0, 0, 0, 0, 0, 0, 0x11];
            assert_eq!(bytes[27..43], [times, times].concat());
            assert_eq!(bytes[43..61], [0, 0, 0, 0, 1, 2, 3, 4, 0, 5, 0xff, 0xff, 0xff, 0xff, 0, 0, 0, 1]);
            // Length 16, attributes, deltas; key of 4 (version, type), value of 6 (version, coordinator epoch), no headers.
            assert_eq!(bytes[61..], [32, 0, 0, 0, 8, 0, 0, 0, kind, 12, 0, 0, 0, 0, 0x0a, 0x0b, 0]);
            assert_eq!(batch.verify_crc(), Ok(()));
        }
    }

    #[test]
    fn a_marker_reads_back() {
        for outcome in [TxnOutcome::Abort, TxnOutcome::Commit] {
            let written = marker(outcome);
            let batch = Batch::of_marker(&written, TimestampMs(7));
            assert_eq!(batch.end_marker(), Ok(Some(written.end)));
            assert_eq!(batch.producer_write(), Some(ProducerWrite::marker(&written)));
        }
    }

    #[test]
    fn what_is_no_marker_ends_nothing_and_what_is_a_broken_one_is_told() {
        let check = |key: &[u8], value: &[u8], expected: Result<Option<EndMarker>, BatchError>| {
            let batch = control(key, value);
            assert_eq!(batch.end_marker(), expected, "{key:x?} {value:x?}");
            let ends = matches!(batch.producer_write().map(|write| write.kind), Some(WriteKind::End(_)));
            assert_eq!(ends, matches!(expected, Ok(Some(_))), "{key:x?} {value:x?}");
        };
        let commit = EndMarker { outcome: TxnOutcome::Commit, coordinator_epoch: CoordinatorEpoch(9) };
        check(&[0, 0, 0, 1], &[0, 0, 0, 0, 0, 9], Ok(Some(commit)));
        // Later versions add fields behind; a change of leader is a control record of another kind.
        check(&[0, 1, 0, 1, 7], &[0, 1, 0, 0, 0, 9, 7], Ok(Some(commit)));
        check(&[0, 0, 0, 2], &[], Ok(None));
        let malformed = |what| Err(BatchError::Malformed(what));
        check(&[0, 0, 0], &[0, 0, 0, 0, 0, 9], malformed("key of a control record"));
        check(&[0xff, 0xff, 0, 1], &[0, 0, 0, 0, 0, 9], malformed("version of a control record"));
        check(&[0, 0, 0, 1], &[0, 0, 0, 0, 0], malformed("value of a marker"));
        check(&[0, 0, 0, 1], &[0xff, 0xff, 0, 0, 0, 9], malformed("version or coordinator epoch of a marker"));
        check(&[0, 0, 0, 1], &[0, 0, 0xff, 0, 0, 9], malformed("version or coordinator epoch of a marker"));
    }

    #[test]
    fn records_are_no_markers_whatever_they_say() {
        let stamp = ProducerStamp { id: ProducerId(1), epoch: ProducerEpoch(0), base_sequence: 3 };
        let (key, value) = ([0, 0, 0, 1], [0, 0, 0, 0, 0, 9]);
        let record = NewRecord { timestamp: TimestampMs(1), key: Some(&key), value: Some(&value), headers: &[] };
        for (transactional, expected) in
            [(true, ProducerWrite::transactional(stamp)), (false, ProducerWrite::plain(stamp))]
        {
            let mut builder = BatchBuilder::new(Codec::None).producer(stamp);
            if transactional {
                builder = builder.transactional();
            }
            builder.push(record);
            let batch = builder.build();
            assert_eq!(batch.end_marker(), Ok(None));
            assert_eq!(batch.producer_write(), Some(expected));
        }
    }
}
