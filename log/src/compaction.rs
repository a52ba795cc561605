//! Compaction of one partition: which records of a log stay, and the segments that hold them (rules C2, C3, S12).
//!
//! A *pass* covers the log from its first segment to a bound. It notes the newest offset of each key in the part that no pass covered
//! yet (`KeyOffsets`), then goes over all segments from the first one on, in groups that adjoin, and rewrites each group as one sparse
//! segment (`Rewrite`). Below the noted end it keeps the newest record of each key, records without a key, tombstones and markers
//! until their delete horizon, and nothing of aborted transactions; at and above it everything.
//!
//! The caller commits the groups in order, from the oldest, and ends a pass at the first that fails. All of a tombstone's horizon and of
//! a marker's rests on it: what has one was written when everything older of its key, or of its transaction, was gone.
//!
//! Pure but for the keys of the hashes, which are random. Reads, uploads and commits nothing, and has no clock.

mod aborted;
mod keys;
mod pass;
mod rewrite;

pub use aborted::AbortedTxns;
pub use keys::KeyOffsets;
pub use pass::Pass;
pub use rewrite::{Rewrite, Rewritten};

#[cfg(test)]
mod tests;
