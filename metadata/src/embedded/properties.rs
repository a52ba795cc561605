//! What must hold of any bytes that are read from the database's history: each event has one form.

use super::tables::{decode_event, encode_event};
use crate::kv::{Event, KeyValue, LeaseId, Revision};
use bytes::Bytes;
use millpond_log::testing::{Seed, decoding};

/// Reads the input as an event. Its key and value are kept in whole.
pub fn stored(input: &[u8]) -> bool {
    let Ok(event) = decoding(input, || decode_event(input, 7)) else { return false };
    assert_eq!(encode_event(&event), input, "what is read is written the same");
    true
}

/// A put with and without a lease, and a deletion.
#[must_use]
pub fn stored_seeds() -> Vec<Seed> {
    let put = |lease| {
        Event::Put(KeyValue {
            key: Bytes::from_static(b"/k"),
            value: Bytes::from_static(b"value"),
            create_revision: Revision(3),
            mod_revision: Revision(7),
            lease,
        })
    };
    let delete = Event::Delete { key: Bytes::from_static(b"/k"), mod_revision: Revision(7) };
    [("put", put(None)), ("leased", put(Some(LeaseId(9)))), ("delete", delete)]
        .map(|(name, event)| (name.to_owned(), encode_event(&event)))
        .into()
}
