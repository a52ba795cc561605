//! What one replica promises, step by step.

use super::*;
use millpond_log::batch::{BatchBuilder, NewRecord, ProducerStamp};
use millpond_log::codec::Codec;
use millpond_log::{ProducerEpoch, ProducerId, WalGen};
use proptest::prelude::*;

const ME: Rid = Rid { broker: BrokerId(1), wal_gen: WalGen(11) };
const PEER: Rid = Rid { broker: BrokerId(2), wal_gen: WalGen(22) };

fn fresh() -> Replica {
    Replica::new(Recovered {
        rid: ME,
        epoch_seen: LeaderEpoch(0),
        log_start: Offset(0),
        tiered_end: Offset(0),
        end: Offset(0),
        hw: Offset(0),
        prefix_hash: 0,
        epochs: LeaderEpochs::default(),
        producers: ProducerTable::default(),
        last_append_time: TimestampMs::NONE,
        timestamp_type: TimestampType::CreateTime,
    })
}

fn elected(isr: &[Rid], min_isr: u32) -> Input {
    Input::Elected(Leadership { epoch: LeaderEpoch(1), isr: isr.iter().copied().collect(), min_isr })
}

fn batch(records: u32, producer: Option<ProducerStamp>) -> Batch {
    let mut builder = BatchBuilder::new(Codec::None);
    if let Some(stamp) = producer {
        builder = builder.producer(stamp);
    }
    for _ in 0..records {
        builder.push(NewRecord { timestamp: TimestampMs(5), key: None, value: Some(b"v"), headers: &[] });
    }
    builder.build()
}

fn stamp(epoch: u16, sequence: i32) -> Option<ProducerStamp> {
    Some(ProducerStamp { id: ProducerId(7), epoch: ProducerEpoch(epoch), base_sequence: sequence })
}

/// Steps and returns the answers as (token, base offset or code), and the appended base offsets.
#[derive(Default, Debug, PartialEq)]
struct Seen {
    answers: Vec<(u64, Result<u64, ErrorCode>)>,
    appended: Vec<(u64, i64)>,
    trims: Vec<u64>,
}

fn step(replica: &mut Replica, now: i64, input: Input) -> Seen {
    let mut outputs = Vec::new();
    replica.step(TimestampMs(now), input, &mut outputs);
    let mut seen = Seen::default();
    for output in outputs {
        match output {
            Output::Answer { token, result } => {
                seen.answers.push((token.0, result.map(|appended| appended.base.0).map_err(|refusal| refusal.code())));
            }
            Output::Append { batch, append_time, .. } => seen.appended.push((batch.base_offset().0, append_time.0)),
            Output::Trim { to } => seen.trims.push(to.0),
            Output::PersistEpoch(_) | Output::Publish => {}
        }
    }
    seen
}

fn input(token: u64, batch: Batch, acks: Acks) -> Input {
    let latest = batch.latest_timestamp().unwrap();
    Input::Produce { token: Token(token), batch, latest, acks }
}

fn produce(replica: &mut Replica, token: u64, batch: Batch, acks: Acks) -> Seen {
    step(replica, 100, input(token, batch, acks))
}

fn durable(replica: &mut Replica, end: u64) -> Seen {
    step(replica, 100, Input::Durable { end: Offset(end) })
}

fn leader() -> Replica {
    let mut replica = fresh();
    step(&mut replica, 0, elected(&[ME], 1));
    replica
}

#[test]
fn acks_all_is_answered_only_when_durable_and_in_order() {
    let mut replica = leader();
    assert_eq!(produce(&mut replica, 1, batch(3, None), Acks::All).appended, [(0, 100)]);
    assert_eq!(produce(&mut replica, 2, batch(2, None), Acks::All).appended, [(3, 100)]);
    assert_eq!(durable(&mut replica, 2).answers, [], "half a batch is no batch");
    assert_eq!(durable(&mut replica, 3).answers, [(1, Ok(0))]);
    assert_eq!(durable(&mut replica, 5).answers, [(2, Ok(3))]);
    assert_eq!(replica.visible().hw, Offset(5));
}

#[test]
fn acks_none_is_answered_at_once_and_acks_leader_when_durable_here() {
    let mut replica = fresh();
    step(&mut replica, 0, elected(&[ME, PEER], 1));
    assert_eq!(produce(&mut replica, 1, batch(1, None), Acks::None).answers, [(1, Ok(0))]);
    assert_eq!(produce(&mut replica, 2, batch(1, None), Acks::Leader).answers, []);
    assert_eq!(produce(&mut replica, 3, batch(1, None), Acks::All).answers, []);
    assert_eq!(durable(&mut replica, 3).answers, [(2, Ok(1))], "rule R9: the follower has not acknowledged");
    assert_eq!(replica.visible().hw, Offset(0));
    let ack = Input::FollowerDurable { rid: PEER, epoch: LeaderEpoch(1), end: Offset(3) };
    assert_eq!(step(&mut replica, 0, ack).answers, [(3, Ok(2))]);
    assert_eq!(replica.visible().hw, Offset(3));
}

#[test]
fn an_ack_of_another_epoch_or_beyond_the_log_counts_for_nothing() {
    let mut replica = fresh();
    step(&mut replica, 0, elected(&[ME, PEER], 1));
    produce(&mut replica, 1, batch(1, None), Acks::All);
    durable(&mut replica, 1);
    for (epoch, end) in [(0, 1), (2, 1), (1, 9)] {
        step(&mut replica, 0, Input::FollowerDurable { rid: PEER, epoch: LeaderEpoch(epoch), end: Offset(end) });
        assert_eq!(replica.visible().hw, Offset(0), "rule R8");
    }
}

#[test]
fn below_min_isr_acks_all_is_refused_and_the_high_watermark_stays() {
    let mut replica = fresh();
    step(&mut replica, 0, elected(&[ME], 2));
    let seen = produce(&mut replica, 1, batch(1, None), Acks::All);
    assert_eq!((seen.answers, seen.appended), (vec![(1, Err(ErrorCode::NotEnoughReplicas))], vec![]));
    produce(&mut replica, 2, batch(1, None), Acks::Leader);
    assert_eq!(durable(&mut replica, 1).answers, [(2, Ok(0))]);
    assert_eq!(replica.visible().hw, Offset(0), "rule I1");
}

#[test]
fn a_follower_refuses_produce_and_a_deposed_leader_answers_who_waits() {
    let mut replica = fresh();
    assert_eq!(produce(&mut replica, 1, batch(1, None), Acks::All).answers, [(1, Err(ErrorCode::NotLeaderOrFollower))]);
    step(&mut replica, 0, elected(&[ME], 1));
    produce(&mut replica, 2, batch(1, None), Acks::All);
    let deposed = Input::Deposed { epoch: LeaderEpoch(2), leader: Some(BrokerId(2)) };
    assert_eq!(step(&mut replica, 0, deposed).answers, [(2, Err(ErrorCode::NotLeaderOrFollower))]);
    assert!(!replica.visible().leads);
}

#[test]
fn a_retried_batch_is_answered_with_its_first_offset_and_only_once_committed() {
    let mut replica = leader();
    produce(&mut replica, 1, batch(2, stamp(0, 0)), Acks::All);
    let retry = produce(&mut replica, 2, batch(2, stamp(0, 0)), Acks::All);
    assert_eq!((retry.answers, retry.appended), (vec![], vec![]), "rule P3: not before the commit");
    assert_eq!(durable(&mut replica, 2).answers, [(1, Ok(0)), (2, Ok(0))]);
    assert_eq!(produce(&mut replica, 3, batch(2, stamp(0, 0)), Acks::All).answers, [(3, Ok(0))]);
    assert_eq!(replica.visible().end, Offset(2));
}

#[test]
fn a_retry_waits_ahead_of_batches_that_came_later() {
    let mut replica = leader();
    produce(&mut replica, 1, batch(1, stamp(0, 0)), Acks::All);
    produce(&mut replica, 2, batch(1, stamp(0, 1)), Acks::All);
    produce(&mut replica, 3, batch(1, stamp(0, 0)), Acks::All);
    assert_eq!(durable(&mut replica, 1).answers, [(1, Ok(0)), (3, Ok(0))]);
    assert_eq!(durable(&mut replica, 2).answers, [(2, Ok(1))]);
}

#[test]
fn a_gap_and_an_old_epoch_append_nothing() {
    let mut replica = leader();
    produce(&mut replica, 1, batch(1, stamp(1, 0)), Acks::All);
    for (producer, code) in [
        (stamp(1, 2), ErrorCode::OutOfOrderSequenceNumber),
        (stamp(2, 1), ErrorCode::OutOfOrderSequenceNumber),
        (stamp(0, 1), ErrorCode::InvalidProducerEpoch),
    ] {
        let seen = produce(&mut replica, 9, batch(1, producer), Acks::All);
        assert_eq!((seen.answers, seen.appended), (vec![(9, Err(code))], vec![]));
    }
}

#[test]
fn append_time_never_goes_back_with_the_wall_clock() {
    let mut replica = leader();
    let times =
        [50, 40, 60, i64::MIN].map(|now| step(&mut replica, now, input(0, batch(1, None), Acks::None)).appended[0].1);
    assert_eq!(times, [50, 50, 60, 60], "rule W3");
}

#[test]
fn the_time_of_a_batch_is_its_records_or_the_append_time_that_replaces_them() {
    let latest = |replica: &mut Replica| {
        let mut outputs = Vec::new();
        let produce =
            Input::Produce { token: Token(0), batch: batch(1, None), latest: TimestampMs(777), acks: Acks::None };
        replica.step(TimestampMs(100), produce, &mut outputs);
        outputs.iter().find_map(|output| match output {
            Output::Append { latest, .. } => Some(latest.0),
            _ => None,
        })
    };
    let mut replica = leader();
    assert_eq!(latest(&mut replica), Some(777), "what admission read, not what the header claims");
    step(&mut replica, 0, Input::TimestampType(TimestampType::LogAppendTime));
    assert_eq!(latest(&mut replica), Some(100));
}

#[test]
fn the_wal_is_trimmed_only_to_what_the_manifest_holds() {
    let mut replica = leader();
    produce(&mut replica, 1, batch(4, None), Acks::All);
    durable(&mut replica, 4);
    let manifest =
        |log_start, tiered_end| Input::Manifest { log_start: Offset(log_start), tiered_end: Offset(tiered_end) };
    assert_eq!(step(&mut replica, 0, manifest(0, 3)).trims, [3], "rule T6");
    assert_eq!(step(&mut replica, 0, manifest(0, 3)).trims, Vec::<u64>::new());
    assert_eq!(step(&mut replica, 0, manifest(4, 3)).trims, [3], "rule C1: log start may pass the tiered end");
    assert_eq!(replica.visible().log_start, Offset(4));
}

#[test]
fn the_end_is_proven_once_the_high_watermark_reaches_the_log_end_of_the_election() {
    let mut from = fresh();
    step(&mut from, 0, elected(&[ME, PEER], 1));
    produce(&mut from, 1, batch(2, None), Acks::Leader);
    durable(&mut from, 2);
    let second = Leadership { epoch: LeaderEpoch(2), isr: [ME, PEER].into(), min_isr: 1 };
    step(&mut from, 0, Input::Elected(second));
    assert!(!from.visible().end_proven, "rule R11");
    step(&mut from, 0, Input::FollowerDurable { rid: PEER, epoch: LeaderEpoch(2), end: Offset(2) });
    assert!(from.visible().end_proven);
}

proptest! {
    /// Rule P2 and S6: two replicas that appended the same batches hold equal state, whatever was asked in between.
    #[test]
    fn equal_logs_make_equal_state(sequences in prop::collection::vec((0u16..3, 0i32..6, 0i64..200_000), 1..60)) {
        let (mut one, mut other) = (leader(), leader());
        for (epoch, sequence, now) in sequences {
            let mut outputs = Vec::new();
            one.step(TimestampMs(now), input(1, batch(1, stamp(epoch, sequence)), Acks::None), &mut outputs);
            for output in outputs {
                if let Output::Append { batch, append_time, .. } = output {
                    other.absorb(&batch, append_time);
                }
            }
        }
        prop_assert_eq!(one.prefix_hash, other.prefix_hash);
        prop_assert_eq!(one.producers.encode(), other.producers.encode());
        prop_assert_eq!(&one.epochs, &other.epochs);
        prop_assert_eq!(one.end, other.end);
    }
}
