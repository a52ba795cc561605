//! How long to pause before trying again. Pure: the random part is an argument.

use std::time::Duration;

/// Pauses that double from `first` to `max`, each varied by a fifth so that clients do not come back all at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Backoff {
    /// The pause after the first failure. Kafka's `retry.backoff.ms`.
    pub first: Duration,
    /// The longest pause. Kafka's `retry.backoff.max.ms`.
    pub max: Duration,
}

impl Default for Backoff {
    /// Kafka's defaults: 100 ms to 1 s.
    fn default() -> Backoff {
        Backoff { first: Duration::from_millis(100), max: Duration::from_secs(1) }
    }
}

impl Backoff {
    /// The pause after the `failures`-th failure in a row, counted from 1. `random` is uniform in `[0, 1)`.
    #[must_use]
    pub fn pause(&self, failures: u32, random: f64) -> Duration {
        let doubled = 2u32.saturating_pow(failures.saturating_sub(1));
        self.first.saturating_mul(doubled).min(self.max).mul_f64(0.8 + 0.4 * random)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_the_bound_and_vary_by_a_fifth() {
        let backoff = Backoff { first: Duration::from_millis(100), max: Duration::from_secs(1) };
        let check = |failures, random, expected| {
            let pause = backoff.pause(failures, random).as_millis();
            assert_eq!(pause, expected, "failure {failures}");
        };
        check(1, 0.5, 100);
        check(2, 0.5, 200);
        check(4, 0.5, 800);
        check(5, 0.5, 1000);
        check(u32::MAX, 0.5, 1000);
        check(1, 0.0, 80);
        check(1, 1.0, 120);
    }
}
