//! Monotonic time for lease expiry. The only module of this crate that reads the system's clock.
#![allow(clippy::disallowed_methods, reason = "this is where the crate's time comes from")]

use std::sync::Mutex;
use std::time::{Duration, Instant};

/// Tells monotonic time.
pub trait Clock: Send + Sync {
    /// Time since a fixed moment of this clock. Never goes back.
    fn now(&self) -> Duration;
}

/// The system's monotonic clock. It stands still while the machine is suspended, so that no lease ends in its sleep.
#[derive(Clone, Copy, Debug)]
pub struct SystemClock {
    origin: Instant,
}

impl SystemClock {
    /// A clock that starts at zero.
    #[must_use]
    pub fn start() -> SystemClock {
        SystemClock { origin: Instant::now() }
    }
}

impl Clock for SystemClock {
    fn now(&self) -> Duration {
        self.origin.elapsed()
    }
}

/// A clock that moves only when told: for tests and simulation.
#[derive(Debug, Default)]
pub struct ManualClock {
    now: Mutex<Duration>,
}

impl ManualClock {
    /// Moves the clock on.
    pub fn advance(&self, by: Duration) {
        *self.now.lock().expect("no holder of the lock panics") += by;
    }
}

impl Clock for ManualClock {
    fn now(&self) -> Duration {
        *self.now.lock().expect("no holder of the lock panics")
    }
}
