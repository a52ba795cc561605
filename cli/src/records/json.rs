//! One record as one JSON object on a line, with nothing lost: bytes that are no text become base64 and say so.

use super::Shown;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::Serialize;
use std::borrow::Cow;
use std::io::{self, Write};

/// What scripts read, in this order. Only additions.
#[derive(Debug, Serialize)]
pub(crate) struct Line<'a> {
    topic: &'a str,
    partition: u32,
    offset: u64,
    timestamp: i64,
    timestamp_type: &'a str,
    key: Option<Cow<'a, str>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    key_encoding: Option<&'a str>,
    value: Option<Cow<'a, str>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    value_encoding: Option<&'a str>,
    headers: Vec<Vec<Option<Cow<'a, str>>>>,
}

/// Writes a record as `line` has it, and a newline.
pub(crate) fn write(record: &Shown<'_>, out: &mut impl Write) -> io::Result<()> {
    serde_json::to_writer(&mut *out, &line(record))?;
    out.write_all(b"\n")
}

/// A record as `{topic, partition, offset, timestamp, timestamp_type, key, value, headers}`.
///
/// Null stays null and empty stays "". Where bytes are not UTF-8 they are base64, and `key_encoding`, `value_encoding`, or a
/// third element of the header says `"base64"`; a header whose name is not UTF-8 says `"base64-name"` in a fourth.
pub(crate) fn line<'a>(record: &Shown<'a>) -> Line<'a> {
    let (key, key_encoding) = text(record.key);
    let (value, value_encoding) = text(record.value);
    let headers = record.headers.iter().map(|header| {
        let (name, name_encoding) = text(Some(&header.name));
        let (value, value_encoding) = text(header.value.as_deref());
        let mut fields = vec![name, value];
        if name_encoding.is_some() {
            fields.extend([Some(value_encoding.unwrap_or_default().into()), Some("base64-name".into())]);
        } else if let Some(encoding) = value_encoding {
            fields.push(Some(encoding.into()));
        }
        fields
    });
    let &Shown { topic, partition, offset, timestamp_ms: timestamp, timestamp_type, .. } = record;
    let headers = headers.collect();
    Line { topic, partition, offset, timestamp, timestamp_type, key, key_encoding, value, value_encoding, headers }
}

/// Some bytes as a JSON string, and its encoding where it is not the text itself.
fn text(bytes: Option<&[u8]>) -> (Option<Cow<'_, str>>, Option<&'static str>) {
    match bytes.map(|bytes| std::str::from_utf8(bytes).map_err(|_| bytes)) {
        None => (None, None),
        Some(Ok(text)) => (Some(text.into()), None),
        Some(Err(bytes)) => (Some(STANDARD.encode(bytes).into()), Some("base64")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::records::lines;
    use bytes::Bytes;
    use millpond_log::batch::Header;
    use serde_json::{Value, json};

    fn line(key: Option<&[u8]>, value: Option<&[u8]>, headers: &[Header]) -> String {
        let timestamp_type = "CreateTime";
        let record =
            Shown { topic: "t", partition: 1, offset: 7, timestamp_ms: -1, timestamp_type, key, value, headers };
        let mut out = Vec::new();
        write(&record, &mut out).expect("memory takes all bytes");
        String::from_utf8(out).expect("JSON is text")
    }

    fn header(name: &'static [u8], value: Option<&'static [u8]>) -> Header {
        Header { name: Bytes::from_static(name), value: value.map(Bytes::from_static) }
    }

    #[test]
    fn null_empty_and_bytes_stay_different() {
        let check = |key, value, expected: &str| {
            let line = line(key, value, &[]);
            let object: Value = serde_json::from_str(&line).expect("a line is JSON");
            let expected: Value = serde_json::from_str(expected).expect("the expectation is JSON");
            for (name, value) in expected.as_object().expect("the expectation is an object") {
                assert_eq!(&object[name], value, "{line}");
            }
            assert!(line.ends_with('\n') && line.lines().count() == 1);
        };
        check(None, Some(b""), r#"{"key": null, "value": "", "offset": 7, "partition": 1, "timestamp": -1}"#);
        check(Some(b""), None, r#"{"key": "", "value": null, "key_encoding": null, "value_encoding": null}"#);
        check(Some("ü".as_bytes()), Some(b"\xff\0"), r#"{"key": "ü", "value": "/wA=", "value_encoding": "base64"}"#);
        check(Some(b"\xff"), Some(b"a\nb"), r#"{"key": "/w==", "key_encoding": "base64", "value": "a\nb"}"#);
    }

    #[test]
    fn headers_keep_order_and_duplicates() {
        let headers = [header(b"b", Some(b"1")), header(b"a", None), header(b"b", Some(b"\xff"))];
        let object: Value = serde_json::from_str(&line(None, None, &headers)).expect("a line is JSON");
        assert_eq!(object["headers"], json!([["b", "1"], ["a", null], ["b", "/w==", "base64"]]));
    }

    #[test]
    fn what_consume_prints_produce_reads() {
        let headers = [header(b"b", Some(b"\xff")), header(b"\xfe", Some(b"x")), header(b"", None)];
        for (key, value) in [(None, Some(&b""[..])), (Some(&b"\xc3"[..]), None), (Some(&b"k"[..]), Some(&b"\xff"[..]))]
        {
            let line = line(key, value, &headers);
            let entered = lines::json(line.trim_end().as_bytes()).expect("own output is valid input");
            assert_eq!((entered.key.as_deref(), entered.value.as_deref()), (key, value), "{line}");
            assert_eq!(entered.headers, headers, "{line}");
            assert_eq!((entered.partition, entered.timestamp_ms), (Some(1), None));
        }
    }
}
