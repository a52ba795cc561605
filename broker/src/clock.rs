//! Where the broker reads time. Everything that decides takes time as an argument.
#![allow(clippy::disallowed_methods, reason = "this is the one module that reads the clocks")]

use millpond_log::TimestampMs;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Wall clock, for record and append times only (case O7).
#[must_use]
pub fn wall() -> TimestampMs {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    TimestampMs(i64::try_from(since.as_millis()).unwrap_or(i64::MAX))
}

/// Monotonic clock, for durations and deadlines.
#[must_use]
pub fn monotonic() -> Instant {
    Instant::now()
}

/// Time since the machine started, its sleep included: for how long ago a lease was renewed (rule B5).
#[must_use]
pub fn boot() -> Duration {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    Duration::new(now.tv_sec.unsigned_abs(), u32::try_from(now.tv_nsec).unwrap_or(0))
}
