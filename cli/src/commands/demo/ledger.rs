//! What was written or read, event by event: finds what is lost, repeated, changed, or out of order for its key. Pure.

use millpond_sdk::ConsumerRecord;
use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};

/// The header that carries the event's row in the table.
pub(super) const ROW: &str = "row";

/// Events by row, each as a fingerprint of all that a reader can see of it.
#[derive(Clone, Debug, Default)]
pub(super) struct Ledger {
    fingerprints: Vec<Option<u64>>,
    len: u64,
    newest_of_key: HashMap<Vec<u8>, u64>,
}

impl Ledger {
    /// An empty ledger for events of the rows below `rows`.
    pub(super) fn new(rows: u64) -> Ledger {
        let rows = usize::try_from(rows).expect("the table is held in memory");
        Ledger { fingerprints: vec![None; rows], ..Ledger::default() }
    }

    /// How many events were entered.
    pub(super) fn len(&self) -> u64 {
        self.len
    }

    /// How many different keys they had.
    pub(super) fn keys(&self) -> usize {
        self.newest_of_key.len()
    }

    /// Enters the next event. Events of one key come in order of their rows.
    pub(super) fn enter(
        &mut self,
        row: u64,
        key: Option<&[u8]>,
        timestamp_ms: i64,
        value: &[u8],
    ) -> Result<(), String> {
        let place = usize::try_from(row).ok().and_then(|row| self.fingerprints.get_mut(row));
        let place = place.ok_or_else(|| format!("row {row} was never written"))?;
        let mut hasher = DefaultHasher::new();
        (key, timestamp_ms, value).hash(&mut hasher);
        if place.replace(hasher.finish()).is_some() {
            return Err(format!("row {row} is there twice"));
        }
        self.len += 1;
        let Some(key) = key else { return Ok(()) };
        match self.newest_of_key.get_mut(key) {
            Some(newest) if *newest > row => {
                return Err(format!(
                    "row {row} comes after row {newest} of the same key, {}",
                    String::from_utf8_lossy(key)
                ));
            }
            Some(newest) => *newest = row,
            None => drop(self.newest_of_key.insert(key.to_vec(), row)),
        }
        Ok(())
    }

    /// Enters an event as it was read.
    pub(super) fn enter_record(&mut self, record: &ConsumerRecord) -> Result<(), String> {
        let row = record.headers.iter().find(|header| header.name == ROW.as_bytes()).and_then(|header| {
            let digits = header.value.as_deref()?;
            std::str::from_utf8(digits).ok()?.parse().ok()
        });
        let row = row.ok_or_else(|| format!("{} at {} has no row", record.topic_partition(), record.offset))?;
        let value = record.value.as_deref().ok_or_else(|| format!("row {row} has lost its value"))?;
        self.enter(row, record.key.as_deref(), record.timestamp.0, value)
    }

    /// Whether `read` has exactly what this one has. If not, names the first difference.
    pub(super) fn compare(&self, read: &Ledger) -> Result<(), String> {
        for (row, (ours, theirs)) in self.fingerprints.iter().zip(&read.fingerprints).enumerate() {
            match (ours, theirs) {
                (ours, theirs) if ours == theirs => {}
                (Some(_), None) => return Err(format!("row {row} is lost")),
                (None, Some(_)) => return Err(format!("row {row} was never written")),
                _ => return Err(format!("row {row} is changed")),
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ledger(events: &[(u64, Option<&str>, &str)]) -> Result<Ledger, String> {
        let mut ledger = Ledger::new(4);
        for (row, key, value) in events {
            ledger.enter(*row, key.map(str::as_bytes), 0, value.as_bytes())?;
        }
        Ok(ledger)
    }

    #[test]
    fn every_kind_of_difference_is_found() {
        let written = ledger(&[(0, Some("a"), "0"), (1, Some("b"), "1"), (2, Some("a"), "2"), (3, None, "3")]);
        let written = written.expect("the events are in order");
        assert_eq!((written.len(), written.keys()), (4, 2));
        let check = |events: &[(u64, Option<&str>, &str)], expected: Result<(), &str>| {
            let result = ledger(events).and_then(|read| written.compare(&read));
            assert_eq!(result, expected.map_err(str::to_owned), "{events:?}");
        };
        // Other keys, and events without one, may come in any order.
        check(&[(3, None, "3"), (1, Some("b"), "1"), (0, Some("a"), "0"), (2, Some("a"), "2")], Ok(()));
        check(&[(0, Some("a"), "0"), (1, Some("b"), "1"), (2, Some("a"), "2")], Err("row 3 is lost"));
        check(&[(0, Some("a"), "0"), (0, Some("a"), "0")], Err("row 0 is there twice"));
        check(&[(2, Some("a"), "2"), (0, Some("a"), "0")], Err("row 0 comes after row 2 of the same key, a"));
        check(&[(9, None, "9")], Err("row 9 was never written"));
        let changed = |key, value| [(0, key, value), (1, Some("b"), "1"), (2, Some("a"), "2"), (3, None, "3")];
        check(&changed(Some("a"), "x"), Err("row 0 is changed"));
        check(&changed(None, "0"), Err("row 0 is changed"));
    }
}
