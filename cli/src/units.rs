//! Sizes and times as people write them: `64MiB`, `64Mi`, `10m`. Never guesses a unit that is not there.

use serde::{Deserialize, Deserializer};
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

/// A number of bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ByteCount(pub(crate) u64);

impl FromStr for ByteCount {
    type Err = String;

    /// Reads a whole number of bytes with an optional unit: powers of 1024 (`Ki`, `KiB`) or of 1000 (`k`, `kB`).
    fn from_str(text: &str) -> Result<ByteCount, String> {
        let explain = || format!("`{text}` is no size; write for example 64MiB, 64Mi, 500MB or a number of bytes");
        let text = text.trim();
        let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
        let count: u64 = text[..digits].parse().map_err(|_| explain())?;
        let unit: u64 = match text[digits..].trim_start().to_ascii_lowercase().as_str() {
            "" | "b" => 1,
            "k" | "kb" => 1000,
            "ki" | "kib" => 1 << 10,
            "m" | "mb" => 1_000_000,
            "mi" | "mib" => 1 << 20,
            "g" | "gb" => 1_000_000_000,
            "gi" | "gib" => 1 << 30,
            "t" | "tb" => 1_000_000_000_000,
            "ti" | "tib" => 1 << 40,
            _ => return Err(explain()),
        };
        count.checked_mul(unit).map(ByteCount).ok_or_else(explain)
    }
}

impl fmt::Display for ByteCount {
    /// Three digits at least and a binary unit: `1.50 MiB`, `12.0 GiB`, `812 B`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut size = self.0 as f64;
        let mut unit = "B";
        for larger in ["KiB", "MiB", "GiB", "TiB", "PiB"] {
            if size < 1024.0 {
                break;
            }
            (size, unit) = (size / 1024.0, larger);
        }
        let decimals = match unit {
            "B" => 0,
            _ if size < 9.995 => 2,
            _ if size < 99.95 => 1,
            _ => 0,
        };
        write!(f, "{size:.decimals$} {unit}")
    }
}

impl<'de> Deserialize<'de> for ByteCount {
    /// A number of bytes, or text with a unit.
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<ByteCount, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Written {
            Bytes(u64),
            Text(String),
        }
        match Written::deserialize(deserializer)? {
            Written::Bytes(bytes) => Ok(ByteCount(bytes)),
            Written::Text(text) => text.parse().map_err(serde::de::Error::custom),
        }
    }
}

/// A time with its unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Span(pub(crate) Duration);

impl FromStr for Span {
    type Err = String;

    fn from_str(text: &str) -> Result<Span, String> {
        duration(text).map(Span)
    }
}

impl<'de> Deserialize<'de> for Span {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Span, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

/// Reads a time with its unit, such as `500ms`, `10m` or `1h 30m`.
pub(crate) fn duration(text: &str) -> Result<Duration, String> {
    humantime::parse_duration(text).map_err(|_| format!("`{text}` is no time; write for example 500ms, 30s, 10m or 7d"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read() {
        let check = |text: &str, bytes: Option<u64>| {
            assert_eq!(text.parse::<ByteCount>().ok().map(|size| size.0), bytes, "{text}");
        };
        check("0", Some(0));
        check("4096", Some(4096));
        check("64MiB", Some(64 << 20));
        check("64Mi", Some(64 << 20));
        check("64 mib", Some(64 << 20));
        check("500MB", Some(500_000_000));
        check("1k", Some(1000));
        check("2GiB", Some(2 << 30));
        check("16777215TiB", Some(16_777_215 << 40));
        for bad in ["", "MiB", "-1", "1.5GiB", "64X", "64Mi B", "16777216TiB", "99999999999999999999"] {
            check(bad, None);
        }
    }

    #[test]
    fn sizes_are_shown_with_three_digits() {
        let check = |bytes, text: &str| assert_eq!(ByteCount(bytes).to_string(), text);
        check(0, "0 B");
        check(1023, "1023 B");
        check(1024, "1.00 KiB");
        check(1536, "1.50 KiB");
        check(12 << 30, "12.0 GiB");
        check(200 << 20, "200 MiB");
    }

    #[test]
    fn times_need_a_unit() {
        assert_eq!(duration("10m"), Ok(Duration::from_secs(600)));
        assert_eq!(duration("500ms"), Ok(Duration::from_millis(500)));
        assert!(duration("10").is_err());
        assert!(duration("soon").is_err());
    }
}
