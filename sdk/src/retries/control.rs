//! What an application sees of a retrying consumer that runs, and what it can tell it.

use super::failure::LastError;
use crate::record::TopicPartition;
use millpond_log::Offset;
use tokio::sync::mpsc::UnboundedSender;
use tokio::sync::watch;

/// A partition that waits with a record that fails, since nothing may overtake it, or since it cannot be set aside.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PausedPartition {
    /// The partition.
    pub partition: TopicPartition,
    /// Offset of the record.
    pub offset: Offset,
    /// Why it failed last.
    pub error: LastError,
}

/// Looks after a retrying consumer while it runs. Cheap to clone.
#[derive(Clone, Debug)]
pub struct RetryControl {
    pub(super) resumes: UnboundedSender<TopicPartition>,
    pub(super) paused: watch::Receiver<Vec<PausedPartition>>,
}

impl RetryControl {
    /// The partitions that wait, in order.
    #[must_use]
    pub fn paused(&self) -> Vec<PausedPartition> {
        self.paused.borrow().clone()
    }

    /// Waits until the partitions that wait are as asked, and returns them. Pending for ever if the consumer ends before. Cancel safe.
    pub async fn wait_until(&self, mut as_asked: impl FnMut(&[PausedPartition]) -> bool) -> Vec<PausedPartition> {
        let mut paused = self.paused.clone();
        match paused.wait_for(|paused| as_asked(paused)).await {
            Ok(paused) => paused.clone(),
            Err(_) => std::future::pending().await,
        }
    }

    /// Has a partition go on that waits: its record is handled again, with all tries before it. Without effect if it does not wait.
    pub fn resume(&self, partition: &TopicPartition) {
        // A consumer that has ended holds no partition.
        let _ = self.resumes.send(partition.clone());
    }
}
