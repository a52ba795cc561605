//! Points in time as people write them. Reads no clock.

use std::str::FromStr;
use toml::value::{Datetime, Offset};

/// Milliseconds since the Unix epoch of an RFC 3339 date and time, such as `2013-01-01T10:00:00Z` or `…T05:00:00-05:00`.
pub(crate) fn rfc3339_ms(text: &str) -> Option<i64> {
    let parsed = Datetime::from_str(text).ok()?;
    let (date, time, offset) = (parsed.date?, parsed.time?, parsed.offset?);
    let minutes_east = match offset {
        Offset::Z => 0,
        Offset::Custom { minutes } => i64::from(minutes),
    };
    let days = days_since_epoch(i64::from(date.year), i64::from(date.month), i64::from(date.day));
    let minutes = (days * 24 + i64::from(time.hour)) * 60 + i64::from(time.minute) - minutes_east;
    let seconds = minutes * 60 + i64::from(time.second.unwrap_or(0));
    Some(seconds * 1000 + i64::from(time.nanosecond.unwrap_or(0) / 1_000_000))
}

/// Days from 1970-01-01 to a date of the Gregorian calendar. Years are counted from March, so that the leap day is the last.
pub(crate) fn days_since_epoch(year: i64, month: i64, day: i64) -> i64 {
    let (year, month) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
    let days_before_month = (153 * month + 2) / 5;
    365 * year + year.div_euclid(4) - year.div_euclid(100) + year.div_euclid(400) + days_before_month + day
        - 1
        - 719_468
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_become_milliseconds() {
        let check = |text: &str, expected| assert_eq!(rfc3339_ms(text), expected, "{text}");
        check("1970-01-01T00:00:00Z", Some(0));
        check("1970-01-01 00:00:00Z", Some(0));
        check("2013-01-01T10:00:00Z", Some(1_357_034_400_000));
        check("2013-01-01T05:00:00-05:00", Some(1_357_034_400_000));
        check("2013-01-01T10:00:00.25+00:00", Some(1_357_034_400_250));
        check("2000-02-29T00:00:00Z", Some(951_782_400_000));
        check("2100-03-01T00:00:00Z", Some(4_107_542_400_000));
        check("1969-12-31T23:59:59Z", Some(-1000));
        for bad in ["", "yesterday", "2013-01-01", "2013-01-01T10:00:00", "10:00:00Z", "2013-02-30T00:00:00Z"] {
            check(bad, None);
        }
    }
}
