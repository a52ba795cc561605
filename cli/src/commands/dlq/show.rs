//! `millpond dlq show`.

use super::{failed, rfc3339};
use crate::failure::Failure;
use crate::output::{Format, Out, OutputArgs};
use crate::records::Shown;
use crate::records::json::{self, Line};
use millpond_sdk::retries::{DeadLetter, DeadLetterFilter, DeadLetterReader, SetAside};
use millpond_sdk::{Client, TimestampType};
use serde::Serialize;
use std::io::{self, Write};

/// Most bytes of a key or value that are shown as text. `--output json` has all of it.
const SHOWN_BYTES_MAX: usize = 1024;

/// One dead letter. What is null is not known: somebody else wrote the record.
#[derive(Debug, Serialize)]
struct Dead<'a> {
    topic: &'a str,
    partition: u32,
    offset: u64,
    /// When it came there, in milliseconds since the Unix epoch.
    since: i64,
    redriven: bool,
    event_id: Option<&'a str>,
    group: Option<&'a str>,
    attempts: Option<u32>,
    error_kind: Option<&'static str>,
    error_class: Option<&'a str>,
    error_text: Option<&'a str>,
    /// The record that failed, as `consume --output json` prints it.
    original: Option<Line<'a>>,
}

pub(super) async fn run(
    client: &Client,
    topic: &str,
    max: Option<u64>,
    filter: &DeadLetterFilter,
    output: OutputArgs,
) -> Result<(), Failure> {
    let mut reader = DeadLetterReader::open(client, topic).await.map_err(failed)?;
    let mut left = max.unwrap_or(u64::MAX);
    let mut out = Out::new();
    while left > 0 {
        let Some(read) = reader.next().await.map_err(failed)? else { break };
        for dead in read.iter().filter(|dead| filter.takes(dead)) {
            if left == 0 {
                break;
            }
            left -= 1;
            out.with(|out: &mut dyn Write| match output.output {
                Format::Json => write_json(dead, out),
                Format::Text => write_text(dead, out),
            })?;
        }
        out.flush()?;
    }
    Ok(())
}

fn write_json(dead: &DeadLetter, mut out: &mut dyn Write) -> io::Result<()> {
    serde_json::to_writer(&mut out, &Dead::new(dead))?;
    out.write_all(b"\n")
}

impl<'a> Dead<'a> {
    fn new(dead: &'a DeadLetter) -> Dead<'a> {
        let set_aside = dead.set_aside.as_ref();
        Dead {
            topic: &dead.place.topic,
            partition: dead.place.partition,
            offset: dead.offset.0,
            since: dead.since.0,
            redriven: dead.redriven,
            event_id: set_aside.map(|set_aside| &*set_aside.event_id),
            group: set_aside.map(|set_aside| &*set_aside.group),
            attempts: set_aside.map(|set_aside| set_aside.attempts),
            error_kind: set_aside.map(|set_aside| set_aside.error.kind.as_str()),
            error_class: set_aside.map(|set_aside| &*set_aside.error.class),
            error_text: set_aside.map(|set_aside| &*set_aside.error.text),
            original: set_aside.map(|set_aside| json::line(&shown(set_aside))),
        }
    }
}

fn shown(set_aside: &SetAside) -> Shown<'_> {
    let original = &set_aside.original;
    Shown {
        topic: &original.topic,
        partition: original.partition,
        offset: original.offset.0,
        timestamp_ms: original.timestamp.0,
        timestamp_type: match original.timestamp_type {
            TimestampType::CreateTime => "CreateTime",
            TimestampType::LogAppendTime => "LogAppendTime",
        },
        key: original.key.as_deref(),
        value: original.value.as_deref(),
        headers: &original.headers,
    }
}

fn write_text(dead: &DeadLetter, out: &mut dyn Write) -> io::Result<()> {
    let redriven = if dead.redriven { ", redriven" } else { "" };
    writeln!(out, "{} offset {}, since {}{redriven}", dead.place, dead.offset, rfc3339(dead.since))?;
    let Some(SetAside { original, event_id, group, attempts, error, .. }) = &dead.set_aside else {
        return writeln!(out, "  no copy of a record that failed: somebody else wrote it");
    };
    let from = original.topic_partition();
    writeln!(out, "  from   {from} offset {} of {}, event {event_id}", original.offset, rfc3339(original.timestamp))?;
    let (class, kind, times) = (&error.class, error.kind.as_str(), if *attempts == 1 { "time" } else { "times" });
    writeln!(
        out,
        "  failed {attempts} {times} in group {group}, at last with {class} ({kind}): {}",
        readable(error.text.as_bytes())
    )?;
    for (name, bytes) in [("key", &original.key), ("value", &original.value)] {
        let shown = bytes.as_ref().map_or_else(|| "null".to_owned(), |bytes| readable(bytes));
        writeln!(out, "  {name:<6} {shown}")?;
    }
    Ok(())
}

/// Bytes on one line, without anything that a terminal would act on; cut where they are many.
fn readable(bytes: &[u8]) -> String {
    let shown = &bytes[..bytes.len().min(SHOWN_BYTES_MAX)];
    let mut text = String::from_utf8_lossy(shown).escape_debug().to_string().replace("\\\"", "\"").replace("\\'", "'");
    if shown.len() < bytes.len() {
        text.push_str(&format!("… ({} bytes)", bytes.len()));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schemas;
    use bytes::Bytes;
    use millpond_sdk::retries::{ErrorKind, LastError};
    use millpond_sdk::{ConsumerRecord, Header, LeaderEpoch, Offset, TimestampMs, TopicPartition};

    fn dead(value: Option<&'static [u8]>) -> DeadLetter {
        let original = ConsumerRecord {
            topic: "orders".into(),
            partition: 3,
            offset: Offset(9),
            leader_epoch: LeaderEpoch(0),
            timestamp: TimestampMs(1_357_034_400_250),
            timestamp_type: TimestampType::CreateTime,
            key: Some(Bytes::from_static(b"k")),
            value: value.map(Bytes::from_static),
            headers: vec![Header { name: Bytes::from_static(b"h"), value: None }],
        };
        let error =
            LastError { kind: ErrorKind::Transient, class: "Timeout".to_owned(), text: "the bank\nslept".to_owned() };
        let (event_id, group) = ("orders-3-9".to_owned(), "billing".to_owned());
        let set_aside = Some(SetAside { original, event_id, group, attempts: 9, error, next_at: None });
        let place = TopicPartition::new("orders.billing.dlq", 3);
        DeadLetter { place, offset: Offset(0), since: TimestampMs(1_357_034_400_250), redriven: true, set_aside }
    }

    #[test]
    fn json_has_the_promised_fields() {
        for value in [None, Some(&b""[..]), Some(b"v"), Some(b"\xff")] {
            schemas::check("dlq-show", &Dead::new(&dead(value)));
        }
        schemas::check("dlq-show", &Dead::new(&DeadLetter { set_aside: None, ..dead(None) }));
    }

    #[test]
    fn text_tells_what_where_and_why() {
        let text = |dead: &DeadLetter| {
            let mut out = Vec::new();
            write_text(dead, &mut out).expect("memory takes all bytes");
            String::from_utf8(out).expect("it is text")
        };
        let expected = "orders.billing.dlq:3 offset 0, since 2013-01-01T10:00:00.250Z, redriven\n  \
            from   orders:3 offset 9 of 2013-01-01T10:00:00.250Z, event orders-3-9\n  \
            failed 9 times in group billing, at last with Timeout (transient): the bank\\nslept\n  \
            key    k\n  value  null\n";
        assert_eq!(text(&dead(None)), expected);
        assert!(
            text(&dead(Some(b"\x1b[2J\"a\""))).ends_with("value  \\u{1b}[2J\"a\"\n"),
            "{}",
            text(&dead(Some(b"\x1b")))
        );
        assert!(text(&DeadLetter { set_aside: None, ..dead(None) }).contains("somebody else wrote it"));
        assert!(readable(&[b'x'; 2000]).ends_with("… (2000 bytes)"));
    }
}
