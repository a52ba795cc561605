//! What one partition's tiering promises, step by step. The simulator runs it against a store that misbehaves.

use super::*;
use crate::replica::EndState;
use crate::tail_segment::TailSegment;
use millpond_log::batch::{BatchBuilder, NewRecord};
use millpond_log::codec::Codec;
use millpond_log::manifest::{Lookup, ManifestView};
use millpond_log::object_key::PartitionObject;
use millpond_log::segment::{BuiltObject, SegmentIdentity};
use millpond_log::{PartitionId, TopicId};

const PARTITION: PartitionId = PartitionId { topic: TopicId(1), index: 0 };
const EPOCH: LeaderEpoch = LeaderEpoch(3);
const SETTINGS: TierSettings = TierSettings { rule: FlushRule { bytes: 1000, age_ms: 600 }, retention_ms: 7 };

fn fresh() -> Tiering {
    let root = Arc::new(ManifestRoot::new(PARTITION));
    Tiering::new(root, 0, ProducerTable::default(), SETTINGS, TierRules::ALL)
}

fn leader() -> Tiering {
    let mut tiering = fresh();
    tiering.lead(EPOCH);
    tiering
}

fn visible(lso: u64) -> Visible {
    Visible {
        epoch: EPOCH,
        leads: true,
        log_start: Offset(0),
        tiered_end: Offset(0),
        hw: Offset(lso),
        lso: Offset(lso),
        end: Offset(lso + 5),
        end_proven: true,
        start_proven: true,
    }
}

fn offered(tiering: &Tiering, mono_ms: u64, visible: &Visible) -> Option<(u64, u64)> {
    let look = Look { mono_ms, wall: TimestampMs(0), pressure: Pressure::Calm };
    offered_at(tiering, look, visible)
}

/// What is offered of a tail whose first record was appended at 0.
fn offered_at(tiering: &Tiering, look: Look, visible: &Visible) -> Option<(u64, u64)> {
    let all = |_, to, _| Some(TailSummary { end: to, bytes: 10, oldest: TimestampMs(0), more: false });
    tiering.tail(look, visible, all).map(|tail| (tail.tiered_end.0, tail.end.0))
}

/// Rule T1: what a transaction holds up goes after all, when it is old or takes room that is needed.
#[test]
fn an_open_transaction_holds_a_segment_up_until_it_is_old_or_the_wal_fills() {
    let tiering = leader();
    let open_from = |lso| Visible { hw: Offset(9), ..visible(lso) };
    let look = |wall, pressure| Look { mono_ms: 0, wall: TimestampMs(wall), pressure };
    let twice = 2 * SETTINGS.rule.age_ms;
    assert_eq!(offered_at(&tiering, look(twice - 1, Pressure::Calm), &open_from(4)), Some((0, 4)));
    assert_eq!(offered_at(&tiering, look(twice - 1, Pressure::Calm), &open_from(0)), None);
    assert_eq!(offered_at(&tiering, look(twice, Pressure::Calm), &open_from(4)), Some((0, 9)));
    assert_eq!(offered_at(&tiering, look(twice, Pressure::Calm), &open_from(0)), Some((0, 9)));
    assert_eq!(offered_at(&tiering, look(0, Pressure::WalFilling), &open_from(4)), Some((0, 9)));
}

/// A segment of `[base, end)`, one record a batch.
fn entry(base: u64, end: u64) -> SegmentEntry {
    let identity =
        SegmentIdentity { cluster: "c".to_owned(), partition: PARTITION, topic_name: "t".to_owned(), epoch: EPOCH };
    let (base, end) = (Offset(base), Offset(end));
    let mut segment = TailSegment::new(identity, EndState { end: base, ..EndState::empty() }, end);
    while segment.reached() < end {
        let mut builder = BatchBuilder::new(Codec::None);
        builder.push(NewRecord { timestamp: TimestampMs(1), key: None, value: None, headers: &[] });
        let mut batch = builder.build();
        batch.place(segment.reached(), EPOCH);
        segment.push(&batch, TimestampMs(1), TimestampMs(1)).expect("it is the next");
    }
    let object = BuiltObject::from(segment.finish().0);
    let name = PartitionObject { partition: PARTITION, gc_epoch: GcEpoch(9), epoch: EPOCH, base, random: 5 };
    SegmentEntry::new(ObjectKey::Segment(name), object.length, object.segments[0].clone())
}

/// A change that commits `[tiered_end, end)`.
fn change(tiering: &mut Tiering, end: u64) -> Change {
    let base = tiering.root().tiered_end.0;
    assert_eq!(tiering.begin_upload(), EPOCH);
    tiering.uploaded(entry(base, end), ProducerTable::default()).expect("it leads still")
}

#[test]
fn only_what_is_committed_goes_up_and_only_in_the_epoch_of_the_office() {
    let check = |tiering: &Tiering, visible: Visible, expected| {
        assert_eq!(offered(tiering, 0, &visible), expected, "rule T1");
    };
    check(&leader(), visible(4), Some((0, 4)));
    check(&leader(), visible(0), None);
    check(&fresh(), visible(4), None);
    check(&leader(), Visible { leads: false, ..visible(4) }, None);
    check(&leader(), Visible { epoch: LeaderEpoch(2), ..visible(4) }, None);
    check(&leader(), Visible { epoch: LeaderEpoch(4), ..visible(4) }, None);
    let mut resigned = leader();
    resigned.resign();
    check(&resigned, visible(4), None);
}

#[test]
fn one_thing_is_under_way_at_a_time() {
    let mut tiering = leader();
    tiering.begin_upload();
    assert_eq!(offered(&tiering, 0, &visible(4)), None, "rule C3");
    assert!(!tiering.may_change(0), "rule C3");
    let change = tiering.uploaded(entry(0, 4), ProducerTable::default()).expect("it leads still");
    assert_eq!((change.base, change.objects_gc_epoch, change.root.tiered_end), (0, Some(GcEpoch(9)), Offset(4)));
    assert!(!tiering.may_change(0) && offered(&tiering, 0, &visible(9)).is_none(), "rule C3");
    let settled = tiering.settled(change, Outcome::Committed(70), 0, 0.0);
    assert!(matches!(settled, Settled::Announce(root) if root.tiered_end == Offset(4)));
    assert_eq!(offered(&tiering, 0, &visible(9)), Some((4, 9)), "T1: exactly from the tiered end");
    assert_eq!(self::change(&mut tiering, 9).base, 70, "rule T5: decided on what was committed");
}

#[test]
fn what_was_uploaded_in_another_office_is_an_orphan() {
    let mut tiering = leader();
    tiering.begin_upload();
    tiering.lead(LeaderEpoch(4));
    assert_eq!(tiering.uploaded(entry(0, 4), ProducerTable::default()), None, "rule K8");
    assert!(tiering.wants_root(0) && !tiering.may_change(0), "rule T8");
}

#[test]
fn whatever_ends_in_a_later_office_is_followed_by_a_look_at_the_root() {
    let stale = |end: fn(&mut Tiering)| {
        let mut tiering = leader();
        tiering.begin_upload();
        // Another leads for a while, and may commit and trim.
        tiering.resign();
        tiering.lead(LeaderEpoch(5));
        end(&mut tiering);
        assert_eq!(offered(&tiering, 9999, &Visible { epoch: LeaderEpoch(5), ..visible(9) }), None, "rule T8");
        assert!(tiering.wants_root(9999), "rule T8: the root may be older than the log here");
    };
    stale(|tiering| tiering.upload_failed(0, true, 0.0));
    stale(|tiering| assert_eq!(tiering.uploaded(entry(0, 4), ProducerTable::default()), None));
    for outcome in [Outcome::Committed(70), Outcome::Expired, Outcome::Unsent, Outcome::Fenced, Outcome::Unknown] {
        let mut tiering = leader();
        let sent = change(&mut tiering, 4);
        tiering.resign();
        tiering.lead(LeaderEpoch(5));
        tiering.settled(sent, outcome, 0, 0.0);
        assert!(tiering.wants_root(9999), "rule T8: after {outcome:?}");
    }
}

#[test]
fn an_unknown_change_is_sent_again_as_it_was_and_nobody_hears_of_it_before() {
    let mut tiering = leader();
    let first = change(&mut tiering, 4);
    assert_eq!(tiering.settled(first.clone(), Outcome::Unknown, 0, 0.0), Settled::Open, "rule T6");
    assert_eq!(tiering.root().tiered_end, Offset(0));
    assert_eq!(offered(&tiering, 9999, &visible(4)), None, "rule K5: nothing else is decided meanwhile");
    assert_eq!(tiering.unsettled(199), None, "the pause is not over");
    let again = tiering.unsettled(200).expect("it is over");
    assert_eq!(again, Change { sent: true, ..first }, "rule K5");
    assert_eq!(tiering.unsettled(9999), None, "the driver has it");
    assert!(matches!(tiering.settled(again, Outcome::Committed(70), 200, 0.0), Settled::Announce(_)));
    assert_eq!(tiering.unsettled(9999), None);
}

#[test]
fn after_a_conflict_the_root_is_read_again_and_announced_if_it_is_news() {
    for outcome in [Outcome::Conflict, Outcome::Fenced] {
        let mut tiering = leader();
        let lost = change(&mut tiering, 4);
        let stored = lost.root.clone();
        assert_eq!(tiering.settled(lost, outcome, 0, 0.0), Settled::Again);
        assert!(!tiering.wants_root(0) && tiering.wants_root(200), "rule T8, after a pause");
        assert_eq!(offered(&tiering, 9999, &visible(4)), None);
        let announced = tiering.reread(stored, 70, ProducerTable::default);
        assert_eq!(announced.map(|root| root.tiered_end), Some(Offset(4)), "{outcome:?}");
        assert_eq!(offered(&tiering, 9999, &visible(9)), Some((4, 9)));
        assert_eq!(change(&mut tiering, 9).base, 70);
    }
    let mut tiering = leader();
    let lost = change(&mut tiering, 4);
    tiering.settled(lost, Outcome::Conflict, 0, 0.0);
    let old = ManifestRoot::clone(tiering.root());
    assert_eq!(tiering.reread(old, 0, || unreachable!("its tiered end has not moved")), None);
    assert_eq!(offered(&tiering, 9999, &visible(4)), Some((0, 4)));
}

#[test]
fn an_unknown_change_of_an_office_that_is_over_is_read_off_the_root() {
    let mut tiering = leader();
    let lost = change(&mut tiering, 4);
    tiering.settled(lost, Outcome::Unknown, 0, 0.0);
    tiering.lead(LeaderEpoch(4));
    assert_eq!(tiering.unsettled(9999), None, "its epoch is fenced: it would only fail");
    assert!(tiering.wants_root(0), "rule T8");
}

#[test]
fn a_failure_of_its_own_makes_a_partition_wait_and_a_shared_one_does_not() {
    let mut tiering = leader();
    tiering.begin_upload();
    tiering.upload_failed(0, false, 0.0);
    assert_eq!(offered(&tiering, 0, &visible(4)), Some((0, 4)));
    tiering.begin_upload();
    tiering.upload_failed(0, true, 0.0);
    assert_eq!(offered(&tiering, 199, &visible(4)), None, "rule K8");
    assert_eq!(offered(&tiering, 200, &visible(4)), Some((0, 4)));
    for outcome in [Outcome::Expired, Outcome::Unsent] {
        let mut tiering = leader();
        let lost = change(&mut tiering, 4);
        assert_eq!(tiering.settled(lost, outcome, 0, 0.0), Settled::Again);
        assert_eq!(offered(&tiering, 0, &visible(4)), None);
        assert_eq!(offered(&tiering, 200, &visible(4)), Some((0, 4)), "it goes up again, under a new name");
    }
}

/// Rules C3, G1: a swap is a change like any other, decided on the root as it stands; its names are as old as the oldest.
#[test]
fn a_swap_is_one_change_at_a_time_and_moves_no_end() {
    let mut tiering = leader();
    for (end, revision) in [(4, 70), (9, 71)] {
        let change = change(&mut tiering, end);
        tiering.settled(change, Outcome::Committed(revision), 0, 0.0);
    }
    let inputs = tiering.root().entries().to_vec();
    let joined = entry(0, 9);
    let output = SegmentEntry { prefix_hash: inputs[1].prefix_hash, record_count: 3, ..joined };
    let swap = Swap::new(inputs.clone(), output.clone());
    let planned = |tiering: &Tiering, epoch| {
        let view = ManifestView::new(ManifestRoot::clone(tiering.root()));
        let Lookup::Found(planned) = view.swap(&swap, epoch, GcEpoch(12), || 6) else { panic!("nothing is rolled") };
        planned
    };
    let plan = planned(&tiering, EPOCH).expect("the inputs are there");
    let change = tiering.swap(&swap, plan);
    assert_eq!((change.base, change.objects_gc_epoch, &change.producers), (71, Some(GcEpoch(9)), &None));
    assert_eq!(change.dropped, inputs.iter().map(|input| input.object).collect::<Vec<_>>());
    assert_eq!((change.root.tiered_end, change.root.rewritten_end), (Offset(9), Offset(9)));
    assert!(!tiering.may_change(0) && offered(&tiering, 0, &visible(12)).is_none(), "rule C3");
    assert!(tiering.knows_root(), "one is under way, and none in doubt");
    assert_eq!(tiering.settled(change, Outcome::Unknown, 0, 0.0), Settled::Open);
    assert!(!tiering.knows_root(), "rule K5");
    let change = tiering.unsettled(9999).expect("the pause is over");
    let settled = tiering.settled(change, Outcome::Committed(72), 0, 0.0);
    assert!(matches!(settled, Settled::Announce(root) if root.entries() == [output]));
    assert!(planned(&tiering, EPOCH).is_err(), "rule C3: the inputs are gone");
    assert_eq!(offered(&tiering, 0, &visible(12)), Some((9, 12)), "T1: exactly from the tiered end");
    let compacted = Compacted { end: Offset(9), purge_at: None };
    let change = tiering.after_pass(compacted);
    assert_eq!((change.root.compacted, change.objects_gc_epoch, change.base), (compacted, None, 72));
}

#[test]
#[should_panic(expected = "the plan follows on the root")]
fn a_swap_planned_in_another_office_is_a_mistake() {
    let mut tiering = leader();
    let uploaded = change(&mut tiering, 4);
    tiering.settled(uploaded, Outcome::Committed(70), 0, 0.0);
    let swap = Swap::new(tiering.root().entries().to_vec(), tiering.root().entries()[0].clone());
    let view = ManifestView::new(ManifestRoot::clone(tiering.root()));
    let Lookup::Found(Ok(plan)) = view.swap(&swap, LeaderEpoch(7), GcEpoch(9), || 6) else { panic!("it is there") };
    let _ = tiering.swap(&swap, plan);
}
