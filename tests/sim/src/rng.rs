//! The one source of chance: SplitMix64 (Steele, Lea, Flood 2014), small and the same everywhere.

/// A seeded generator.
#[derive(Clone, Debug)]
pub(crate) struct Rng(u64);

impl Rng {
    /// The generator of one part of the world: another draw in one part does not shift the others.
    pub(crate) fn part(seed: u64, part: u64) -> Rng {
        let mut rng = Rng(seed.wrapping_mul(0x2545_f491_4f6c_dd1d) ^ part.wrapping_mul(0xd6e8_feb8_6659_fd93));
        rng.next();
        rng
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `bound`; 0 if that is 0.
    pub(crate) fn below(&mut self, bound: usize) -> usize {
        if bound == 0 { 0 } else { usize::try_from(self.next() % bound as u64).expect("below a usize") }
    }

    /// A number from `from` to `to`, both included.
    pub(crate) fn between(&mut self, from: u32, to: u32) -> u32 {
        from + u32::try_from(self.next() % u64::from(to - from + 1)).expect("below a u32")
    }

    pub(crate) fn per_mille(&mut self, chance: u32) -> bool {
        self.next() % 1000 < u64::from(chance)
    }
}
