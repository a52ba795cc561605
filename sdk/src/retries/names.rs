//! Names of delay and dead-letter topics, and what is wrong with one before a broker has to say so. Pure.

use crate::error::Error;
use millpond_log::ErrorCode;
use millpond_log::limits::TOPIC_NAME_BYTES_MAX;
use std::time::Duration;

/// Between a topic's name and the delay, in the name of a delay topic.
const DELAY_INFIX: &str = ".retry.";

/// How the name of a dead-letter topic ends. `millpond dlq list` finds them by it.
pub const DEAD_LETTER_SUFFIX: &str = ".dlq";

/// The delay topic of `topic`: `orders.retry.5m`. All groups that read `topic` share it; each reads its own records in it.
pub(super) fn delay_topic(topic: &str, delay: Duration) -> String {
    format!("{topic}{DELAY_INFIX}{}", label(delay))
}

/// The dead-letter topic of a group for `topic`: `orders.billing.dlq`.
///
/// With the topic's name in it, not one topic for all that a group reads: its records then have one format, that of `topic`, and lie
/// in the partitions they came from, so that a redrive keeps their order.
pub(super) fn dead_letter_topic(topic: &str, group: &str) -> String {
    format!("{topic}.{group}{DEAD_LETTER_SUFFIX}")
}

/// Whether a name may be one of a dead-letter topic made here.
#[must_use]
pub fn is_dead_letter_topic(name: &str) -> bool {
    name.len() > DEAD_LETTER_SUFFIX.len() && name.ends_with(DEAD_LETTER_SUFFIX)
}

/// A delay as people write it, in the largest unit that leaves no rest: `90s`, `5m`, `1h`, `250ms`.
pub(super) fn label(delay: Duration) -> String {
    let ms = delay.as_millis();
    let units = [(86_400_000, "d"), (3_600_000, "h"), (60_000, "m"), (1000, "s")];
    match units.into_iter().find(|(unit, _)| ms >= *unit && ms.is_multiple_of(*unit)) {
        Some((unit, letter)) => format!("{}{letter}", ms / unit),
        None => format!("{ms}ms"),
    }
}

/// Refuses a name that no topic may have. `made_of` says where it comes from, and what to change.
pub(super) fn check(name: &str, made_of: &str) -> Result<(), Error> {
    let refuse = |why: String| Err(Error::new(ErrorCode::InvalidTopic, format!("`{name}`, made of {made_of}: {why}")));
    let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
    if name.len() > TOPIC_NAME_BYTES_MAX {
        return refuse(format!("a topic's name has at most {TOPIC_NAME_BYTES_MAX} bytes, this one has {}", name.len()));
    }
    match name.chars().find(|&c| !allowed(c)) {
        Some(c) => refuse(format!("a topic's name has letters, digits, `.`, `_` and `-` only, not {c:?}")),
        None if matches!(name, "" | "." | "..") => refuse("no topic may be called that".to_owned()),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_say_what_they_are_for() {
        let delay = |ms| delay_topic("orders", Duration::from_millis(ms));
        assert_eq!(delay(300_000), "orders.retry.5m");
        assert_eq!(delay(3_600_000), "orders.retry.1h");
        assert_eq!(delay(5_400_000), "orders.retry.90m");
        assert_eq!(delay(172_800_000), "orders.retry.2d");
        assert_eq!(delay(1000), "orders.retry.1s");
        assert_eq!(delay(1500), "orders.retry.1500ms");
        assert_eq!(dead_letter_topic("orders", "billing"), "orders.billing.dlq");
    }

    #[test]
    fn a_name_no_topic_may_have_is_refused_with_the_reason() {
        let check = |name: &str, reason: Option<&str>| {
            let said = super::check(name, "the group's name").err().map(|error| error.to_string());
            match reason {
                None => assert_eq!(said, None),
                Some(reason) => assert!(said.as_deref().is_some_and(|said| said.contains(reason)), "{said:?}"),
            }
        };
        check("orders.billing.dlq", None);
        check(&"x".repeat(249), None);
        check(&"x".repeat(250), Some("at most 249 bytes"));
        check("orders.my group.dlq", Some("not ' '"));
        check("..", Some("no topic may be called that"));
    }

    #[test]
    fn dead_letter_topics_are_known_by_their_end() {
        assert!(is_dead_letter_topic("orders.billing.dlq"));
        for other in ["orders", ".dlq", "orders.dlq.retry.5m", "orders_dlq"] {
            assert!(!is_dead_letter_topic(other), "{other}");
        }
    }
}
