//! Settings of a consumer in a group.

use crate::consumer::{ConsumerConfig, OffsetReset};
use crate::error::Error;
use millpond_log::ErrorCode;
use std::time::Duration;

/// The least that an application may take between two polls: below it, an ordinary pause would cost it its partitions.
const POLL_INTERVAL_LEAST: Duration = Duration::from_secs(1);

/// What a group reads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Subscription {
    /// Topics by name. One that does not exist is read once it does.
    Topics(Vec<String>),
    /// All topics whose whole name matches a regular expression (RE2's syntax), also those that come later.
    Pattern(String),
}

impl Subscription {
    /// Topics by name.
    pub fn topics<T: Into<String>>(names: impl IntoIterator<Item = T>) -> Subscription {
        Subscription::Topics(names.into_iter().map(Into::into).collect())
    }

    /// All topics whose whole name matches.
    pub fn pattern(pattern: impl Into<String>) -> Subscription {
        Subscription::Pattern(pattern.into())
    }

    pub(super) fn check(&self) -> Result<(), Error> {
        let nothing = match self {
            Subscription::Topics(names) => names.is_empty() || names.iter().any(String::is_empty),
            Subscription::Pattern(pattern) => pattern.is_empty(),
        };
        if nothing { Err(invalid("a subscription names at least one topic, or a pattern")) } else { Ok(()) }
    }
}

/// How a consumer in a group behaves.
#[derive(Clone, Debug)]
pub struct GroupConfig {
    /// The group's name. Kafka's `group.id`.
    pub group: String,
    /// Who this is across restarts: a member that comes back under the same name in time finds its partitions again, and nobody else
    /// was given them. Kafka's `group.instance.id`.
    pub instance: Option<String>,
    /// Where a partition begins of which the group has committed nothing. Nothing is skipped by default; Kafka's own is `Latest`.
    pub initial_offset: OffsetReset,
    /// Who assigns: `uniform` or `range`; the group's choice if `None`. Kafka's `group.remote.assignor`.
    pub assignor: Option<String>,
    /// The longest an application may take until it asks for records again, and to give partitions up that are revoked. One that takes
    /// longer is stuck: it loses its partitions, and joins again when it comes back. Kafka's `max.poll.interval.ms`.
    pub poll_interval_max: Duration,
    /// How often what was handed out is committed: all but what was handed out since the application last asked for more, so a record
    /// counts as processed when the next one is asked for. `None`: only what the application commits. Kafka's `enable.auto.commit` and
    /// `auto.commit.interval.ms`.
    pub auto_commit_interval: Option<Duration>,
    /// How long `close` waits for the listener, the last commit and the farewell.
    pub close_timeout: Duration,
    /// How partitions are read. Its `offset_reset` says what to do where a position does not exist any more.
    pub reader: ConsumerConfig,
}

impl GroupConfig {
    /// The defaults, for a group of this name.
    pub fn new(group: impl Into<String>) -> GroupConfig {
        GroupConfig {
            group: group.into(),
            instance: None,
            initial_offset: OffsetReset::Earliest,
            assignor: None,
            poll_interval_max: Duration::from_secs(300),
            auto_commit_interval: None,
            close_timeout: Duration::from_secs(30),
            reader: ConsumerConfig::default(),
        }
    }

    pub(super) fn check(&self) -> Result<(), Error> {
        if self.group.is_empty() {
            return Err(invalid("a group has a name"));
        }
        if self.instance.as_ref().is_some_and(String::is_empty) {
            return Err(invalid("a static identity (`instance`) is not empty; leave it out for none"));
        }
        if self.poll_interval_max < POLL_INTERVAL_LEAST {
            return Err(invalid("`poll_interval_max` is at least a second"));
        }
        Ok(())
    }
}

fn invalid(message: &str) -> Error {
    Error::new(ErrorCode::InvalidRequest, message)
}
