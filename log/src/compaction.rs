//! Compaction of one partition: which records of a log stay, and the segments that hold them (rules C2, C3, S12). Pure, but that the keys of
//! its hashes are random. A *pass* notes the newest offset of each key in what no pass covered yet (`KeyOffsets`), then rewrites groups of
//! adjoining segments, from the first on, as one sparse segment each (`Rewrite`). At and above the noted end all stays; below it the newest
//! record of each key, records without one, tombstones and markers until their horizon, and nothing of aborted transactions. The caller
//! commits group after group, and ends a pass at the first that fails: a horizon rests on that, since what has one was written when all that
//! is older of its key, or of its transaction, was gone.

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
