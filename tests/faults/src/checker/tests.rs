//! Each kind of broken promise, made by changing a history in which all are kept: the checker finds it, and nothing else.

use super::*;

const READER: u16 = 7;

fn id(number: u32) -> RecordId {
    RecordId { writer: 0, partition: 0, number }
}

/// What each partition holds in the end, by offset.
type Logs = BTreeMap<u16, Vec<(u64, Content)>>;

/// Five records of one writer, acknowledged one after the other and read along.
fn kept() -> (Vec<Event>, Logs) {
    let mut events = vec![Event::Started { reader: READER, partition: 0, offset: 0 }];
    let mut log = Vec::new();
    for number in 0..5 {
        let (id, offset, at) = (id(number), u64::from(number), u64::from(number) * 10);
        let content = Content::Record(id);
        events.push(Event::Sent { id, at });
        events.push(Event::Acked { id, offset: Some(offset), at: at + 5 });
        events.push(Event::Latest { partition: 0, offset: offset + 1, asked: at + 6 });
        events.push(Event::Read { reader: READER, partition: 0, offset, content, at: 0 });
        log.push((offset, content));
    }
    (events, BTreeMap::from([(0, log)]))
}

fn found(events: &[Event], logs: &Logs) -> Vec<(Kind, u64)> {
    let verdict = check(&Run { events, logs, readers: &[READER] });
    verdict.violations.into_iter().map(|(kind, (count, _))| (kind, count)).collect()
}

/// A history changed so has these violations.
fn check_changed(
    change: impl FnOnce(&mut Vec<Event>, &mut Vec<(u64, Content)>),
    expected: impl IntoIterator<Item = (Kind, u64)>,
) {
    let (mut events, mut logs) = kept();
    change(&mut events, logs.get_mut(&0).expect("the one partition"));
    assert_eq!(found(&events, &logs), expected.into_iter().collect::<Vec<(Kind, u64)>>());
}

/// The events of one kind about one number.
fn position(events: &[Event], wanted: impl Fn(&Event) -> bool) -> usize {
    events.iter().position(wanted).expect("it is there")
}

fn acked(events: &[Event], number: u32) -> usize {
    position(events, |event| matches!(event, Event::Acked { id, .. } if id.number == number))
}

fn read(events: &[Event], wanted: u64) -> usize {
    position(events, |event| matches!(event, Event::Read { offset, .. } if *offset == wanted))
}

#[test]
fn a_history_that_keeps_every_promise_is_clean_and_counted() {
    let (events, logs) = kept();
    let verdict = check(&Run { events: &events, logs: &logs, readers: &[READER] });
    assert!(verdict.holds(), "{verdict:?}");
    assert_eq!((verdict.sent, verdict.acked, verdict.reads, verdict.records), (5, 5, 5, 5));
}

#[test]
fn what_was_given_up_may_be_there_or_not() {
    check_changed(
        |events, _| {
            let place = acked(events, 4);
            events[place] = Event::Unknown { id: id(4), at: 45 };
        },
        [],
    );
    check_changed(
        |events, log| {
            let place = acked(events, 4);
            events[place] = Event::Unknown { id: id(4), at: 45 };
            events.truncate(place + 1);
            log.pop();
        },
        [],
    );
}

#[test]
fn acknowledged_and_gone_is_lost() {
    check_changed(
        |events, log| {
            // Nobody had read it yet.
            events.remove(read(events, 4));
            log.pop();
        },
        [(Kind::Lost, 1)],
    );
}

#[test]
fn acknowledged_read_and_gone_has_vanished_too() {
    check_changed(|_, log| _ = log.pop(), [(Kind::Lost, 1), (Kind::Vanished, 1)]);
}

#[test]
fn shown_before_it_was_committed_has_vanished() {
    check_changed(
        |events, log| {
            let place = acked(events, 4);
            events[place] = Event::Unknown { id: id(4), at: 45 };
            log.pop();
        },
        [(Kind::Vanished, 1)],
    );
}

#[test]
fn a_record_written_twice_is_a_duplicate() {
    check_changed(
        |events, log| {
            let content = Content::Record(id(4));
            log.push((5, content));
            events.push(Event::Read { reader: READER, partition: 0, offset: 5, content, at: 0 });
        },
        [(Kind::Duplicate, 1), (Kind::Reordered, 1)],
    );
}

#[test]
fn records_that_changed_places_are_reordered() {
    check_changed(
        |events, log| {
            // Both were under way at once, and nobody was told where they are.
            events.retain(|event| !matches!(event, Event::Sent { .. } | Event::Latest { .. } | Event::Read { .. }));
            for event in events.iter_mut() {
                if let Event::Acked { offset, .. } = event {
                    *offset = None;
                }
            }
            events.splice(1..1, (0..5).map(|number| Event::Sent { id: id(number), at: 0 }));
            (log[1].1, log[2].1) = (log[2].1, log[1].1);
            for (offset, content) in log.iter() {
                events.push(Event::Read { reader: READER, partition: 0, offset: *offset, content: *content, at: 0 });
            }
        },
        [(Kind::Reordered, 1)],
    );
}

#[test]
fn a_record_before_one_that_was_acknowledged_earlier_breaks_real_time() {
    let other = RecordId { writer: 1, ..id(0) };
    check_changed(
        |events, log| {
            // Another writer's, sent when all was acknowledged, and found at the start.
            events.retain(|event| !matches!(event, Event::Read { .. }));
            log.iter_mut().for_each(|(offset, _)| *offset += 1);
            log.insert(0, (0, Content::Record(other)));
            for event in events.iter_mut() {
                match event {
                    Event::Acked { offset: Some(offset), .. } | Event::Latest { offset, .. } => *offset += 1,
                    _ => {}
                }
            }
            events.push(Event::Sent { id: other, at: 100 });
            events.push(Event::Acked { id: other, offset: Some(0), at: 101 });
            for (offset, content) in log.iter() {
                events.push(Event::Read { reader: READER, partition: 0, offset: *offset, content: *content, at: 0 });
            }
        },
        [(Kind::Realtime, 1)],
    );
}

#[test]
fn refused_and_there_is_resurrected() {
    check_changed(
        |events, _| {
            let place = acked(events, 4);
            events[place] = Event::Refused { id: id(4), at: 45 };
        },
        [(Kind::Resurrected, 1)],
    );
}

#[test]
fn what_nobody_sent_is_a_phantom() {
    let read_too = |events: &mut Vec<Event>, log: &mut Vec<(u64, Content)>, content| {
        log.push((5, content));
        events.push(Event::Read { reader: READER, partition: 0, offset: 5, content, at: 0 });
    };
    check_changed(|events, log| read_too(events, log, Content::Foreign(1)), [(Kind::Phantom, 1)]);
    check_changed(|events, log| read_too(events, log, Content::Record(id(99))), [(Kind::Phantom, 1)]);
    // Sent, but to another partition.
    check_changed(
        |events, log| {
            let astray = RecordId { partition: 1, ..id(0) };
            events.push(Event::Sent { id: astray, at: 100 });
            events.push(Event::Unknown { id: astray, at: 101 });
            read_too(events, log, Content::Record(astray));
        },
        [(Kind::Phantom, 1)],
    );
}

#[test]
fn two_contents_at_one_offset_are_inconsistent() {
    check_changed(
        |events, _| {
            let place = read(events, 2);
            events[place] =
                Event::Read { reader: READER, partition: 0, offset: 2, content: Content::Foreign(1), at: 0 };
        },
        [(Kind::Inconsistent, 1)],
    );
}

#[test]
fn acknowledged_elsewhere_than_it_is_has_moved() {
    check_changed(
        |events, _| {
            let place = acked(events, 4);
            events[place] = Event::Acked { id: id(4), offset: Some(3), at: 45 };
        },
        [(Kind::Moved, 1)],
    );
}

#[test]
fn readers_go_forward_without_gaps() {
    let again = Event::Read { reader: READER, partition: 0, offset: 1, content: Content::Record(id(1)), at: 0 };
    check_changed(
        |events, _| {
            let place = read(events, 2);
            events.insert(place, again);
        },
        [(Kind::Nonmonotonic, 1)],
    );
    check_changed(|events, _| _ = events.remove(read(events, 2)), [(Kind::Skipped, 1)]);
    // One that begins anew may go back.
    check_changed(
        |events, _| {
            let place = read(events, 2);
            events.insert(place, again);
            events.insert(place, Event::Started { reader: READER, partition: 0, offset: 1 });
        },
        [],
    );
}

#[test]
fn offsets_that_nobody_can_read_are_a_gap() {
    check_changed(
        |events, log| {
            log.last_mut().expect("five records").0 = 9;
            let place = acked(events, 4);
            events[place] = Event::Acked { id: id(4), offset: Some(9), at: 45 };
            let place = position(events, |event| matches!(event, Event::Latest { offset: 5, .. }));
            events[place] = Event::Latest { partition: 0, offset: 10, asked: 46 };
            let place = read(events, 4);
            events[place] =
                Event::Read { reader: READER, partition: 0, offset: 9, content: Content::Record(id(4)), at: 0 };
        },
        [(Kind::Skipped, 1), (Kind::Gap, 1)],
    );
}

#[test]
fn an_end_below_what_was_acknowledged_is_stale() {
    check_changed(
        |events, _| events.push(Event::Latest { partition: 0, offset: 4, asked: 46 }),
        [(Kind::StaleLatest, 1)],
    );
    // Asked before the acknowledgement: it need not have known.
    check_changed(|events, _| events.push(Event::Latest { partition: 0, offset: 4, asked: 45 }), []);
}

#[test]
fn a_reader_that_did_not_come_to_the_end_has_not_seen_it() {
    check_changed(|events, _| _ = events.remove(read(events, 4)), [(Kind::Unseen, 1)]);
}

#[test]
fn a_record_without_an_outcome_is_unsettled() {
    check_changed(|events, _| events.push(Event::Sent { id: id(9), at: 100 }), [(Kind::Unsettled, 1)]);
}
