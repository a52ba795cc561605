//! What is to become of records that fail: plain settings, and what contradicts itself in them.

use super::names::{dead_letter_topic, delay_topic};
use super::{names, place::Ladder};
use crate::backoff::Backoff;
use crate::error::Error;
use millpond_log::ErrorCode;
use std::time::Duration;

/// Most delay topics one after the other.
pub const DELAYS_MAX: usize = 8;

/// Longest delay. A record has to be there still when it is due, and topics keep theirs for seven days by default.
pub const DELAY_MAX: Duration = Duration::from_secs(3 * 86_400);

/// What happens to a record that goes on failing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WhenFailing {
    /// It goes to the delay topics, then to the dead-letter topic, and its partition goes on.
    #[default]
    SetAside,
    /// Its partition waits with it until told to go on: nothing overtakes it. "Strict": for records that build on each other.
    Pause,
}

/// How often, when and where a record is tried again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RetryPolicy {
    /// Most runs of the handler on a record before it leaves its partition, the first included. The partition waits meanwhile, so that
    /// its order is kept; other partitions go on.
    pub tries_max: u32,
    /// Longest time for these runs, from the first failure on. No further run begins after it.
    pub time_max: Duration,
    /// Pauses between these runs.
    pub backoff: Backoff,
    /// How long a record waits in each delay topic, in the order in which it goes through them. Each has a topic of its own,
    /// `NAME.retry.5m` for five minutes. Empty: straight to the dead-letter topic.
    pub delays: Vec<Duration>,
    /// What happens to a record that goes on failing.
    pub when_failing: WhenFailing,
    /// Where dead letters go; `None`: to `NAME.GROUP.dlq`.
    pub dead_letter_topic: Option<String>,
}

impl Default for RetryPolicy {
    fn default() -> RetryPolicy {
        RetryPolicy {
            tries_max: 3,
            // Long enough for a restart of what the handler calls, well below the time after which a consumer counts as stuck.
            time_max: Duration::from_secs(30),
            backoff: Backoff { first: Duration::from_millis(200), max: Duration::from_secs(5) },
            delays: vec![Duration::from_secs(300), Duration::from_secs(3600)],
            when_failing: WhenFailing::SetAside,
            dead_letter_topic: None,
        }
    }
}

impl RetryPolicy {
    /// The default, but strict: a record that goes on failing stops its partition.
    #[must_use]
    pub fn strict() -> RetryPolicy {
        RetryPolicy { when_failing: WhenFailing::Pause, ..RetryPolicy::default() }
    }

    /// The topics that records of `topic` go through for `group`.
    ///
    /// # Errors
    /// `InvalidConfig` for settings that contradict themselves, `InvalidTopic` for a name that no topic may have.
    pub(super) fn ladder(&self, topic: &str, group: &str) -> Result<Ladder, Error> {
        self.validate()?;
        names::check(topic, "the name given")?;
        if self.when_failing == WhenFailing::Pause {
            return Ok(Ladder { source: topic.into(), rungs: Vec::new(), dead_letters: None });
        }
        let mut rungs = Vec::with_capacity(self.delays.len());
        for &delay in &self.delays {
            let name = delay_topic(topic, delay);
            names::check(&name, &format!("topic `{topic}` and the delay; a shorter name of the topic would do"))?;
            rungs.push((name.into(), delay));
        }
        let dead_letters = match &self.dead_letter_topic {
            Some(name) => {
                names::check(name, "the setting `dead_letter_topic`")?;
                name.clone()
            }
            None => {
                let name = dead_letter_topic(topic, group);
                let made_of =
                    format!("topic `{topic}` and group `{group}`; set `dead_letter_topic` to name it otherwise");
                names::check(&name, &made_of)?;
                name
            }
        };
        Ok(Ladder { source: topic.into(), rungs, dead_letters: Some(dead_letters.into()) })
    }

    fn validate(&self) -> Result<(), Error> {
        let refuse = |message: String| Err(Error::new(ErrorCode::InvalidConfig, message));
        if self.tries_max == 0 {
            return refuse("tries_max counts the first run: it is at least 1".to_owned());
        }
        if self.delays.len() > DELAYS_MAX {
            return refuse(format!("there may be {DELAYS_MAX} delays, not {}", self.delays.len()));
        }
        if let Some(delay) = self.delays.iter().find(|delay| delay.as_millis() == 0 || **delay > DELAY_MAX) {
            return refuse(format!("a delay is 1 ms to {} h, not {delay:?}", DELAY_MAX.as_secs() / 3600));
        }
        let mut labels: Vec<String> = self.delays.iter().map(|&delay| names::label(delay)).collect();
        labels.sort();
        if let Some(twice) = labels.windows(2).find(|pair| pair[0] == pair[1]) {
            return refuse(format!("delay {} is there twice: each has a topic of its own", twice[0]));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn policy(change: impl FnOnce(&mut RetryPolicy)) -> RetryPolicy {
        let mut policy = RetryPolicy::default();
        change(&mut policy);
        policy
    }

    #[test]
    fn records_go_through_five_minutes_and_an_hour_by_default() {
        let ladder = RetryPolicy::default().ladder("orders", "billing").expect("the default is valid");
        let rungs: Vec<&str> = ladder.rungs.iter().map(|(name, _)| &**name).collect();
        assert_eq!(rungs, ["orders.retry.5m", "orders.retry.1h"]);
        assert_eq!(ladder.dead_letters.as_deref(), Some("orders.billing.dlq"));
    }

    #[test]
    fn strictness_knows_no_other_topics() {
        let ladder = RetryPolicy::strict().ladder("orders", "any name: nothing is made of it").expect("valid");
        assert!(ladder.rungs.is_empty() && ladder.dead_letters.is_none());
    }

    #[test]
    fn settings_that_cannot_work_are_refused_with_what_to_do() {
        let check = |policy: RetryPolicy, topic: &str, group: &str, reason: &str| {
            let error = policy.ladder(topic, group).expect_err(reason).to_string();
            assert!(error.contains(reason), "{error}");
        };
        let seconds = Duration::from_secs;
        check(policy(|policy| policy.tries_max = 0), "t", "g", "at least 1");
        check(policy(|policy| policy.delays = vec![seconds(0)]), "t", "g", "a delay is 1 ms to 72 h");
        check(policy(|policy| policy.delays = vec![Duration::from_nanos(9)]), "t", "g", "a delay is 1 ms to 72 h");
        check(policy(|policy| policy.delays = vec![DELAY_MAX + seconds(1)]), "t", "g", "a delay is 1 ms to 72 h");
        check(policy(|policy| policy.delays = vec![seconds(60), seconds(60)]), "t", "g", "delay 1m is there twice");
        check(policy(|policy| policy.delays = (1..10).map(seconds).collect()), "t", "g", "8 delays, not 9");
        check(policy(|_| ()), "t", "my group", "set `dead_letter_topic`");
        check(policy(|policy| policy.dead_letter_topic = Some("a b".to_owned())), "t", "g", "the setting");
        check(policy(|_| ()), &"x".repeat(245), "g", "a shorter name of the topic");
        check(policy(|_| ()), "no topic", "g", "the name given");
        let named = policy(|policy| policy.dead_letter_topic = Some("dead".to_owned()));
        assert_eq!(named.ladder("t", "my group").expect("valid").dead_letters.as_deref(), Some("dead"));
    }
}
