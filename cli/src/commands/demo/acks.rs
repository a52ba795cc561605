//! Acknowledgements as they come: how many, and how long each partition went without one. Looks at the clock when one comes, so
//! that nothing else the demo does is counted.

use crate::failure::{Doing, Failure};
use futures::StreamExt;
use futures::stream::FuturesUnordered;
use millpond_sdk::Delivery;
use std::collections::BTreeMap;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::Instant;

/// What came of all records.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Acked {
    /// How many were acknowledged: all of them.
    pub(super) count: u64,
    /// The longest that any partition went without an acknowledgement.
    pub(super) longest: Duration,
}

/// Records on their way. Their number is bounded by the producer's memory.
pub(super) struct Acks {
    deliveries: mpsc::UnboundedSender<Delivery>,
    counting: JoinHandle<Result<Acked, millpond_sdk::Error>>,
}

impl Acks {
    pub(super) fn begin() -> Acks {
        let (deliveries, received) = mpsc::unbounded_channel();
        Acks { deliveries, counting: tokio::spawn(count(received)) }
    }

    /// Counts on one more record. Fails once one was given up.
    pub(super) fn add(&mut self, delivery: Delivery) -> Result<(), Failure> {
        self.deliveries.send(delivery).map_err(|_| Failure::new("a record was given up"))
    }

    /// Waits for all of them. The first failure is told.
    pub(super) async fn settle(self) -> Result<Acked, Failure> {
        drop(self.deliveries);
        self.counting.await.doing("the count of acknowledgements failed")?.map_err(super::failed)
    }
}

async fn count(mut received: mpsc::UnboundedReceiver<Delivery>) -> Result<Acked, millpond_sdk::Error> {
    let mut pending: FuturesUnordered<Delivery> = FuturesUnordered::new();
    let mut gaps = Gaps::default();
    loop {
        tokio::select! {
            Some(delivered) = pending.next() => gaps.acknowledged(delivered?.partition, Instant::now()),
            delivery = received.recv() => match delivery {
                Some(delivery) => pending.push(delivery),
                None => break,
            },
        }
    }
    while let Some(delivered) = pending.next().await {
        gaps.acknowledged(delivered?.partition, Instant::now());
    }
    Ok(gaps.so_far)
}

/// The pauses between acknowledgements, each partition by itself.
#[derive(Default)]
struct Gaps {
    newest: BTreeMap<u32, Instant>,
    so_far: Acked,
}

impl Gaps {
    fn acknowledged(&mut self, partition: u32, now: Instant) {
        self.so_far.count += 1;
        if let Some(before) = self.newest.insert(partition, now) {
            self.so_far.longest = self.so_far.longest.max(now.saturating_duration_since(before));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_partition_waits_by_itself() {
        let start = Instant::now();
        let mut gaps = Gaps::default();
        for (partition, at_ms) in [(0, 0), (1, 100), (0, 300), (1, 350), (1, 360), (0, 500)] {
            gaps.acknowledged(partition, start + Duration::from_millis(at_ms));
        }
        assert_eq!(gaps.so_far, Acked { count: 6, longest: Duration::from_millis(300) });
    }
}
