//! Limits on histories that were made up.

use super::*;
use crate::clock::Nanos;
use crate::gaps::{Clients, Mark, Signs};
use crate::history::{Content, Event};
use crate::payload::RecordId;
use std::collections::BTreeSet;

const MS: Nanos = 1_000_000;

const KILL: Limit = Limit { fault: None, whose: Whose::SdkWrites, bound: Bound::Median(Duration::from_secs(2)) };
const OUTAGE: Limit =
    Limit { fault: Some("no etcd"), whose: Whose::Everybody, bound: Bound::Worst(Duration::from_secs(2)) };

/// Partitions of these histories; the broker that is killed leads the first.
const PARTITIONS: u16 = 6;

/// A writer and a reader of each client.
fn clients() -> Clients {
    let both = |doing| [((doing, 0), false), ((doing, 10), true)];
    both(Doing::Writes).into_iter().chain(both(Doing::Reads)).collect()
}

/// What comes every 20 ms until `end`, in ms, but from `gaps.0` to `gaps.1` for those of whom `away` is true.
fn history(end: Nanos, gaps: &[(Nanos, Nanos)], away: impl Fn(Doing, bool, u16) -> bool) -> Vec<Event> {
    let mut events = Vec::new();
    for ((doing, number), librdkafka) in clients() {
        for partition in 0..PARTITIONS {
            let missing = |at: &Nanos| gaps.iter().any(|(from, to)| (from + 1..*to).contains(at));
            for at in (0..=end).step_by(20) {
                if missing(&at) && away(doing, librdkafka, partition) {
                    continue;
                }
                let (id, at) = (RecordId { writer: number, partition, number: 0 }, at * MS);
                events.push(match doing {
                    Doing::Writes => Event::Acked { id, offset: None, at },
                    Doing::Reads => {
                        Event::Read { reader: number, partition, offset: 0, content: Content::Record(id), at }
                    }
                });
            }
        }
    }
    events
}

/// A fault and its end, in ms.
fn marks(what: &str, fault: (Nanos, Nanos), recovery: (Nanos, Nanos)) -> Vec<Mark> {
    let mark = |phase, (from, to)| Mark {
        what: what.to_owned(),
        phase,
        at: from * MS,
        until: to * MS,
        led: BTreeSet::from([0]),
    };
    vec![mark(Phase::Fault, fault), mark(Phase::Recovery, recovery)]
}

fn judged(limit: Limit, events: &[Event], marks: &[Mark]) -> Judgement {
    let signs = Signs::of(events);
    judge(&[limit], &signs.gaps(marks, &clients()), &signs.quiet(0, 1000 * MS, &clients()))
}

fn exceeded(judgement: &Judgement) -> &[String] {
    match judgement {
        Judgement::Exceeded(found) => found,
        _ => panic!("not {judgement:?}"),
    }
}

const KEPT: Judgement = Judgement::Kept { allowed_beyond: Duration::ZERO };

#[test]
fn a_follower_that_holds_up_what_others_lead_is_caught() {
    // Killed again and again: five seconds nothing is acknowledged that others lead; each time it comes back, nobody notices.
    let (mut gaps, mut found) = (Vec::new(), Vec::new());
    for round in 0..10 {
        let at = 2_000 + round * 10_000;
        gaps.push((at, at + 5_000));
        found.extend(marks("kill -9", (at, at + 5_100), (at + 6_000, at + 6_500)));
    }
    let events = history(110_000, &gaps, |_, _, partition| partition != 0);
    let judgement = judged(KILL, &events, &found);
    assert_eq!(exceeded(&judgement).len(), 1, "{judgement:?}");
    assert!(exceeded(&judgement)[0].starts_with("kill -9: SDK writes, led by others: half"), "{judgement:?}");
}

#[test]
fn an_end_of_a_fault_that_holds_things_up_is_caught() {
    let events = history(20_000, &[(12_000, 15_000)], |_, _, _| true);
    let judgement = judged(KILL, &events, &marks("kill -9", (2_000, 3_000), (12_000, 16_000)));
    assert!(exceeded(&judgement).iter().all(|text| text.starts_with("end of kill -9: SDK writes")), "{judgement:?}");
}

#[test]
fn what_stays_within_its_limit_keeps_it() {
    let events = history(20_000, &[(2_000, 3_500)], |_, _, _| true);
    let faults = marks("kill -9", (2_000, 4_000), (12_000, 13_000));
    assert_eq!(judged(KILL, &events, &faults), KEPT);
    // The other client waits longer, and no limit is on it.
    let events = history(20_000, &[(2_000, 9_000)], |_, librdkafka, _| librdkafka);
    assert_eq!(judged(KILL, &events, &marks("kill -9", (2_000, 10_000), (12_000, 13_000))), KEPT);
}

#[test]
fn a_stop_in_the_middle_of_an_outage_is_caught_whoever_feels_it() {
    // In its last seconds all is well again.
    let faults = marks("no etcd", (2_000, 300_000), (300_000, 301_000));
    for (doing, librdkafka) in clients().into_iter().map(|((doing, _), librdkafka)| (doing, librdkafka)) {
        let events =
            history(302_000, &[(150_000, 160_000)], |of, by, partition| (of, by, partition) == (doing, librdkafka, 3));
        let judgement = judged(OUTAGE, &events, &faults);
        assert_eq!(exceeded(&judgement).len(), 1, "{doing:?} {librdkafka}: {judgement:?}");
    }
    assert_eq!(judged(OUTAGE, &history(302_000, &[], |_, _, _| true), &faults), KEPT);
}

#[test]
fn a_limit_on_one_fault_is_on_no_other() {
    let events = history(40_000, &[(22_000, 29_000)], |_, _, _| true);
    let mut faults = marks("no etcd", (2_000, 20_000), (20_000, 21_000));
    faults.extend(marks("kill -9", (22_000, 30_000), (31_000, 32_000)));
    assert_eq!(judged(OUTAGE, &events, &faults), KEPT);
}

#[test]
fn a_machine_that_is_not_calm_has_what_it_does_by_itself_added() {
    let faults = marks("kill -9", (2_000, 8_000), (12_000, 13_000));
    let gaps = |length: Nanos| history(20_000, &[(400, 800), (2_000, 2_000 + length)], |_, _, _| true);
    let allowed_beyond = Duration::from_millis(400);
    assert_eq!(judged(KILL, &gaps(2_300), &faults), Judgement::Kept { allowed_beyond });
    let judgement = judged(KILL, &gaps(2_500), &faults);
    assert!(exceeded(&judgement)[0].ends_with("at most 2s and 400ms for the machine allowed"), "{judgement:?}");
}

#[test]
fn what_is_not_judged_is_not_called_kept() {
    let check = |limit, events: &[Event], faults: &[Mark], why: &str| match judged(limit, events, faults) {
        Judgement::NotJudged(said) => assert!(said.contains(why), "{said}"),
        other => panic!("not {other:?}"),
    };
    let faults = marks("kill -9", (3_000, 4_000), (12_000, 13_000));
    // Two seconds without an acknowledgement before anything was done.
    let rough = history(20_000, &[(200, 2_200)], |_, _, _| true);
    check(KILL, &rough, &faults, "too busy");
    let calm = history(20_000, &[], |_, _, _| true);
    check(KILL, &calm, &[], "nothing was measured around a fault");
    // An end alone is no fault.
    check(KILL, &calm, &faults[1..], "nothing was measured around a fault");
    check(OUTAGE, &calm, &faults, "nothing was measured around no etcd");
    check(KILL, &[], &[], "before the first fault");
    assert_eq!(judge(&[], &BTreeMap::new(), &BTreeMap::new()), Judgement::Unlimited);
}
