//! The waist's suite over every implementation, and what the store of transitions promises.

mod burial;
mod conformance;
mod control;
mod embedded;
mod group_settings;
mod owned;
mod replicas;
mod served;
mod shards;
mod slices;
mod store;
