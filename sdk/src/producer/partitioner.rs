//! Which partition a record goes to. Pure: keys land where Kafka's Java clients put them.

/// Kafka's hash of a key: MurmurHash2, 32 bits, seed `0x9747b28c`, as the Java client computes it.
#[must_use]
pub fn murmur2(key: &[u8]) -> i32 {
    const M: u32 = 0x5bd1_e995;
    let mut hash = 0x9747_b28c ^ (key.len() as u32);
    let (words, tail) = key.as_chunks::<4>();
    for word in words {
        let mut k = u32::from_le_bytes(*word).wrapping_mul(M);
        k = (k ^ (k >> 24)).wrapping_mul(M);
        hash = hash.wrapping_mul(M) ^ k;
    }
    if !tail.is_empty() {
        let rest = tail.iter().rev().fold(0, |rest, byte| (rest << 8) | u32::from(*byte));
        hash = (hash ^ rest).wrapping_mul(M);
    }
    hash = (hash ^ (hash >> 13)).wrapping_mul(M);
    (hash ^ (hash >> 15)).cast_signed()
}

/// The partition of a key among `count`, as Java's default partitioner chooses it.
pub(super) fn by_key(key: &[u8], count: u32) -> u32 {
    (murmur2(key).cast_unsigned() & 0x7fff_ffff) % count
}

/// The next partition for keyless records: any but the last one, so that load moves on with each batch.
pub(super) fn next_sticky(last: Option<u32>, count: u32, random: u32) -> u32 {
    match last {
        Some(last) if count > 1 && last < count => (last + 1 + random % (count - 1)) % count,
        _ => random % count,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hashes_are_those_of_the_java_client() {
        let check = |key: &str, expected| assert_eq!(murmur2(key.as_bytes()), expected, "{key}");
        check("21", -973_932_308);
        check("foobar", -790_332_482);
        check("a-little-bit-long-string", -985_981_536);
        check("a-little-bit-longer-string", -1_486_304_829);
        check("lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58_897_971);
        check("abc", 479_470_107);
    }

    #[test]
    fn keys_stay_inside_the_topic() {
        for key in ["21", "foobar", "abc", ""] {
            assert_eq!(by_key(key.as_bytes(), 1), 0);
            assert!(by_key(key.as_bytes(), 7) < 7);
        }
        // A negative hash loses its sign bit, as in Java, and is not made positive by negation.
        assert_eq!(by_key(b"21", 10), (-973_932_308i32 & i32::MAX).cast_unsigned() % 10);
    }

    #[test]
    fn sticky_partition_moves_on_when_it_can() {
        for random in 0..50 {
            assert_ne!(next_sticky(Some(3), 5, random), 3);
            assert!(next_sticky(Some(3), 5, random) < 5);
            assert_eq!(next_sticky(Some(0), 1, random), 0);
            assert!(next_sticky(Some(9), 4, random) < 4, "the topic was created again, smaller");
        }
        let reached: std::collections::BTreeSet<u32> = (0..4).map(|random| next_sticky(Some(3), 5, random)).collect();
        assert_eq!(reached.len(), 4, "every other partition is reached");
    }
}
