//! The wall clock, read only to stamp records. Deadlines use the runtime's monotonic clock.

use millpond_log::TimestampMs;
use std::time::{SystemTime, UNIX_EPOCH};

/// Now, in milliseconds since the Unix epoch; 0 if the machine's clock stands before it.
#[allow(
    clippy::disallowed_methods,
    reason = "a producer stamps records with its own time; nothing else is decided by it"
)]
pub(crate) fn wall_now() -> TimestampMs {
    let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    TimestampMs(i64::try_from(since_epoch.as_millis()).unwrap_or(i64::MAX))
}
