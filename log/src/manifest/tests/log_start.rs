//! Where the log begins: moves of the log start, and what retention finds.

use super::*;

/// Rule C1: the log start may pass the tiered end; rule P5: the newest segment keeps the producer snapshot all the same.
#[test]
fn log_start_beyond_the_tiered_end_keeps_the_newest_segment() {
    let mut model = Model::new(TINY);
    (0..10).for_each(|nth| model.append(hourly(nth)));
    let newest = model.view.root().newest().expect("ten were appended").clone();
    model.advance(Offset(50_000_000));
    let root = model.view.root().clone();
    assert_eq!((root.log_start, root.tiered_end), (Offset(50_000_000), Offset(10_000_000)));
    assert_eq!((root.rolled(), root.entries()), (&[][..], std::slice::from_ref(&newest)));
    model.check_references();
    // Uploads still begin at the tiered end; the snapshot moves on with them, and what it leaves is dropped.
    model.append(hourly(10));
    let dropped = ask(&mut model.view, &model.bucket, |view| view.dropped_by(Offset(50_000_000), DROPPED_MAX));
    assert_eq!(dropped.segments, [newest]);
}

/// Each move of the log start through a rolled manifest names the segments that it passes, and those alone.
#[test]
fn moves_through_a_rolled_manifest_drop_each_segment_once() {
    let mut model = rolled_model();
    let rolled = model.view.root().rolled()[0].clone();
    assert!(rolled.totals.segment_count > 3);
    (0..24).for_each(|nth| model.advance(Offset(nth * 1_000_000 + 1)));
    assert_eq!(model.all.iter().filter(|entry| model.dropped.contains(&entry.object)).count(), 23);
    assert!(model.dropped.contains(&rolled.object));
}

/// Rule C1: what one transaction drops is bounded, and so is what it reads for that; a move that drops more is made in steps, which together
/// drop what one would.
#[test]
fn a_long_move_of_the_log_start_is_made_in_steps_that_drop_and_read_little() {
    let mut model = Model::new(TINY);
    (0..300).for_each(|nth| model.append(hourly(nth)));
    let end = model.view.root().tiered_end;
    let at_once = ask(&mut model.view, &model.bucket, |view| view.dropped_by(end, usize::MAX));
    assert_eq!((at_once.to, at_once.segments.len()), (end, 299));
    let mut steps = Vec::new();
    while steps.last() != Some(&end) {
        let mut fresh = ManifestView::new(model.view.root().clone());
        let dropped = ask(&mut fresh, &model.bucket, |view| view.dropped_by(end, DROPPED_MAX));
        let read = fresh.root().rolled().iter().map(|rolled| loaded(&fresh, rolled)).sum::<usize>();
        assert!(read <= 2 * DROPPED_MAX, "{read} manifests were read for one step");
        let to = model.advance_within(end, DROPPED_MAX);
        assert_eq!(to, dropped.to);
        steps.push(to);
    }
    assert!(steps.is_sorted() && steps.len() > 300 / DROPPED_MAX, "{steps:?}");
    let mut named: BTreeSet<ObjectKey> = at_once.segments.iter().map(|entry| entry.object).collect();
    named.extend(at_once.manifests.iter().map(|rolled| rolled.object));
    assert_eq!(model.dropped, named);
}

/// How many manifests at and below a reference are loaded.
fn loaded(view: &ManifestView, rolled: &RolledRef) -> usize {
    let Some(node) = view.node(rolled) else { return 0 };
    match node.items() {
        NodeItems::Segments(_) => 1,
        NodeItems::Manifests(below) => 1 + below.iter().map(|rolled| loaded(view, rolled)).sum::<usize>(),
    }
}

/// Kafka's arithmetic: a segment goes when what is newer has the size, or when its age is over the limit, not at it.
#[test]
fn retention_keeps_a_segment_at_the_limit() {
    let mut model = Model::new(TINY);
    (0..4).for_each(|_| model.append(Appended { size: 100, offsets: 10, records: 10, waited_ms: 1_000, ..hourly(0) }));
    for (size_max, tail_size, start) in
        [(301, 0, 0), (300, 0, 10), (100, 0, 30), (100, 100, 40), (99, 1, 30), (0, 0, 40)]
    {
        check_retained(&mut model, Retention { size_max: Some(size_max), ..Retention::default() }, 0, tail_size, start);
    }
    // Appended at 2 000, 3 000, 4 000 and 5 000.
    for (now, start) in [(3_000, 0), (3_001, 10), (4_001, 20), (6_000, 30), (6_001, 40)] {
        check_retained(&mut model, Retention { age_ms_max: Some(1_000), ..Retention::default() }, now, 0, start);
    }
    check_retained(&mut model, Retention::default(), i64::MAX, 0, 0);
}

fn check_retained(model: &mut Model, retention: Retention, now: i64, tail_size: u64, start: u64) {
    let now = TimestampMs(now);
    let found = ask(&mut model.view, &model.bucket, |view| view.retention_start(retention, now, tail_size));
    assert_eq!(found, Offset(start), "{retention:?} at {now} with a tail of {tail_size}");
}

#[test]
#[should_panic(expected = "rule C1")]
fn log_start_never_goes_back() {
    let mut model = Model::new(TINY);
    model.append(hourly(0));
    model.advance(Offset(10));
    model.advance(Offset(9));
}
