//! Settings of a retrying consumer, and what contradicts itself in them.

use super::policy::RetryPolicy;
use crate::error::Error;
use crate::group::GroupConfig;
use crate::producer::{Acks, ProducerConfig};
use millpond_log::ErrorCode;
use millpond_log::codec::Codec;
use std::time::Duration;

/// How a retrying consumer behaves.
#[derive(Clone, Debug)]
pub struct RetryingConfig {
    /// The group, and how it reads. Nothing is to be set for commits: what is done is committed, and only that.
    pub group: GroupConfig,
    /// What becomes of records that fail.
    pub policy: RetryPolicy,
    /// Most bytes of records that are read and not done yet, shared evenly by the partitions that are read. A partition whose share is
    /// used up is paused.
    pub queue_bytes_max: usize,
    /// How often what is done is committed. After a crash so much is done again.
    pub commit_interval: Duration,
    /// How copies are written. Always with `Acks::All`.
    pub producer: ProducerConfig,
}

impl RetryingConfig {
    /// The defaults, for a group of this name.
    pub fn new(group: impl Into<String>) -> RetryingConfig {
        RetryingConfig {
            group: GroupConfig::new(group),
            policy: RetryPolicy::default(),
            // As much again as is read ahead.
            queue_bytes_max: 32 << 20,
            commit_interval: Duration::from_secs(1),
            // A record may come out of a batch that was small only because it was compressed.
            producer: ProducerConfig { compression: Codec::Zstd, linger: Duration::ZERO, ..ProducerConfig::default() },
        }
    }

    /// The same with this policy.
    #[must_use]
    pub fn policy(mut self, policy: RetryPolicy) -> RetryingConfig {
        self.policy = policy;
        self
    }

    pub(super) fn check(&self) -> Result<(), Error> {
        let refuse = |message: &str| Err(Error::new(ErrorCode::InvalidConfig, message));
        if self.producer.acks != Acks::All {
            return refuse(
                "a copy has to be on all replicas before its original is done: leave `producer.acks` at `All`",
            );
        }
        if self.group.auto_commit_interval.is_some() {
            return refuse("`auto_commit_interval` would commit records that are not done; leave it out");
        }
        if self.queue_bytes_max == 0 || self.commit_interval.is_zero() {
            return refuse("`queue_bytes_max` and `commit_interval` are above 0");
        }
        Ok(())
    }
}
