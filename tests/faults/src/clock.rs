//! The one clock of a run: the system's monotonic one, which every process on the machine reads alike.

use std::time::Duration;

/// Nanoseconds since the machine started.
pub(crate) type Nanos = u64;

/// Now.
pub(crate) fn now() -> Nanos {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    let seconds = u64::try_from(now.tv_sec).expect("the clock starts at 0");
    seconds * 1_000_000_000 + u64::try_from(now.tv_nsec).expect("below a second")
}

/// The time from `from` to `to`; none if they are the other way round.
pub(crate) fn between(from: Nanos, to: Nanos) -> Duration {
    Duration::from_nanos(to.saturating_sub(from))
}
