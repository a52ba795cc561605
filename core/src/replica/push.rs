//! What a leader and its followers say to each other (rules R3, R5, R8). Plain data: how it travels is not here.

use crate::records::Leader;
use millpond_log::{Batch, BrokerId, Incarnation, LeaderEpoch, Offset, Rid, TimestampMs};

/// A batch with what the log keeps beside it (rule W3).
#[derive(Clone, Debug, PartialEq)]
pub struct Placed {
    /// The batch, placed and stamped.
    pub batch: Batch,
    /// The leader's time of append, never going back.
    pub append_time: TimestampMs,
    /// Largest timestamp a reader finds in it: its records', or the append time where that stands for theirs.
    pub latest: TimestampMs,
    /// Chained hash of the log up to and with the batch (S6).
    pub prefix_hash: u64,
}

/// What every push of a leader says beside its batches; the newest one is always good enough.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PushHead {
    /// The epoch it leads in.
    pub epoch: LeaderEpoch,
    /// Which replica leads, and in which incarnation.
    pub leader: Leader,
    /// Epoch of the last unclean election, if there was one (rule E7).
    pub unclean_epoch: Option<LeaderEpoch>,
    /// The leader's high watermark.
    pub hw: Offset,
    /// First offset that exists.
    pub log_start: Offset,
    /// First offset not in object storage, as seen committed (rule T6).
    pub tiered_end: Offset,
}

/// A part of the leader's log on its way to one follower (rule R3). Without batches it carries only what moved.
#[derive(Clone, Debug, PartialEq)]
pub struct Push {
    /// What the leader says of itself.
    pub head: PushHead,
    /// Which cursor it belongs to.
    pub nonce: u64,
    /// First offset the leader's WAL still holds: a follower that shares nothing from there on takes the manifest (rule R12).
    pub start: Offset,
    /// Offset of the first batch.
    pub prev_offset: Offset,
    /// Epoch of the record before it, if there is one.
    pub prev_epoch: Option<LeaderEpoch>,
    /// Batches that adjoin, each with its place.
    pub batches: Vec<Placed>,
}

/// Where the pushes to one follower go on from. A newer one for the same follower replaces it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cursor {
    /// The follower.
    pub to: BrokerId,
    /// Tells the answers to this cursor from those to earlier ones.
    pub nonce: u64,
    /// Offset to push next.
    pub from: Offset,
    /// Epoch of the record before it, if there is one.
    pub prev_epoch: Option<LeaderEpoch>,
}

/// A follower's answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PushReply {
    /// Which replica.
    pub rid: Rid,
    /// Its incarnation.
    pub inc: Incarnation,
    /// The epoch of the push that is answered.
    pub epoch: LeaderEpoch,
    /// The cursor that is answered.
    pub nonce: u64,
    /// What became of it.
    pub said: Said,
}

/// What a follower answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Said {
    /// Everything below is the leader's log, verified in this epoch, and durable: `min(durable, matched)` (rule R8).
    Matched {
        /// End of it.
        end: Offset,
    },
    /// What came before the push differs, or is missing (rule R5). The two logs may agree up to `end`, and no further than the
    /// leader's own records of `epoch` reach.
    Mismatch {
        /// The follower's log end, or less: what is above was written in epochs that the leader does not have there.
        end: Offset,
        /// Epoch of the follower's record before `end`, if there is one.
        epoch: Option<LeaderEpoch>,
    },
    /// A higher epoch was seen: whoever pushes leads no longer (rule R4).
    Stale {
        /// That epoch.
        seen: LeaderEpoch,
    },
}
