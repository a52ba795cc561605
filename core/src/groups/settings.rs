//! Settings of one group, by Kafka's names: what they may be, and which times hold in the group. Parsed once, where they come in.
//!
//! It knows neither who keeps them nor what a group does with its times.

use super::step::GroupLimits;
use crate::topic_config::Alteration;
use std::collections::BTreeMap;
use std::sync::Arc;

/// A setting that may be made on a group; all of them are milliseconds, 31 bits in Kafka's protocol.
#[derive(Debug)]
pub struct GroupSetting {
    /// Kafka's name.
    pub name: &'static str,
    /// The setting of brokers that holds where a group does not say.
    pub of_brokers: &'static str,
    /// What it does.
    pub documentation: &'static str,
    /// What the broker says of it.
    of: fn(&GroupLimits) -> (u32, (u32, u32)),
}

/// Which times are set on a group, by itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GroupOverrides {
    session_timeout_ms: Option<u32>,
    heartbeat_interval_ms: Option<u32>,
}

/// The times that hold in a consumer group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GroupTimes {
    /// How long a member may be silent.
    pub session_timeout_ms: u32,
    /// How often it is to heartbeat.
    pub heartbeat_interval_ms: u32,
}

/// What the groups of a shard keep to.
#[derive(Clone, Debug, Default)]
pub struct GroupRules {
    /// All of them.
    pub limits: GroupLimits,
    /// Those on which something is set, by name.
    pub overrides: Arc<BTreeMap<Arc<str>, GroupOverrides>>,
}

/// Why settings of a group were refused. Kafka's `INVALID_CONFIG`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GroupSettingError {
    /// No group has such a setting here.
    #[error(
        "unknown setting of groups `{0}`; there are `consumer.heartbeat.interval.ms` and `consumer.session.timeout.ms`"
    )]
    Unknown(String),
    /// The setting does not take this value.
    #[error("`{name}` cannot be `{value}`: it takes {least} to {most}, as brokers of this cluster were told")]
    BadValue {
        /// The setting.
        name: &'static str,
        /// What was given.
        value: String,
        /// The least that it takes.
        least: u32,
        /// The most.
        most: u32,
    },
    /// It is not a list.
    #[error("`{0}` is no list: only `set` and `delete` apply")]
    NotAList(&'static str),
    /// Members would be taken for dead between two heartbeats.
    #[error(
        "`consumer.session.timeout.ms`, {session}, has to be greater than `consumer.heartbeat.interval.ms`, {heartbeat}"
    )]
    TooShort {
        /// The session timeout that would hold, in milliseconds.
        session: u32,
        /// The interval that would hold.
        heartbeat: u32,
    },
}

/// Every setting, by name.
pub static GROUP_SETTINGS: [GroupSetting; 2] = [
    GroupSetting {
        name: "consumer.heartbeat.interval.ms",
        of_brokers: "group.consumer.heartbeat.interval.ms",
        documentation: "How often a member of the consumer group is to heartbeat.",
        of: |limits| (limits.heartbeat_interval_ms, limits.heartbeat_interval_bounds_ms),
    },
    GroupSetting {
        name: "consumer.session.timeout.ms",
        of_brokers: "group.consumer.session.timeout.ms",
        documentation: "How long a member of the consumer group may be silent until others get its partitions.",
        of: |limits| (limits.session_timeout_ms, limits.session_timeout_bounds_ms),
    },
];

impl GroupSetting {
    fn find(name: &str) -> Option<&'static GroupSetting> {
        GROUP_SETTINGS.iter().find(|setting| setting.name == name)
    }

    /// What holds where a group does not say, in milliseconds.
    #[must_use]
    pub fn default(&self, limits: &GroupLimits) -> u32 {
        (self.of)(limits).0
    }

    /// The value that a text stands for, in milliseconds, if a broker of these limits takes it.
    fn read(&self, value: &str, limits: &GroupLimits) -> Result<u32, GroupSettingError> {
        let (_, (least, most)) = (self.of)(limits);
        let number = number(value).filter(|number| (least..=most).contains(number));
        number.ok_or_else(|| GroupSettingError::BadValue { name: self.name, value: value.to_owned(), least, most })
    }
}

/// Kafka takes blanks around a number.
fn number(value: &str) -> Option<u32> {
    value.trim().parse::<i32>().ok().and_then(|number| u32::try_from(number).ok())
}

impl GroupOverrides {
    /// Reads what is kept of a group. What this version does not know, or cannot read, it passes over: whoever set it knew of it.
    #[must_use]
    pub fn kept(settings: &BTreeMap<String, String>) -> GroupOverrides {
        let of = |name: &str| settings.get(name).and_then(|value| number(value));
        GroupOverrides {
            session_timeout_ms: of("consumer.session.timeout.ms"),
            heartbeat_interval_ms: of("consumer.heartbeat.interval.ms"),
        }
    }

    /// What is set of a setting, in milliseconds, whatever brokers make of it.
    #[must_use]
    pub fn get(&self, setting: &GroupSetting) -> Option<u32> {
        match setting.name {
            "consumer.session.timeout.ms" => self.session_timeout_ms,
            _ => self.heartbeat_interval_ms,
        }
    }
}

impl GroupTimes {
    /// What holds in a group: what is set on it, as near as the broker's bounds let it come. Bounds that were narrowed since hold for what was set
    /// before, and times that would then contradict each other give way to the broker's own.
    #[must_use]
    pub fn of(limits: &GroupLimits, overrides: Option<&GroupOverrides>) -> GroupTimes {
        let own = GroupTimes {
            session_timeout_ms: limits.session_timeout_ms,
            heartbeat_interval_ms: limits.heartbeat_interval_ms,
        };
        let Some(overrides) = overrides else { return own };
        let within =
            |set: Option<u32>, own: u32, (least, most): (u32, u32)| set.map_or(own, |ms| ms.max(least).min(most));
        let times = GroupTimes {
            session_timeout_ms: within(
                overrides.session_timeout_ms,
                own.session_timeout_ms,
                limits.session_timeout_bounds_ms,
            ),
            heartbeat_interval_ms: within(
                overrides.heartbeat_interval_ms,
                own.heartbeat_interval_ms,
                limits.heartbeat_interval_bounds_ms,
            ),
        };
        if times.session_timeout_ms > times.heartbeat_interval_ms { times } else { own }
    }
}

impl From<GroupLimits> for GroupRules {
    fn from(limits: GroupLimits) -> GroupRules {
        GroupRules { limits, ..GroupRules::default() }
    }
}

impl GroupRules {
    /// What holds in the group of this name.
    #[must_use]
    pub fn times(&self, group: &str) -> GroupTimes {
        GroupTimes::of(&self.limits, self.overrides.get(group))
    }
}

/// Checks all that is to be set on a group, as one broker takes it.
///
/// # Errors
/// The first setting that is unknown or has a bad value, and times that contradict each other.
pub fn check(settings: &BTreeMap<String, String>, limits: &GroupLimits) -> Result<(), GroupSettingError> {
    for (name, value) in settings {
        let setting = GroupSetting::find(name).ok_or_else(|| GroupSettingError::Unknown(name.clone()))?;
        setting.read(value, limits)?;
    }
    let overrides = GroupOverrides::kept(settings);
    let session = overrides.session_timeout_ms.unwrap_or(limits.session_timeout_ms);
    let heartbeat = overrides.heartbeat_interval_ms.unwrap_or(limits.heartbeat_interval_ms);
    if session > heartbeat { Ok(()) } else { Err(GroupSettingError::TooShort { session, heartbeat }) }
}

/// Applies alterations to what is set on a group, in order, and checks the result as a whole. Nothing is kept on an error.
///
/// # Errors
/// As `check`; `NotAList` for an operation on lists.
pub fn alter(
    settings: &BTreeMap<String, String>,
    alterations: &[(String, Alteration)],
    limits: &GroupLimits,
) -> Result<BTreeMap<String, String>, GroupSettingError> {
    let mut altered = settings.clone();
    for (name, alteration) in alterations {
        match alteration {
            Alteration::Set(value) => drop(altered.insert(name.clone(), value.clone())),
            // Also what nobody knows: it is not there afterwards.
            Alteration::Delete => drop(altered.remove(name)),
            Alteration::Append(_) | Alteration::Subtract(_) => {
                let setting = GroupSetting::find(name).ok_or_else(|| GroupSettingError::Unknown(name.clone()))?;
                return Err(GroupSettingError::NotAList(setting.name));
            }
        }
    }
    check(&altered, limits)?;
    Ok(altered)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SESSION: &str = "consumer.session.timeout.ms";
    const HEARTBEAT: &str = "consumer.heartbeat.interval.ms";

    fn settings(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    }

    fn overrides(pairs: &[(&str, &str)]) -> GroupOverrides {
        GroupOverrides::kept(&settings(pairs))
    }

    #[test]
    fn a_group_takes_what_lies_within_the_bounds_of_brokers_and_nothing_else() {
        let limits = GroupLimits::default();
        let taken = |name, value: &str| check(&settings(&[(name, value)]), &limits).is_ok();
        for good in ["45000", "60000", " 46000 ", "+50000"] {
            assert!(taken(SESSION, good), "{good}");
        }
        for bad in ["44999", "60001", "abc", "", "-1", "0", "99999999999", "50000.0"] {
            assert!(!taken(SESSION, bad), "{bad}");
        }
        for (value, fits) in [("2999", false), ("3000", true), ("15000", true), ("15001", false)] {
            assert_eq!(taken(HEARTBEAT, value), fits, "{value}");
        }
        for unknown in ["", "no.such", "streams.session.timeout.ms", "consumer.assignment.interval.ms"] {
            assert!(!taken(unknown, "50000"), "{unknown}");
        }
    }

    #[test]
    fn a_session_is_longer_than_the_time_between_two_heartbeats() {
        let limits = GroupLimits {
            session_timeout_bounds_ms: (1_000, 60_000),
            heartbeat_interval_bounds_ms: (100, 60_000),
            ..GroupLimits::default()
        };
        let of = |pairs: &[(&str, &str)]| check(&settings(pairs), &limits);
        assert_eq!(of(&[(SESSION, "6000"), (HEARTBEAT, "5999")]), Ok(()));
        let short = |session, heartbeat| Err(GroupSettingError::TooShort { session, heartbeat });
        assert_eq!(of(&[(SESSION, "6000"), (HEARTBEAT, "6000")]), short(6_000, 6_000));
        assert_eq!(of(&[(SESSION, "3000")]), short(3_000, 3_000), "the broker's own interval");
        assert_eq!(of(&[(HEARTBEAT, "50000")]), short(45_000, 50_000), "the broker's own session");
    }

    #[test]
    fn alterations_are_made_in_order_and_all_or_none() {
        let limits = GroupLimits::default();
        let set = |value: &str| Alteration::Set(value.to_owned());
        let before = settings(&[(SESSION, "50000")]);
        let of = |changes: &[(&str, Alteration)]| {
            let changes: Vec<_> = changes.iter().map(|(name, change)| ((*name).to_owned(), change.clone())).collect();
            alter(&before, &changes, &limits)
        };
        assert_eq!(of(&[(HEARTBEAT, set("4000"))]), Ok(settings(&[(SESSION, "50000"), (HEARTBEAT, "4000")])));
        assert_eq!(of(&[(SESSION, Alteration::Delete)]), Ok(settings(&[])));
        assert_eq!(of(&[("no.such", Alteration::Delete)]), Ok(before.clone()), "it is not there afterwards");
        assert!(of(&[(HEARTBEAT, set("4000")), (SESSION, set("1"))]).is_err());
        let appended = of(&[(SESSION, Alteration::Append("1".to_owned()))]);
        assert_eq!(appended, Err(GroupSettingError::NotAList(SESSION)));
    }

    /// Brokers were told other bounds since it was set, or a later version set it.
    #[test]
    fn what_was_set_before_keeps_to_the_bounds_of_now() {
        let limits = GroupLimits::default();
        let times = |pairs: &[(&str, &str)], limits: &GroupLimits| {
            let GroupTimes { session_timeout_ms, heartbeat_interval_ms } =
                GroupTimes::of(limits, Some(&overrides(pairs)));
            (session_timeout_ms, heartbeat_interval_ms)
        };
        assert_eq!(times(&[], &limits), (45_000, 3_000));
        assert_eq!(times(&[(SESSION, "50000")], &limits), (50_000, 3_000));
        assert_eq!(times(&[(SESSION, "1"), (HEARTBEAT, "99999")], &limits), (45_000, 15_000));
        assert_eq!(times(&[(SESSION, "x"), ("later", "1"), (HEARTBEAT, "4000")], &limits), (45_000, 4_000));
        let crossed = GroupLimits {
            session_timeout_bounds_ms: (1_000, 50_000),
            heartbeat_interval_bounds_ms: (100, 5_000),
            ..limits
        };
        assert_eq!(times(&[(SESSION, "2000"), (HEARTBEAT, "5000")], &crossed), (45_000, 3_000), "the broker's own");
    }
}
