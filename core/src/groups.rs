//! A coordinator's shard of groups: membership, assignment and committed offsets, with Kafka 4.3's semantics. A pure state machine.
//!
//! Its owner under the shard's epoch feeds it requests, time and topics, and persists what it says before it answers (rules O1, O3).
//! It never reads a clock, draws random numbers, or knows how records are stored.

mod assign;
mod bounds;
mod classic;
mod consumer;
mod embedded;
mod offsets;
mod patterns;
mod scope;
mod settings;
mod shard;
mod step;
mod timers;
mod topics;

pub use assign::Assignor;
pub use bounds::{CLASSIC_BYTES_MAX, GROUP_NAME_BYTES_MAX, SUBSCRIPTION_BYTES_MAX, TEXT_BYTES_MAX, WORDS_BYTES_MAX};
pub use patterns::Expression;
pub use settings::{
    GROUP_SETTINGS, GroupOverrides, GroupRules, GroupSetting, GroupSettingError, GroupTimes, alter as alter_settings,
    check as check_settings,
};
pub use shard::{MisplacedRecord, Shard, apply};
pub use step::*;
pub use topics::{Topic, Topics};

#[cfg(test)]
mod tests;
