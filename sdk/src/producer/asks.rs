//! When a producer asks again who leads a topic whose answers stay away. Pure: time and the random part are arguments.

use std::time::Duration;
use tokio::time::Instant;

/// How long it waits at most between asks while a silent broker may still be replaced: up to so much comes on top of what an election takes.
const PAUSE: Duration = Duration::from_millis(500);

/// How often it asks so: for longer than a silent broker is waited for by the others, which is its TTL of 6 s and two seconds (rule E1a).
const OFTEN: u32 = 24;

/// How far the pause grows after that: who has no leader for so long waits for a fleet, and others with it.
const PAUSE_MAX: Duration = Duration::from_secs(4);

/// The asks about one topic, since its answers stay away.
pub(super) struct Asks {
    asked: u32,
    next: Instant,
}

impl Asks {
    /// The first is due at once.
    pub(super) fn new(now: Instant) -> Asks {
        Asks { asked: 0, next: now }
    }

    /// When to ask next.
    pub(super) fn next(&self) -> Instant {
        self.next
    }

    /// It was asked. `random` is uniform in `[0, 1)`.
    pub(super) fn asked(&mut self, now: Instant, random: f64) {
        self.asked = self.asked.saturating_add(1);
        self.next = now + pause(self.asked, random);
    }
}

/// The pause after the `asked`-th ask, counted from 1: up to a third shorter than it may be, never longer, so that clients that lost one
/// broker at one moment are soon out of step.
fn pause(asked: u32, random: f64) -> Duration {
    let doubled = 2u32.saturating_pow(asked.saturating_sub(OFTEN));
    PAUSE.saturating_mul(doubled).min(PAUSE_MAX).mul_f64(1.0 - random / 3.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn asks_come_often_until_a_silent_broker_is_replaced_and_seldom_after() {
        let check = |asked, random, expected_ms| {
            assert_eq!(pause(asked, random).as_millis(), expected_ms, "ask {asked}");
        };
        check(1, 0.0, 500);
        check(1, 0.75, 375);
        check(OFTEN, 0.0, 500);
        check(OFTEN + 1, 0.0, 1000);
        check(OFTEN + 2, 0.0, 2000);
        check(OFTEN + 3, 0.0, 4000);
        check(OFTEN + 3, 0.75, 3000);
        check(u32::MAX, 0.0, 4000);
        // Also of clients whose pauses are the shortest there are.
        let often: Duration = (1..=OFTEN).map(|asked| pause(asked, 0.999)).sum();
        assert!(often >= Duration::from_secs(8), "{often:?}");
    }

    #[test]
    fn no_ask_comes_later_than_half_a_second_while_a_broker_may_be_replaced_and_no_two_clients_stay_in_step() {
        let start = Instant::now();
        let run = |random: f64| {
            let mut asks = Asks::new(start);
            assert_eq!(asks.next(), start, "the first is due at once");
            let mut last = start;
            for _ in 0..OFTEN {
                asks.asked(asks.next(), random);
                assert!(asks.next() > last && asks.next() <= last + PAUSE);
                last = asks.next();
            }
            last
        };
        assert!(run(0.2) > run(0.4) + PAUSE, "a few asks are enough to part them");
    }
}
