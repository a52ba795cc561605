//! One line of input to one record: plain, with a key before a separator, or a JSON object.

use super::Entered;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use millpond_log::batch::Header;
use serde::Deserialize;
use serde_json::Value;

/// How lines are read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Lines {
    /// The line is the value. With a separator, what stands before its first occurrence is the key; without one in the line
    /// the key is null.
    Plain { key_separator: Option<Vec<u8>> },
    /// An object with key, value, headers, timestamp and partition.
    Json,
}

impl Lines {
    /// Reads one line, without its newline.
    pub(crate) fn read(&self, line: &[u8]) -> Result<Entered, String> {
        match self {
            Lines::Json => json(line),
            Lines::Plain { key_separator } => Ok(plain(line, key_separator.as_deref())),
        }
    }
}

fn plain(line: &[u8], separator: Option<&[u8]>) -> Entered {
    let at = separator.and_then(|separator| {
        let at = line.windows(separator.len().max(1)).position(|window| window == separator)?;
        Some((at, at + separator.len()))
    });
    let (key, value) = match at {
        Some((key_end, value_start)) => (Some(Bytes::copy_from_slice(&line[..key_end])), &line[value_start..]),
        None => (None, line),
    };
    Entered { key, value: Some(Bytes::copy_from_slice(value)), ..Entered::default() }
}

/// A line of `produce --json`. What `consume --output json` prints is one; the fields that the broker gives are passed over.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Object {
    #[serde(default)]
    key: Option<Value>,
    #[serde(default)]
    key_encoding: Option<String>,
    #[serde(default, deserialize_with = "present")]
    value: Option<Value>,
    #[serde(default)]
    value_encoding: Option<String>,
    #[serde(default)]
    headers: Vec<Vec<Option<String>>>,
    #[serde(default)]
    timestamp: Option<i64>,
    #[serde(default)]
    partition: Option<u32>,
    #[serde(default, rename = "topic")]
    _topic: Option<String>,
    #[serde(default, rename = "offset")]
    _offset: Option<u64>,
    #[serde(default, rename = "timestamp_type")]
    _timestamp_type: Option<String>,
}

/// Tells a null (`Some(Null)`) from a field that is not there (`None`).
fn present<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Option<Value>, D::Error> {
    Value::deserialize(deserializer).map(Some)
}

/// Reads a JSON object. A key or value that is no string is taken as its JSON text.
pub(crate) fn json(line: &[u8]) -> Result<Entered, String> {
    // serde would take an array for an object whose fields are in order.
    if line.trim_ascii_start().first() != Some(&b'{') {
        return Err("no record in JSON: the line is no object".to_owned());
    }
    let object: Object = serde_json::from_slice(line).map_err(|error| {
        let error = error.to_string();
        // serde counts lines inside the text it was given, which is always one.
        let error = error.split(" at line ").next().unwrap_or_default();
        format!("no record in JSON: {error}")
    })?;
    let value = object.value.ok_or("no `value` in the object; write null for a tombstone")?;
    let headers = object.headers.into_iter().map(header).collect::<Result<Vec<Header>, String>>()?;
    Ok(Entered {
        key: field("key", object.key.unwrap_or(Value::Null), object.key_encoding.as_deref())?,
        value: field("value", value, object.value_encoding.as_deref())?,
        headers,
        // -1 is how Kafka's clients show that there is none.
        timestamp_ms: object.timestamp.filter(|timestamp| *timestamp != -1),
        partition: object.partition,
    })
}

fn field(name: &str, value: Value, encoding: Option<&str>) -> Result<Option<Bytes>, String> {
    match (value, encoding) {
        (Value::Null, _) => Ok(None),
        (Value::String(text), None) => Ok(Some(text.into())),
        (Value::String(text), Some("base64")) => decode(name, &text).map(Some),
        (other, None) => Ok(Some(other.to_string().into())),
        (_, Some(other)) => Err(format!("`{name}_encoding` is `{other}`; only \"base64\", of a string, is known")),
    }
}

/// `[name, value]`; a third element "base64" is the encoding of the value, a fourth "base64-name" that of the name.
fn header(fields: Vec<Option<String>>) -> Result<Header, String> {
    let mut fields = fields.into_iter();
    let (name, value) = (fields.next().flatten(), fields.next());
    let (Some(name), Some(value)) = (name, value) else {
        return Err("a header is [name, value]".to_owned());
    };
    let value = match (fields.next().flatten().as_deref(), value) {
        (None | Some(""), value) => value.map(Bytes::from),
        (Some("base64"), Some(value)) => Some(decode("header", &value)?),
        (Some("base64"), None) => None,
        (Some(other), _) => return Err(format!("`{other}` is no encoding of a header; only \"base64\" is known")),
    };
    let name = match fields.next().flatten().as_deref() {
        None => Bytes::from(name),
        Some("base64-name") => decode("header", &name)?,
        Some(other) => {
            return Err(format!("`{other}` is no encoding of a header's name; only \"base64-name\" is known"));
        }
    };
    Ok(Header { name, value })
}

fn decode(name: &str, text: &str) -> Result<Bytes, String> {
    STANDARD.decode(text).map(Bytes::from).map_err(|error| format!("`{name}` is not base64: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pair(entered: &Entered) -> (Option<&[u8]>, Option<&[u8]>) {
        (entered.key.as_deref(), entered.value.as_deref())
    }

    #[test]
    fn keys_end_at_the_first_separator() {
        let check = |separator: Option<&[u8]>, line: &[u8], key: Option<&[u8]>, value: &[u8]| {
            let lines = Lines::Plain { key_separator: separator.map(<[u8]>::to_vec) };
            let entered = lines.read(line).expect("every plain line is a record");
            assert_eq!(pair(&entered), (key, Some(value)), "{line:?}");
        };
        check(None, b"a:b", None, b"a:b");
        check(None, b"", None, b"");
        check(Some(b":"), b"a:b:c", Some(b"a"), b"b:c");
        check(Some(b":"), b"no separator", None, b"no separator");
        check(Some(b":"), b":v", Some(b""), b"v");
        check(Some(b":"), b"k:", Some(b"k"), b"");
        check(Some(b":"), b"", None, b"");
        check(Some(b"::"), b"a:b::c", Some(b"a:b"), b"c");
        check(Some(b"::"), b":", None, b":");
        check(Some(b":"), b"\xff:\0", Some(b"\xff"), b"\0");
    }

    #[test]
    fn json_objects_become_records() {
        let check = |line: &str, key: Option<&[u8]>, value: Option<&[u8]>| {
            let entered = Lines::Json.read(line.as_bytes()).expect("the line is valid");
            assert_eq!(pair(&entered), (key, value), "{line}");
        };
        check(r#"{"value": "v"}"#, None, Some(b"v"));
        check(r#"{"key": "", "value": ""}"#, Some(b""), Some(b""));
        check(r#"{"key": "k", "value": null}"#, Some(b"k"), None);
        check(r#"{"key": 7, "value": {"b": 1, "a": [true]}}"#, Some(b"7"), Some(br#"{"a":[true],"b":1}"#));
        check(r#"{"key": "/w==", "key_encoding": "base64", "value": "x"}"#, Some(b"\xff"), Some(b"x"));
        let line = r#"{"value": "", "headers": [["a", "1"], ["a", null]], "timestamp": 5, "partition": 2}"#;
        let entered = json(line.as_bytes()).expect("the line is valid");
        let header = |value: Option<&'static [u8]>| Header { name: "a".into(), value: value.map(Bytes::from_static) };
        assert_eq!(entered.headers, [header(Some(b"1")), header(None)]);
        assert_eq!((entered.timestamp_ms, entered.partition), (Some(5), Some(2)));
    }

    #[test]
    fn bad_json_says_what_is_wrong() {
        let check = |line: &str, part: &str| {
            let error = json(line.as_bytes()).expect_err("the line is bad");
            assert!(error.contains(part), "{line}: {error}");
            assert!(!error.contains("at line"), "{error}");
        };
        check("", "no record");
        check("value", "no record");
        check("[1]", "no record");
        check(r#"{"key": "k"}"#, "no `value`");
        check(r#"{"vlaue": "x"}"#, "vlaue");
        check(r#"{"value": "x", "value_encoding": "hex"}"#, "hex");
        check(r#"{"value": "!", "value_encoding": "base64"}"#, "not base64");
        check(r#"{"value": "x", "headers": [["a"]]}"#, "[name, value]");
        check(r#"{"value": "x", "partition": -1}"#, "no record");
    }
}
