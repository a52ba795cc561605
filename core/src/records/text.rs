//! How the vocabulary of the log is spelled inside JSON records. Each spelling has exactly one reading.
//!
//! Random 64-bit numbers are hexadecimal text, since JSON readers lose digits above 2^53; counters are numbers.

use millpond_log::{
    BrokerId, Incarnation, LeaderEpoch, Lsn, Offset, ProducerEpoch, ProducerId, Rid, TimestampMs, TopicId, WalGen,
};
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A value with a JSON spelling.
pub(super) trait Spelled: Sized {
    type Spelling: Serialize + for<'de> Deserialize<'de>;
    fn spell(&self) -> Self::Spelling;
    fn read(spelling: Self::Spelling) -> Option<Self>;
}

macro_rules! spelled_as_number {
    ($($name:ident($inner:ty)),*) => {$(
        impl Spelled for $name {
            type Spelling = $inner;
            fn spell(&self) -> $inner {
                self.0
            }
            fn read(spelling: $inner) -> Option<$name> {
                Some($name(spelling))
            }
        }
    )*};
}
spelled_as_number!(
    BrokerId(u32),
    Incarnation(u64),
    LeaderEpoch(u32),
    Lsn(u64),
    Offset(u64),
    ProducerEpoch(u16),
    ProducerId(u64),
    TimestampMs(i64)
);

impl Spelled for WalGen {
    type Spelling = String;
    fn spell(&self) -> String {
        format!("{:016x}", self.0)
    }
    fn read(spelling: String) -> Option<WalGen> {
        let canonical = spelling.len() == 16 && spelling.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
        canonical.then(|| u64::from_str_radix(&spelling, 16).ok().map(WalGen)).flatten()
    }
}

impl Spelled for Rid {
    type Spelling = String;
    fn spell(&self) -> String {
        self.to_string()
    }
    fn read(spelling: String) -> Option<Rid> {
        let (broker, wal_gen) = spelling.split_once('.')?;
        let rid = Rid { broker: BrokerId(broker.parse().ok()?), wal_gen: WalGen::read(wal_gen.to_owned())? };
        (rid.to_string() == spelling).then_some(rid)
    }
}

impl Spelled for TopicId {
    type Spelling = String;
    fn spell(&self) -> String {
        self.to_string()
    }
    fn read(spelling: String) -> Option<TopicId> {
        spelling.parse().ok()
    }
}

fn read_or<'de, T: Spelled, D: Deserializer<'de>>(spelling: T::Spelling) -> Result<T, D::Error> {
    T::read(spelling).ok_or_else(|| D::Error::custom("not in the spelling of its type"))
}

/// One value.
pub(super) mod plain {
    use super::*;

    pub(in super::super) fn serialize<T: Spelled, S: Serializer>(value: &T, serializer: S) -> Result<S::Ok, S::Error> {
        value.spell().serialize(serializer)
    }

    pub(in super::super) fn deserialize<'de, T: Spelled, D: Deserializer<'de>>(from: D) -> Result<T, D::Error> {
        read_or::<T, D>(T::Spelling::deserialize(from)?)
    }
}

pub(super) use plain as number;
pub(super) use plain as wal_gen;

/// A value or null. The field has to be there.
pub(super) mod option {
    use super::*;

    pub(in super::super) fn serialize<T: Spelled, S: Serializer>(
        value: &Option<T>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        value.as_ref().map(Spelled::spell).serialize(serializer)
    }

    pub(in super::super) fn deserialize<'de, T: Spelled, D: Deserializer<'de>>(from: D) -> Result<Option<T>, D::Error> {
        Option::<T::Spelling>::deserialize(from)?.map(read_or::<T, D>).transpose()
    }
}

/// A list, in its order.
pub(super) mod list {
    use super::*;

    pub(in super::super) fn serialize<T: Spelled, S: Serializer>(
        values: &[T],
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(values.iter().map(Spelled::spell))
    }

    pub(in super::super) fn deserialize<'de, T: Spelled, D: Deserializer<'de>>(from: D) -> Result<Vec<T>, D::Error> {
        Vec::<T::Spelling>::deserialize(from)?.into_iter().map(read_or::<T, D>).collect()
    }
}

/// Sets of numbers by name: objects of lists, in order. No set is empty, so that each value has one spelling.
pub(super) mod sets {
    use super::*;
    use std::collections::{BTreeMap, BTreeSet};

    pub(in super::super) fn serialize<T: Spelled<Spelling = String>, S: Serializer>(
        sets: &BTreeMap<T, BTreeSet<u32>>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        serializer.collect_map(sets.iter().map(|(name, set)| (name.spell(), set)))
    }

    pub(in super::super) fn deserialize<'de, T: Spelled<Spelling = String> + Ord, D: Deserializer<'de>>(
        from: D,
    ) -> Result<BTreeMap<T, BTreeSet<u32>>, D::Error> {
        let sets = BTreeMap::<String, BTreeSet<u32>>::deserialize(from)?;
        if sets.values().any(BTreeSet::is_empty) {
            return Err(D::Error::custom("an empty set"));
        }
        sets.into_iter().map(|(name, set)| Ok((read_or::<T, D>(name)?, set))).collect()
    }
}

/// Bytes or null, in hexadecimal.
pub(super) mod bytes {
    use super::*;

    pub(in super::super) fn serialize<S: Serializer>(value: &Option<Vec<u8>>, to: S) -> Result<S::Ok, S::Error> {
        let hex = value.as_ref().map(|bytes| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>());
        hex.serialize(to)
    }

    pub(in super::super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Vec<u8>>, D::Error> {
        let Some(hex) = Option::<String>::deserialize(from)? else { return Ok(None) };
        let even = hex.len().is_multiple_of(2) && hex.is_ascii();
        let bytes = even.then(|| hex.as_bytes().chunks(2).map(pair).collect::<Option<Vec<u8>>>()).flatten();
        bytes.map(Some).ok_or_else(|| D::Error::custom("not hexadecimal"))
    }

    fn pair(digits: &[u8]) -> Option<u8> {
        let [high, low] = digits else { return None };
        let digit = |&d: &u8| char::from(d).to_digit(16);
        u8::try_from(digit(high)? * 16 + digit(low)?).ok()
    }
}
