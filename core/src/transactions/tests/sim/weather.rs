//! What one seed draws before anything happens, what a run can do without, and what is counted of it.

/// SplitMix64: one seed, one run.
pub(in super::super) struct Random(pub(super) u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub(super) fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound as u64) as usize
    }

    pub(super) fn percent(&mut self, chance: usize) -> bool {
        self.below(100) < chance
    }
}

/// A rule that a run can do without, to see that the checks miss it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) enum Removed {
    Nothing,
    /// Section 2.9: answers and effects wait for the store.
    Durability,
    /// X3: a first batch is verified.
    Verification,
    /// X5: complete only after the markers.
    Markers,
    /// O3: an owner that was replaced writes nothing.
    Fence,
    /// X3: what a group is told of a transaction counts from when it was asked, not from when it was told.
    Moment,
    /// X6: what is stable ends where a transaction is open.
    Stable,
    /// X5: a leader that knows a marker of this epoch, and of nothing that is open, proves all the same that it leads.
    Proof,
}

/// What happened, over many runs: a check that never sees something checks nothing.
#[derive(Clone, Copy, Debug, Default)]
pub(in super::super) struct Tally {
    pub(super) commits: u32,
    pub(super) aborts: u32,
    pub(super) fenced: u32,
    pub(super) undecided: u32,
    pub(super) failovers: u32,
    pub(super) group_failovers: u32,
    /// Offsets that transactions have committed.
    pub(super) offsets: u32,
    pub(super) restarts: u32,
    pub(super) depositions: u32,
    pub(super) timeouts: u32,
    pub(super) jumps: u32,
    pub(super) rotations: u32,
    /// Plain batches under the id of a transactional producer that were appended.
    pub(super) strays: u32,
    /// Transactions whose sequence numbers were used again.
    pub(super) numbered_anew: u32,
    /// Writes that were refused since theirs were.
    pub(super) used_up: u32,
}

/// How bad it is: of a thousand steps, or of a hundred messages.
#[derive(Clone, Copy, Debug)]
pub(super) struct Weather {
    pub(super) lose: usize,
    pub(super) repeat: usize,
    pub(super) late: usize,
    pub(super) crash: usize,
    pub(super) restart: usize,
    pub(super) depose: usize,
    pub(super) open: usize,
    pub(super) stall: usize,
    pub(super) stray: usize,
    pub(super) jump: usize,
    pub(super) regroup: usize,
}

impl Weather {
    /// Each fault is absent from some runs, so that what needs calm happens too.
    pub(super) fn draw(random: &mut Random) -> Weather {
        let mut draw = |most: usize| if random.percent(30) { 0 } else { random.below(most + 1) };
        Weather {
            lose: draw(15),
            repeat: draw(15),
            late: draw(15),
            crash: draw(8),
            restart: draw(8),
            depose: draw(4),
            open: draw(5),
            stall: draw(3),
            stray: draw(5),
            jump: draw(5),
            regroup: draw(4),
        }
    }
}
