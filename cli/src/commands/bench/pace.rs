//! When records of an open load are due. A thread of its own keeps the time, since the runtime's timers are right to a millisecond
//! only, which is more than an answer takes. It never waits for an answer.

use std::thread::park_timeout;
use std::time::Duration;
use tokio::sync::mpsc::{Receiver, Sender, channel};
use tokio::time::Instant;

/// Due records that may wait to be sent; when there are more, the thread waits, and they are told late and stay due when they were.
const WAITING_MAX: usize = 1024;

/// The times of one producer's records, one after the other.
pub(super) struct Pace(Receiver<Instant>);

impl Pace {
    /// Begins to tell when each of these records is due: `rate` of all numbers in a second, number 0 at `start`.
    pub(super) fn begin(start: Instant, rate: u64, numbers: impl Iterator<Item = u64> + Send + 'static) -> Pace {
        let (sender, receiver) = channel(WAITING_MAX);
        std::thread::spawn(move || tell(start, rate, numbers, &sender));
        Pace(receiver)
    }

    /// Waits until the next record is due; when it was due. Must not be asked for more records than there are.
    ///
    /// Cancel safe: a time that was not returned is returned by the next call.
    pub(super) async fn next(&mut self) -> Instant {
        self.0.recv().await.expect("one time is told for each record")
    }
}

fn tell(start: Instant, rate: u64, numbers: impl Iterator<Item = u64>, times: &Sender<Instant>) {
    for number in numbers {
        let due = start + Duration::from_secs_f64(number as f64 / rate as f64);
        // A park may end early.
        while let Some(left) = due.checked_duration_since(Instant::now()).filter(|left| !left.is_zero()) {
            park_timeout(left);
        }
        if times.blocking_send(due).is_err() {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn records_are_due_at_their_own_times_however_late_they_are_taken() {
        let start = Instant::now();
        let mut pace = Pace::begin(start, 1000, (1..5000).step_by(2));
        for number in [1_u64, 3, 5] {
            assert_eq!(pace.next().await, start + Duration::from_millis(number));
            assert!(start.elapsed() >= Duration::from_millis(number), "not before its time");
        }
    }
}
