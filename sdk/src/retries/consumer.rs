//! The consumer that tries again: what an application makes, runs and asks. The work is `Runner`'s.

use super::config::RetryingConfig;
use super::control::{PausedPartition, RetryControl};
use super::handler::Handler;
use super::place::{Ladder, places};
use super::runner::Runner;
use crate::client::Client;
use crate::error::Error;
use crate::record::TopicPartition;
use millpond_log::ErrorCode;
use std::future::Future;
use std::sync::Arc;
use tokio::sync::mpsc::{self, UnboundedReceiver};
use tokio::sync::watch;

/// Reads topics in a group, runs a handler on each record, and tries those again that fail: at once, then after a while by way of delay
/// topics, then it sets them aside in a dead-letter topic. Partitions are handled side by side, the records of each in order.
///
/// A record is done, and committed, when its handler has succeeded, or when its copy in a delay or dead-letter topic is on all in-sync
/// replicas. So each record is handled at least once, whatever crashes; it may be handled more than once, and a copy may be there
/// twice. `Attempt::event_id` is the same for all of them.
///
/// ```no_run
/// # async fn example() -> Result<(), millpond_sdk::Error> {
/// use millpond_sdk::Client;
/// use millpond_sdk::retries::{Attempt, HandlerError, RetryingConfig, RetryingConsumer};
///
/// async fn bill(attempt: Attempt) -> Result<(), HandlerError> {
///     let Some(order) = attempt.record.value else {
///         return Err(HandlerError::permanent("NoOrder", "an order has a value"));
///     };
///     # fn charge(_: &[u8]) -> Result<(), std::io::Error> { Ok(()) }
///     charge(&order).map_err(|error| HandlerError::transient("Bank", error))
/// }
///
/// let client = Client::connect("127.0.0.1:7400").await?;
/// let consumer = RetryingConsumer::new(&client, RetryingConfig::new("billing"), ["orders"])?;
/// consumer.run(bill, std::future::pending()).await
/// # }
/// ```
pub struct RetryingConsumer {
    client: Client,
    config: RetryingConfig,
    ladders: Vec<Arc<Ladder>>,
    resumes: UnboundedReceiver<TopicPartition>,
    paused: watch::Sender<Vec<PausedPartition>>,
    control: RetryControl,
}

impl RetryingConsumer {
    /// A consumer of these topics. It reads nothing before it is run.
    ///
    /// # Errors
    /// `InvalidConfig`, `InvalidTopic`: what is wrong with the settings, or a name that a delay or dead-letter topic would have.
    pub fn new<T: AsRef<str>>(
        client: &Client,
        config: RetryingConfig,
        topics: impl IntoIterator<Item = T>,
    ) -> Result<RetryingConsumer, Error> {
        config.check()?;
        let mut ladders = Vec::new();
        for topic in topics {
            ladders.push(Arc::new(config.policy.ladder(topic.as_ref(), &config.group.group)?));
        }
        if ladders.is_empty() {
            return Err(Error::new(ErrorCode::InvalidConfig, "name at least one topic"));
        }
        places(&ladders)?;
        let (resume, resumes) = mpsc::unbounded_channel();
        let (paused, watched) = watch::channel(Vec::new());
        let control = RetryControl { resumes: resume, paused: watched };
        Ok(RetryingConsumer { client: client.clone(), config, ladders, resumes, paused, control })
    }

    /// Looks after it while it runs.
    #[must_use]
    pub fn control(&self) -> RetryControl {
        self.control.clone()
    }

    /// Handles records until `until` resolves; then lets handlers finish, commits what is done, and leaves the group. Takes up to
    /// `GroupConfig::close_timeout` for that. Must be called inside a Tokio runtime.
    ///
    /// Dropped, it stops where it stands: nothing is lost, and what was done since the last commit is done again by others.
    ///
    /// # Errors
    /// Why records cannot be read any more: all else is done in order before. Or why the last commit failed.
    pub async fn run(self, handler: impl Handler, until: impl Future<Output = ()>) -> Result<(), Error> {
        let RetryingConsumer { client, config, ladders, resumes, paused, control: _control } = self;
        let places = places(&ladders)?;
        Runner::start(client, config, places, handler, paused)?.run(resumes, until).await
    }
}

impl std::fmt::Debug for RetryingConsumer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RetryingConsumer").field("config", &self.config).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::retries::place::Place;
    use crate::retries::policy::RetryPolicy;

    fn ladders(policy: &RetryPolicy, topics: &[&str]) -> Vec<Arc<Ladder>> {
        topics.iter().map(|topic| Arc::new(policy.ladder(topic, "g").expect("valid"))).collect()
    }

    #[test]
    fn every_topic_that_is_read_has_one_place() {
        let policy = RetryPolicy::default();
        let read = places(&ladders(&policy, &["a", "b"])).expect("they differ");
        let read: Vec<(&str, Place)> = read.iter().map(|(name, (_, place))| (&**name, *place)).collect();
        let expected = [
            ("a", Place::Source),
            ("a.retry.1h", Place::Rung(1)),
            ("a.retry.5m", Place::Rung(0)),
            ("b", Place::Source),
            ("b.retry.1h", Place::Rung(1)),
            ("b.retry.5m", Place::Rung(0)),
        ];
        assert_eq!(read, expected);
        for twice in [&["a", "a"][..], &["a", "a.retry.5m"]] {
            let error = places(&ladders(&policy, twice)).expect_err("ambiguous").to_string();
            assert!(error.contains("is there twice"), "{error}");
        }
    }

    #[test]
    fn dead_letters_do_not_go_round_in_circles() {
        let policy = RetryPolicy { dead_letter_topic: Some("b".to_owned()), ..RetryPolicy::default() };
        let error = places(&ladders(&policy, &["a", "b"])).expect_err("a circle").to_string();
        assert!(error.contains("never rest"), "{error}");
    }
}
