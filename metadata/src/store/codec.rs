//! How records become values: JSON with a format version, so that people and older brokers can tell what they see.
//!
//! `{"v":1,"record":{…}}`. A newer version and an unknown field are refused, never dropped: see `core::records`.

use super::{StoreError, Versioned};
use crate::kv::Revision;
use bytes::Bytes;
use millpond_core::records::Leader;
use millpond_log::LeaderEpoch;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// The newest format of records that this version reads, and the one it writes.
const FORMAT: u32 = 1;

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Envelope<T> {
    v: u32,
    record: T,
}

#[derive(Deserialize)]
struct Format {
    v: u32,
}

/// The value of a record. Equal records have equal values: a re-sent transition is recognised by them (rule K5).
pub(super) fn value(record: &impl Serialize) -> Bytes {
    serde_json::to_vec(&Envelope { v: FORMAT, record })
        .expect("records have text keys and no failing serializer")
        .into()
}

pub(super) fn record<T: DeserializeOwned>(
    key: &Bytes,
    value: &Bytes,
    revision: Revision,
) -> Result<Versioned<T>, StoreError> {
    let Format { v } = serde_json::from_slice(value).map_err(|error| damaged(key, &error))?;
    if v > FORMAT {
        return Err(StoreError::NewerFormat { key: name(key), found: v, known: FORMAT });
    }
    let envelope: Envelope<T> = serde_json::from_slice(value).map_err(|error| damaged(key, &error))?;
    Ok(Versioned { value: envelope.record, revision })
}

/// A value that is text, such as a number or a UUID.
pub(super) fn text<T: std::str::FromStr>(key: &Bytes, value: &Bytes) -> Result<T, StoreError> {
    let parsed = std::str::from_utf8(value).ok().and_then(|text| text.parse().ok());
    parsed.ok_or_else(|| damaged(key, &"not in the form of its key"))
}

/// The value of `/pe`. Compared by value, so its form is fixed for ever.
pub(super) fn leadership(leader: &Leader, epoch: LeaderEpoch) -> Bytes {
    format!("{} {} {epoch}", leader.rid, leader.inc).into()
}

/// The value of `/gc/epoch`: order by bytes is order by number (rule T5).
pub(super) fn gc_epoch(epoch: u64) -> Bytes {
    format!("{epoch:016x}").into()
}

pub(super) fn read_gc_epoch(key: &Bytes, value: &Bytes) -> Result<u64, StoreError> {
    let text = std::str::from_utf8(value).ok().filter(|text| text.len() == 16);
    let parsed = text.and_then(|text| u64::from_str_radix(text, 16).ok());
    parsed.filter(|&epoch| gc_epoch(epoch) == value).ok_or_else(|| damaged(key, &"not a gc epoch"))
}

fn damaged(key: &Bytes, reason: &impl ToString) -> StoreError {
    StoreError::Damaged { key: name(key), reason: reason.to_string() }
}

fn name(key: &Bytes) -> String {
    String::from_utf8_lossy(key).into_owned()
}
