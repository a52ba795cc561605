//! The safety rules that can be taken away, one at a time, to see that the tests miss them. A broker runs with all of them.
//!
//! A switch of the test profile would not cross crates, so the rules are a value that the state machines carry.

/// A rule of `docs/safety.md`, or the part of one, whose removal is a mutation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Rule {
    /// B2, E4: a restarted broker leads nothing until it is elected again, in a higher epoch.
    EpochPerOffice,
    /// I3: a proposed shrink keeps its victim in the commit set until it is confirmed.
    ShrinkWaits,
    /// I3: a proposed member counts for the commit set before it is confirmed.
    ExpandCounts,
    /// I4: unconfirmed members do not count towards the least ISR.
    PendingIsNotQuorum,
    /// R8, W1: a follower acknowledges what is durable.
    AckDurable,
    /// R9: the leader counts its own durable end, not its log end.
    LeaderDurable,
    /// I5: a follower joins only once it holds the log end of the election.
    ExpandReachesElection,
    /// R6: a follower truncates where epochs differ, not to its high watermark.
    TruncateByEpoch,
    /// R8: an acknowledgement is bounded by what was verified in the epoch.
    AckMatched,
    /// R8: an acknowledgement of another epoch counts for nothing.
    AckOfEpoch,
    /// K5: an unresolved proposal is resolved only by a later revision.
    ProposalNeedsRevision,
    /// I1: no commit below the least ISR.
    LeastIsr,
    /// I7: whoever is left in the ELR by a greater least ISR goes when that is lowered.
    MinIsrClearsElr,
    /// R3: pushes of an older epoch are refused.
    RefuseOldEpoch,
    /// R5: the epoch before a push has to agree.
    PreviousEpoch,
    /// R4: the highest epoch seen survives a crash.
    EpochPersisted,
    /// R10: a persisted high watermark was durable when it was written.
    HighWatermarkDurable,
    /// E2: only members of ISR and ELR are electable.
    Electable,
    /// E6: nobody but a leader adds members.
    LeaderExpands,
    /// K2, B4: a lost disk is another replica.
    DiskGeneration,
    /// W3a: what was recovered counts as durable only once every file is synced.
    RecoveredSynced,
    /// B1a: a disk that is not the one that registered last is another replica.
    DiskIncarnation,
    /// T1: only committed offsets are tiered.
    TierCommitted,
    /// T6: trimming waits for the committed manifest.
    TrimAfterCommit,
    /// T5: a manifest is changed by compare-and-swap.
    TierCompare,
    /// G1: too old objects are not committed.
    ObjectsExpire,
    /// F3: a new leader knows where the log starts only once it has read it in its office.
    StartReadInOffice,
}

impl Rule {
    /// All of them.
    pub const ALL: [Rule; 27] = [
        Rule::EpochPerOffice,
        Rule::ShrinkWaits,
        Rule::ExpandCounts,
        Rule::PendingIsNotQuorum,
        Rule::AckDurable,
        Rule::LeaderDurable,
        Rule::ExpandReachesElection,
        Rule::TruncateByEpoch,
        Rule::AckMatched,
        Rule::AckOfEpoch,
        Rule::ProposalNeedsRevision,
        Rule::LeastIsr,
        Rule::MinIsrClearsElr,
        Rule::RefuseOldEpoch,
        Rule::PreviousEpoch,
        Rule::EpochPersisted,
        Rule::HighWatermarkDurable,
        Rule::Electable,
        Rule::LeaderExpands,
        Rule::DiskGeneration,
        Rule::RecoveredSynced,
        Rule::DiskIncarnation,
        Rule::TierCommitted,
        Rule::TrimAfterCommit,
        Rule::TierCompare,
        Rule::ObjectsExpire,
        Rule::StartReadInOffice,
    ];
}

/// Which rules are upheld.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rules {
    removed: Option<Rule>,
}

impl Rules {
    /// All of them: what every broker runs with.
    pub const ALL: Rules = Rules { removed: None };

    /// All but one, for the tests that have to notice.
    #[must_use]
    pub fn without(rule: Rule) -> Rules {
        Rules { removed: Some(rule) }
    }

    /// Whether `rule` is upheld.
    #[must_use]
    pub fn uphold(self, rule: Rule) -> bool {
        self.removed != Some(rule)
    }
}
