//! The waist's suite over every implementation, and what the store of transitions promises.

mod conformance;
mod control;
mod embedded;
mod replicas;
mod served;
mod store;
