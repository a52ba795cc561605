//! Records that were handed to a producer: which have been acknowledged, and whether one was given up.

use crate::failure::Failure;
use futures::stream::FuturesUnordered;
use futures::{FutureExt, StreamExt};
use millpond_sdk::Delivery;

/// Records on their way, and how many have arrived. Their number is bounded by the producer's memory.
#[derive(Default)]
pub(super) struct Deliveries {
    pending: FuturesUnordered<Delivery>,
    acknowledged: u64,
}

impl Deliveries {
    /// How many records are known to be written.
    pub(super) fn acknowledged(&self) -> u64 {
        self.acknowledged
    }

    /// Counts on one more record.
    pub(super) fn add(&mut self, delivery: Delivery) {
        self.pending.push(delivery);
    }

    /// Counts what has arrived, without waiting.
    pub(super) fn look(&mut self) -> Result<(), Failure> {
        while let Some(Some(delivered)) = self.pending.next().now_or_never() {
            delivered.map_err(|error| Failure::new(error.to_string()))?;
            self.acknowledged += 1;
        }
        Ok(())
    }

    /// Waits for all of them. The first failure is told, and the rest is counted all the same.
    pub(super) async fn settle(&mut self) -> Result<(), Failure> {
        let mut first = Ok(());
        while let Some(delivered) = self.pending.next().await {
            match delivered {
                Ok(_) => self.acknowledged += 1,
                Err(error) if first.is_ok() => first = Err(Failure::new(error.to_string())),
                Err(_) => {}
            }
        }
        first
    }
}
