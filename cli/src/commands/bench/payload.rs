//! Records to write: each different, the same in every run, and compressible only as far as asked.

use bytes::Bytes;

/// Makes keys and values from a counter.
#[derive(Clone, Copy, Debug)]
pub(super) struct Payload {
    /// Bytes of a value.
    pub(super) size: usize,
    /// How many keys there are; 0 for none.
    pub(super) keys: u64,
}

impl Payload {
    /// The value of record `number`: bytes without a pattern, so that no codec makes the test easier than it is.
    pub(super) fn value(self, number: u64) -> Bytes {
        let mut state = number;
        let mut value = Vec::with_capacity(self.size + 8);
        while value.len() < self.size {
            value.extend_from_slice(&mix(&mut state).to_le_bytes());
        }
        value.truncate(self.size);
        value.into()
    }

    /// The key of record `number`.
    pub(super) fn key(self, number: u64) -> Option<Bytes> {
        let mut state = number;
        (self.keys > 0).then(|| format!("key-{}", mix(&mut state) % self.keys).into())
    }
}

/// SplitMix64 (Steele, Lea and Flood, 2014): a full-period sequence that needs no seed beyond its state.
fn mix(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut z = *state;
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mix_is_splitmix64() {
        let mut state = 1_234_567;
        let first: [u64; 3] = std::array::from_fn(|_| mix(&mut state));
        assert_eq!(first, [6_457_827_717_110_365_317, 3_203_168_211_198_807_973, 9_817_491_932_198_370_423]);
    }

    #[test]
    fn records_differ_and_repeat() {
        let payload = Payload { size: 13, keys: 4 };
        assert_eq!(payload.value(1).len(), 13);
        assert_eq!(payload.value(1), payload.value(1));
        assert_ne!(payload.value(1), payload.value(2));
        let keys: std::collections::BTreeSet<Option<Bytes>> = (0..100).map(|number| payload.key(number)).collect();
        assert_eq!(keys.len(), 4);
        assert_eq!(Payload { size: 0, keys: 0 }.key(1), None);
    }
}
