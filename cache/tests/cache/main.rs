//! The cache against real stores: in memory, in a directory, and one that fails on command.

#![allow(clippy::unwrap_used, reason = "a step that fails fails its test, helpers included")]

mod disk;
mod faults;
mod model;
mod reads;
mod store;
