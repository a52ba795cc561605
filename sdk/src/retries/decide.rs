//! What becomes of a record whose handler failed. Pure: the policy, how often and how long it was tried here, where it is, and the error
//! go in.

use super::failure::ErrorKind;
use super::place::{Ladder, Place};
use super::policy::RetryPolicy;
use std::time::Duration;

/// How often a record was tried where it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Tried {
    /// Runs of the handler, at least 1.
    pub(super) times: u32,
    /// Time since the first of them failed.
    pub(super) since_first_failure: Duration,
}

/// What is to be done with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// Try again here, after a pause. Nothing behind it in its partition is handled before.
    Again(Duration),
    /// Copy it to this delay topic, counted from 0. It is done here once the copy is durable.
    Delay(usize),
    /// Copy it to the dead-letter topic. It is done here once the copy is durable.
    DeadLetter,
    /// Keep it, and all behind it in its partition, until told to go on. It is not done.
    Pause,
}

/// What becomes of a record that failed. `random` is uniform in `[0, 1)` and varies the pause.
pub(super) fn decide(
    policy: &RetryPolicy,
    ladder: &Ladder,
    place: Place,
    tried: Tried,
    kind: ErrorKind,
    random: f64,
) -> Verdict {
    let set_aside = if ladder.dead_letters.is_some() { Verdict::DeadLetter } else { Verdict::Pause };
    if kind == ErrorKind::Permanent {
        return set_aside;
    }
    let pause = policy.backoff.pause(tried.times, random);
    let in_time = tried.since_first_failure.saturating_add(pause) <= policy.time_max;
    if tried.times < policy.tries_max && in_time {
        return Verdict::Again(pause);
    }
    let next = match place {
        Place::Source => 0,
        Place::Rung(rung) => rung + 1,
    };
    if ladder.dead_letters.is_some() && next < ladder.rungs.len() { Verdict::Delay(next) } else { set_aside }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backoff::Backoff;
    use crate::retries::policy::WhenFailing;

    const KINDS: [ErrorKind; 2] = [ErrorKind::Transient, ErrorKind::Permanent];

    fn policy(tries_max: u32, time_max_ms: u64, rungs: usize, when_failing: WhenFailing) -> RetryPolicy {
        RetryPolicy {
            tries_max,
            time_max: Duration::from_millis(time_max_ms),
            backoff: Backoff { first: Duration::from_millis(10), max: Duration::from_millis(40) },
            delays: (1..=rungs).map(|rung| Duration::from_secs(rung as u64)).collect(),
            when_failing,
            dead_letter_topic: None,
        }
    }

    /// Every policy of a small world.
    fn policies() -> impl Iterator<Item = (RetryPolicy, Ladder)> {
        let modes = [WhenFailing::SetAside, WhenFailing::Pause];
        let all = (1..=4).flat_map(|tries| [0, 25, 1000].map(|time| (tries, time)));
        let all = all.flat_map(|(tries, time)| (0..=3).map(move |rungs| (tries, time, rungs)));
        all.flat_map(move |(tries, time, rungs)| modes.map(|mode| policy(tries, time, rungs, mode))).map(|policy| {
            let ladder = policy.ladder("t", "g").expect("valid");
            (policy, ladder)
        })
    }

    fn places(ladder: &Ladder) -> impl Iterator<Item = Place> {
        std::iter::once(Place::Source).chain((0..ladder.rungs.len()).map(Place::Rung))
    }

    /// Every verdict on every state of the small world, with the state.
    fn check(mut holds: impl FnMut(&RetryPolicy, &Ladder, Place, Tried, ErrorKind, Verdict)) {
        for (policy, ladder) in policies() {
            for place in places(&ladder) {
                for times in 1..=5 {
                    for ms in [0, 5, 20, 30, 2000] {
                        for (kind, random) in KINDS.into_iter().flat_map(|kind| [0.0, 0.5, 0.99].map(|r| (kind, r))) {
                            let tried = Tried { times, since_first_failure: Duration::from_millis(ms) };
                            let verdict = decide(&policy, &ladder, place, tried, kind, random);
                            holds(&policy, &ladder, place, tried, kind, verdict);
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn a_permanent_error_is_never_tried_again() {
        check(|policy, _, _, _, kind, verdict| {
            let expected = match policy.when_failing {
                WhenFailing::SetAside => Verdict::DeadLetter,
                WhenFailing::Pause => Verdict::Pause,
            };
            assert!(kind == ErrorKind::Transient || verdict == expected);
        });
    }

    #[test]
    fn strictness_lets_nothing_leave_its_partition_and_its_absence_lets_nothing_stay() {
        check(|policy, _, _, _, _, verdict| match policy.when_failing {
            WhenFailing::Pause => assert!(matches!(verdict, Verdict::Again(_) | Verdict::Pause), "{verdict:?}"),
            WhenFailing::SetAside => assert_ne!(verdict, Verdict::Pause),
        });
    }

    #[test]
    fn tries_in_one_place_are_bounded_in_number_and_in_time() {
        check(|policy, _, _, tried, _, verdict| {
            if let Verdict::Again(pause) = verdict {
                assert!(tried.times < policy.tries_max && tried.since_first_failure + pause <= policy.time_max);
            }
        });
    }

    #[test]
    fn a_record_goes_through_every_delay_once_and_in_order() {
        check(|_, ladder, place, _, kind, verdict| {
            let next = match place {
                Place::Source => 0,
                Place::Rung(rung) => rung + 1,
            };
            match verdict {
                Verdict::Delay(rung) => assert!(rung == next && rung < ladder.rungs.len()),
                Verdict::DeadLetter => assert!(kind == ErrorKind::Permanent || next == ladder.rungs.len()),
                Verdict::Again(_) | Verdict::Pause => {}
            }
        });
    }

    /// From its topic to its end, a record that always fails is handled at most `tries_max` times a place.
    #[test]
    fn a_record_that_always_fails_comes_to_an_end() {
        for (policy, ladder) in policies() {
            let (mut place, mut runs, mut times, mut waited) = (Place::Source, 0, 0, Duration::ZERO);
            let verdict = loop {
                (runs, times) = (runs + 1, times + 1);
                let tried = Tried { times, since_first_failure: waited };
                match decide(&policy, &ladder, place, tried, ErrorKind::Transient, 0.5) {
                    Verdict::Again(pause) => waited += pause,
                    Verdict::Delay(rung) => (place, times, waited) = (Place::Rung(rung), 0, Duration::ZERO),
                    end => break end,
                }
            };
            let places = 1 + ladder.rungs.len();
            assert!(runs >= places && runs <= places * policy.tries_max as usize, "{runs} {policy:?}");
            let reached = if ladder.rungs.is_empty() { Place::Source } else { Place::Rung(ladder.rungs.len() - 1) };
            assert_eq!(place, reached);
            let strict = policy.when_failing == WhenFailing::Pause;
            assert_eq!(verdict, if strict { Verdict::Pause } else { Verdict::DeadLetter });
        }
    }
}
