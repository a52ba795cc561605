//! Batches that lose records, against the list of their records.

use super::*;
use crate::batch::{BatchBuilder, Header, NewRecord, ProducerStamp, Record};
use crate::ids::{CoordinatorEpoch, LeaderEpoch, ProducerEpoch, ProducerId};
use crate::transactions::{EndMarker, Marker, TxnOutcome};
use proptest::prelude::*;

const HORIZON: TimestampMs = TimestampMs(5_000);

/// A record in brief: time, key, value.
type Brief = (i64, Option<&'static [u8]>, Option<&'static [u8]>);

const ABC: [Brief; 3] = [(10, Some(b"a"), Some(b"1")), (30, Some(b"b"), Some(b"")), (20, Some(b""), Some(b"3"))];

fn batch(codec: Codec, records: &[Brief]) -> Batch {
    let stamp = ProducerStamp { id: ProducerId(7), epoch: ProducerEpoch(2), base_sequence: 40 };
    let mut builder = BatchBuilder::new(codec).producer(stamp).transactional();
    let headers = [
        Header { name: Bytes::from_static(b"h"), value: None },
        Header { name: Bytes::from_static(b"h"), value: Some(Bytes::new()) },
    ];
    for (time, key, value) in records {
        builder.push(NewRecord { timestamp: TimestampMs(*time), key: *key, value: *value, headers: &headers });
    }
    let mut batch = builder.build();
    batch.place(Offset(100), LeaderEpoch(6));
    batch
}

fn read(batch: &Batch) -> Vec<Record> {
    batch.records().unwrap().collect::<Result<_, _>>().unwrap()
}

/// Keeps the records at these places.
fn keep(batch: &Batch, places: &[u64]) -> Thinned {
    batch.thinned(HORIZON, |record| places.contains(&(record.offset.0 - batch.base_offset().0))).unwrap()
}

fn retaken(batch: &Batch) -> Batch {
    let mut bytes = Vec::new();
    batch.put(&mut bytes);
    Batch::take(&mut bytes.into()).unwrap().expect("it is whole")
}

#[test]
fn a_batch_of_which_all_records_stay_is_the_same_bytes() {
    for codec in Codec::ALL {
        let whole = batch(codec, &ABC);
        let Thinned { batch, removed, has_tombstones, latest } = keep(&whole, &[0, 1, 2]);
        assert_eq!((&batch, removed, has_tombstones, latest), (&whole, 0, false, TimestampMs(30)));
        assert_eq!(batch.records.as_ptr(), whole.records.as_ptr(), "shared, not copied");
    }
}

/// What nobody could read any more would be lost.
#[test]
fn a_horizon_that_would_make_a_batch_larger_than_any_may_be_is_not_set() {
    let whole = batch(Codec::None, &[(10, Some(b"a"), None), (30, Some(b"b"), None)]);
    let all = |bytes_max, inflated| whole.thinned_within(bytes_max, inflated, TimestampMs(1 << 40), |_| true).unwrap();
    let grown = all(1 << 20, 1 << 20).batch;
    assert!(grown.delete_horizon().is_some() && grown.size() > whole.size());
    let size = |batch: &Batch| u32::try_from(batch.size()).unwrap();
    assert_eq!(all(size(&grown), 1 << 20).batch, grown);
    assert_eq!(
        all(size(&grown) - 1, 1 << 20),
        Thinned { batch: whole.clone(), removed: 0, has_tombstones: true, latest: TimestampMs(30) }
    );
    assert_eq!(all(1 << 20, whole.records.len()).batch, whole, "as it is inflated");
    let one = whole.thinned_within(0, 1 << 20, TimestampMs(1 << 40), |record| record.offset == Offset(101)).unwrap();
    assert_eq!((one.removed, one.batch.record_count()), (1, 1), "it may be as large as it was");
}

/// Case C9.
#[test]
fn a_batch_that_loses_records_keeps_its_offsets_and_its_producer() {
    for codec in Codec::ALL {
        let whole = batch(codec, &ABC);
        let Thinned { batch, removed, latest, .. } = keep(&whole, &[0, 2]);
        assert_eq!((removed, latest, batch.verify_crc()), (1, TimestampMs(20), Ok(())));
        assert_eq!(retaken(&batch), batch, "its length is right");
        assert_eq!((batch.base_offset(), batch.end_offset(), batch.record_count()), (Offset(100), Offset(103), 2));
        assert_eq!((batch.producer(), batch.is_transactional()), (whole.producer(), true));
        assert_eq!((batch.leader_epoch(), batch.codec()), (LeaderEpoch(6), Some(codec)));
        assert_eq!((batch.base_timestamp(), batch.max_timestamp()), (TimestampMs(10), TimestampMs(20)));
        let records = read(&whole);
        assert_eq!(read(&batch), [records[0].clone(), records[2].clone()]);
    }
}

#[test]
fn a_tombstone_that_stays_gets_a_horizon_once() {
    let with_tombstone = [ABC[0], (12, Some(b"d"), None), ABC[2]];
    for codec in Codec::ALL {
        let whole = batch(codec, &with_tombstone);
        assert_eq!(whole.delete_horizon(), None);
        let first = keep(&whole, &[0, 1, 2]);
        assert_eq!((first.removed, first.has_tombstones), (0, true));
        assert_eq!(first.batch.delete_horizon(), Some(HORIZON));
        assert_eq!(first.batch.head()[22] & 0x40, 0x40, "bit 6 of the attributes");
        assert_eq!(first.batch.head()[27..35], HORIZON.0.to_be_bytes(), "in place of the base timestamp");
        assert_eq!((first.batch.verify_crc(), read(&first.batch)), (Ok(()), read(&whole)));
        let later = first.batch.thinned(TimestampMs(9_999), |record| record.offset != Offset(100)).unwrap();
        assert_eq!((later.removed, later.batch.delete_horizon()), (1, Some(HORIZON)));
        assert_eq!(read(&later.batch), read(&whole)[1..]);
        let again = later.batch.thinned(TimestampMs(9_999), |_| true).unwrap();
        assert_eq!(again.batch, later.batch, "the same bytes");
    }
}

#[test]
fn an_empty_value_is_no_tombstone_and_no_key_has_none() {
    let mut shown = Vec::new();
    let note =
        |record: KeyedRecord<'_>| shown.push((record.offset.0, record.key.map(<[u8]>::to_vec), record.is_tombstone));
    let whole = batch(Codec::None, &[ABC[1], (1, None, None), (1, Some(b""), None)]);
    whole.each_keyed(note).unwrap();
    assert_eq!(shown, [(100, Some(b"b".to_vec()), false), (101, None, false), (102, Some(Vec::new()), true)]);
    assert!(!keep(&whole, &[0]).has_tombstones);
}

#[test]
fn a_horizon_is_no_records_time() {
    // All times are unset, so the largest is Kafka's -1, which else stands for the base timestamp.
    let whole = batch(Codec::None, &[(-1, Some(b"a"), None)]);
    let with_horizon = keep(&whole, &[0]).batch;
    assert_eq!((with_horizon.base_timestamp(), with_horizon.max_timestamp()), (HORIZON, TimestampMs(-1)));
    assert_eq!(with_horizon.latest_timestamp(), Ok(TimestampMs(-1)));
    assert_eq!(read(&with_horizon), read(&whole));
}

#[test]
fn the_brokers_time_stays_whatever_records_go() {
    let mut whole = batch(Codec::Zstd, &[ABC[0], (12, Some(b"d"), None), ABC[2]]);
    whole.stamp_append_time(TimestampMs(77));
    for places in [&[0, 1][..], &[1], &[2]] {
        let Thinned { batch, latest, .. } = keep(&whole, places);
        assert_eq!((batch.timestamp_type(), batch.max_timestamp()), (TimestampType::LogAppendTime, TimestampMs(77)));
        assert_eq!((latest, batch.latest_timestamp()), (TimestampMs(77), Ok(TimestampMs(77))));
        assert_eq!(batch.delete_horizon().is_some(), places.contains(&1));
        assert!(read(&batch).iter().all(|record| record.timestamp == TimestampMs(77)));
    }
}

#[test]
fn of_a_batch_without_records_the_header_is_left() {
    for codec in Codec::ALL {
        let whole = batch(codec, &ABC);
        let Thinned { batch, removed, latest, .. } = keep(&whole, &[]);
        assert_eq!((removed, latest, batch.verify_crc()), (3, TimestampMs::NONE, Ok(())));
        assert_eq!((batch.size(), batch.record_count(), read(&batch).len()), (61, 0, 0));
        assert_eq!((batch.base_offset(), batch.end_offset()), (Offset(100), Offset(103)));
        assert_eq!((batch.producer(), batch.is_transactional()), (whole.producer(), true));
        assert_eq!((batch.leader_epoch(), batch.max_timestamp()), (LeaderEpoch(6), TimestampMs(30)));
        assert_eq!(batch.latest_timestamp(), Ok(TimestampMs::NONE), "no search by time finds it");
        assert_eq!((keep(&batch, &[]).batch, batch.emptied()), (batch.clone(), batch), "once");
    }
    let mut stamped = batch(Codec::None, &ABC);
    stamped.stamp_append_time(TimestampMs(77));
    assert_eq!(stamped.emptied().timestamp_type(), TimestampType::LogAppendTime);
    assert_eq!(stamped.emptied().latest_timestamp(), Ok(TimestampMs::NONE));
    let with_horizon = batch(Codec::None, &[(12, Some(b"d"), None)]).with_delete_horizon(HORIZON).unwrap();
    assert_eq!(with_horizon.emptied().delete_horizon(), None);
}

/// sarama, aiokafka and kafka-python take the first record of whatever is a control batch, and fail if there is none.
#[test]
fn of_a_marker_a_hole_is_left_and_no_control_batch_without_a_record() {
    for outcome in [TxnOutcome::Commit, TxnOutcome::Abort] {
        let end = EndMarker { outcome, coordinator_epoch: CoordinatorEpoch(3) };
        let marker = Marker { producer: ProducerId(7), epoch: ProducerEpoch(2), raised: true, end };
        let mut whole = Batch::of_marker(&marker, TimestampMs(10));
        whole.place(Offset(100), LeaderEpoch(6));
        for batch in [whole.emptied(), whole.with_delete_horizon(HORIZON).unwrap().emptied()] {
            assert_eq!((batch.is_control(), batch.producer(), batch.delete_horizon()), (false, None, None));
            assert_eq!(
                (batch.base_offset(), batch.end_offset(), batch.leader_epoch()),
                (Offset(100), Offset(101), LeaderEpoch(6))
            );
            assert_eq!((batch.record_count(), batch.verify_crc(), batch.emptied()), (0, Ok(()), batch.clone()));
        }
    }
}

#[test]
fn a_records_attributes_stay() {
    // Length 7, attributes 0x5a and 0xa5, time 0, offset 0 and 1, key of one byte, null value, no headers.
    let raw = [14, 0x5a, 0, 0, 2, b'k', 1, 0, 14, 0xa5, 0, 2, 2, b'k', 1, 0];
    let mut whole = batch(Codec::None, &ABC[..2]);
    let head = whole.head;
    whole = Batch::seal(head, Bytes::copy_from_slice(&raw));
    let attributes = |batch: &Batch| -> Vec<u8> {
        let mut seen = Vec::new();
        batch.walk(batch.records_bytes(), |record, _| seen.push(record.attributes)).unwrap();
        seen
    };
    assert_eq!(attributes(&keep(&whole, &[0, 1]).batch), [0x5a, 0xa5], "encoded anew for the horizon");
    assert_eq!(attributes(&keep(&whole, &[1]).batch), [0xa5]);
    let thinned = whole.with_delete_horizon(HORIZON).unwrap();
    assert_eq!(attributes(&keep(&thinned, &[1]).batch), [0xa5]);
}

#[test]
fn records_that_contradict_the_header_are_told() {
    let whole = batch(Codec::None, &ABC);
    let mut head = whole.head;
    layout::RECORD_COUNT.set(&mut head, 2);
    let fewer = Batch::seal(head, whole.records.clone());
    layout::RECORD_COUNT.set(&mut head, 4);
    let more = Batch::seal(head, whole.records.clone());
    layout::RECORD_COUNT.set(&mut head, 3);
    layout::LAST_OFFSET_DELTA.set(&mut head, 1);
    let beyond = Batch::seal(head, whole.records.clone());
    for (batch, why) in [
        (fewer, "bytes left after the last record"),
        (more, "records end inside a record"),
        (beyond, "offset delta out of order"),
    ] {
        let malformed = BatchError::Malformed(why);
        assert_eq!(batch.each_keyed(|_| {}), Err(malformed.clone()));
        assert_eq!(batch.thinned(HORIZON, |_| true), Err(malformed.clone()));
        assert_eq!(batch.with_delete_horizon(HORIZON), Err(malformed));
    }
}

/// A record of any kind: its time, key, value, headers, and whether it stays.
type AnyRecord = (i64, Option<Vec<u8>>, Option<Vec<u8>>, Vec<(Vec<u8>, Option<Vec<u8>>)>, bool);

fn any_record() -> impl Strategy<Value = AnyRecord> {
    let bytes = || prop::collection::vec(any::<u8>(), 0..20);
    let nullable = || prop::option::weighted(0.8, bytes());
    let time = prop_oneof![3 => 0i64..2_000, 1 => Just(-1), 1 => any::<i64>()];
    (time, nullable(), nullable(), prop::collection::vec((bytes(), nullable()), 0..3), any::<bool>())
}

proptest! {
    /// However often a batch is thinned, what is left of its records is as it was written.
    #[test]
    fn what_is_left_is_what_was_written(
        records in prop::collection::vec(any_record(), 1..30),
        codec in prop::sample::select(&Codec::ALL[..]),
        horizons in (any::<i64>(), any::<i64>()),
        stamped in prop::option::weighted(0.3, 0i64..2_000),
        again in prop::collection::vec(any::<bool>(), 30),
    ) {
        let mut builder = BatchBuilder::new(codec);
        for (time, key, value, headers, _) in &records {
            let headers: Vec<Header> = headers
                .iter()
                .map(|(name, value)| Header { name: name.clone().into(), value: value.clone().map(Bytes::from) })
                .collect();
            let (key, value) = (key.as_deref(), value.as_deref());
            builder.push(NewRecord { timestamp: TimestampMs(*time), key, value, headers: &headers });
        }
        let mut whole = builder.build();
        whole.place(Offset(1 << 40), LeaderEpoch(3));
        if let Some(time) = stamped {
            whole.stamp_append_time(TimestampMs(time));
        }
        let mut expected: Vec<Record> = read(&whole);
        let (mut now, mut horizon) = (whole, None);
        let stays: Vec<bool> = records.iter().map(|record| record.4).collect();
        for (mask, given) in [(stays, horizons.0), (again, horizons.1)] {
            let at = |offset: Offset| mask[(offset.0 - (1 << 40)) as usize];
            let before = now.clone();
            let thinned = now.thinned(TimestampMs(given), |record| at(record.offset)).unwrap();
            let len = expected.len();
            expected.retain(|record| at(record.offset));
            now = thinned.batch;
            prop_assert_eq!(now.verify_crc(), Ok(()));
            prop_assert_eq!(&retaken(&now), &now);
            prop_assert_eq!(&read(&now), &expected);
            prop_assert_eq!(thinned.removed as usize, len - expected.len());
            prop_assert_eq!(now.latest_timestamp(), Ok(thinned.latest));
            let latest = expected.iter().map(|record| record.timestamp).max();
            prop_assert_eq!(thinned.latest, latest.unwrap_or(TimestampMs::NONE));
            let tombstones = expected.iter().any(|record| record.key.is_some() && record.value.is_none());
            prop_assert_eq!(thinned.has_tombstones, tombstones);
            if tombstones && horizon.is_none() {
                horizon = Some(TimestampMs(given));
            }
            if expected.is_empty() {
                horizon = None;
            }
            prop_assert_eq!(now.delete_horizon(), horizon);
            if len == expected.len() && before.delete_horizon() == horizon {
                prop_assert_eq!(&before, &now);
            }
            prop_assert_eq!((now.base_offset(), now.end_offset()), (before.base_offset(), before.end_offset()));
        }
    }
}
