//! The partitions this broker holds: their shards, and the views that readers see.

pub(crate) mod ends;
pub(crate) mod links;
pub(crate) mod messages;
pub(crate) mod open;
pub(crate) mod recovery;
pub(crate) mod shard;
mod slot;
mod unverified;
pub(crate) mod view;
