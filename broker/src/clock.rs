//! Where the broker reads time. Everything that decides takes time as an argument.
#![allow(clippy::disallowed_methods, reason = "this is the one module that reads the clocks")]

use millpond_log::TimestampMs;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

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
