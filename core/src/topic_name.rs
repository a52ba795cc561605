//! The name of a topic, checked once at the edge. Kafka's rules.

use millpond_log::limits::TOPIC_NAME_BYTES_MAX;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

/// A valid topic name: 1 to 249 of `[a-zA-Z0-9._-]`, and neither `.` nor `..`. Cheap to clone.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct TopicName(Arc<str>);

impl TopicName {
    /// Checks a name.
    ///
    /// # Errors
    /// The name breaks a rule; the error says which.
    pub fn new(name: &str) -> Result<TopicName, InvalidTopicName> {
        let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
        let wrong = if name.is_empty() {
            Wrong::Empty
        } else if name == "." || name == ".." {
            Wrong::Dots
        } else if name.len() > TOPIC_NAME_BYTES_MAX {
            Wrong::Long(name.len())
        } else if let Some(c) = name.chars().find(|&c| !allowed(c)) {
            Wrong::Character(c)
        } else {
            return Ok(TopicName(name.into()));
        };
        Err(InvalidTopicName { wrong })
    }

    /// The name.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for TopicName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for TopicName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TopicName({})", self.0)
    }
}

impl FromStr for TopicName {
    type Err = InvalidTopicName;

    fn from_str(name: &str) -> Result<TopicName, InvalidTopicName> {
        TopicName::new(name)
    }
}

impl TryFrom<String> for TopicName {
    type Error = InvalidTopicName;

    fn try_from(name: String) -> Result<TopicName, InvalidTopicName> {
        TopicName::new(&name)
    }
}

impl From<TopicName> for String {
    fn from(name: TopicName) -> String {
        name.as_str().to_owned()
    }
}

/// Why a text is no topic name. Kafka's `INVALID_TOPIC_EXCEPTION`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("invalid topic name: {wrong}; use 1 to 249 of `a-z A-Z 0-9 . _ -`")]
pub struct InvalidTopicName {
    wrong: Wrong,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
enum Wrong {
    #[error("it is empty")]
    Empty,
    #[error("`.` and `..` are reserved")]
    Dots,
    #[error("it has {0} bytes")]
    Long(usize),
    #[error("it contains {0:?}")]
    Character(char),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_follow_kafkas_rules() {
        let longest = "d".repeat(249);
        for good in ["a", "...", "a.b_c-D9", longest.as_str(), "-", "_"] {
            assert_eq!(TopicName::new(good).expect(good).as_str(), good);
        }
        let too_long = "d".repeat(250);
        for bad in ["", ".", "..", "a/b", "é", "a b", "a\0", "a\n", "%", too_long.as_str()] {
            assert!(TopicName::new(bad).is_err(), "{bad:?}");
        }
        assert_eq!(
            TopicName::new("a/b").expect_err("a slash").to_string(),
            "invalid topic name: it contains '/'; use 1 to 249 of `a-z A-Z 0-9 . _ -`"
        );
    }

    #[test]
    fn a_stored_name_is_checked_too() {
        assert_eq!(serde_json::from_str::<TopicName>("\"a\"").expect("valid"), TopicName::new("a").expect("valid"));
        assert!(serde_json::from_str::<TopicName>("\"a/b\"").is_err());
    }
}
