//! What the cluster decides, as pure state machines: `step(now, input, outputs)`. The simulator and the broker run this very code.
//!
//! Floor 1. No tokio, sockets, files, clocks or randomness of its own, and no `HashMap`, whose order is not deterministic.

pub mod collection;
pub mod controller;
pub mod coordinators;
pub mod election;
pub mod flush;
pub mod groups;
pub mod loss;
pub mod placement;
pub mod records;
pub mod replica;
pub mod rules;
#[cfg(test)]
mod seeds;
pub mod tail_segment;
pub mod tiering;
pub mod topic_config;
pub mod topic_name;
pub mod transactions;
