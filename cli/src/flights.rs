//! The demo's events: flights that ship with the binary (`cli/data/README.md` says what they are), one record each.
//! Reads nothing but what was compiled in.

use crate::time::rfc3339_ms;
use std::io::{self, BufRead, BufReader};

/// The table, compressed with zstd.
static TABLE: &[u8] = include_bytes!("../data/flights-2013.csv.zst");

/// Events in the table. A test counts them.
pub(crate) const COUNT: u64 = 336_776;

/// What the table begins with. Columns are found by position.
const HEADING: &str = "year,month,day,dep_time,sched_dep_time,dep_delay,arr_time,sched_arr_time,arr_delay,carrier,flight,\
tailnum,origin,dest,air_time,distance,hour,minute,time_hour";
const DEP_DELAY: usize = 5;
const TAILNUM: usize = 11;
const MINUTE: usize = 17;
const TIME_HOUR: usize = 18;

/// Columns whose cells are text; all others hold whole numbers.
const TEXT: [&str; 5] = ["carrier", "tailnum", "origin", "dest", "time_hour"];

/// How the table says that a cell has no value.
const MISSING: &str = "NA";

/// One flight, as it is published.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Event {
    /// The aircraft's tail number, where it is known.
    pub(crate) key: Option<String>,
    /// When it left, or was to leave if it never did, in milliseconds since the Unix epoch.
    pub(crate) timestamp_ms: i64,
    /// The row as a JSON object.
    pub(crate) value: String,
}

/// All events, in the table's order: by day, then by departure. The event time now and then runs backwards.
pub(crate) fn events() -> io::Result<impl Iterator<Item = io::Result<Event>>> {
    let mut lines = BufReader::new(zstd::stream::read::Decoder::new(TABLE)?).lines();
    match lines.next().transpose()? {
        Some(heading) if heading == HEADING => Ok(lines.map(|line| line.and_then(|line| event(&line)))),
        other => Err(invalid(&format!("heading {other:?}"))),
    }
}

fn event(line: &str) -> io::Result<Event> {
    let cells: Vec<&str> = line.split(',').collect();
    if cells.len() != HEADING.split(',').count() {
        return Err(invalid(line));
    }
    let minutes = |column: usize| match cells[column] {
        MISSING => Ok(0),
        number => number.parse::<i64>().map_err(|_| invalid(line)),
    };
    let hour_ms = rfc3339_ms(cells[TIME_HOUR]).ok_or_else(|| invalid(line))?;
    let timestamp_ms = hour_ms + (minutes(MINUTE)? + minutes(DEP_DELAY)?) * 60_000;
    let key = (cells[TAILNUM] != MISSING).then(|| cells[TAILNUM].to_owned());
    Ok(Event { key, timestamp_ms, value: object(&cells) })
}

/// The cells as a JSON object. No cell of the table needs escaping: they are letters, digits and `:-`.
fn object(cells: &[&str]) -> String {
    let mut object = String::with_capacity(320);
    for (name, cell) in HEADING.split(',').zip(cells) {
        object.push(if object.is_empty() { '{' } else { ',' });
        object.extend(["\"", name, "\":"]);
        match *cell {
            MISSING => object.push_str("null"),
            cell if TEXT.contains(&name) => object.extend(["\"", cell, "\""]),
            number => object.push_str(number),
        }
    }
    object.push('}');
    object
}

fn invalid(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("the demo's events are damaged: {what}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn first_flight_is_read() {
        let first = events().and_then(|mut events| events.next().expect("there are events")).expect("they can be read");
        assert_eq!(first.key.as_deref(), Some("N14228"));
        // 05:15 in New York, two minutes late.
        assert_eq!(Some(first.timestamp_ms), rfc3339_ms("2013-01-01T05:17:00-05:00"));
        let value: serde_json::Value = serde_json::from_str(&first.value).expect("a value is JSON");
        assert_eq!(value["carrier"], "UA");
        assert_eq!(value["flight"], 1545);
        assert_eq!(value["time_hour"], "2013-01-01T10:00:00Z");
    }

    #[test]
    fn every_flight_is_read_as_the_package_has_it() {
        let mut keys = BTreeSet::new();
        let (mut count, mut keyless, mut backwards, mut last) = (0, 0, 0, i64::MIN);
        for event in events().expect("the table can be read") {
            let event = event.expect("every row is sound");
            count += 1;
            keyless += u64::from(event.key.is_none());
            backwards += u64::from(event.timestamp_ms < last);
            last = event.timestamp_ms;
            if count % 1000 == 0 {
                serde_json::from_str::<serde_json::Value>(&event.value).expect("a value is JSON");
            }
            keys.extend(event.key);
        }
        assert_eq!((count, keyless, keys.len()), (COUNT, 2512, 4043));
        assert!(backwards > 0, "event times run backwards now and then");
    }

    #[test]
    fn missing_cells_are_null() {
        let row = "2013,1,2,NA,1545,NA,NA,1910,NA,AA,133,NA,JFK,LAX,NA,2475,15,45,2013-01-02T20:00:00Z";
        let event = event(row).expect("the row is sound");
        assert_eq!((event.key, Some(event.timestamp_ms)), (None, rfc3339_ms("2013-01-02T20:45:00Z")));
        assert!(event.value.starts_with(r#"{"year":2013,"month":1,"day":2,"dep_time":null,"#), "{}", event.value);
    }
}
