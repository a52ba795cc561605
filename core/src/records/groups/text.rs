//! How the parts of group records are spelled in JSON. Each spelling has exactly one reading.

use super::Held;
use millpond_log::{PartitionId, TopicId};
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A hash, as 16 hexadecimal digits: JSON readers lose digits above 2^53.
pub(super) mod hash {
    use super::*;

    pub(in super::super) fn serialize<S: Serializer>(hash: &u64, to: S) -> Result<S::Ok, S::Error> {
        format!("{hash:016x}").serialize(to)
    }

    pub(in super::super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<u64, D::Error> {
        let text = String::deserialize(from)?;
        let hash = u64::from_str_radix(&text, 16).ok().filter(|hash| format!("{hash:016x}") == text);
        hash.ok_or_else(|| D::Error::custom("not 16 hexadecimal digits"))
    }
}

/// Bytes, in hexadecimal.
pub(super) mod bytes {
    use super::*;

    pub(in super::super) fn serialize<S: Serializer>(bytes: &[u8], to: S) -> Result<S::Ok, S::Error> {
        let digit = |nibble: u8| char::from_digit(nibble.into(), 16).expect("a nibble is a digit");
        let hex: String = bytes.iter().flat_map(|byte| [digit(byte >> 4), digit(byte & 15)]).collect();
        hex.serialize(to)
    }

    pub(in super::super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<u8>, D::Error> {
        let hex = String::deserialize(from)?;
        let digits: Option<Vec<u8>> = hex.bytes().map(digit).collect();
        let digits = digits.filter(|digits| digits.len().is_multiple_of(2));
        let digits = digits.ok_or_else(|| D::Error::custom("not hexadecimal"))?;
        Ok(digits.chunks_exact(2).map(|pair| pair[0] << 4 | pair[1]).collect())
    }

    fn digit(byte: u8) -> Option<u8> {
        match byte {
            b'0'..=b'9' => Some(byte - b'0'),
            b'a'..=b'f' => Some(byte - b'a' + 10),
            _ => None,
        }
    }
}

/// Partitions with their epochs: a list of topics and epochs, each with ranges of partitions, such as `0-3,7`.
pub(super) mod held {
    use super::*;
    use std::collections::BTreeMap;

    #[derive(Serialize, Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Run {
        topic: String,
        epoch: i32,
        partitions: String,
    }

    pub(in super::super) fn serialize<S: Serializer>(held: &Held, to: S) -> Result<S::Ok, S::Error> {
        let mut runs: BTreeMap<(TopicId, i32), Vec<u32>> = BTreeMap::new();
        for (partition, &epoch) in held {
            runs.entry((partition.topic, epoch)).or_default().push(partition.index);
        }
        let runs = runs.into_iter().map(|((topic, epoch), indexes)| Run {
            topic: topic.to_string(),
            epoch,
            partitions: spell(&indexes),
        });
        to.collect_seq(runs)
    }

    pub(in super::super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Held, D::Error> {
        let mut held = Held::new();
        for run in Vec::<Run>::deserialize(from)? {
            let topic: TopicId = run.topic.parse().map_err(|_| D::Error::custom("not a topic id"))?;
            let indexes = read(&run.partitions).ok_or_else(|| D::Error::custom("not ranges of partitions"))?;
            for index in indexes {
                if held.insert(PartitionId { topic, index }, run.epoch).is_some() {
                    return Err(D::Error::custom("a partition is there twice"));
                }
            }
        }
        Ok(held)
    }

    /// Ranges of numbers that ascend.
    fn spell(indexes: &[u32]) -> String {
        let mut ranges: Vec<(u32, u32)> = Vec::new();
        for &index in indexes {
            match ranges.last_mut() {
                Some((_, last)) if *last + 1 == index => *last = index,
                _ => ranges.push((index, index)),
            }
        }
        let word = |&(first, last): &(u32, u32)| match first == last {
            true => first.to_string(),
            false => format!("{first}-{last}"),
        };
        ranges.iter().map(word).collect::<Vec<String>>().join(",")
    }

    /// Most partitions that one range may claim: what no topic has, so that a damaged record cannot exhaust memory.
    const RANGE_MAX: u32 = 1 << 20;

    fn read(text: &str) -> Option<Vec<u32>> {
        let mut indexes = Vec::new();
        for word in text.split(',') {
            let (first, last) = word.split_once('-').unwrap_or((word, word));
            let (first, last) = (first.parse::<u32>().ok()?, last.parse::<u32>().ok()?);
            if first > last || last - first >= RANGE_MAX {
                return None;
            }
            indexes.extend(first..=last);
        }
        (indexes.is_sorted() && spell(&indexes) == text).then_some(indexes)
    }
}
