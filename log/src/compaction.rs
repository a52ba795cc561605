//! Compaction of one partition: which records of a log stay, and the segments that hold them (rules C2, C3, S12).
//!
//! A pass notes the newest offset of each key in what no pass covered yet (`KeyOffsets`), and writes all segments anew, in groups that adjoin
//! (`Rewrite`). Its caller commits these in order, from the oldest, and ends at the first that fails: so a tombstone or marker with a delete
//! horizon was written when everything older of its key, or of its transaction, was gone. Pure, but that keys are hashed at random.

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
