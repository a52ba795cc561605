//! The names of things: topics, partitions, offsets, epochs, brokers, producers.
//!
//! Plain newtypes, so that no two of them can be swapped by mistake. Nothing here knows how they are stored or sent.

use std::fmt;

macro_rules! number {
    ($(#[$doc:meta])* $name:ident($inner:ty)) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub $inner);
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{}({})", stringify!($name), self.0)
            }
        }
    };
}

number! {
    /// Position of a record in its partition, from 0. Kafka's wire carries it as `i64`; the log never holds a negative one.
    Offset(u64)
}
number! {
    /// Counts the elections of a partition (rule E4). Kafka's wire carries it as `i32`, -1 for unknown.
    LeaderEpoch(u32)
}
number! {
    /// A broker of the cluster, chosen by the operator or allocated once.
    BrokerId(u32)
}
number! {
    /// Random identity of one broker's WAL contents (rule K2): it changes whenever the disk can no longer be trusted (rule B4).
    WalGen(u64)
}
impl WalGen {
    /// No WAL's: as the disk of a broker on record it says that an operator gave that broker's disk up for good (rule B4). Whatever the disk
    /// carried differs from it, should it come back.
    pub const LOST: WalGen = WalGen(0);
}
number! {
    /// One registration of a broker: the mod revision of its session key (section 2.1 of the safety rules).
    Incarnation(u64)
}
number! {
    /// Position of a frame in a broker's WAL, counted in frames over all files. Never reused within one `WalGen`.
    Lsn(u64)
}
number! {
    /// Identity of an idempotent producer. Kafka's wire carries it as `i64`, -1 for none.
    ProducerId(u64)
}
number! {
    /// Fences older instances of one producer. Kafka's wire carries it as `i16`; it stays at or below 32 766 (rule X1).
    ProducerEpoch(u16)
}
number! {
    /// Counts the owners of a coordinator shard (rule O3). Markers carry it, so that an earlier owner is refused (rule X5). Kafka's wire
    /// carries it as `i32`.
    CoordinatorEpoch(u32)
}
number! {
    /// Milliseconds since the Unix epoch. -1 is Kafka's "no timestamp".
    TimestampMs(i64)
}

impl Offset {
    /// The offset `count` records later.
    ///
    /// Panics past `u64::MAX`, which no log reaches.
    #[must_use]
    pub fn plus(self, count: u64) -> Offset {
        Offset(self.0.checked_add(count).expect("offsets stay below 2^63"))
    }
}

impl TimestampMs {
    /// Kafka's "no timestamp".
    pub const NONE: TimestampMs = TimestampMs(-1);
}

/// Identity of a topic for its whole life: a deleted and re-created topic of one name has another (rule K1). A random UUID.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TopicId(pub u128);

impl fmt::Display for TopicId {
    /// The hyphenated UUID, lower case.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let hex = format!("{:032x}", self.0);
        write!(f, "{}-{}-{}-{}-{}", &hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..])
    }
}

impl fmt::Debug for TopicId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TopicId({self})")
    }
}

impl std::str::FromStr for TopicId {
    type Err = InvalidTopicId;

    /// Reads what `Display` writes.
    fn from_str(text: &str) -> Result<TopicId, InvalidTopicId> {
        let groups: Vec<&str> = text.split('-').collect();
        let hyphenated = groups.iter().map(|group| group.len()).eq([8, 4, 4, 4, 12]);
        let hex = groups.concat();
        if !hyphenated || !hex.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return Err(InvalidTopicId);
        }
        u128::from_str_radix(&hex, 16).map(TopicId).map_err(|_| InvalidTopicId)
    }
}

/// The text is no hyphenated UUID.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a topic id: expected a UUID such as `0f8fad5b-d9cb-469f-a165-70867728950e`")]
pub struct InvalidTopicId;

/// One partition of a topic.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PartitionId {
    /// The topic.
    pub topic: TopicId,
    /// Index in the topic, from 0.
    pub index: u32,
}

impl fmt::Display for PartitionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.topic, self.index)
    }
}

/// A replica: a broker together with the contents of its disk (rule K2). An emptied disk makes another replica.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Rid {
    /// The broker.
    pub broker: BrokerId,
    /// The identity of its WAL.
    pub wal_gen: WalGen,
}

impl fmt::Display for Rid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{:016x}", self.broker, self.wal_gen.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn topic_id_reads_back_what_it_writes() {
        for id in [0, 1, u128::MAX, 0x0f8f_ad5b_d9cb_469f_a165_7086_7728_950e] {
            assert_eq!(TopicId(id).to_string().parse(), Ok(TopicId(id)));
        }
        for bad in [
            "",
            "0",
            "0f8fad5b-d9cb-469f-a165-70867728950",
            "+f8fad5b-d9cb-469f-a165-70867728950e",
            "zf8fad5b-d9cb-469f-a165-70867728950e",
        ] {
            assert_eq!(bad.parse::<TopicId>(), Err(InvalidTopicId), "{bad}");
        }
    }
}
