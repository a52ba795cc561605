//! Arguments that choose dead letters. All that are given have to be met.

use crate::time::rfc3339_ms;
use bytes::Bytes;
use millpond_sdk::TimestampMs;
use millpond_sdk::retries::{DeadLetterFilter, ErrorKind};

/// Which dead letters.
#[derive(Clone, Debug, Default, clap::Args)]
pub(super) struct FilterArgs {
    /// Only those that failed with this error, by its short name
    #[arg(long, value_name = "CLASS", help_heading = "Which dead letters")]
    error: Option<String>,
    /// Only those whose error may pass, or will not
    #[arg(long, value_enum, value_name = "transient|permanent", help_heading = "Which dead letters")]
    kind: Option<KindArg>,
    /// Only those that came from this topic, or this partition of it
    #[arg(long, value_name = "TOPIC[:PARTITION]", value_parser = origin, help_heading = "Which dead letters")]
    origin: Option<Origin>,
    /// Only those with this key
    #[arg(long, value_name = "KEY", help_heading = "Which dead letters")]
    key: Option<String>,
    /// Only those of this group's handler
    #[arg(long, value_name = "GROUP", help_heading = "Which dead letters")]
    failed_in: Option<String>,
    /// Only those that came to the dead-letter topic at this time or later
    #[arg(long, value_name = "RFC3339", value_parser = time, help_heading = "Which dead letters")]
    since: Option<TimestampMs>,
    /// Only those that came before this time
    #[arg(long, value_name = "RFC3339", value_parser = time, help_heading = "Which dead letters")]
    before: Option<TimestampMs>,
}

#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum KindArg {
    Transient,
    Permanent,
}

/// A topic, or one partition of it.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Origin {
    topic: String,
    partition: Option<u32>,
}

impl FilterArgs {
    pub(super) fn filter(self) -> DeadLetterFilter {
        let FilterArgs { error, kind, origin, key, failed_in, since, before } = self;
        let error_kind = kind.map(|kind| match kind {
            KindArg::Transient => ErrorKind::Transient,
            KindArg::Permanent => ErrorKind::Permanent,
        });
        let (topic, partition) = origin.map_or((None, None), |Origin { topic, partition }| (Some(topic), partition));
        let key = key.map(Bytes::from);
        DeadLetterFilter {
            error_class: error,
            error_kind,
            topic,
            partition,
            key,
            group: failed_in,
            from: since,
            before,
        }
    }
}

fn time(text: &str) -> Result<TimestampMs, String> {
    let time = rfc3339_ms(text).map(TimestampMs);
    time.ok_or_else(|| "give a time with its zone, such as 2013-01-01T10:00:00Z".to_owned())
}

fn origin(text: &str) -> Result<Origin, String> {
    let read = match text.split_once(':') {
        None => Some((text, None)),
        Some((topic, partition)) => partition.parse().ok().map(|partition| (topic, Some(partition))),
    };
    match read {
        Some((topic, partition)) if !topic.is_empty() => Ok(Origin { topic: topic.to_owned(), partition }),
        _ => Err("write TOPIC or TOPIC:PARTITION, for example orders:0".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_origin_is_a_topic_or_a_partition_of_it() {
        let check = |text: &str, topic: &str, partition| {
            assert_eq!(origin(text), Ok(Origin { topic: topic.to_owned(), partition }), "{text}");
        };
        check("orders", "orders", None);
        check("orders:0", "orders", Some(0));
        for bad in ["", ":1", "orders:", "orders:x", "orders:-1", "orders:1:2"] {
            assert!(origin(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn arguments_are_what_the_filter_asks() {
        let args = FilterArgs {
            error: Some("Timeout".to_owned()),
            kind: Some(KindArg::Permanent),
            origin: origin("orders:3").ok(),
            key: Some("k".to_owned()),
            failed_in: Some("billing".to_owned()),
            since: time("1970-01-01T00:00:01Z").ok(),
            before: time("1970-01-01T00:00:02Z").ok(),
        };
        let expected = DeadLetterFilter {
            error_class: Some("Timeout".to_owned()),
            error_kind: Some(ErrorKind::Permanent),
            topic: Some("orders".to_owned()),
            partition: Some(3),
            key: Some(Bytes::from_static(b"k")),
            group: Some("billing".to_owned()),
            from: Some(TimestampMs(1000)),
            before: Some(TimestampMs(2000)),
        };
        assert_eq!(args.filter(), expected);
        assert_eq!(FilterArgs::default().filter(), DeadLetterFilter::default());
        assert!(time("yesterday").is_err());
    }
}
