//! How long to leave alone what failed: longer each time, and never in step with others (case S1).

/// Pause after the first failure, in milliseconds.
const FIRST_MS: u64 = 200;

/// Longest pause, in milliseconds.
const LONGEST_MS: u64 = 30_000;

/// Failures in a row and the pause after the last.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Backoff {
    failures: u32,
    until_ms: u64,
}

impl Backoff {
    /// Notes a failure. The pause doubles with each in a row; `jitter`, of 0 to 1, takes up to half of it away.
    pub fn fail(&mut self, now_ms: u64, jitter: f64) {
        let full = FIRST_MS.saturating_mul(1 << self.failures.min(16)).min(LONGEST_MS);
        self.failures += 1;
        self.until_ms = now_ms.saturating_add(full - (full as f64 / 2.0 * jitter.clamp(0.0, 1.0)) as u64);
    }

    /// Whether the pause is over.
    #[must_use]
    pub fn over(&self, now_ms: u64) -> bool {
        now_ms >= self.until_ms
    }

    /// When it is over.
    #[must_use]
    pub fn until_ms(&self) -> u64 {
        self.until_ms
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_half_a_minute_and_jitter_shortens_them() {
        let mut backoff = Backoff::default();
        let mut pauses = Vec::new();
        for _ in 0..10 {
            backoff.fail(1000, 0.0);
            pauses.push(backoff.until_ms() - 1000);
        }
        assert_eq!(pauses, [200, 400, 800, 1600, 3200, 6400, 12_800, 25_600, 30_000, 30_000]);
        let mut jittered = Backoff::default();
        jittered.fail(1000, 1.0);
        assert!(!jittered.over(1099) && jittered.over(1100));
        assert!(Backoff::default().over(0));
    }
}
